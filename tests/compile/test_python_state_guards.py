"""Python state that a compiled function reads: every change of it is noticed, by name, and every write to it refused."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from captures import refused
from state_locations import Location, locations
from state_programs import PROGRAMS
from tensorplay import Tensor, _native
from tensorplay.errors import CaptureError

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)


def _outcome(fn: Callable[..., Any]) -> Any:
    """What a call gives, or the type of what it raises."""
    try:
        out = fn(tp.tensor([1.0, 2.0]))
    except Exception as error:
        return type(error)
    return out.tolist() if isinstance(out, Tensor) else out


def _differs(compiled: Any, fn: Callable[..., Any], place: Location) -> str | None:
    """What is wrong after a change of one location, and after it is put back."""
    place.change()
    try:
        wanted, got = _outcome(fn), _outcome(compiled)
        if wanted != got:
            return f"{place.path} changed: eager {wanted}, compiled {got}"
    finally:
        place.restore()
    wanted, got = _outcome(fn), _outcome(compiled)
    return None if wanted == got else f"{place.path} put back: eager {wanted}, compiled {got}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_change_of_reachable_state_is_noticed(name: str) -> None:
    """C: each location that a function can reach is changed in turn; the compiled function does what eager code does."""
    places = len(locations(PROGRAMS[name]()))
    for i in range(places):
        fn = PROGRAMS[name]()
        compiled = tp.compile(fn)
        before = _outcome(fn)
        assert _outcome(compiled) == before
        assert len(compiled.graphs) == 1, "it was captured"
        assert _outcome(compiled) == before
        assert len(compiled.graphs) == 1, f"unchanged state: {compiled.report.recompiles}"
        assert compiled.last_run.forward[0].marker.executor == "native"
        assert _differs(compiled, fn, locations(fn)[i]) is None


def test_a_guard_is_named_by_its_path_and_a_miss_says_what_was_found() -> None:
    """C: `global scale`, `closure k`, `m.layers[0].w`, in the list of guards and in the recompiles."""

    class Net:
        def __init__(self) -> None:
            self.layers = [types.SimpleNamespace(scale=2.0)]

    m, k = Net(), 3.0

    def fn(x: Tensor) -> Tensor:
        return x * m.layers[0].scale * k + len(m.layers)

    def set_k(v: float) -> None:
        nonlocal k
        k = v

    compiled = tp.compile(fn)
    compiled(tp.ones((2,)))
    guards = compiled.report.guards
    for text in (
        "closure m is the Net of the capture",
        "m.layers is the list of the capture",
        "m.layers[0] is the SimpleNamespace of the capture",
        "m.layers[0].scale == 2.0",
        "closure k == 3.0",
        "len(m.layers) == 1",
    ):
        assert text in guards, guards
    m.layers[0].scale = 4.0
    compiled(tp.ones((2,)))
    set_k(5.0)
    compiled(tp.ones((2,)))
    assert compiled.report.recompiles == [
        "graph 1: m.layers[0].scale == 2.0, got 4.0",
        "graph 2: closure k == 3.0, got 5.0",
    ]


def test_what_a_function_does_not_read_is_not_guarded() -> None:
    """C: other items, attributes and globals may change as they like."""
    config = {"used": 2.0, "other": 1.0}
    n = types.SimpleNamespace(used=2.0, other=1.0)
    compiled = tp.compile(lambda x: x * config["used"] + n.used)
    for i in range(4):
        config["other"], n.other = float(i), float(i)
        config[f"new{i}"] = 0.0
        assert compiled(tp.ones(())).item() == 4.0
    assert len(compiled.graphs) == 1


def test_a_function_that_reads_nothing_outside_guards_its_own_code_alone() -> None:
    """C: and that it is the code of the capture."""
    fn = lambda x: x * 2 + 1  # noqa: E731
    compiled = tp.compile(fn)
    assert compiled(tp.ones(())).item() == 3.0
    fn.__code__ = (lambda x: x * 5).__code__
    assert compiled(tp.ones(())).item() == 5.0
    assert [g for g in compiled.report.guards if "kernels" not in g and not g.startswith("x.")] == [
        f"the code and defaults of {fn.__qualname__} are those of the capture"
    ] * 2


def test_past_the_limit_the_function_itself_runs_and_the_reason_names_the_guard() -> None:
    """C: eight graphs, then eager, with the guard that failed."""
    box = {"k": 0.0}
    compiled = tp.compile(lambda x: x * box["k"])

    def call(k: float) -> None:
        box["k"] = k
        assert compiled(tp.ones(())).item() == k

    for i in range(8):
        call(float(i))
    assert len(compiled.graphs) == 8
    with pytest.warns(UserWarning, match=r"RecompileLimit.*box\['k'\] == 7.0, got 8.0"):
        call(8.0)
    for i in range(9, 12):
        call(float(i))  # told once
    assert len(compiled.graphs) == 8
    reason = compiled.last_run.forward[0].reason
    assert reason.kind == "RecompileLimit"
    assert "box['k'] == 7.0, got 11.0" in str(reason)


_SEEN: list[int] = []
_COUNT = 0


def _global_write(x: Tensor) -> Tensor:
    global _COUNT
    _COUNT += 1
    return x * 2.0


def _cell_write() -> Callable[..., Any]:
    n = 0

    def fn(x: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return x * 2.0

    return fn


_HELD = types.SimpleNamespace(n=0, items=[1], table={"a": 1}, names={"x"})


def _writes() -> list[tuple[str, Callable[..., Any]]]:
    def item(x: Tensor) -> Tensor:
        _HELD.table["b"] = 2
        return x * 2.0

    def attribute(x: Tensor) -> Tensor:
        _HELD.n += 1
        return x * 2.0

    def new_attribute(x: Tensor) -> Tensor:
        _HELD.late = x * 2.0
        return x * 2.0

    def deleted(x: Tensor) -> Tensor:
        del _HELD.n
        return x * 2.0

    def deleted_item(x: Tensor) -> Tensor:
        del _HELD.table["a"]
        return x * 2.0

    def in_place(x: Tensor) -> Tensor:
        items = _HELD.items
        items += [3]
        return x * 2.0

    return [
        ("global _COUNT", _global_write),
        ("closure n", _cell_write()),
        ("_SEEN", lambda x: (_SEEN.append(1), x * 2.0)[1]),
        ("_HELD.items", lambda x: (_HELD.items.extend([1]), x * 2.0)[1]),
        ("_HELD.names", lambda x: (_HELD.names.add("y"), x * 2.0)[1]),
        ("_HELD.table", lambda x: (_HELD.table.update(c=1), x * 2.0)[1]),
        ("_HELD.n", lambda x: (setattr(_HELD, "n", 5), x * 2.0)[1]),
        ("_HELD.table", item),
        ("_HELD.n", attribute),
        ("_HELD.late", new_attribute),
        ("_HELD.n", deleted),
        ("_HELD.table", deleted_item),
        ("_HELD.items", in_place),
    ]


@pytest.mark.thread_unsafe(reason="it writes to globals of this module")
@pytest.mark.parametrize(("name", "fn"), _writes())
def test_a_write_to_state_from_outside_is_refused_by_name_and_undone(
    name: str, fn: Callable[..., Any]
) -> None:
    """C: a run's function is the graph, which would not do it."""
    before = (
        _COUNT,
        list(_SEEN),
        _HELD.n,
        list(_HELD.items),
        dict(_HELD.table),
        set(_HELD.names),
        vars(_HELD).keys() - {""},
    )
    error = refused("TP4031", fn, tp.ones((2,)), match="in the capture alone")
    assert f"writing to {name} in a captured function" in str(error)
    assert before == (
        _COUNT, list(_SEEN), _HELD.n, list(_HELD.items), dict(_HELD.table), set(_HELD.names), vars(_HELD).keys() - {""}
    )  # fmt: skip


def _calls() -> list[tuple[str, Callable[..., Any]]]:
    import datetime
    import os
    import random
    import time

    old = iter([1.0, 2.0])
    again = iter([1.0, 2.0])

    def loop(x: Tensor) -> Tensor:
        for k in again:
            x = x * k
        return x

    return [
        ("time.time", lambda x: x * time.time()),
        ("time.perf_counter", lambda x: x * time.perf_counter()),
        ("random", lambda x: x * random.random()),
        ("random", lambda x: x * random.uniform(1.0, 2.0)),
        ("getpid", lambda x: x * os.getpid()),
        ("open", lambda x: (open(__file__), x)[1]),  # noqa: PTH123
        ("builtins.print", lambda x: (print("x"), x * 2.0)[1]),  # noqa: T201
        ("builtins.id", lambda x: (id(x), x * 2.0)[1]),
        ("now", lambda x: x * datetime.datetime.now().second),
        ("rand", lambda x: x * float(np.random.rand())),
        ("advancing", lambda x: x * next(old)),
        ("advancing", lambda x: x * sum(k for k, _ in zip(old, [1, 2], strict=False))),
        ("advancing", loop),
    ]


@pytest.mark.parametrize(("name", "fn"), _calls())
def test_calls_whose_state_nobody_sees_are_refused_by_name_and_line(
    name: str, fn: Callable[..., Any]
) -> None:
    """C: clocks, random numbers, files, print, id, iterators that existed before."""
    assert name in str(refused("TP4036", fn, tp.ones((2,))))


def test_a_seeded_generator_made_inside_is_no_hidden_state() -> None:
    """C: it gives the same in every run, as in eager code."""
    import random

    for fn in (
        lambda x: x * random.Random(7).random(),
        lambda x: x * np.random.RandomState(7).rand(),
        lambda x: x * np.random.default_rng(7).random(),
    ):
        assert tp.compile(fn)(tp.ones((2,))).tolist() == fn(tp.ones((2,))).tolist()


def test_exceptions_of_the_function_are_unchanged() -> None:
    """C: type, value, no note, and the state that it left."""
    table: dict[str, float] = {}

    def fn(x: Tensor) -> Tensor:
        return x * table["absent"]

    with pytest.raises(KeyError) as caught:
        tp.compile(fn)(tp.ones((2,)))
    assert caught.value.args == ("absent",)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.thread_unsafe(reason="it sets the trace function of its thread")
def test_a_trace_function_pauses_for_a_capture_and_is_back_after_it() -> None:
    """C: a debugger or a coverage tool goes on, and other threads are untouched."""
    lines: list[str] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        lines.append(frame.f_code.co_name)
        return tracer

    k = 2.0
    compiled = tp.compile(lambda x: x * k)
    others: list[Any] = []
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        first = compiled(tp.ones(()))
        assert sys.gettrace() is tracer
        thread = threading.Thread(target=lambda: others.append(sys.gettrace()))
        thread.start()
        thread.join()
    finally:
        sys.settrace(before)
    k = 3.0
    assert (first.item(), compiled(tp.ones(())).item()) == (2.0, 3.0)
    assert others == [None]


def test_a_trace_function_set_inside_is_refused() -> None:
    """C: what happens after it is not seen."""

    def fn(x: Tensor) -> Tensor:
        sys.settrace(None)
        return x * 2.0

    with pytest.raises(CaptureError) as caught:
        tp.compile(fn)(tp.ones((2,)))
    assert caught.value.code == "TP4036"
    assert sys.gettrace() is None or "watches" not in str(sys.gettrace())


def test_fake_rules_and_kernels_are_not_watched(ns: str) -> None:
    """C: what they keep and count is their own."""
    log: list[str] = []
    op = tp.library.custom_op(f"{ns}::f", lambda x: (log.append("kernel"), x * 2.0)[1], mutates_args=())
    op.register_fake(lambda x: (log.append("fake"), tp.empty_like(x))[1])
    compiled = tp.compile(lambda x: op(x) + 1.0)
    assert compiled(tp.ones(())).item() == 3.0
    assert set(log) == {"fake", "kernel"}
    assert not any("log" in guard for guard in compiled.report.guards)


def test_a_compiled_function_that_guards_what_holds_it_is_collected() -> None:
    """C: guards own what they look at, and the collector sees it."""

    class Model:
        def __init__(self) -> None:
            self.w = 2.0
            self.run = tp.compile(self.forward)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w + len(vars(self))

    model = Model()
    model.run(tp.ones((2,)))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_property_that_is_cached_on_first_use_is_captured() -> None:
    """C: `functools.cached_property` of an object from outside."""
    import functools

    class Config:
        base = 2.0

        @functools.cached_property
        def k(self) -> float:
            return self.base * 2.0

    c = Config()
    compiled = tp.compile(lambda x: x * c.k)
    for _ in range(2):
        assert compiled(tp.ones(())).item() == 4.0
    assert len(compiled.graphs) == 1
    del c.k
    Config.base = 3.0
    assert compiled(tp.ones(())).item() == 6.0


def test_the_dict_of_a_new_object_is_as_new() -> None:
    """C: attributes set through `__dict__` or `vars` of what the function made are no writes to see."""

    class Record:
        def __init__(self, x: Tensor, way: int) -> None:
            held = (self.__dict__, vars(self))[way]
            held["a"] = x + 1.0

    for way in (0, 1):
        compiled = tp.compile(lambda x, way=way: [Record(x, way) for _ in range(20)][-1].a)
        for value in (1.0, 5.0):
            assert compiled(tp.full((), value)).item() == value + 1.0
        assert len(compiled.graphs) == 1


@pytest.mark.parametrize("way", ["attribute", "setattr", "object"])
def test_a_new_object_with_a_dict_from_outside_is_as_old(way: str) -> None:
    """C: the Borg pattern: what is read there is guarded, what is written there refused."""
    shared = {"n": 2.0}

    class Borg:
        n: float

        def __init__(self) -> None:
            if way == "attribute":
                self.__dict__ = shared
            elif way == "setattr":
                setattr(self, "__dict__", shared)  # noqa: B010
            else:
                object.__setattr__(self, "__dict__", shared)

    compiled = tp.compile(lambda x: x * Borg().n)
    assert compiled(tp.ones(())).item() == 2.0
    shared["n"] = 3.0
    assert compiled(tp.ones(())).item() == 3.0

    def counts(x: Tensor) -> Tensor:
        b = Borg()
        b.n += 1.0
        return x * b.n

    refused("TP4031", counts, tp.ones(()))
    assert shared == {"n": 3.0}
