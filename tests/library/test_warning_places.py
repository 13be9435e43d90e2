"""Every warning names the user's line: the file and line of the call that caused it."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import library

PACKAGE = Path(tp.__file__).parent
pytestmark = pytest.mark.thread_unsafe(reason="catches the warnings of the process")


@contextmanager
def one_warning(says: str) -> Iterator[list[int]]:
    """Exactly one warning, at the line of this file that the block puts into the list."""
    line: list[int] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield line
    ours = [w for w in seen if re.search(says, str(w.message))]
    assert [(w.filename, w.lineno) for w in ours] == [(__file__, line[0])], [str(w) for w in seen]


def here() -> int:
    return sys._getframe(1).f_lineno


def absent(name: str) -> Any:
    """A compiled function whose backend is not there."""

    class Absent(tp.backends.Backend):
        contract = 1

        def probe(self) -> str:
            return "it is Sunday"

        def supports(self, region: Any) -> None: ...
        def lower(self, region: Any) -> Any: ...
        def run(self, artifact: Any, inputs: Any) -> Any: ...

    tp.backends.register(name, Absent())
    return tp.compile(lambda x: tp.tanh(x) + 1.0, backend=name)


@pytest.mark.parametrize("way", ["__call__", "run", "explain"])
def test_a_fallback_names_the_line_of_the_call(way: str) -> None:
    """Inside a function, and where a method of the compiled function stands between."""
    call = getattr(absent(f"absent_{way}"), way)
    with one_warning(r"fallback \(BackendUnavailable\)") as line:
        line.append(here() + 1)
        call(tp.ones((3,)))


def test_a_fallback_in_a_backward_names_the_line_of_the_call() -> None:
    """The regions of the backward are known at the call that captures."""
    compiled = absent("absent_training")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        line = here() + 1
        compiled(tp.tensor([1.0], requires_grad=True))
    assert len(seen) >= 2
    assert {(w.filename, w.lineno) for w in seen} == {(__file__, line)}


def test_a_fallback_at_module_level_names_the_line_of_the_call() -> None:
    """A program has no caller to blame."""
    program = "\n\ny = compiled(x)\n"
    compiled = absent("absent_module")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        exec(compile(program, "program.py", "exec"), {"compiled": compiled, "x": tp.ones((3,))})
    assert [(w.filename, w.lineno) for w in seen] == [("program.py", 3)]


def test_a_fallback_in_a_thread_without_python_frames() -> None:
    """A thread that starts in the compiled function has no line to name; the warning is given all the same."""
    import _thread
    import threading

    compiled, done = absent("absent_thread"), threading.Event()
    x = tp.ones((3,))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _thread.start_new_thread(compiled, (x,))
        _thread.start_new_thread(done.set, ())
        assert done.wait(10)
        deadline = 1000
        while compiled.last_run is None and not seen and deadline:
            threading.Event().wait(0.01)
            deadline -= 1
    assert [str(w.message).split(":")[0] for w in seen] == ["fallback (BackendUnavailable)"]


def define(ns: str) -> Any:
    @library.custom_op(f"{ns}::warns", mutates_args=())
    def warns(x: tp.Tensor) -> tp.Tensor:
        return tp.mul(x, 2.0)

    warns.register_fake(lambda x: tp.empty_like(x))
    return warns


def test_a_second_definition_names_the_line_of_the_decorator(ns: str) -> None:
    """A re-run cell."""
    define(ns)
    with one_warning("was defined again") as line:
        line.append(define.__code__.co_firstlineno + 1)
        define(ns)


def test_a_kernel_over_the_body_names_the_line_of_the_registration(ns: str) -> None:
    op = define(ns)
    with one_warning("takes the place of the op's own body") as line:
        line.append(here() + 1)
        op.register_kernel(None, lambda x: tp.mul(x, 3.0))


def test_a_switch_that_does_nothing_names_the_line_of_the_with(ns: str) -> None:
    op = define(ns)
    with one_warning("nothing to enable") as line:
        line.append(here() + 1)
        with op.set_kernel_enabled(None, True):
            pass


def test_a_loop_over_samples_names_the_line_of_the_call_in_the_function(ns: str) -> None:
    op = define(ns)
    with one_warning("has no batching rule") as line:
        line.append(here() + 1)
        tp.func.vmap(lambda x: op(x))(tp.ones((2, 3)))


def test_a_kernel_over_another_one_names_the_line_of_the_registration(
    ns: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tensorplay import _library

    monkeypatch.setattr(_library, "_warned", False)
    define(ns)
    lib = library.Library(ns, "FRAGMENT")
    with one_warning("registered over another one") as line:
        line.append(here() + 1)
        lib.impl("warns", lambda x: tp.mul(x, 3.0), "CompositeExplicitAutograd", allow_override=True)


def test_a_library_made_again_names_its_line(ns: str) -> None:
    made = []
    with one_warning("was made again") as line:
        for _ in range(2):
            line.append(here() + 1)
            made.append(library.Library(ns, "DEF"))
    assert [lib.alive for lib in made] == [False, True]


def test_no_warning_counts_frames() -> None:
    """Each `warnings.warn` of the package asks for the user's line."""
    calls = [
        (path.name, call)
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in re.findall(r"warnings\.warn\(.*?\n? *\)$", path.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(calls) >= 5
    assert [name for name, call in calls if "stacklevel=stack_level()" not in call] == []
