"""`typing.get_type_hints` knows the annotations of every public name, and importing the package still loads no `typing`."""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import errors, functions, library, outcome

MODULES = ["tensorplay", *(f"tensorplay.{m.name}" for m in pkgutil.iter_modules(tp.__path__))]
MODULES += ["tensorplay.backends.base", "tensorplay.backends.contract"]


def public() -> Iterator[tuple[str, Any]]:
    """Every public function and class with its methods, and the modules themselves, by the place where it is found."""
    for place in MODULES:
        if place.rpartition(".")[2].startswith("_"):
            continue
        module = importlib.import_module(place)
        yield place, module
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if isinstance(found, type) and found.__module__.startswith("tensorplay"):
                for member, value in vars(found).items():
                    if isinstance(value, staticmethod | classmethod):
                        value = value.__func__
                    value = value.fget if isinstance(value, property) else value
                    # `namedtuple` makes its `__new__` without builtins, where not even `str` has a meaning.
                    if inspect.isroutine(value) and getattr(value, "__globals__", {1: 1}).get(
                        "__builtins__", 1
                    ):
                        yield f"{place}.{name}.{member}", value
            if callable(found):
                yield f"{place}.{name}", found


def test_every_public_name_has_types_at_run_time() -> None:
    """Functions, methods, classes and modules: no name of an annotation is missing, and none is a stand-in."""
    count = 0
    for place, found in public():
        try:
            hints = typing.get_type_hints(found)
        except TypeError as caught:  # an object that can be called
            told = str(caught)
        else:
            told = ""
        if told:
            assert "is not a module, class, method, or function" in told, place
            continue
        count += 1
        shown = [str(hint) for hint in hints.values()] + [type(hint).__name__ for hint in hints.values()]
        assert not [text for text in shown if "_Hint" in text or "ForwardRef" in text], place
    assert count > 800


def test_types_are_those_that_checkers_see() -> None:
    """Names of `typing`, of other modules of the package, with brackets, in unions, and a bound variable."""
    hints = typing.get_type_hints(tp.compile)
    assert hints["options"] == collections.abc.Mapping[str, Any] | None
    assert hints["backend"] == str | collections.abc.Sequence[str]
    assert hints["fn"] == collections.abc.Callable[..., Any] | None
    assert hints["return"] is Any
    assert typing.get_type_hints(tp.compiler.CompiledFunction.run)["return"] == tuple[Any, outcome.RunReport]
    reason = typing.get_type_hints(errors.TensorPlayError.__init__)["reason"]
    assert reason == outcome.FallbackReason | None
    assert typing.get_type_hints(library.define)["lib"] == library.Library | None
    assert typing.get_type_hints(functions.astype)["x"] is tp.Tensor
    decorated = typing.get_type_hints(tp.autocast.__call__)
    assert decorated["return"].__bound__ == collections.abc.Callable[..., Any]
    assert typing.get_type_hints(tp.autocast.__new__)["return"] is typing.Self


@pytest.mark.parametrize("module", ["verify", "testing", "outcome", "library"])
def test_a_module_that_waits_can_be_run_without_a_warning(module: str) -> None:
    """`python -m` warns of a module that is imported already, which these are not."""
    command = [sys.executable, "-W", "error", "-m", f"tensorplay.{module}"]
    command += ["--help"] if module == "verify" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("usage: python -m tensorplay verify" in done.stdout) is (module == "verify")


def test_verify_as_a_program_is_the_command() -> None:
    """The same report and exit status, so that nobody takes silence for a proof."""
    run = [
        subprocess.run(
            [sys.executable, "-m", *form, "tp::nosuch"], capture_output=True, text=True, check=False
        )
        for form in (["tensorplay.verify"], ["tensorplay", "verify"])
    ]
    assert run[0].returncode == run[1].returncode == 2
    assert run[0].stderr == run[1].stderr != ""
