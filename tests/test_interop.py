"""Tensors from and to other libraries: buffers, NumPy, DLPack, files."""

from __future__ import annotations

import array
import ctypes
import gc
import json
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.errors import ArgumentError, AutogradError, DTypeError, InvalidValueError

NUMPY_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def sample(name: str = "float32") -> np.ndarray:
    return np.arange(24).reshape(2, 3, 4).astype(name)


VIEWS = {
    "whole": lambda x: x,
    "tail": lambda x: x[1:],
    "every other": lambda x: x[:, :, ::2],
    "transposed": lambda x: x[0].T,
    "column": lambda x: x[:, 1, :],
    "0-d": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, :0],
    "expanded": lambda x: x[0, 0][None].repeat(2, 0) if isinstance(x, np.ndarray) else x[0, 0].expand(2, 4),
}


# --- NumPy ---


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_numpy_round_trip_shares_memory(name: str) -> None:
    a = sample(name)
    x = tp.from_numpy(a)
    assert x.dtype is getattr(tp, name)
    assert x.data_ptr() == a.ctypes.data
    b = x.numpy()
    assert b.dtype == a.dtype
    assert b.dtype.char == np.dtype(name).char
    assert np.shares_memory(a, b)
    assert b.tolist() == a.tolist()
    a[0, 0, 0] = 1
    assert x[0, 0, 0].item() == 1
    x[1, 1, 1] = 0
    assert a[1, 1, 1] == 0


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_both_ways(view) -> None:
    a = sample()
    from_array = tp.from_numpy(np.asarray(view(a)))
    assert from_array.tolist() == view(a).tolist()
    lent = view(tp.tensor(a)).numpy()
    assert lent.shape == view(a).shape
    assert lent.tolist() == view(a).tolist()
    assert tp.from_numpy(lent).tolist() == view(a).tolist()


def test_odd_strides() -> None:
    a = sample()
    flipped = a[::-1, :, ::-1]
    assert tp.from_numpy(flipped).tolist() == flipped.tolist()
    assert (tp.from_numpy(flipped) * 2).tolist() == (flipped * 2).tolist()
    assert tp.from_numpy(flipped).stride() == (-12, 4, -1)
    raw = np.zeros(17, dtype=np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = [1, 2, 3, 4]
    assert unaligned.ctypes.data % 4 != 0
    assert (tp.from_numpy(unaligned) + 1).tolist() == [2, 3, 4, 5]
    wide = np.zeros((1, 5), dtype=np.float32)
    strange = np.lib.stride_tricks.as_strided(wide, (1, 5), (77 * 4, 4))
    assert tp.from_numpy(strange).stride() == (77, 1)
    fields = np.zeros(3, dtype=[("a", "f4"), ("b", "i1")])
    with pytest.raises(InvalidValueError, match="no multiple of 4"):
        tp.from_numpy(fields["a"])


def test_read_only_stays_read_only() -> None:
    a = np.arange(3)
    a.flags.writeable = False
    x = tp.from_numpy(a)
    assert x.is_readonly
    assert x[1:].is_readonly
    assert not x.numpy().flags.writeable
    assert memoryview(x).readonly
    with pytest.raises(InvalidValueError, match="read-only"):
        x += 1
    with pytest.raises(BufferError, match="read-only"):
        np.frombuffer(x, dtype=np.int64).flags.writeable = True
        memoryview(x).cast("B")[0] = 1
        ctypes.c_char.from_buffer(x)
    assert (x + 1).tolist() == [1, 2, 3]
    assert not tp.tensor(a).is_readonly


@pytest.mark.parametrize(
    "name", [">f4", ">i8", "complex64", "uint16", "uint64", "U3", "M8[s]", "O", "longdouble"]
)
def test_unknown_elements_are_refused_by_name(name: str) -> None:
    a = np.zeros(2, dtype=name)
    with pytest.raises(DTypeError, match=a.dtype.name) as caught:
        tp.from_numpy(a)
    assert caught.value.code == "TP1204"


def test_from_numpy_takes_arrays_only() -> None:
    with pytest.raises(ArgumentError, match="must be a NumPy array, got"):
        tp.from_numpy([1, 2])
    with pytest.raises(ArgumentError, match="must be a NumPy array, got"):
        tp.from_numpy(tp.tensor([1]))


def test_bfloat16_needs_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = tp.tensor([[1.5, -2.0], [float("inf"), 0.0]]).bfloat16()
    a = x.numpy()
    assert a.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(a, x.T.numpy())
    assert a.astype(np.float32).tolist() == x.tolist()
    assert np.asarray(x).dtype == ml_dtypes.bfloat16
    back = tp.from_numpy(a[:, ::-1])
    assert back.dtype is tp.bfloat16
    assert back.tolist() == x.flip(1).tolist()
    a[0, 0] = 7
    assert x[0, 0].item() == 7
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(x)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        x.numpy()


def test_array_protocol() -> None:
    x = tp.tensor([1.0, 2.0])
    assert np.shares_memory(np.asarray(x), np.asarray(x))
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(x), np.asarray(x))
    assert np.shares_memory(np.asarray(x, copy=False), np.asarray(x))
    assert x.__array__(np.int32).tolist() == [1, 2]
    with pytest.raises(ValueError, match="copy"):
        x.__array__(np.int32, copy=False)
    assert not np.shares_memory(x.__array__(copy=True), np.asarray(x))
    with pytest.raises(TypeError):
        np.sin(x)


def test_what_is_differentiated_is_not_lent() -> None:
    x = tp.tensor([1.0], requires_grad=True)
    with pytest.raises(AutogradError) as caught:
        x.numpy()
    assert "use x.detach().numpy()" in caught.value.__notes__
    with pytest.raises(AutogradError):
        np.asarray(x)
    with pytest.raises(BufferError, match="detach"):
        memoryview(x)
    with pytest.raises(BufferError, match="detach"):
        x.__dlpack__()
    assert x.detach().numpy().tolist() == [1.0]


def test_lifetimes() -> None:
    class Tracked(np.ndarray):
        pass

    dead: list[int] = []
    a = np.arange(4.0).view(Tracked)
    import weakref

    weakref.finalize(a, dead.append, 1)
    x = tp.from_numpy(a)[1:]
    del a
    gc.collect()
    assert not dead
    assert x.tolist() == [1.0, 2.0, 3.0]
    del x
    gc.collect()
    assert dead == [1]

    y = tp.arange(4)
    b = y.numpy()
    ref = weakref.ref(y)
    del y
    assert ref() is not None
    assert b.tolist() == [0, 1, 2, 3]
    del b
    assert ref() is None


def test_memory_borrowed_from_python_may_be_dropped_by_any_thread() -> None:
    dead: list[int] = []
    import weakref

    class Tracked(np.ndarray):
        pass

    a = np.arange(4.0).view(Tracked)
    weakref.finalize(a, dead.append, 1)
    box = [tp.from_numpy(a)]
    del a
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert dead == [1]


def test_nothing_is_leaked_or_freed_twice() -> None:
    a = np.arange(1000.0)

    def work() -> None:
        for _ in range(100):
            x = tp.from_numpy(a)
            np.from_dlpack(x)
            tp.from_dlpack(a)
            x.__dlpack__(max_version=(1, 0))
            x.__dlpack__()
            memoryview(x[::2])
            tp.asarray(x.numpy()[::-1])

    work()
    before = sys.getrefcount(a)
    work()
    gc.collect()
    assert sys.getrefcount(a) == before


# --- buffers ---


def test_other_buffers() -> None:
    assert tp.asarray(array.array("d", [1.0, 2.0])).dtype is tp.float64
    data = bytearray(b"\x01\x02")
    x = tp.asarray(data)
    assert x.dtype is tp.uint8
    x[0] = 7
    assert data[0] == 7
    with pytest.raises(BufferError):
        data.append(1)
    del x
    data.append(1)
    assert tp.asarray(b"ab").is_readonly
    assert tp.tensor(b"ab").tolist() == [97, 98]


def test_memoryviews() -> None:
    x = tp.arange(6, dtype=tp.float32).reshape(2, 3)
    view = memoryview(x)
    assert (view.format, view.shape, view.strides, view.itemsize) == ("f", (2, 3), (12, 4), 4)
    assert view.tolist() == x.tolist()
    assert memoryview(x.T).strides == (4, 12)
    assert memoryview(x.half()).format == "e"
    assert memoryview(x > 1).format == "?"
    assert bytes(x[0]) == struct.pack("3f", 0, 1, 2)
    assert memoryview(tp.tensor(1.0)).shape == ()
    assert memoryview(tp.zeros([0, 3])).tolist() == []
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(x.T, dtype=np.float32)
    with pytest.raises(BufferError, match="without data"):
        memoryview(x.to("meta"))


# --- asarray and tensor ---


def test_asarray_shares_and_tensor_copies() -> None:
    a = np.arange(3.0)
    assert tp.asarray(a).data_ptr() == a.ctypes.data
    assert tp.tensor(a).data_ptr() != a.ctypes.data
    x = tp.asarray(a)
    assert tp.asarray(x) is x
    assert tp.asarray(x, copy=True).data_ptr() != x.data_ptr()
    assert tp.asarray([1, 2]).tolist() == [1, 2]
    assert tp.asarray(a, dtype=tp.float32).dtype is tp.float32
    with pytest.raises(InvalidValueError, match="copy is False"):
        tp.asarray([1, 2], copy=False)
    with pytest.raises(InvalidValueError, match="copy is False"):
        tp.asarray(a, dtype=tp.float32, copy=False)
    assert tp.tensor(np.float32(2.5)).dtype is tp.float32
    assert tp.tensor(np.int8(2)).dtype is tp.int8
    assert tp.tensor([np.float32(1), np.float32(2)]).tolist() == [1.0, 2.0]


def test_a_foreign_array_as_an_argument_shows_the_way() -> None:
    with pytest.raises(ArgumentError) as caught:
        tp.exp(np.ones(2))
    assert any("tensorplay.from_dlpack(x)" in note for note in caught.value.__notes__)


# --- DLPack ---


@pytest.mark.parametrize("name", NUMPY_DTYPES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_dlpack_both_ways(name: str, view) -> None:
    a = sample(name)
    x = view(tp.tensor(a))
    lent = np.from_dlpack(x)
    assert lent.dtype == a.dtype
    assert lent.tolist() == view(a).tolist()
    taken = tp.from_dlpack(np.asarray(view(a)))
    assert taken.dtype is x.dtype
    assert taken.tolist() == view(a).tolist()
    assert tp.from_dlpack(x).tolist() == x.tolist()


class DLDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def look(x: tp.Tensor, **options: object) -> tuple[object, Versioned]:
    capsule = x.__dlpack__(max_version=(1, 3), **options)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return capsule, Versioned.from_address(get(capsule, b"dltensor_versioned"))


def test_the_exported_structure() -> None:
    x = tp.arange(154, dtype=tp.float32).reshape(2, 77)[1:]
    capsule, m = look(x)
    assert "dltensor_versioned" in repr(capsule)
    assert (m.major, m.minor, m.flags) == (1, 3, 0)
    t = m.tensor
    assert (t.data, t.byte_offset) == (x.data_ptr(), 0)
    assert (t.device.kind, t.device.index, t.ndim) == (1, 0, 2)
    assert (t.code, t.bits, t.lanes) == (2, 32, 1)
    assert (t.shape[:2], t.strides[:2]) == ([1, 77], [77, 1])
    assert look(tp.zeros([0, 3]))[1].tensor.data is None
    assert look(tp.zeros([0, 3]))[1].tensor.strides[:2] == [3, 1]
    assert look(x.bfloat16())[1].tensor.code == 4
    assert look(x > 0)[1].tensor.code == 6
    copied_capsule, copied = look(x, copy=True)
    assert copied.flags == 2
    assert copied.tensor.data != x.data_ptr()
    assert copied_capsule is not None


def test_dlpack_options() -> None:
    x = tp.tensor([1.0, 2.0])
    assert x.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))
    assert "versioned" in repr(x.__dlpack__(max_version=(2, 0), dl_device=(1, 0), copy=False))
    with pytest.raises(BufferError, match="stream"):
        x.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy is False"):
        x.__dlpack__(dl_device=(2, 0), copy=False)
    with pytest.raises(ArgumentError, match="no argument 'what'"):
        x.__dlpack__(what=1)
    with pytest.raises(BufferError, match="meta"):
        x.to("meta").__dlpack__()


def test_dlpack_keeps_read_only() -> None:
    a = np.arange(3.0)
    a.flags.writeable = False
    x = tp.from_dlpack(a)
    assert x.is_readonly
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()
    assert not tp.from_dlpack(a, copy=True).is_readonly


def test_dlpack_bfloat16_and_copies() -> None:
    x = tp.tensor([1.5]).bfloat16()
    y = tp.from_dlpack(x)
    assert y.dtype is tp.bfloat16
    assert y.data_ptr() == x.data_ptr()
    assert tp.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert tp.from_dlpack(x, device="cpu").data_ptr() == x.data_ptr()


def test_capsules_are_taken_once() -> None:
    x = tp.tensor([1.0, 2.0])
    capsule = x.__dlpack__()
    assert tp.from_dlpack(capsule).tolist() == [1.0, 2.0]
    with pytest.raises(BufferError, match="only once"):
        tp.from_dlpack(capsule)
    with pytest.raises(TypeError, match="__dlpack__"):
        tp.from_dlpack([1])


def test_dlpack_refuses_elements_by_code() -> None:
    with pytest.raises(BufferError, match="type code 5 with 64 bits"):
        tp.from_dlpack(np.zeros(2, dtype=np.complex64))
    with pytest.raises(BufferError, match="unsigned integer"):
        tp.from_dlpack(np.zeros(2, dtype=np.uint16))


def test_old_producers() -> None:
    class Old:
        def __init__(self, inner: np.ndarray) -> None:
            self.inner = inner

        def __dlpack__(self) -> object:
            return self.inner.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    a = np.arange(3.0)
    assert tp.from_dlpack(Old(a)).data_ptr() == a.ctypes.data
    assert tp.tensor(Old(a)).tolist() == [0.0, 1.0, 2.0]


def test_memory_outlives_the_capsule_on_both_sides() -> None:
    x = tp.arange(5)
    b = np.from_dlpack(x[2:])
    del x
    gc.collect()
    assert b.tolist() == [2, 3, 4]
    a = np.arange(5)
    y = tp.from_dlpack(a[2:])
    del a
    gc.collect()
    assert y.tolist() == [2, 3, 4]


def test_the_c_exchange_table() -> None:
    ffi = pytest.importorskip("tvm_ffi")
    capsule = tp.Tensor.__dlpack_c_exchange_api__
    assert "dlpack_exchange_api" in repr(capsule)
    echo = ffi.get_global_func("testing.echo")
    x = tp.arange(6, dtype=tp.float32).reshape(2, 3).T
    back = echo(x)
    assert np.from_dlpack(back).tolist() == x.tolist()
    with pytest.raises(BufferError, match="detach"):
        echo(tp.tensor([1.0], requires_grad=True))


# --- files ---


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
    assert caught.value.code == "TP1132"


def test_other_file_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tp.load(tmp_path / "absent")
    with pytest.raises(OSError, match="absent"):
        tp.save(tmp_path / "absent" / "x", {"a": tp.tensor(1)})
    with pytest.raises(TypeError, match="'a' must be a tensorplay.Tensor"):
        tp.save(tmp_path / "x", {"a": 1})
    path = tmp_path / "f8"
    info = {"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}
    path.write_bytes(header(json.dumps(info).encode(), b"1"))
    with pytest.raises(DTypeError, match="'a' has elements of type F8_E4M3"):
        tp.load(path)
