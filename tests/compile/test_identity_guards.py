"""Which of two tensors it is: a compiled function that asks by `is` or by a hash gets what eager code gets."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from captures import refused
from tensorplay import Tensor, _native

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)


def _is(x: Tensor, y: Tensor) -> Tensor:
    return x * 2.0 if x is y else x + y


def _is_not(x: Tensor, y: Tensor) -> Tensor:
    return x + y if x is not y else x * 2.0 - 1.0


def _called(x: Tensor, y: Tensor) -> Tensor:
    return x * 2.0 if operator.is_(x, y) else x + y


def _in_a_call(x: Tensor, y: Tensor) -> Tensor:
    def pick(a: Tensor, b: Tensor) -> bool:
        return a is b

    return x * 2.0 if pick(x, y) else x + y


def _in_containers(x: Tensor, y: Tensor) -> Tensor:
    xs, d = [x], {"y": y}
    return x * 2.0 if xs[0] is d["y"] else x + y


def _key(x: Tensor, y: Tensor) -> Tensor:
    return x * {x: 2.0, y: 3.0}[x]


def _set(x: Tensor, y: Tensor) -> Tensor:
    return x * float(len({x, y}))


def _member(x: Tensor, y: Tensor) -> Tensor:
    return x * 2.0 if y in {x} else x + y


def _grouped(x: Tensor, y: Tensor) -> Tensor:
    groups: dict[Tensor, list[float]] = {}
    for i, t in enumerate((x, y)):
        groups.setdefault(t, []).append(float(i + 1))
    return x * sum(groups[x])


ASKING = [_is, _is_not, _called, _in_a_call, _in_containers, _key, _set, _member, _grouped]


@pytest.mark.parametrize("fn", ASKING, ids=lambda f: f.__name__)
def test_two_arguments_that_were_told_apart_are_one_in_the_next_call(fn: Callable[..., Any]) -> None:
    """5.5: f(a, a) after f(a, b), and the other way round, each with its own graph."""
    a, b = tp.tensor([1.0, 2.0]), tp.tensor([3.0, 5.0])
    for calls in (((a, b), (a, a), (b, a), (b, b)), ((a, a), (a, b), (b, b))):
        compiled = tp.compile(fn)
        for args in calls:
            assert compiled(*args).tolist() == fn(*args).tolist()
        assert len(compiled.graphs) == 2


def test_the_guard_says_that_two_arguments_are_two() -> None:
    """5.5: in the list of guards and in the recompiles."""
    a, b = tp.tensor([1.0]), tp.tensor([2.0])
    compiled = tp.compile(_is)
    compiled(a, b), compiled(a, a)
    assert "x is not y" in compiled.report.guards or "y is not x" in compiled.report.guards
    (miss,) = compiled.report.recompiles
    assert "got one tensor" in str(miss)


def test_arguments_that_nobody_tells_apart_share_a_graph() -> None:
    """5.5: what is not asked is not guarded."""
    a, b = tp.tensor([1.0]), tp.tensor([2.0])
    compiled = tp.compile(lambda x, y: x * y if x is not None else y)
    for args in ((a, b), (a, a), (b, b)):
        assert compiled(*args).tolist() == (args[0] * args[1]).tolist()
    assert len(compiled.graphs) == 1


def test_an_argument_that_is_compared_with_a_tensor_from_outside() -> None:
    """5.5: any other tensor is answered right; that very one has two objects in a capture, and is refused."""
    w = tp.tensor([1.0])
    fn = lambda x: x * 2.0 if x is w else x + w  # noqa: E731
    compiled = tp.compile(fn)
    for u in (tp.tensor([4.0]), tp.tensor([7.0])):
        assert compiled(u).tolist() == fn(u).tolist()
    assert "asks whether its argument is a tensor that it reaches on its own" in str(refused("TP4036", fn, w))
    with pytest.raises(tp.errors.CaptureError):
        compiled(w)


_W = tp.tensor([1.0])
_TABLE, _NAMES = {_W: 2.0}, {_W}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * _TABLE.get(x, 5.0),
        lambda x: x * (_TABLE[x] if x in _TABLE else 5.0),  # noqa: SIM401
        lambda x: x * (2.0 if x in _NAMES else 5.0),
    ],
)
def test_an_argument_that_is_looked_for_in_a_table_from_outside(fn: Callable[..., Any]) -> None:
    """5.5: as with `is`: another tensor is not found, the one that is there is refused."""
    compiled = tp.compile(fn)
    for u in (tp.tensor([4.0]), tp.tensor([7.0])):
        assert compiled(u).tolist() == (u * 5.0).tolist()
    refused("TP4036", fn, _W)
    with pytest.raises(tp.errors.CaptureError):
        compiled(_W)


def test_tables_of_tensors_from_outside_answer_for_tensors_from_outside() -> None:
    """5.5: both are the very objects of eager code."""
    compiled = tp.compile(lambda x: x * _TABLE[_W] + (1.0 if _W in _NAMES else 0.0))
    for _ in range(2):
        assert compiled(tp.tensor([4.0])).tolist() == [9.0]
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("value", [1000, 2.5, "some words", (1, 2), b"ab"])
def test_equal_values_compared_by_identity_are_refused(value: Any) -> None:
    """5.5: they are guarded by value, and whether they are one object depends on how they were made."""
    other = type(value)(value)
    assert "one object" in str(refused("TP4036", lambda x: x * 2.0 if value is other else x, tp.ones((1,))))


def test_singletons_small_numbers_and_unequal_values_are_compared_by_identity() -> None:
    """5.5: `is None`, `is True`, and what the interpreter keeps one object of."""
    flag, n, s, k = True, 7, "a", 1000

    def fn(x: Tensor, y: Any = None) -> Tensor:
        one, seven, letter = flag is True, n is (3 + len("abcd")), "xa"[1]
        return x * (2.0 if one and seven and s is letter and y is None and k is not n else 3.0)

    assert tp.compile(fn)(tp.ones(())).item() == 2.0
