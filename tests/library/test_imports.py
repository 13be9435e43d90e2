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


@pytest.mark.parametrize("program", [NOTHING, BROKEN])
def test_importing_needs_no_optional_package(program: str) -> None:
    """K3."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_a_plugged_in_backend() -> None:
    class Mine:
        def probe(self):
            return {"available": False, "reason": "it is Sunday", "details": {}}

        def supports(self, program):
            return {"kind": "BackendUnavailable", "message": "it is Sunday", "details": {}}

        def lower(self, program, layout):
            raise AssertionError("supports refuses everything")

    backends.register("mine", Mine())
    assert backends.capabilities()["mine"].reason == "it is Sunday"
    assert "mine" in backends.names()
    with pytest.raises(ValueError, match="is taken"):
        backends.register("tvm", Mine())
