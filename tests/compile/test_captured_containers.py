"""Containers, objects and sizes that a captured function takes and returns: the run's own, or refused by name."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorplay as tp
from captures import refused
from dynamic_sizes import positives
from tensorplay import Tensor
from tensorplay.errors import CaptureError


class _Holder:
    def __init__(self) -> None:
        self.calls, self.seen = 0, {"a": [1]}

    @functools.cached_property
    def twice(self) -> float:
        return 2.0


def _count(x: Tensor, h: _Holder) -> Tensor:
    h.calls += 1
    return x * 2.0


def _deep(x: Tensor, h: _Holder) -> Tensor:
    h.seen["a"].append(2)
    return x * 2.0


@pytest.mark.parametrize(
    ("fn", "make", "name"),
    [
        (lambda x, seen: (seen.append(x + 1.0), x)[1], lambda: [1.0], "seen"),
        (lambda x, seen: (seen.__setitem__(0, x), x)[1], lambda: [1.0], "seen"),
        (lambda x, seen: (seen.reverse(), x)[1], lambda: [1.0, 2.0], "seen"),
        (lambda x, seen: (seen[0].append(x), x)[1], lambda: [[1.0]], "seen[0]"),
        (lambda x, d: (d.__setitem__("b", x), x)[1], lambda: {"a": 1.0}, "d"),
        (lambda x, d: (d.pop("a"), x)[1], lambda: {"a": 1.0}, "d"),
        (lambda x, d: (d.update(a=x), x)[1], lambda: collections.OrderedDict(a=1.0), "d"),
        (lambda x, q: (q.append(x), x)[1], lambda: collections.deque([1.0]), "q"),
        (lambda x, s: (s.add(1), x)[1], set, "s"),
        (_count, _Holder, "h"),
        (_deep, _Holder, "h.seen['a']"),
    ],
)
def test_a_write_to_an_argument_is_refused_by_name(
    fn: Callable[..., Any], make: Callable[[], Any], name: str
) -> None:
    """Containers and objects hold after a refused capture what they held before."""
    given = make()
    e = refused("TP4032", fn, tp.ones((2,)), given)
    assert f"its argument '{name}'" in str(e)
    old, new = (vars(o) if isinstance(o, _Holder) else o for o in (make(), given))
    assert old == new


def test_the_object_of_a_bound_method_is_watched() -> None:
    """`tp.compile(model.forward)` and a compiled method see writes to self."""

    class Model:
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * 2.0

    m = Model()
    for compiled in (tp.compile(m.forward), functools.partial(tp.compile(Model.forward), m)):
        with pytest.raises(CaptureError, match="its argument 'self'"):
            compiled(tp.ones((2,)))
    assert vars(m) == {}


def test_keyword_arguments_are_watched() -> None:
    """By the name they are passed under."""

    def fn(x: Tensor, *, out: list[Tensor]) -> Tensor:
        out.append(x)
        return x

    with pytest.raises(CaptureError, match="its argument 'out'"):
        tp.compile(fn)(tp.ones((2,)), out=[])


def test_containers_that_the_function_made_are_its_own() -> None:
    """Lists filled inside, and properties that an argument caches, are no writes to see."""

    def fn(x: Tensor, parts: list[Tensor], h: _Holder) -> Tensor:
        mine = list(parts)
        mine.append(x * h.twice)
        return tp.stack(mine)

    x = tp.ones((2,))
    assert tp.compile(fn)(x, [x, x], _Holder()).tolist() == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]


def test_a_container_of_a_subclass_is_guarded_by_what_it_holds() -> None:
    """An OrderedDict, defaultdict or deque that is filled anew gives new results."""
    for d in (collections.OrderedDict(a=tp.ones(())), collections.defaultdict(list, a=tp.ones(()))):
        compiled = tp.compile(lambda d: d["a"] * 2.0)
        assert compiled(d).item() == 2.0
        d["a"] = tp.full((), 3.0)
        assert compiled(d).item() == 6.0
        assert len(compiled.graphs) == 1
    q = collections.deque([tp.ones(())])
    compiled = tp.compile(lambda q: q[0] * 2.0)
    assert compiled(q).item() == 2.0
    q[0] = tp.full((), 3.0)
    assert compiled(q).item() == 6.0


@dataclasses.dataclass(frozen=True)
class _Pair:
    a: Any
    b: Any = 3


@dataclasses.dataclass(slots=True)
class _Slotted:
    a: Any


class _Record(dict[str, Any]):
    """A dict whose items are attributes too, as model outputs often are."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__.update(items)


class _Named(NamedTuple):
    a: Any


@pytest.mark.parametrize(
    ("fn", "get"),
    [
        (lambda x: collections.OrderedDict(b=x, a=x + 1.0), lambda o: o["a"]),
        (lambda x: collections.defaultdict(list, a=x + 1.0), lambda o: o["a"]),
        (lambda x: collections.deque([x + 1.0], maxlen=3), lambda o: o[0]),
        (lambda x: _Pair(x + 1.0), lambda o: o.a),
        (lambda x: _Slotted(x + 1.0), lambda o: o.a),
        (lambda x: _Record(a=x + 1.0), lambda o: o.a),
        (lambda x: _Named([x + 1.0]), lambda o: o.a[0]),
        (lambda x: [{"k": _Pair(x + 1.0)}], lambda o: o[0]["k"].a),
    ],
)
def test_results_are_rebuilt_as_their_type(fn: Callable[..., Any], get: Callable[[Any], Tensor]) -> None:
    """Containers and dataclasses hold the tensors of the run, in every run."""
    compiled = tp.compile(fn)
    for value in (1.0, 5.0):
        x = tp.full((2,), value)
        out, wanted = compiled(x), fn(x)
        assert type(out) is type(wanted)
        assert get(out).tolist() == [value + 1.0] * 2
        assert getattr(out, "maxlen", None) == getattr(wanted, "maxlen", None)
        assert getattr(out, "default_factory", None) is getattr(wanted, "default_factory", None)
        if isinstance(wanted, dict):
            assert list(out) == list(wanted)
    assert len(compiled.graphs) == 1
    assert tp.graph.capture(fn, tp.ones((2,))).outputs
    if isinstance(out, _Pair):
        assert out.b == 3


class _Hidden:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


def _object_array(x: Tensor) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = x + 1.0
    return array


@pytest.mark.parametrize(
    ("fn", "type_name"),
    [
        (lambda x: {x + 1.0}, "set"),
        (lambda x: frozenset([x + 1.0]), "frozenset"),
        (lambda x: types.SimpleNamespace(a=x + 1.0), "SimpleNamespace"),
        (lambda x: functools.partial(tp.add, x + 1.0), "partial"),
        (lambda x: (lambda y: lambda: y)(x + 1.0), "function"),
        (lambda x: _Hidden([x + 1.0]), "_Hidden"),
        (lambda x: iter([x + 1.0]), "list_iterator"),
        (lambda x: {"a": x + 1.0}.values(), "dict_values"),
        (_object_array, "ndarray"),
        (lambda x: (x * 2.0).grad_fn, "Node"),
        (lambda x: {"k": {x + 1.0: 1}}, "a key of result['k']"),
    ],
)
def test_no_fake_leaves_a_capture(fn: Callable[..., Any], type_name: str) -> None:
    """An output that cannot be made anew is refused by place and type."""
    e = refused("TP4033", fn, tp.ones((2,)).requires_grad_())
    assert type_name in str(e)
    with pytest.raises(CaptureError):
        tp.graph.capture(fn, tp.ones((2,)).requires_grad_())


def test_other_objects_go_through() -> None:
    """What holds nothing of the capture is returned as it is, and a set is a new one in every run."""
    config = types.SimpleNamespace(a=1, w=tp.ones((2,)))
    compiled = tp.compile(lambda x: (x * 2.0, config, 2**70, {1, 2}, range(3)))
    for _ in range(2):
        out = compiled(tp.ones((2,)))
        assert out[1] is config
        assert out[2:] == (2**70, {1, 2}, range(3))
        out[3].add(7)


def test_an_integer_beyond_64_bits_is_guarded_by_value() -> None:
    """As an argument it is handed through, another value is another entry."""
    compiled = tp.compile(lambda x, n: (x * 2.0, n))
    assert compiled(tp.ones(()), 2**63)[1] == 2**63
    assert compiled(tp.ones(()), 2**64)[1] == 2**64
    assert compiled(tp.ones(()), 2**64)[1] == 2**64
    assert len(compiled.graphs) == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda n: f"{n:d}",
        lambda n: f"{n}",
        lambda n: str(n),
        lambda n: repr((n,)),
        lambda n: n**-1,
        lambda n: n**0.5,
        lambda n: 2**n,
        lambda n: n * 2**63,
        lambda n: n * 2**62 * 2,
        lambda n: pow(n, 2, 7),
        lambda n: round(n, -1),
        lambda n: n << 1,
        lambda n: 1 | n,
        lambda n: ~n,
        lambda n: divmod(7, n),
        lambda n: complex(n),
    ],
)
def test_arithmetic_that_needs_the_number_is_refused_at_its_line(ns: str, ask: Callable[[Any], Any]) -> None:
    """No TypeError without a line, and no text of a symbol."""
    op = positives(f"{ns}::f", high=9)
    with pytest.raises(CaptureError) as caught:
        tp.compile(lambda x: (x, ask(op(x).shape[0])))(tp.ones((3,)))
    assert caught.value.code == "TP4002"
    assert any(f"{__file__.rpartition('/')[2]}:" in note for note in caught.value.__notes__)


def test_whole_numbers_round_to_themselves(ns: str) -> None:
    """Rounding a size and small powers of it are sizes."""
    op = positives(f"{ns}::f", high=9)

    def fn(x: Tensor) -> Any:
        n = op(x).shape[0]
        return (
            round(n),
            round(n, 2),
            math.floor(n),
            math.ceil(n),
            math.trunc(n),
            abs(n),
            n**2,
            (n + 1) ** 3,
            n**0,
        )

    compiled = tp.compile(fn)
    for k in (2, 3):
        x = tp.tensor([1.0] * k + [-1.0] * (4 - k))
        assert compiled(x) == fn(x) == (k, k, k, k, k, k, k**2, (k + 1) ** 3, 1)
    assert len(compiled.graphs) == 1


def test_sizes_stay_out_of_keys_and_objects(ns: str) -> None:
    """A symbolic size in a dict's key or an object is refused; as a value it is the run's number."""
    op = positives(f"{ns}::f")
    for fn in (lambda x: {op(x).shape[0]: 1}, lambda x: types.SimpleNamespace(n=op(x).shape[0])):
        refused("TP4033", fn, tp.ones((3,)))
    compiled = tp.compile(lambda x: _Pair(op(x).shape[0], {"n": op(x).shape[0]}))
    out = compiled(tp.tensor([1.0, -1.0, 2.0]))
    assert (out.a, out.b) == (2, {"n": 2})
