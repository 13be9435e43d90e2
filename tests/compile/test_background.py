"""Compilation in the background, kernels on disk, and one compilation per program, whoever asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tensorplay as tp

pytestmark = pytest.mark.requires("tvm")

CHAIN = "lambda x: tp.tanh(x * {k} + 1.0) * tp.sin(x)"


def chain(k: float) -> object:
    return lambda x: tp.tanh(x * k + 1.0) * tp.sin(x)


def test_native_code_runs_until_the_kernel_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: with background=True the first calls run native, reason Compiling; later ones TVM; the bits never change."""
    from tensorplay.backends.tvm import compile as compiling

    go = threading.Event()
    right = compiling._compile

    def held(*args: object) -> object:
        assert go.wait(60)
        return right(*args)

    monkeypatch.setattr(compiling, "_compile", held)
    x = tp.linspace(-2.0, 2.0, 1001)
    fn = chain(1.0625)
    compiled = tp.compile(fn, backend="tvm", on_fallback="record", background=True)
    first, report = compiled.run(x)
    assert [(r.marker.executor, r.reason.kind) for r in report.forward] == [("native", "Compiling")]
    assert "tvm" in str(report.forward[0].reason)
    assert compiled.builds == []
    go.set()
    end = time.monotonic() + 60
    while compiled.run(x)[1].forward[0].marker.executor != "tvm":
        assert time.monotonic() < end
        time.sleep(0.01)
    last, report = compiled.run(x)
    assert report.forward[0].reason is None
    assert first.numpy().tobytes() == last.numpy().tobytes() == fn(x).numpy().tobytes()
    assert [b["backend"] for b in compiled.builds] == ["tvm"]
    assert compiled.builds[0]["hash"] == report.forward[0].marker.proof


def test_a_kernel_that_cannot_be_made_leaves_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: an error of the background build is the reason of every later run, which stays right."""
    from tensorplay.backends.tvm import compile as compiling

    def broken(*_: object) -> object:
        raise ValueError("no kernel today")

    monkeypatch.setattr(compiling, "_compile", broken)
    x = tp.ones((5,))
    compiled = tp.compile(lambda x: x * 1.03125, backend="tvm", on_fallback="record", background=True)
    end = time.monotonic() + 60
    while (reason := compiled.run(x)[1].forward[0].reason).kind == "Compiling":
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (reason.kind, "no kernel today" in str(reason)) == ("LoweringFailed", True)
    assert compiled(x).tolist() == [1.03125] * 5


def test_many_threads_make_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: eight threads compile the same program of eight functions; one compilation, eight right results."""
    from tensorplay.backends.tvm import compile as compiling

    made: list[str] = []
    right = compiling._compile

    def counted(*args: object) -> object:
        made.append(args[-1])
        time.sleep(0.05)
        return right(*args)

    monkeypatch.setattr(compiling, "_compile", counted)
    x, fn = tp.linspace(-1.0, 1.0, 77), chain(1.09375)
    want, got = fn(x).numpy().tobytes(), []
    start = threading.Barrier(8)

    def call() -> None:
        start.wait()
        got.append(tp.compile(fn, backend="tvm", on_fallback="error")(x).numpy().tobytes())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 8
    assert len(made) == 1


def process(folder: Path, k: float) -> dict:
    """What a fresh process says of compiling and running one chain."""
    code = f"""
import json, sys
import tensorplay as tp
fn = {CHAIN.format(k=k)}
compiled = tp.compile(fn, backend="tvm", on_fallback="error")
x = tp.linspace(-2.0, 2.0, 999)
got, report = compiled.run(x)
y = tp.astype(x, tp.float64)
wide = tp.compile(lambda x: tp.exp(x) + {k}, backend="tvm", on_fallback="error")
assert wide(y).tolist() == (tp.exp(y) + {k}).tolist()
print(json.dumps({{
    "tvm": "tvm" in sys.modules, "right": got.tolist() == fn(x).tolist(), "builds": compiled.builds,
    "executor": report.forward[0].marker.executor, "proof": report.forward[0].marker.proof,
}}))
"""
    env = os.environ | {"XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cli(folder: Path, *words: str) -> str:
    env = os.environ | {"XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "tensorplay", "cache", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True).stdout


def test_a_kernel_outlives_its_process(tmp_path: Path) -> None:
    """5.4: a second process runs the kernel of the first without importing TVM; the CLI lists and removes it."""
    cold, warm = process(tmp_path, 1.5), process(tmp_path, 1.5)
    assert (cold["executor"], cold["right"], cold["tvm"]) == ("tvm", True, True)
    assert (warm["executor"], warm["right"], warm["tvm"]) == ("tvm", True, False)
    assert warm["proof"] == cold["proof"]
    assert [b["cached"] for b in cold["builds"] + warm["builds"]] == [False, True]
    listed = json.loads(cli(tmp_path, "--json"))
    assert len(listed) == 2
    assert "(float32) -> (float32)" in cli(tmp_path)
    assert cli(tmp_path, "--purge") == "removed 2 kernels\n"
    assert cli(tmp_path) == "no kernels are kept\n"
    assert process(tmp_path, 1.5)["tvm"] is True


def test_a_kernel_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    """5.4: a kernel whose bytes are not those of its digest is made anew."""
    process(tmp_path, 1.25)
    folder = tmp_path / "tensorplay" / "tvm"
    kernels = list(folder.glob("*.so"))
    assert kernels
    for path in kernels:
        path.write_bytes(path.read_bytes() + b"\0")
    again = process(tmp_path, 1.25)
    assert (again["right"], again["tvm"], again["builds"][0]["cached"]) == (True, True, False)


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    """5.4: nothing is loaded from, or written to, a folder that is not the user's alone."""
    folder = tmp_path / "tensorplay" / "tvm"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert process(tmp_path, 1.75)["tvm"] is True
    assert list(folder.iterdir()) == []


def test_old_kernels_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: beyond the limit the kernels go that were not used for longest."""
    from tensorplay.backends.tvm import disk

    monkeypatch.setattr(disk, "directory", lambda: tmp_path)
    monkeypatch.setattr(disk, "LIMIT", 250)
    for k in range(4):
        (tmp_path / f"{k}.so").write_bytes(b"x" * 100)
        (tmp_path / f"{k}.json").write_text("{}")
        os.utime(tmp_path / f"{k}.so", (k, k))
    disk._shrink(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "2.so", "3.json", "3.so"]


def test_many_processes_share_the_kernels(tmp_path: Path) -> None:
    """5.4: processes that make and read the same kernel at once all get it whole."""
    results: list[dict] = []
    threads = [threading.Thread(target=lambda: results.append(process(tmp_path, 1.125))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [r["right"] for r in results] == [True] * 3
    assert process(tmp_path, 1.125)["tvm"] is False
