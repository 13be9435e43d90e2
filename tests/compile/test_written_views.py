"""Recorded values written into memory that a captured function makes and has views of: as in an eager call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.errors import AutogradError


def _one_view(x: Tensor) -> Tensor:
    board = tp.zeros((3,))
    board[1:].copy_(x)
    return (board * board).sum()


def _edge_and_inside(x: Tensor) -> Tensor:
    board = tp.zeros((3,))
    board[0] = 5.0
    board[1:] = x
    return (board * board).sum()


def _read_before(x: Tensor) -> Tensor:
    board = tp.ones((3,))
    first = board[0] + 1.0
    board[1:].mul_(x)
    return (board * board).sum() + first


def _views_of_views(x: Tensor) -> Tensor:
    board = tp.zeros((2, 2))
    board.T[0].copy_(x)
    board.reshape((4,))[1:3].mul_(2.0)
    return (board * board).sum()


def _overlapping(x: Tensor) -> Tensor:
    board = tp.zeros((3,))
    board[:2].copy_(x)
    board[1:].copy_(x * 2.0)
    return (board * board).sum()


def _from_a_list(x: Tensor) -> Tensor:
    board = tp.zeros((2, 2))
    for i in range(2):
        board[i] = x * float(i + 1)
    return (board * board * board).sum()


PROGRAMS = {
    "one view": (_one_view, [4.0, 6.0], 13.0),
    "edge and inside": (_edge_and_inside, [4.0, 6.0], 38.0),
    "read before": (_read_before, [4.0, 6.0], 16.0),
    "views of views": (_views_of_views, [4.0, 24.0], 40.0),
    "overlapping": (_overlapping, [20.0, 24.0], 56.0),
    "item by item": (_from_a_list, [108.0, 243.0], 315.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_made_inside_is_written_through_its_views(name: str) -> None:
    """6.13, C4: what an eager call takes a compiled one takes, with the same value and gradient."""
    f, gradient, value = PROGRAMS[name]
    for call in (f, tp.compile(f)):
        x = tp.tensor([2.0, 3.0], requires_grad=True)
        y = call(x)
        y.backward()
        assert (y.item(), x.grad.tolist()) == (value, gradient)
    assert tp.compile(f)(tp.tensor([2.0, 3.0])).item() == value


def _third_view(x: Tensor) -> Tensor:
    board = tp.zeros((3,))
    first = board[:1]
    board[1:].copy_(x)
    return first.sum()


def _detached(x: Tensor) -> Tensor:
    board = tp.zeros((3,))
    other = board.detach()
    board[1:].copy_(x)
    return other.sum()


@pytest.mark.parametrize("f", [_third_view, _detached])
def test_memory_that_others_share_is_refused_in_a_capture_as_well(f: Callable[[Tensor], Tensor]) -> None:
    """6.13: a second view that is alive, and a detach, which is linked to nothing there either."""
    for call in (f, tp.compile(f)):
        with pytest.raises(AutogradError) as e:
            call(tp.tensor([2.0, 3.0], requires_grad=True))
        assert e.value.code == "TP3019"


def test_memory_without_data_is_written_through_its_views() -> None:
    """6.13: on 'meta', whose tensors come from the same rules."""
    x = tp.empty((2,), device="meta").requires_grad_()
    board = tp.empty((3,), device="meta")
    board[1:].copy_(x)
    assert board.requires_grad
    board.sum().backward()
    assert (x.grad.shape, x.grad.device) == (x.shape, x.device)
