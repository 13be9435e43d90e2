"""Debug mode: undeclared writes and broken promises of eager kernels, found at the call."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ContractError


def test_undeclared_writes_are_found(ns: str) -> None:
    """Bit by bit, through raw memory too, and writes that are undone by their version."""

    def raw(x: Tensor, y: Tensor) -> Tensor:
        y.numpy()[0] = -0.0
        return x * 1

    def undone(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        y.sub_(1)
        return x * 1

    for name, body in (("raw", raw), ("undone", undone)):
        op = library.custom_op(f"{ns}::{name}", body, mutates_args=())
        op(tp.ones([2]), tp.zeros([2]))
        with pytest.raises(ContractError, match=f"{ns}::{name}: the kernel wrote to argument 'y'") as e:
            with library.debug_checks():
                op(tp.ones([2]), tp.zeros([2]))
        assert e.value.code == "TP3241"
        op(tp.ones([2]), tp.zeros([2]))


def test_declared_writes_are_not(ns: str) -> None:
    def fill(x: Tensor, y: Tensor) -> None:
        x.fill_(3.0)

    op = library.custom_op(f"{ns}::f", fill, mutates_args=("x",))
    x = tp.zeros([4])
    with library.debug_checks():
        op(x, tp.ones([2]))
        op(x[:2], x[1:])
    assert x.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("fake", "text"),
    [
        (lambda x: tp.empty([3]), r"is float32\[2\], the fake rule promised float32\[3\]"),
        (lambda x: tp.empty([2], dtype=tp.int8), r"is float32\[2\], the fake rule promised int8\[2\]"),
    ],
)
def test_results_are_held_to_the_fake_kernel(ns: str, fake, text: str) -> None:
    """5.9 in eager calls."""
    op = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    op.register_fake(fake)
    op(tp.ones([2]))
    with (
        library.debug_checks(),
        pytest.raises(ContractError, match=f"{ns}::f: output 0 of the kernel {text}"),
    ):
        op(tp.ones([2]))


def test_strides_are_told_on_both_sides(ns: str) -> None:
    """5.9: where nothing else differs, also of the side that is contiguous; sizes 0 and 1 tell no strides apart."""
    f = library.custom_op(f"{ns}::f", lambda x: (x * 1).T, mutates_args=())
    x = tp.ones([2, 3])
    f.register_fake(lambda x: tp.empty([3, 2]))
    text = r"is float32\[3, 2\] strides \[1, 3\], the fake rule promised float32\[3, 2\] strides \[2, 1\]"
    with library.debug_checks(), pytest.raises(ContractError, match=text) as e:
        f(x)
    assert e.value.code == "TP3205"
    f.register_fake(lambda x: tp.empty(x.shape).T)
    g = library.custom_op(f"{ns}::g", lambda x: x * 1, mutates_args=())
    g.register_fake(lambda x: tp.empty([3, 2]).T)
    with library.debug_checks():
        f(x)
        f(tp.ones([1, 3]))
        with pytest.raises(
            ContractError, match=r"strides \[3, 1\], the fake rule promised .* strides \[1, 2\]"
        ):
            g(x)


def test_numbers_are_held_to_the_fake_kernel(ns: str) -> None:
    op = library.custom_op(f"{ns}::f", lambda x: 5, mutates_args=(), schema="(Tensor x) -> int")
    op.register_fake(lambda x: 3)
    assert op(tp.ones([1])) == 5
    with library.debug_checks(), pytest.raises(ContractError, match="is 5, the fake rule promised 3"):
        op(tp.ones([1]))


def test_honest_ops_pass_and_built_in_ones_are_left_alone(ns: str) -> None:
    op = library.custom_op(f"{ns}::f", lambda x: (x * 2).T, mutates_args=())
    op.register_fake(lambda x: tp.empty(x.shape).T if x.shape[0] == x.shape[1] else tp.empty(x.shape[::-1]).T)
    op2 = library.custom_op(
        f"{ns}::g", lambda xs: [x * 1 for x in xs], mutates_args=(), schema="(Tensor[] xs) -> Tensor[]"
    )
    op2.register_fake(lambda xs: [tp.empty_like(x) for x in xs])
    with library.debug_checks():
        assert op(tp.ones([2, 2])).sum().item() == 8.0
        assert len(op2([tp.ones([1]), tp.ones([2])])) == 2
