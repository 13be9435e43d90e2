"""What completion shows: public modules list their public names, all of them and no others; objects print themselves."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import subprocess
import sys

import pytest

import tensorplay as tp
from tensorplay import functions, library

MODULES = [
    "tensorplay",
    *(f"tensorplay.{m.name}" for m in pkgutil.iter_modules(tp.__path__) if not m.name.startswith("_")),
    "tensorplay.backends.base",
]

_numbers = itertools.count()


@pytest.fixture
def ns() -> str:
    """A namespace that no other test uses."""
    return f"tpn{next(_numbers)}"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "tensorplay.ops"])
def test_a_public_module_lists_its_public_names_and_no_others(name: str) -> None:
    """W17: names that are imported on first use are there from the start; what a module itself imports is not."""
    text = f"import importlib; m = importlib.import_module({name!r}); print(*dir(m), sep='\\n')"
    fresh = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    module = importlib.import_module(name)
    listed = fresh.stdout.split()
    assert listed == sorted(module.__all__) == dir(module)
    assert [n for n in listed if not hasattr(module, n)] == []


def test_every_function_is_listed_in_its_module_and_in_the_package() -> None:
    """W17: `functions.__all__` is what the package exports of it, without what it imports."""
    assert set(functions.__all__) <= set(tp.__all__)
    assert {"add", "clamp", "clip", "gelu", "multiply"} <= set(functions.__all__)
    assert {"Function", "gradcheck", "checkpoint"} <= set(dir(tp.autograd))
    assert not {"TYPE_CHECKING", "importlib", "Any"} & {*dir(tp), *dir(tp.library), *functions.__all__}


def test_contexts_and_handles_print_what_they_are(ns: str) -> None:
    """W17: as the call that makes them, or as what they hold; no address."""
    x = tp.tensor([1.0], requires_grad=True)
    op = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    hook = (x * 2.0).register_hook(lambda grad: grad)
    shown = {
        "no_grad()": tp.no_grad(),
        "enable_grad()": tp.enable_grad(),
        "set_grad_enabled(True)": tp.set_grad_enabled(True),
        "autocast('cpu', dtype=tensorplay.bfloat16, enabled=True)": tp.autocast("cpu"),
        "detect_anomaly(check_nan=False)": tp.autograd.detect_anomaly(check_nan=False),
        "set_detect_anomaly(False)": tp.autograd.set_detect_anomaly(False),
        "saved_tensors_hooks(repr, str)": tp.autograd.saved_tensors_hooks(repr, str),
        f"<kernels of {ns}::f for cpu off>": op.set_kernel_enabled("cpu", False),
        f"<kernel 'default' of {ns}::f first>": op.prefer("default"),
        "debug_checks()": library.debug_checks(),
        "trace()": tp.trace(),
        "<hook on the gradient of tp::mul.Scalar>": hook,
    }
    assert {text: repr(value) for text, value in shown.items()} == {text: text for text in shown}
    hook.remove()
    assert repr(hook) == "<removed hook on the gradient of tp::mul.Scalar>"
    with shown["trace()"]:
        assert repr(shown["trace()"]) == "<trace, entered 1 deep>"


def test_help_says_what_a_function_computes_and_what_comes_out() -> None:
    """W17: operands, broadcasting, promotion, shape and dtype, then every overload; `inspect` reads the signature."""
    said = tp.add.__doc__ or ""
    assert said.startswith(
        "For each element: x1 + x2. The operands broadcast together; their dtypes promote."
    )
    assert "Shape: the broadcast one. dtype: the promoted one." in said
    assert said.endswith(
        "tp::add(Tensor x1, Tensor x2) -> Tensor\n"
        "tp::add.Scalar(Tensor x1, Scalar x2) -> Tensor\n"
        "tp::add.ScalarLeft(Scalar x1, Tensor x2) -> Tensor"
    )
    assert "int64 for ints and bool" in (tp.sum.__doc__ or "")
    assert (tp.Tensor.sum.__doc__ or "").startswith(
        "`tp.sum` with this tensor as its first operand.\n\ntp::sum("
    )
    assert str(inspect.signature(tp.sum)) == "(x, axis=None, *, dtype=None, keepdims=False)"
    brief = [n for n in functions.__all__ if not (getattr(tp, n).__doc__ or "").splitlines()[0].endswith(".")]
    assert brief == []
