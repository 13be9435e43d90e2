"""Backends from outside: how they are found, what is asked of them, and what of theirs is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from backends.numpy_backend import NumPy
from backends.plugins import install, install_example
from tensorplay.backends import CONTRACT_VERSION, Artifact, Backend, FallbackReason
from tensorplay.errors import ArgumentError, ContractError, FallbackError, InvalidValueError


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    install_example(monkeypatch, tmp_path / "site")
    return "stablehlo"


def test_the_example_passes_the_conformance_programs(example: str) -> None:
    """5.backends: the out-of-tree example, found by its entry point, does right whatever it takes."""
    report = tp.testing.check_backend(example)
    report.raise_if_failed()
    verdicts = [check.verdict for check in report.values]
    assert verdicts.count("pass") > 700
    # What it does not take it refuses with a reason of its own, and does not take for something else.
    reasons = {check.detail.partition(":")[0] for check in report.skips}
    assert reasons <= {"UnsupportedDType", "UnsupportedOp", "it has no pointwise region"}
    passed = {check.name for check in report.values if check.verdict == "pass"}
    assert {"tp::gelu float32", "tp::add int8", "cast float32 to int8", "six dimensions float32"} <= passed


def test_the_example_is_short_and_imports_nothing_private() -> None:
    """5.backends: at most 200 lines, and of tensorplay the public package of backends alone."""
    from backends.plugins import EXAMPLE

    text = (EXAMPLE / "stablehlo_backend.py").read_text()
    assert len(text.splitlines()) <= 200
    imports = [
        line for line in text.splitlines() if "tensorplay" in line and "import" in line and line[0] != '"'
    ]
    assert [line.partition(" import ")[0] for line in imports if line.startswith("from ")] == [
        "from tensorplay.backends"
    ]


def test_the_example_runs_regions_and_leaves_its_mark(example: str) -> None:
    """5.backends: marker with the proof, refusals in the report, one artifact for one region; gradients too."""
    f = tp.compile(lambda x: tp.sum(tp.tanh(x * 2.0) + 1.0), backend=example, on_fallback="record")
    x = tp.tensor([0.5, -0.25], requires_grad=True)
    y = f(x)
    y.backward()
    assert y.item() == pytest.approx(np.sum(np.tanh([1.0, -0.5]) + 1.0), rel=1e-6)
    assert x.grad.numpy() == pytest.approx(2.0 / np.cosh([1.0, -0.5]) ** 2, rel=1e-6)
    first = f.last_run.forward[0]
    assert (first.marker.executor, first.marker.kernel, first.reason) == (example, "stablehlo-numpy", None)
    assert len(first.marker.proof) == 16
    assert first.marker.proof in {build["hash"] for build in f.builds if build["backend"] == example}
    assert example in [run.marker.executor for run in f.last_run.backward]
    assert f.last_run.forward[1].reason.kind == "UnsupportedOp"
    g = tp.compile(lambda x: x // 2 + 1, backend=example, on_fallback="record")
    assert g(tp.tensor([5, -5])).tolist() == [3, -2]
    assert "floordiv" in str(g.last_run.forward[0].reason)
    assert str(tp.backends.capabilities()[example]) == "stablehlo: available"


def test_entry_points_are_read_when_a_name_is_not_known() -> None:
    """C12: neither an import nor a compile with a name of the tree looks at the installed packages."""
    script = """
import sys
import tensorplay as tp
tp.compile(lambda x: x + 1.0, backend=["tvm", "native"])(tp.ones((2,)))
from importlib import metadata
asked = []
find = metadata.entry_points
metadata.entry_points = lambda **given: asked.append(given) or find(**given)
tp.compile(lambda x: x + 1.0, backend="native")(tp.ones((2,)))
tp.compile(lambda x: x + 1.0, backend="triton", on_fallback="record")
assert asked == []
try:
    tp.compile(lambda x: x, backend="stax")
except ValueError:
    pass
assert asked and all(given == {"group": "tensorplay.backends"} for given in asked), asked
"""
    subprocess.run([sys.executable, "-c", script], check=True)


BACKEND = """
from tensorplay.backends import Backend, Artifact

class Mine(Backend):
    contract = 1
    def supports(self, region): return None
    def lower(self, region): return Artifact("k", "p")
    def run(self, artifact, inputs): return [inputs[0].numpy() + 1]

made = Mine()
other = object
"""


def test_a_module_is_imported_when_its_backend_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C12: listing names imports nothing; a class is made an instance of, an instance is taken as it is."""
    points = {"lazy_class": "plugin_lazy:Mine", "lazy_made": "plugin_lazy:made"}
    install(monkeypatch, tmp_path, points, plugin_lazy=BACKEND)
    assert {"lazy_class", "lazy_made"} <= set(tp.backends.names())
    assert "plugin_lazy" not in sys.modules
    for name in points:
        f = tp.compile(lambda x: x + 1.0, backend=name)
        assert f(tp.ones((2,))).tolist() == [2.0, 2.0]
        assert f.last_run.executors == (name,)


def test_an_entry_point_cannot_take_the_name_of_a_built_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C12: it is ignored with a warning that names it, and so is a second registration by hand refused."""
    install(monkeypatch, tmp_path, {"native": "plugin_shadow:Mine"}, name="shadow", plugin_shadow=BACKEND)
    with pytest.warns(RuntimeWarning, match=r"'native = plugin_shadow:Mine' of shadow 1.0 is ignored"):
        found = tp.backends.capabilities()
    assert found["native"].available
    assert "plugin_shadow" not in sys.modules
    for name in ("native", "tvm", "triton", "python", "cuda"):
        with pytest.raises(InvalidValueError, match="is taken"):
            tp.backends.register(name, NumPy())


def test_an_entry_point_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C12, C15: its capability says which it is and why, with what to install; it follows `on_fallback`."""
    points = {
        "broken_module": "plugin_broken:Mine",
        "broken_name": "plugin_fine:Nothing",
        "broken_error": "plugin_bad:x",
    }
    modules = {"plugin_broken": "import absent_compiler.core", "plugin_fine": BACKEND, "plugin_bad": "1 / 0"}
    install(monkeypatch, tmp_path, points, **modules)
    found = tp.backends.capabilities()
    assert (
        "'broken_module = plugin_broken:Mine' of plugin 1.0 does not load: ModuleNotFoundError"
        in found["broken_module"].reason
    )
    assert "pip install absent_compiler" in found["broken_module"].reason
    assert (
        "'broken_name = plugin_fine:Nothing' of plugin 1.0 does not load: AttributeError"
        in found["broken_name"].reason
    )
    assert "does not load: ZeroDivisionError" in found["broken_error"].reason
    f = tp.compile(lambda x: x + 1.0, backend="broken_module", on_fallback="record")
    assert f(tp.ones((1,))).tolist() == [2.0]
    reason = f.last_run.forward[0].reason
    assert (reason.kind, f.last_run.executors) == ("BackendUnavailable", ("native",))
    assert "plugin_broken" in reason.message
    with pytest.raises(FallbackError, match="plugin_broken"):
        tp.compile(lambda x: x + 1.0, backend="broken_module", on_fallback="error")


def test_what_is_no_backend_is_a_type_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C12: from an entry point and by hand; `capabilities` goes on and says so."""
    install(monkeypatch, tmp_path, {"not_one": "plugin_other:other"}, plugin_other=BACKEND)
    with pytest.raises(
        TypeError, match=r"the entry point 'not_one = plugin_other:other' of plugin 1.0 is no Backend"
    ):
        tp.compile(lambda x: x, backend="not_one")
    assert "is no Backend" in tp.backends.capabilities()["not_one"].reason

    class Half(Backend):
        contract = 1

    class Unsaid(NumPy):
        contract = None

    for wrong, match in (
        (object(), "is no Backend"),
        (Half, "does not define lower, run, supports"),
        (Unsaid, "contract"),
    ):
        with pytest.raises(ArgumentError, match=match):
            tp.backends.register("wrong_one", wrong)
    assert "wrong_one" not in tp.backends.names()


def test_an_unknown_name_is_a_value_error_with_the_nearest() -> None:
    """C11: the known names are listed, and the close match is offered."""
    tp.backends.register("stax", NumPy())
    with pytest.raises(
        ValueError, match=r"no backend named 'stxa'; known are 'native'.*did you mean 'stax'\?"
    ):
        tp.compile(lambda x: x, backend="stxa")


def test_what_a_backend_needs_is_asked_before_it() -> None:
    """C15: a missing package is a capability with the command; a newer contract says what to upgrade; both before probe."""

    class Needs(NumPy):
        requires: ClassVar = {"absent_one": "absent-one>=2", "absent_two": "absent_two", "numpy": "numpy"}

        def probe(self) -> str | None:
            raise AssertionError("it was asked")

    class Newer(NumPy):
        contract = CONTRACT_VERSION + 1

    class Older(NumPy):
        contract = 0

    class Says(NumPy):
        def probe(self) -> str | None:
            return "no accelerator was found"

    class Fails(NumPy):
        def probe(self) -> str | None:
            raise OSError("no such device")

    expected = {
        Needs: 'it needs absent_one and absent_two, which are not installed; pip install "absent-one>=2" absent_two',
        Newer: "upgrade TensorPlay: pip install --upgrade tensorplay-dispatch",
        Older: "supports TensorPlay up to contract 0",
        Says: "no accelerator was found",
        Fails: "its probe failed: OSError: no such device",
    }
    for kind, reason in expected.items():
        name = f"absent_{kind.__name__.lower()}"
        tp.backends.register(name, kind)
        found = tp.backends.capabilities()[name]
        assert not found.available
        assert reason in found.reason
        f = tp.compile(lambda x: x * 2.0, backend=name, on_fallback="record")
        assert f(tp.ones((1,))).tolist() == [2.0]
        assert reason in f.last_run.forward[0].reason.message
        report = tp.testing.check_backend(name)
        assert [(c.verdict, c.name) for c in report.skips] == [("skip", "available")]


class Returning(NumPy):
    """Runs `change` on the outputs."""

    def __init__(self, change) -> None:
        self.change = change

    def run(self, artifact, inputs):
        return self.change(super().run(artifact, inputs), inputs)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda outs, xs: outs + outs, "returned 2 tensors for 1 outputs"),
        (lambda outs, xs: outs[0], "run.. gave ndarray, not a list"),
        (lambda outs, xs: [None], "output 0 of its region is no tensor, but NoneType"),
        (lambda outs, xs: [outs[0].astype(np.float64)], "output 0 of its region is float64"),
        (lambda outs, xs: [outs[0][:1]], r"output 0 of its region is float32\[1, 3\]"),
        (lambda outs, xs: [np.asfortranarray(outs[0])], "output 0 of its region is .*strides"),
        (lambda outs, xs: [xs[0]], "shares memory with an input"),
        (lambda outs, xs: [xs[0].numpy()], "shares memory with an input"),
    ],
)
def test_outputs_are_held_to_the_promise(change, match: str) -> None:
    """5.backends: count, kind, dtype, shape, strides and memory of what a run gives; never a wrong tensor."""
    tp.backends.register("returning", Returning(change))
    f = tp.compile(lambda x: x + 1.0, backend="returning")
    with pytest.raises(ContractError, match=match):
        f(tp.ones((2, 3)))


def test_an_exception_of_a_run_passes_as_it_is() -> None:
    """5.backends: its class, and no notes of ours."""

    def fail(outs, xs):
        raise KeyError("mine")

    tp.backends.register("failing", Returning(fail))
    with pytest.raises(KeyError, match="mine") as caught:
        tp.compile(lambda x: x + 1.0, backend="failing")(tp.ones((2,)))
    assert not hasattr(caught.value, "__notes__")


def test_registering_anew_does_not_alter_what_is_compiled() -> None:
    """5.backends: an artifact is run by the backend that made it."""
    tp.backends.register("anew", Returning(lambda outs, xs: outs))
    f = tp.compile(lambda x: x + 1.0, backend="anew")
    assert f(tp.ones((2,))).tolist() == [2.0, 2.0]
    tp.backends.register("anew", Returning(lambda outs, xs: [outs[0] + 5]))
    assert f(tp.ones((2,))).tolist() == [2.0, 2.0]
    assert tp.compile(lambda x: x + 1.0, backend="anew")(tp.ones((2,))).tolist() == [7.0, 7.0]


def test_a_run_is_recorded_by_nobody() -> None:
    """5.backends: ops that a run calls are neither on the tape nor change what requires a gradient."""

    class Ours(NumPy):
        def run(self, artifact, inputs):
            return [inputs[0] + 1.0]

    tp.backends.register("ours", Ours())
    x = tp.tensor([1.0, 1.0], requires_grad=True)
    y = tp.compile(lambda x: x + 1.0, backend="ours", on_fallback="record")(x)
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_a_refusal_of_any_kind_keeps_its_words() -> None:
    """5.backends: what `supports` says is in the report of the run; `lower` that fails is a reason too."""

    class Picky(NumPy):
        def supports(self, region):
            return FallbackReason("Hazard", "tp::exp", "it would overheat", {})

    class Late(NumPy):
        def lower(self, region) -> Artifact:
            raise RuntimeError("no room")

    for name, kind, words in (
        ("picky", Picky, ("Hazard", "it would overheat")),
        ("late", Late, ("LoweringFailed", "no room")),
    ):
        tp.backends.register(name, kind)
        f = tp.compile(lambda x: tp.exp(x), backend=name, on_fallback="record")
        f(tp.ones((2,)))
        reason = f.last_run.forward[0].reason
        assert reason.kind == words[0]
        assert words[1] in reason.message


def test_neither_import_nor_compile_imports_an_optional_package() -> None:
    """C21: torch, jax, triton, tvm and numpy are imported by who asks for them."""
    script = """
import sys
import tensorplay as tp
assert "numpy" not in sys.modules
f = tp.compile(lambda x: tp.exp(x) + 1.0)
f(tp.ones((2,)))
tp.backends.capabilities()
assert not {"torch", "jax", "triton", "tvm"} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
