"""Contexts belong to the thread that entered them. Left anywhere else, or without being entered, each says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import autograd, library
from tensorplay.errors import AutogradError, RegistrationError, TensorPlayError

numbers = itertools.count()


def op() -> Any:
    f = library.custom_op(f"left::f{next(numbers)}", lambda x: x * 1.0, mutates_args=())
    f.register_kernel("cpu", lambda x: x * 1.0, name="other")
    return f


CONTEXTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], type[TensorPlayError], str]] = {
    "no_grad": (tp.no_grad, AutogradError, "TP3316"),
    "enable_grad": (tp.enable_grad, AutogradError, "TP3316"),
    "set_grad_enabled": (lambda: autograd.set_grad_enabled(False), AutogradError, "TP3316"),
    "detect_anomaly": (autograd.detect_anomaly, AutogradError, "TP3316"),
    "set_detect_anomaly": (lambda: autograd.set_detect_anomaly(True), AutogradError, "TP3316"),
    "saved_tensors_hooks": (
        lambda: autograd.saved_tensors_hooks(lambda t: t, lambda t: t),
        AutogradError,
        "TP3316",
    ),
    "autocast": (lambda: tp.autocast("cpu", dtype=tp.bfloat16), AutogradError, "TP3316"),
    "prefer": (lambda: op().prefer("other"), RegistrationError, "TP1337"),
    "set_kernel_enabled": (lambda: op().set_kernel_enabled("cpu", False), RegistrationError, "TP1337"),
    "debug_checks": (library.debug_checks, RegistrationError, "TP1337"),
    "trace": (tp.trace, RegistrationError, "TP1337"),
}


def elsewhere(f: Callable[[], Any]) -> BaseException | None:
    """What `f` raises on another thread."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            f()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0] if caught else None


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_left_on_another_thread_says_so_and_can_still_be_left(name: str) -> None:
    """H4: the error is one of ours, has a message, and the first thread leaves it afterwards."""
    make, kind, code = CONTEXTS[name]
    before = tp.is_grad_enabled()
    context = make()
    context.__enter__()
    try:
        error = elsewhere(lambda: context.__exit__(None, None, None))
        assert isinstance(error, kind)
        assert error.code == code
        assert "another thread" in str(error)
    finally:
        context.__exit__(None, None, None)
    assert tp.is_grad_enabled() is before


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_left_twice_or_without_entering_says_so(name: str) -> None:
    make, kind, code = CONTEXTS[name]
    before = tp.is_grad_enabled()
    context = make()
    with context:
        pass
    for wrong in (context, make() if not name.startswith("set_") else context):
        with pytest.raises(kind, match="without being entered") as caught:
            wrong.__exit__(None, None, None)
        assert caught.value.code == code
    assert tp.is_grad_enabled() is before


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_generator_closed_on_another_thread_says_so(name: str) -> None:
    make, kind, code = CONTEXTS[name]
    context = make()

    def steps():
        with context:
            yield

    generator = steps()
    next(generator)
    error = elsewhere(generator.close)
    assert isinstance(error, kind)
    assert error.code == code
    context.__exit__(None, None, None)


@pytest.mark.filterwarnings("ignore:nothing to disable")
@pytest.mark.parametrize("name", CONTEXTS)
def test_one_context_may_be_entered_by_several_threads(name: str) -> None:
    """Each end belongs to the newest entry of its own thread."""
    make, _, _ = CONTEXTS[name]
    context = make()
    barrier = threading.Barrier(3)
    wrong: list[BaseException | None] = []

    def use() -> None:
        with context:
            barrier.wait()
            with context:
                barrier.wait()

    threads = [threading.Thread(target=lambda: wrong.append(elsewhere(use))) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == [None] * 3
    # What was set by making it ends here.
    with context:
        pass
    assert tp.is_grad_enabled()


def test_hooks_are_in_force_on_their_thread_only_and_end_there() -> None:
    packed: list[int] = []
    hooks = autograd.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t)
    x = tp.ones((2,)).requires_grad_()
    with hooks:
        elsewhere(lambda: hooks.__exit__(None, None, None))
        elsewhere(lambda: tp.exp(x))
        assert not packed
        tp.exp(x)
        assert packed == [1]
        with hooks:
            tp.exp(x)
    tp.exp(x)
    assert packed == [1, 1]


def test_no_class_of_the_extension_is_bound_to_its_thread() -> None:
    """PyO3 panics where such a class is touched on another thread, or dropped there."""
    sources = list((Path(__file__).parents[2] / "crates" / "tp-python" / "src").rglob("*.rs"))
    assert len(sources) > 50
    assert [path.name for path in sources if "unsendable" in path.read_text()] == []
