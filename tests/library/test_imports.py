"""Optional packages stay optional: what importing the library loads, and what it says when they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tensorplay as tp
from tensorplay import backends

NOTHING = """
import sys
import tensorplay, tensorplay.library
loaded = [m for m in ("numpy", "triton", "tvm", "torch", "jax") if m in sys.modules]
assert loaded == [], loaded
"""

LIGHT = """
import sys
before = set(sys.modules)
import tensorplay as tp
loaded = set(sys.modules) - before
heavy = {"numpy", "triton", "tvm", "typing", "dataclasses", "inspect", "html", "pickle", "re", "importlib.metadata"}
assert not heavy & loaded, heavy & loaded
own = {name.partition(".")[2] for name in loaded if name.startswith("tensorplay.")}
assert not {"_definitions", "_library", "_verify", "_vmap", "backends.base"} & own, own
late = {"backends", "cuda", "func", "graph", "library", "outcome", "testing", "verify"}
assert {name for name in own if type(sys.modules[f"tensorplay.{name}"]).__module__ == "tensorplay._later"} == late
assert (tp.tensor([1.0]) + 1).tolist() == [2.0]
assert "tensorplay._library" not in sys.modules
"""

RESOLVES = """
import sys
import tensorplay as tp
assert set(tp.__all__) <= set(dir(tp))
assert "__getattr__" not in vars(tp), "no name of a module with one is read quickly"
for name in tp.__all__:
    value = getattr(tp, name)
    assert getattr(tp, name) is value, name
    module = sys.modules.get(f"tensorplay.{name}")
    assert module is None or value is module, name
assert tp.compile is tp.compiler.compile and tp.trace is tp.tracing.trace
assert tp.no_grad is tp.autograd.no_grad and tp.is_grad_enabled is tp.autograd.is_grad_enabled
try:
    tp.compiel
except AttributeError as error:
    assert str(error) == "module 'tensorplay' has no attribute 'compiel'", error
else:
    raise AssertionError("an unknown name resolved")
"""

ALONE = """
import sys
import tensorplay.{module}
import tensorplay as tp
assert tp.{module} is sys.modules["tensorplay.{module}"]
from tensorplay import {module} as again, compile, trace, no_grad
assert again is tp.{module}
assert tp.compile(lambda x: x + 1)(tp.tensor([1.0])).tolist() == [2.0]
"""

BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "tvm", "tvm_ffi", "torch"):
            raise ImportError(f"{name} is broken on purpose")

sys.meta_path.insert(0, Broken())
import tensorplay as tp
import tensorplay.library
found = tp.backends.capabilities()
assert list(found)[:5] == ["native", "python", "tvm", "triton", "cuda"], list(found)
assert found["native"].available and found["python"].available
for name in ("tvm", "triton"):
    assert not found[name].available
    assert "broken on purpose" in found[name].reason or "not installed" in found[name].reason, found[name]

@tp.library.custom_op("k3::scaled", mutates_args=())
def scaled(x):
    return tp.mul(x, 2.0)

assert scaled(tp.tensor([1.0])).tolist() == [2.0]
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [NOTHING, BROKEN])
def test_importing_needs_no_optional_package(program: str) -> None:
    """K3."""
    run(program)


def test_importing_loads_only_what_a_tensor_needs() -> None:
    """Everything else waits until its name is read."""
    run(LIGHT)


def test_every_public_name_resolves() -> None:
    """Late names are found, stay the same object, are listed by `dir`, and a wrong one is an AttributeError."""
    run(RESOLVES)


THREADS = """
import sys, threading
import tensorplay as tp
start = threading.Barrier(8)
found, wrong = [], []
def look(i):
    start.wait()
    try:
        for name, inner in (("library", "custom_op"), ("graph", "capture"), ("func", "vmap"), ("testing", "assert_close"))[:: 1 - 2 * (i % 2)]:
            found.append(getattr(getattr(tp, name), inner))
    except BaseException as error:
        wrong.append(error)
threads = [threading.Thread(target=look, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join(30) for t in threads]
assert not wrong and len(found) == 32 and len(set(found)) == 4, (wrong, found)
"""

RETRIED = """
import sys
import tensorplay as tp
sys.modules["tensorplay._definitions"] = None
for _ in range(2):
    try:
        tp.library.custom_op
    except ImportError as error:
        assert "_definitions" in str(error), error
    else:
        raise AssertionError("it was executed without what it imports")
del sys.modules["tensorplay._definitions"]
assert callable(tp.library.custom_op)
assert type(tp.library) is type(sys) and repr(tp.library).startswith("<module 'tensorplay.library' from ")
"""

WRITTEN = """
import importlib, inspect, sys
import tensorplay as tp
from tensorplay import testing, library
testing.mine = 1
assert testing.mine == 1 and callable(testing.assert_close)
del testing.mine
assert not hasattr(testing, "mine")
assert "custom_op" in dir(library) and inspect.getdoc(library)
assert importlib.reload(tp.outcome) is tp.outcome is sys.modules["tensorplay.outcome"]
import tensorplay.backends.tvm as adapter
assert tp.backends.tvm is adapter and callable(tp.backends.capabilities)
assert callable(tp.verify) and tp.verify(tp.ops.tp.exp, (tp.ones((2,)),), sweep=False).passed
"""


@pytest.mark.parametrize("program", [THREADS, RETRIED, WRITTEN])
def test_a_late_module_is_executed_once_when_it_is_looked_into(program: str) -> None:
    """By many threads in any order, after a failure again, by reading, writing, `dir`, reload and as a parent."""
    run(program)


@pytest.mark.parametrize("module", ["autograd", "compiler", "graph", "library", "ops", "outcome", "verify"])
def test_a_module_can_be_imported_first(module: str) -> None:
    run(ALONE.format(module=module))


def test_an_op_prints_and_pickles_before_anything_else_is_loaded() -> None:
    run("""
import pickle
import tensorplay as tp
op = tp.ops.tp.exp
assert pickle.loads(pickle.dumps(op)) is op
assert repr(op).startswith("<op tp::exp>"), repr(op)
assert str(op.kernels["cpu"][0]).startswith("cpu (native, "), op.kernels
""")


def test_capabilities() -> None:
    """K3: every one with a reason where it is absent."""
    found = backends.capabilities()
    assert list(found)[:5] == ["native", "python", "tvm", "triton", "cuda"]
    assert all(c.name == name and (c.reason is None) is c.available for name, c in found.items())
    assert tp.cuda.is_available() is found["cuda"].available
    if not found["cuda"].available:
        with pytest.raises(tp.errors.CapabilityError, match="synchronize") as e:
            tp.cuda.synchronize()
        assert e.value.capability == found["cuda"]


def test_a_backend_nobody_registered() -> None:
    """A ValueError with the known names."""
    with pytest.raises(
        ValueError, match=r"no backend named 'tmv'; known are 'native', 'tvm', 'triton'.*did you mean 'tvm'"
    ):
        tp.compile(lambda x: x, backend="tmv")


@pytest.mark.thread_unsafe(reason="registers a backend under a fixed name")
def test_a_plugged_in_backend() -> None:
    class Mine(backends.Backend):
        contract = 1

        def probe(self):
            return "it is Sunday"

        def supports(self, region):
            return backends.FallbackReason("BackendUnavailable", None, "it is Sunday")

        def lower(self, region):
            raise AssertionError("supports refuses everything")

        def run(self, artifact, inputs):
            raise AssertionError("supports refuses everything")

    backends.register("mine", Mine())
    assert backends.capabilities()["mine"].reason == "it is Sunday"
    assert "mine" in backends.names()
    with pytest.raises(ValueError, match="is taken"):
        backends.register("tvm", Mine())
    backends.unregister("mine")
    assert "mine" not in backends.names()
    with pytest.raises(ValueError, match="no backend was registered as 'mine'"):
        backends.unregister("mine")


AGAIN = """
import sys
import tensorplay as tp
x = tp.ones((2,))
modules = {name: m for name, m in sys.modules.items() if name.split(".")[0] == "tensorplay"}
for name in modules:
    del sys.modules[name]
try:
    import tensorplay
except ImportError as e:
    assert "it can be loaded once" in str(e) and e.name == "tensorplay._native", e
else:
    raise AssertionError("the extension was loaded twice")
sys.modules.update(modules)
import tensorplay
assert tensorplay is tp and (x + 1).tolist() == [2.0, 2.0]
"""

ELSEWHERE = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import tensorplay as tp
other = interpreters.create()
try:
    told = interpreters.run_string(other, "import tensorplay")
except interpreters.RunFailedError as e:
    told = e
# With a lock of its own an interpreter is refused by Python itself.
assert any(
    text in str(told)
    for text in ("is loaded in another interpreter of this process", "does not support loading in subinterpreters")
), told
interpreters.destroy(other)
assert tp.ones((2,)).tolist() == [1.0, 1.0]
"""


def test_loading_the_extension_a_second_time_is_refused_in_words() -> None:
    """K3: after its modules were taken out of sys.modules."""
    run(AGAIN)


def test_a_second_interpreter_is_refused_in_words() -> None:
    """K3: the state of the extension is the process's."""
    run(ELSEWHERE)


def test_namespaces_of_ops_are_copied_and_pickled_by_name() -> None:
    """9."""
    import copy
    import pickle

    space = tp.ops.tp
    assert pickle.loads(pickle.dumps(space)) is space
    assert copy.deepcopy({"ops": space})["ops"] is space
