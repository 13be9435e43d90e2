"""Places of definitions: files whose names are no text, objects that wrap themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay as tp
from tensorplay import errors, library

SCRIPT = """
import tensorplay as tp
from tensorplay import library

@library.custom_op("odd::f", mutates_args=())
def f(x: tp.Tensor) -> tp.Tensor:
    return x * 2

f.register_fake(lambda x: tp.empty_like(x))
f.register_autograd(lambda ctx, grad: grad * 2)
f.register_kernel("cpu", lambda x: x * 2, name="other")
lib = library.Library("odd2", "DEF")
lib.define("g(Tensor x) -> Tensor")
lib.impl("g", lambda x: x * 3, "CPU")
x = tp.tensor([1.0, 2.0], requires_grad=True)
with tp.trace() as events:
    y = tp.ops.odd2.g(f(x).detach())
f(x).sum().backward()
assert (y.tolist(), x.grad.tolist()) == ([6.0, 12.0], [2.0, 2.0])
assert tp.compile(lambda x: f(x) + 1)(x.detach()).tolist() == [3.0, 5.0]
texts = (repr(f), str(events), tp.graph.capture(lambda x: f(x), x.detach()).text(), str(f.kernels))
assert all(t.isprintable() or t.encode() for t in texts)
assert tp.verify(f, (x.detach(),)).passed
print(f.kernels["cpu"][0].file)
"""


def test_ops_come_from_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """The bytes of the path stand in messages as escapes, as in Python's own tracebacks."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)  # noqa: PTH102
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with open(folder + b"/ops.py", "w") as f:  # noqa: PTH123
        f.write(SCRIPT)
    done = subprocess.run(
        [os.fsencode(sys.executable), folder + b"/ops.py"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout.decode().strip().endswith(r"caf\udce9/ops.py")


def test_a_kernel_name_is_text(ns: str) -> None:
    """4.1: half a surrogate pair is refused with a code, not by the codec."""
    op = library.custom_op(f"{ns}::f", lambda x: x.clone(), mutates_args=())
    with pytest.raises(errors.ArgumentError, match="argument 'name' is no text") as e:
        op.register_kernel("cpu", lambda x: x.clone(), name=chr(0xD800))
    assert e.value.code == "TP1002"


class Everything:
    """Answers every attribute with itself."""

    def __call__(self, x: tp.Tensor) -> tp.Tensor:
        return x * 5

    def __getattr__(self, name: str) -> Everything:
        if name.startswith("__") and name not in ("__func__", "__code__"):
            raise AttributeError(name)
        return self


class Endless(Everything):
    """Answers with a new one every time."""

    def __getattr__(self, name: str) -> Endless:
        return Endless() if super().__getattr__(name) else self


def itself() -> Everything:
    wrapper = Everything()
    wrapper.__wrapped__ = wrapper
    return wrapper


@pytest.mark.parametrize("make", [Everything, Endless, itself])
def test_an_object_that_wraps_itself_is_a_kernel(ns: str, make) -> None:
    """3.1: who looks for the author's function comes to an end."""
    op = library.custom_op(f"{ns}::f", lambda x: x.clone(), mutates_args=())
    op.register_kernel("cpu", make(), name="odd")
    assert op(tp.tensor([1.0])).tolist() == [5.0]
    assert "odd" in repr(op)
    made = library.custom_op(f"{ns}::g", make(), mutates_args=(), schema="(Tensor x) -> Tensor")
    assert made(tp.tensor([2.0])).tolist() == [10.0]
