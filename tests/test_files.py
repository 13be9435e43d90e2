"""Files: safetensors round trips, and what a broken or hostile file meets."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from arrays import NUMPY_DTYPES
from tensorplay.errors import DTypeError, InvalidValueError


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    x = tp.arange(6).reshape(2, 3)
    tensors = {name: (x * 0.5).to(getattr(tp, name)) for name in [*NUMPY_DTYPES, "bfloat16"]}
    tensors |= {"transposed": x.T, "scalar": tp.tensor(3.5), "empty": tp.zeros([0, 2])}
    tp.save(path, tensors, metadata={"made by": "a test"})
    back = tp.load(path)
    assert set(back) == set(tensors)
    for name, value in tensors.items():
        assert back[name].dtype is value.dtype
        assert back[name].shape == value.shape
        assert back[name].tolist() == value.tolist()
        assert not back[name].is_readonly
    assert tp.load_metadata(path) == {"made by": "a test"}


def test_files_are_the_format_others_read(tmp_path: Path) -> None:
    numpy_side = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "x.safetensors"
    tp.save(path, {"a": tp.arange(6, dtype=tp.float32).reshape(2, 3).T})
    assert numpy_side.load_file(path)["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    numpy_side.save_file({"b": np.arange(3)}, path)
    assert tp.load(path)["b"].tolist() == [0, 1, 2]


def test_shared_memory_is_not_saved_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    x = tp.arange(6)
    with pytest.raises(InvalidValueError, match="'a' and 'b' share memory"):
        tp.save(path, {"a": x, "b": x[2:]})
    a = np.arange(4)
    with pytest.raises(InvalidValueError, match="share memory"):
        tp.save(path, {"a": tp.from_numpy(a), "b": tp.from_numpy(a)})
    assert not path.exists()
    tp.save(path, {"a": x[:3], "b": x[3:], "c": x[:0]})
    assert tp.load(path)["b"].tolist() == [3, 4, 5]


def header(text: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01",
        header(b"{}", length=1 << 60),
        header(b"not json"),
        header(b"{}", b"more"),
        header(json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode(), b"1234"),
        header(json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode(), b"12"),
        header(
            json.dumps({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 4]}}).encode(), b"1234"
        ),
        header(
            json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}).encode(), b"12345678"
        ),
    ],
    ids=["empty", "short", "length", "json", "surplus", "size", "cut", "overflow", "gap"],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidValueError, match="is no safetensors file") as caught:
        tp.load(path)
    assert caught.value.code == "TP1164"


def test_other_file_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tp.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="absent") as missing:
        tp.save(tmp_path / "absent" / "x", {"a": tp.tensor(1)})
    assert missing.value.filename == str(tmp_path / "absent" / "x")
    assert str(missing.value).startswith("[Errno 2] No such file or directory: ")
    for at_a_folder in (tp.load, tp.load_metadata, lambda path: tp.save(path, {"a": tp.tensor(1)})):
        with pytest.raises(IsADirectoryError):
            at_a_folder(tmp_path)
    with pytest.raises(TypeError, match=r"a Tensor under the name 'a'"):
        tp.save(tmp_path / "x", {"a": 1})
    path = tmp_path / "f8"
    info = {"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}
    path.write_bytes(header(json.dumps(info).encode(), b"1"))
    with pytest.raises(DTypeError, match="'a' has elements of type F8_E4M3"):
        tp.load(path)


def test_the_name_that_a_file_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    """What could not be loaded again is not saved, and nothing is written."""
    path = tmp_path / "t.safetensors"
    with pytest.raises(InvalidValueError, match="__metadata__") as caught:
        tp.save(path, {"a": tp.ones((1,)), "__metadata__": tp.ones((2,))})
    assert caught.value.code == "TP1166"
    assert not path.exists()


def test_a_saved_file_has_the_permissions_of_a_new_one(tmp_path: Path) -> None:
    """Or those of the file that it takes the place of."""
    path, plain = tmp_path / "t.safetensors", tmp_path / "plain"
    plain.touch()
    tp.save(path, {"a": tp.ones((2,))})
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    tp.save(path, {"a": tp.zeros((3,))})
    assert path.stat().st_mode & 0o777 == 0o640
    assert tp.load(path)["a"].tolist() == [0.0, 0.0, 0.0]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link, later = tmp_path / "there" / "real", tmp_path / "link", tmp_path / "later"
    real.touch()
    link.symlink_to(real)
    later.symlink_to(tmp_path / "there" / "new")
    for at in (link, later):
        tp.save(at, {"a": tp.ones((2,))})
        assert at.is_symlink()
    for at in (real, tmp_path / "there" / "new"):
        assert not at.is_symlink()
        assert tp.load(at)["a"].tolist() == [1.0, 1.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["later", "link", "there"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    """What is no regular file is not replaced by one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        tp.save(pipe, {"a": tp.ones((2,))})
        content = os.read(end, 65536)
    finally:
        os.close(end)
    assert pipe.is_fifo()
    (tmp_path / "copy").write_bytes(content)
    assert tp.load(tmp_path / "copy")["a"].tolist() == [1.0, 1.0]


def test_what_is_not_saved_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tp.save(path, {"a": tp.ones((2,))})
    before = path.read_bytes()
    x = tp.ones((4,))
    for bad in ({"a": x, "b": x[1:]}, {"a": 1}, {"a": tp.empty((2,), device="meta")}):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            tp.save(path, bad)
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            tp.save(tmp_path / "new", bad)
    assert path.read_bytes() == before
    assert not (tmp_path / "new").exists()
