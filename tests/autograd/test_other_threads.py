"""What other threads do changes nothing here: draws of a checkpoint, anomaly mode."""

from __future__ import annotations

import threading

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor
from tensorplay.autograd import checkpoint, detect_anomaly, set_detect_anomaly
from tensorplay.errors import AutogradError


@pytest.mark.thread_unsafe(reason="compares the sequence of the process with itself")
def test_the_second_run_of_a_checkpoint_leaves_the_generator_alone() -> None:
    """Draws of other threads amid either run, seeds set inside, and nested checkpoints change nothing."""
    seen: list[list[float]] = []
    others: list[None] = []

    def elsewhere() -> None:
        others.append(None)
        thread = threading.Thread(target=lambda: tp.uniform([5]))
        thread.start()
        thread.join()

    def inner(x: Tensor) -> Tensor:
        mask = tp.uniform([2])
        elsewhere()
        seen.append(mask.tolist())
        return x * mask * x

    def outer(x: Tensor) -> Tensor:
        first = tp.uniform([2])
        elsewhere()
        y = checkpoint(inner, x * first)
        tp.manual_seed(7)
        last = tp.uniform([2])
        seen.append(first.tolist() + last.tolist())
        return y * last * x

    x = leaf(1.0, 2.0)
    tp.manual_seed(3)
    y = checkpoint(outer, x)
    seed, blocks = tp._native.rng_state()
    assert (seed, blocks) == (7, 1)
    others.clear()
    y.sum().backward()
    # Five numbers are two blocks of four; those of the other threads are all that was drawn.
    assert tp._native.rng_state() == (seed, blocks + 2 * len(others))
    assert others
    assert len(seen) > 3
    assert {tuple(s) for s in seen} == {tuple(s) for s in seen[:2]}
    (mask, both), grad = seen[:2], x.grad
    want = [
        3 * v * v * f * f * m * k for v, f, m, k in zip((1.0, 2.0), both[:2], mask, both[2:], strict=True)
    ]
    assert grad.tolist() == pytest.approx(want)


def test_anomaly_mode_belongs_to_the_thread() -> None:
    """6.17, H4: another thread neither records lines nor looks for NaN; one that ends in a context takes it along."""

    def nan() -> Tensor:
        x = leaf(0.0)
        return (tp.sqrt(x) * 0.0).sum()

    def run(fn):
        found = []
        thread = threading.Thread(target=lambda: found.append(fn()))
        thread.start()
        thread.join()
        return found[0]

    def set_and_end() -> None:
        set_detect_anomaly(True)

    with detect_anomaly():
        assert run(lambda: nan().backward()) is None
        y = nan()
        with pytest.raises(AutogradError, match="NaN"):
            nan().backward()
    run(set_and_end)
    y.backward()
    nan().backward()
    with detect_anomaly():
        y = nan()
    assert run(lambda: y.backward()) is None
