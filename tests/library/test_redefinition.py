"""A definition comes into force in one step, with its kernels, its rules and what waited for it."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import SchemaError


@pytest.fixture
def quick_switches():
    """Threads change places at nearly every bytecode."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def define(ns: str, factor: float, device_types: str | None = None):
    def body(x: Tensor) -> Tensor:
        return tp.mul(x, factor)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return library.custom_op(f"{ns}::f", body, mutates_args=(), device_types=device_types)


@pytest.mark.thread_unsafe(reason="sets the switch interval of the process")
@pytest.mark.parametrize("device_types", [None, "cpu"])
def test_a_redefinition_is_one_step_for_callers_on_other_threads(
    ns: str, quick_switches: None, device_types: str | None
) -> None:
    """3.3: a call meets the old kernels or the new ones, never an op without any."""
    op = define(ns, 1.0, device_types)
    x, done, found, problems = tp.ones([1]), threading.Event(), set(), []

    def call() -> None:
        while not done.is_set():
            try:
                found.add(op(x).item())
            except BaseException as e:  # handed to the test below
                problems.append(e)
                return

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    for factor in itertools.islice(itertools.cycle([1.0, 2.0, 3.0]), 1500):
        define(ns, factor, device_types)
        if problems:
            break
    done.set()
    for t in threads:
        t.join()
    assert problems == []
    assert found <= {1.0, 2.0, 3.0}
    assert len(found) > 1


def test_what_waits_comes_with_the_definition(ns: str) -> None:
    """9.1: kernels and fake rules that came first are in force with the definition, and end with their library."""
    lib = library.Library(ns, "IMPL")
    lib.impl("f", lambda x: x * 10.0, "CPU")
    lib.impl("f", lambda x: tp.empty([7]), "Meta")
    library.impl(f"{ns}::f", "cpu", lambda x: x * 20.0)
    op = define(ns, 1.0)
    assert op(tp.ones([1])).item() == 20.0
    assert op(tp.ones([1], device="meta")).shape == (7,)
    lib._destroy()
    assert op(tp.ones([1])).item() == 20.0
    assert "fake     missing" in repr(op)


def test_what_waits_and_does_not_fit_leaves_the_definition_before(ns: str) -> None:
    """9.1, 3.3: a definition that fails takes nothing away."""
    late = f"{ns}::late"
    library.impl(late, "cpu", lambda x: x * 3.0)
    library.impl(late, "cpu", lambda x, y: x)
    with pytest.raises(SchemaError, match="it needs 'y'"):
        library.define(late, "(Tensor x) -> Tensor")
    assert not library.has_op(late)
    assert library.define(late, "(Tensor x) -> Tensor")(tp.ones([1])).item() == 3.0


def test_a_redefinition_forgets_the_casts_of_the_one_before(ns: str) -> None:
    """8.2: an autocast policy belongs to the definition that it was registered for."""
    op = define(ns, 1.0)
    library.register_autocast(op, "cpu", tp.float16)
    with tp.autocast("cpu"):
        assert op(tp.ones([1])).dtype == tp.float16
    define(ns, 2.0)
    with tp.autocast("cpu"):
        assert op(tp.ones([1])).dtype == tp.float32
