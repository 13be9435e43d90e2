"""Special methods that native code asks of objects while tensors are at work: what they read is guarded."""

from __future__ import annotations

import pytest

import tensorplay as tp


class Switch:
    def __init__(self) -> None:
        self.level = 1.0

    def __bool__(self) -> bool:
        return self.level > 1.5

    def __iter__(self):
        return iter([self.level])


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, s: x if s else -x,
        lambda x, s: tp.where(x > 0.0, x, -x * (2.0 if s else 3.0)),
        lambda x, s: -x if not s else x,
        lambda x, s: sum(x * level for level in s),
    ],
    ids=["if", "deeper", "not", "for"],
)
def test_a_special_method_over_a_tensor_on_the_stack_is_watched(ask) -> None:
    """A: truth and iteration have one operand, whatever lies under it."""
    s = Switch()
    compiled = tp.compile(lambda x: ask(x, s))
    for level in (1.0, 2.0, 3.0):
        s.level = level
        assert compiled(tp.tensor([-1.0, 2.0])).tolist() == ask(tp.tensor([-1.0, 2.0]), s).tolist()


class Operand:
    def __init__(self) -> None:
        self.level = 1

    def __add__(self, x):
        return x * float(self.level)

    def __rsub__(self, x):
        return x * float(self.level)

    def __getitem__(self, x):
        return x * float(self.level)

    def __lt__(self, x):
        return x * float(self.level)

    def __contains__(self, x) -> bool:
        return self.level > 1

    def __index__(self) -> int:
        return self.level


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, p: p + x,
        lambda x, p: x - p,
        lambda x, p: p[x],
        lambda x, p: p < x,
        lambda x, p: x if x in p else -x,
        lambda x, p: x[p:],
        lambda x, p: x[p],
    ],
    ids=["add", "rsub", "getitem", "lt", "contains", "slice", "index"],
)
def test_a_special_method_of_an_operand_beside_a_tensor_is_watched(ask) -> None:
    """A: what an object reads of itself when a tensor meets it is state like any other."""
    p = Operand()
    compiled = tp.compile(lambda x: ask(x, p))
    for level in (1, 2, 3):
        p.level = level
        x = tp.tensor([1.0, 2.0, 3.0, 4.0])
        assert compiled(x).tolist() == ask(x, p).tolist()
    assert len(compiled.graphs) in (2, 3)
