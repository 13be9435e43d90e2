"""The TVM adapter as the executor sees it: probe, refusals, artifacts, cache, cost, threads."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from importlib import metadata

import numpy as np
import pytest

from backends.kernel_call import run_flat
from backends.scalar_program import Builder, evaluate, mismatch, samples
from tensorplay.backends import tvm
from tensorplay.backends.tvm import compile as stages
from tensorplay.backends.tvm.probe import PINNED
from tensorplay.backends.tvm.program import text

needs_tvm = pytest.mark.requires("tvm")
FLAT1 = {"kind": "flat", "scalar_inputs": [False]}


def simple(number=1.0):
    b = Builder("float32")
    return b.program(b.add(0, b.const("float32", number)))


# Probe and refusals: without tvm.


@pytest.mark.parametrize("missing", list(PINNED))
def test_probe_names_the_missing_package(monkeypatch, missing):
    def version(name):
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return PINNED[name]

    monkeypatch.setattr(metadata, "version", version)
    state = tvm.probe()
    assert state["available"] is False
    assert state["reason"] == f'{missing} is not installed; pip install "tensorplay-dispatch[tvm]"'
    assert state["details"]["kind"] == "BackendUnavailable"
    assert state["details"]["missing"] == missing


def test_probe_refuses_another_version(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.28.0")
    state = tvm.probe()
    assert state["available"] is False
    assert "apache-tvm 0.28.0 is installed, this backend is written for 0.27.0.post1" in state["reason"]
    assert state["details"]["kind"] == "VersionUnpinned"
    assert state["details"]["found"]["apache-tvm"] == "0.28.0"


def test_lowering_without_tvm_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.28.0")
    monkeypatch.setattr(stages.host, "_host", None)
    with pytest.raises(tvm.LoweringError) as caught:
        tvm.lower(simple(), FLAT1)
    assert (caught.value.kind, caught.value.stage) == ("VersionUnpinned", "probe")


def test_probing_and_asking_import_neither_tvm_nor_numpy():
    code = (
        "import sys, types, importlib; root = sys.argv[1]\n"
        "for name, sub in (('tensorplay', ''), ('tensorplay.backends', '/backends')):\n"
        "    module = types.ModuleType(name); module.__path__ = [root + sub]; sys.modules[name] = module\n"
        "from tensorplay.backends import tvm\n"
        "program = {'inputs': ['float32'], 'outputs': [1],\n"
        "           'instrs': [('input', 'float32', (), 0), ('neg', 'float32', (0,), None)]}\n"
        "assert tvm.supports(program) is None\n"
        "tvm.probe()\n"
        "print(sorted({'tvm', 'tvm_ffi', 'numpy', 'torch'} & set(sys.modules)))\n"
    )
    root = str(pathlib.Path(tvm.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def refusal_of(op, *dtypes, result=None):
    b = Builder(*dtypes)
    value = b._push(op, result or dtypes[-1], tuple(range(len(dtypes))))
    return tvm.supports(b.program(value))


def test_refusals_are_typed():
    assert refusal_of("add", "bfloat16", "bfloat16")["kind"] == "UnsupportedDType"
    dtype = refusal_of("exp", "float32")
    assert (dtype["kind"], dtype["details"]) == ("UnsupportedDType", {"op": "exp", "dtype": "float32"})
    assert "exp on float32" in dtype["message"]
    assert refusal_of("fma", "float16", "float16", "float16")["kind"] == "UnsupportedDType"
    assert refusal_of("div", "int32", "int32")["kind"] == "UnsupportedDType"
    assert refusal_of("sqrt", "bool")["kind"] == "UnsupportedDType"
    assert refusal_of("neg", "complex64")["kind"] == "UnsupportedDType"
    unknown = refusal_of("gather", "float32")
    assert (unknown["kind"], unknown["details"]["op"]) == ("UnsupportedOp", "gather")


@pytest.mark.parametrize(
    ("instr", "outputs"),
    [
        (("add", "float32", (0,), None), [1]),
        (("add", "float32", (0, 1), None), [1]),
        (("neg", "float64", (0,), None), [1]),
        (("lt", "float32", (0, 0), None), [1]),
        (("select", "float32", (0, 0, 0), None), [1]),
        (("const", "float32", (), 1 << 32), [1]),
        (("const", "float32", (), None), [1]),
        (("input", "float32", (), 1), [1]),
        (("input", "int32", (), 0), [1]),
        (("bitcast", "float64", (0,), None), [1]),
        (("neg", "float32", (0,), None), [2]),
        (("neg", "float32", (0,), None), []),
    ],
)
def test_a_malformed_program_is_refused_not_compiled(instr, outputs):
    program = {"inputs": ["float32"], "instrs": [("input", "float32", (), 0), instr], "outputs": outputs}
    refusal = tvm.supports(program)
    assert (refusal["kind"], refusal["details"]["stage"]) == ("LoweringFailed", "verify")
    with pytest.raises(tvm.LoweringError, match="malformed program"):
        tvm.lower(program, FLAT1)


def test_a_program_that_would_compile_for_seconds_is_refused():
    b = Builder("float32")
    value = 0
    for _ in range(5000):
        value = b.neg(value)
    refusal = tvm.supports(b.program(value))
    assert (refusal["kind"], refusal["details"]["stage"]) == ("LoweringFailed", "size")
    assert "5001 instructions" in refusal["message"]


def test_the_text_form():
    b = Builder("float32", "bool")
    program = b.program(b.mul(0, b.const("float32", 2.0)), 1)
    assert text(program).splitlines() == [
        "program(float32, bool) -> (float32, bool)",
        "%0:float32 = input 0",
        "%1:bool = input 1",
        "%2:float32 = const 0x40000000",
        "%3:float32 = mul %0 %2",
        "return %3 %1",
    ]


# Artifacts and the cache.


@needs_tvm
def test_an_artifact_says_what_it_is():
    artifact = tvm.lower(simple(3.0), FLAT1)
    assert artifact.address > 0
    assert artifact.handle > 0
    assert len(artifact.hash) == 64
    assert artifact.target.startswith("llvm -mcpu=")
    assert artifact.hash[:16] in artifact.proof
    assert (artifact.argspec.inputs, artifact.argspec.outputs, artifact.argspec.ints) == (1, 1, 2)
    strided = tvm.lower(simple(3.0), {"kind": "strided", "ndim": 3, "inner": [None]})
    assert strided.argspec.ints == 2 + 2 + 3
    assert strided.hash != artifact.hash


@needs_tvm
def test_the_same_program_and_layout_compile_once():
    first, again = tvm.lower(simple(4.0), FLAT1), tvm.lower(simple(4.0), FLAT1)
    assert (first.cached, again.cached) == (False, True)
    assert (first.address, first.hash) == (again.address, again.hash)
    assert again.seconds == 0.0
    others = [
        tvm.lower(simple(5.0), FLAT1),
        tvm.lower(simple(4.0), {"kind": "flat", "scalar_inputs": [True]}),
    ]
    assert [other.cached for other in others] == [False, False]
    assert len({first.hash, *(other.hash for other in others)}) == 3


@needs_tvm
def test_code_is_made_once_loaded_from_its_file_and_goes_with_its_owner(monkeypatch, tmp_path):
    """5.4: where there is a linker, a cold kernel is the file that later processes load."""
    program = simple(6.5)
    monkeypatch.setattr(stages.disk, "directory", lambda: tmp_path)
    stages._cache.reset()
    artifact = tvm.lower(program, FLAT1)
    data = np.arange(5, dtype=np.float32)
    (out,) = run_flat(program, [data])
    (path,) = tmp_path.glob("*.so")

    def mapped():
        return str(path) in pathlib.Path("/proc/self/maps").read_text()

    assert (artifact.cached, artifact.handle) == (False, 0)
    assert out.tolist() == (data + 6.5).tolist()
    assert mapped()
    stages._cache.reset()
    del artifact
    gc.collect()
    assert not mapped()
    monkeypatch.setattr(stages.disk.shutil, "which", lambda name: None)
    path.unlink()
    alone = tvm.lower(program, FLAT1)
    assert (alone.cached, alone.handle > 0, list(tmp_path.glob("*.so"))) == (False, True, [])
    assert run_flat(program, [data])[0].tolist() == out.tolist()


@needs_tvm
def test_the_hash_is_the_same_after_compiling_again():
    first = tvm.lower(simple(6.0), FLAT1)
    stages._cache.reset()
    again = tvm.lower(simple(6.0), FLAT1)
    assert (again.cached, again.hash) == (False, first.hash)


@needs_tvm
def test_the_cache_is_bounded_and_kernels_outlive_it(monkeypatch):
    monkeypatch.setattr(stages, "_CAPACITY", 2)
    stages._cache.reset()
    kept = tvm.lower(simple(7.0), FLAT1)
    for number in (8.0, 9.0):
        tvm.lower(simple(number), FLAT1)
    assert len(stages._cache._items) == 2
    assert tvm.lower(simple(7.0), FLAT1).cached is False
    assert kept.owner is not None


@needs_tvm
@pytest.mark.parametrize(
    "layout",
    [
        {"kind": "tiled"},
        {"kind": "flat", "scalar_inputs": []},
        {"kind": "strided", "ndim": 2, "inner": [2]},
        {"kind": "strided", "ndim": 0, "inner": [1]},
        {"kind": "flat"},
    ],
)
def test_a_layout_that_does_not_fit_is_a_typed_error(layout):
    with pytest.raises(tvm.LoweringError) as caught:
        tvm.lower(simple(), layout)
    assert (caught.value.kind, caught.value.stage) == ("LoweringFailed", "layout")


@needs_tvm
def test_a_compiler_error_is_one_line_with_its_stage(monkeypatch):
    tvm.lower(simple(), FLAT1)
    monkeypatch.setattr(stages.host, "PIPELINE", "no such pipeline")
    with pytest.raises(tvm.LoweringError) as caught:
        tvm.lower(simple(10.0), FLAT1)
    assert (caught.value.kind, caught.value.stage) == ("LoweringFailed", "compile")
    assert "no such pipeline" in caught.value.message
    assert "\n" not in caught.value.message


@needs_tvm
def test_loading_the_compiler_leaves_the_process_as_it_was(tmp_path):
    code = (
        "import sys, types, ctypes, signal, faulthandler; root = sys.argv[1]\n"
        "for name, sub in (('tensorplay', ''), ('tensorplay.backends', '/backends')):\n"
        "    module = types.ModuleType(name); module.__path__ = [root + sub]; sys.modules[name] = module\n"
        "from tensorplay.backends import tvm\n"
        "tvm.disk.directory = lambda: None\n"
        "hook = sys.excepthook = lambda *error: None\n"
        "faulthandler.enable()\n"
        "program = {'inputs': ['float32'], 'outputs': [1],\n"
        "           'instrs': [('input', 'float32', (), 0), ('neg', 'float32', (0,), None)]}\n"
        "tvm.lower(program, {'kind': 'flat', 'scalar_inputs': [False]})\n"
        "assert 'tvm' in sys.modules\n"
        "assert sys.excepthook is hook\n"
        "print('kept', flush=True)\n"
        "ctypes.string_at(0)\n"
    )
    root = str(pathlib.Path(tvm.__file__).parents[2])
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}  # no kernel of an earlier run
    done = subprocess.run(
        [sys.executable, "-c", code, root], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.stdout == "kept\n"
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr  # faulthandler's own words


# Cost.


def best_seconds(make, layout):
    """Processor time of the quickest of three alike programs: other processes share the machine."""
    tvm.lower(simple(), FLAT1)  # the import is not part of it
    taken = []
    for shift in (0, 1, 2):
        start = time.process_time()
        assert tvm.lower(make(shift), layout).cached is False
        taken.append(time.process_time() - start)
    return min(taken)


def chain(length, shift=0):
    b = Builder("float32", "float32")
    value = 0
    for k in range(length // 2):
        value = b.add(b.mul(value, 1), b.const("float32", shift + k / 7))
    return b.program(value)


@needs_tvm
def test_a_chain_of_200_ops_compiles_quickly_and_exactly():
    flat2 = {"kind": "flat", "scalar_inputs": [False, False]}
    assert best_seconds(lambda shift: chain(200, shift), flat2) < 0.5
    program = chain(200)
    arrays = [samples("float32", 1001, seed) for seed in (1, 2)]
    (got,), (want,) = run_flat(program, arrays), evaluate(program, arrays)
    assert mismatch("float32", got, want).size == 0


def shared_selects(depth, shift=0):
    """Every level uses the one below it three times: 3 ** depth terms when written out."""
    b = Builder("float32")
    value = 0
    for k in range(depth):
        value = b.select(b.lt(value, b.const("float32", k + shift)), b.add(value, value), b.mul(value, value))
    return b.program(value)


@needs_tvm
def test_shared_selects_compile_in_linear_time():
    assert best_seconds(lambda shift: shared_selects(60, shift), FLAT1) < 1.0
    program = shared_selects(60)
    arrays = [samples("float32", 1001)]
    (got,), (want,) = run_flat(program, arrays), evaluate(program, arrays)
    assert mismatch("float32", got, want).size == 0


# Threads and processes.


@needs_tvm
def test_eight_threads_compile_at_once():
    numbers = [20.0 + k // 2 for k in range(8)]  # each program is asked for by two threads
    found, start = [None] * 8, threading.Barrier(8)

    def work(k):
        start.wait()
        found[k] = tvm.lower(simple(numbers[k]), FLAT1)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not artifact.cached for artifact in found) == 4
    x = samples("float32", 101)
    for number in set(numbers):
        (got,) = run_flat(simple(number), [x])
        (want,) = evaluate(simple(number), [x])
        assert mismatch("float32", got, want).size == 0


@needs_tvm
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_compiles_though_the_parent_held_the_lock():
    tvm.lower(simple(), FLAT1)
    with stages._cache.compiling:
        child = os.fork()
        if child == 0:
            try:
                (got,) = run_flat(simple(30.0), [np.ones(3, np.float32)])
                os._exit(0 if got.tolist() == [31.0] * 3 else 1)
            finally:
                os._exit(2)
    deadline, status = time.monotonic() + 30, (0, 0)
    while status[0] == 0 and time.monotonic() < deadline:
        status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if status[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == (child, 0)
