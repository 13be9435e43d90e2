"""A cell or a line that runs a second time: what it replaces, what is said of that, and how places are written."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import library
from tensorplay._places import Place
from tensorplay.errors import RegistrationError

pytestmark = pytest.mark.thread_unsafe(reason="catches the warnings of the process")


def cell(text: str, file: str = "/tmp/ipykernel_1/11.py", **names: Any) -> tuple[dict[str, Any], list[str]]:
    """Names after a cell ran, and its warnings."""
    space = {"library": library, "tp": tp, "__name__": "__main__", **names}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        exec(compile(text, file, "exec"), space)
    return space, [str(w.message) for w in seen]


def test_a_redefinition_says_what_goes_with_the_earlier_one(ns: str) -> None:
    """Rules and kernels that were registered beside the definition, and nothing that the definition brings."""
    text = f"op = library.custom_op('{ns}::f', lambda x: x * 2.0, mutates_args=())"
    op = cell(text)[0]["op"]
    op.register_fake(lambda x: tp.empty_like(x))
    op.register_autograd(lambda ctx, grad: grad * 2.0)
    op.register_vmap(lambda info, dims, x: (x * 2.0, dims[0]))
    op.register_kernel("cpu", lambda x: x * 2.0, name="fast")
    (said,) = cell(text)[1]
    assert said.endswith(
        "nothing in its contract changed; gone with it, until registered again: "
        "the gradient, the fake rule, the kernel for 'cpu' named 'fast', the batching rule"
    )
    (said,) = cell(text)[1]
    assert said.endswith("nothing in its contract changed")


def test_a_redefined_triton_op_keeps_its_fake_rule(ns: str) -> None:
    """Its body is its fake rule, so none is gone."""
    text = f"""
def body(x: tp.Tensor) -> tp.Tensor:
    return tp.empty_like(x)
library.triton_op('{ns}::t', body, mutates_args=())
"""
    cell(text)
    (said,) = cell(text)[1]
    assert "gone with it" not in said


@pytest.mark.parametrize("keep", [True, False])
def test_a_library_made_again_at_the_same_place_replaces_the_earlier_one(ns: str, keep: bool) -> None:
    """`Library`, `define` and `impl` of a cell that runs twice; with and without another name for the first one."""
    text = f"""
lib = library.Library('{ns}', 'DEF')
lib.define('f(Tensor x) -> Tensor')
lib.impl('f', lambda x: x * FACTOR, 'CPU')
op = tp.ops.{ns}.f
"""
    first, said = cell(text, FACTOR=2.0)
    assert said == []
    kept = first["lib"] if keep else None
    assert first["op"](tp.ones((1,))).tolist() == [2.0]
    second, said = cell(text, FACTOR=3.0)
    assert [s.split(" at ")[0] for s in said] == [f"the DEF library of '{ns}' was made again"]
    assert said[0].endswith(f"and replaces the earlier one: gone with it are {ns}::f")
    assert second["op"](tp.ones((1,))).tolist() == [3.0]
    assert kept is None or not kept.alive
    del first, kept
    assert second["op"](tp.ones((1,))).tolist() == [3.0]
    second["lib"]._destroy()
    assert not library.has_op(f"{ns}::f")


def test_a_define_and_an_impl_that_run_again_replace(ns: str) -> None:
    """Where the library itself stands in another cell."""
    lib = library.Library(ns, "DEF")
    text = "lib.define('f(Tensor x) -> Tensor')\nlib.impl('f', lambda x: x * FACTOR, 'CPU')\n"
    cell(text, lib=lib, FACTOR=2.0)
    _, said = cell(text, lib=lib, FACTOR=3.0)
    assert len(said) == 1
    assert said[0].endswith("gone with it, until registered again: the kernel for 'cpu'")
    f = library.get_op(f"{ns}::f")
    assert f(tp.ones((1,))).tolist() == [3.0]
    cell("lib.impl('f', lambda x: x * FACTOR, 'CPU')", lib=lib, FACTOR=4.0)
    assert f(tp.ones((1,))).tolist() == [4.0]
    lib._destroy()
    assert not library.has_op(f"{ns}::f")


def test_another_place_is_refused_as_before(ns: str) -> None:
    """A second DEF library, and a second kernel of one library, from another line."""
    lib = library.Library(ns, "DEF")
    with pytest.raises(RegistrationError, match="has a DEF library already, made at") as caught:
        library.Library(ns, "DEF")
    assert caught.value.code == "TP1331"
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 1.0, "CPU")
    with pytest.raises(RegistrationError, match="already, written at") as caught:
        lib.impl("f", lambda x: x * 2.0, "CPU")
    assert caught.value.code == "TP1335"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("<ipython-input-3-1f2e3d4c5b6a>", "cell In[3], line 7"),
        ("/tmp/ipykernel_12/345.py", "<notebook cell>, line 7"),
        ("/home/me/model.py", "/home/me/model.py:7"),
    ],
)
def test_a_line_of_a_cell_is_not_written_like_the_number_of_a_cell(file: str, shown: str) -> None:
    """`cell:1` would be read as the first cell."""
    assert str(Place(file, 7, "<module>")) == shown


def test_the_number_of_a_cell_is_asked_of_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are named by a hash, IPython knows which cell it was."""
    numbers = {"/tmp/ipykernel_12/345.py": 4}
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map=numbers))
    module: Any = types.ModuleType("IPython")
    get: Callable[[], Any] = lambda: shell  # noqa: E731
    module.get_ipython = get
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert str(Place("/tmp/ipykernel_12/345.py", 2, "<module>")) == "cell In[4], line 2"
    assert str(Place("/tmp/ipykernel_12/9.py", 2, "<module>")) == "<notebook cell>, line 2"
