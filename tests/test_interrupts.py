"""A long backward pass and the rest of the process: signals, timers and other threads get their turn."""

from __future__ import annotations

import _thread
import os
import random
import signal
import sys
import threading
import time

import pytest

import tensorplay as tp


def long_chain(steps: int) -> tuple[tp.Tensor, tp.Tensor]:
    """(leaf, sum of a chain of built-in ops over it)."""
    x = tp.ones((4,)).requires_grad_()
    y = x
    for _ in range(steps):
        y = y * 1.0
    return x, y.sum()


def interrupt_by_kill() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("send", [interrupt_by_kill, _thread.interrupt_main])
def test_a_thread_interrupts_a_long_backward(send) -> None:
    """KeyboardInterrupt. The thread that sends it runs only if backward lets go of the interpreter lock."""
    x, loss = long_chain(600_000)
    begun = threading.Event()
    handle = loss.register_hook(lambda grad: begun.set())

    def wait_and_send() -> None:
        begun.wait()
        send()

    for _ in range(8):  # a sender that the machine holds up comes after the pass, which proves nothing
        begun.clear()
        x.grad = None
        sender = threading.Thread(target=wait_and_send)
        sender.start()
        try:
            loss.backward(retain_graph=True)
            sender.join()
            time.sleep(0.1)
        except KeyboardInterrupt:
            sender.join()
        else:
            pytest.fail("no interrupt came")
        if x.grad is None:
            break
    assert x.grad is None, "every interrupt came after the pass"
    handle.remove()
    # The graph that was kept is whole.
    loss.backward()
    assert x.grad.tolist() == [1.0] * 4


def test_other_threads_run_during_a_long_backward() -> None:
    """The lock is shared while a pass of built-in ops runs: in some pass another thread gets it twice."""
    _, loss = long_chain(600_000)
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    most = 0
    try:
        for _ in range(100):
            started = time.perf_counter()
            loss.backward(retain_graph=True)
            ended = time.perf_counter()
            most = max(most, sum(started < t < ended for t in ticks))
            if most >= 2:
                break
    finally:
        stop.set()
        thread.join()
    assert most >= 2, len(ticks)


def test_a_signal_handler_that_raises_ends_the_pass_with_its_exception() -> None:
    """KeyboardInterrupt. Any handler's exception passes through by identity."""
    error = RuntimeError("stop")

    def handler(_signal: int, _frame: object) -> None:
        raise error

    x, loss = long_chain(600_000)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(RuntimeError) as caught:
            loss.backward(retain_graph=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught.value is error
    assert x.grad is None


PACKED: list[int] = []


def no_grad(x: tp.Tensor) -> None:
    with tp.no_grad():
        x * 2.0


@tp.no_grad()
def decorated(x: tp.Tensor) -> None:
    x * 2.0


@tp.no_grad()
def generated(x: tp.Tensor):
    yield x * 2.0
    yield x * 3.0


def autocast(x: tp.Tensor) -> None:
    with tp.autocast("cpu"):
        x * 2.0


def transformed(x: tp.Tensor) -> None:
    tp.func.vmap(tp.func.grad(lambda a: (a * a).sum()))(x.detach())


def checkpointed(x: tp.Tensor) -> None:
    tp.autograd.checkpoint(lambda a: a * a * tp.uniform((2,)), x[0]).sum().backward()


def packed(x: tp.Tensor) -> None:
    with tp.autograd.saved_tensors_hooks(lambda t: PACKED.append(1) or t.tolist(), tp.tensor):
        (x * x).sum().backward()


def watched(x: tp.Tensor) -> None:
    with tp.autograd.detect_anomaly():
        x * 2.0


def left_in_force(x: tp.Tensor) -> list[str]:
    """What of a thread's state is not as it is outside of every context."""
    found = []
    if not tp.is_grad_enabled():
        found.append("grad mode is off")
    one = tp.ones((1, 1))
    if (one @ one).dtype != tp.float32:
        found.append("autocast is on")
    try:
        tp.uniform((1,))
    except tp.errors.TensorPlayError:
        found.append("a vmap is entered")
    y = tp.sqrt(x.detach() * 0.0 - 1.0).requires_grad_()
    try:
        (y * y * float("nan")).sum().backward()
    except tp.errors.TensorPlayError:
        found.append("anomaly mode is on")
    PACKED.clear()
    try:
        z = tp.ones((2,)).requires_grad_()
        (z * z).sum().backward()
    except tp.errors.TensorPlayError as e:
        found.append(str(e))
    if PACKED:
        found.append("hooks on saved tensors are entered")
    return found


@pytest.mark.parametrize(
    "body",
    [no_grad, decorated, lambda x: list(generated(x)), autocast, transformed, checkpointed, packed, watched],
    ids=["no_grad", "decorator", "generator", "autocast", "func", "checkpoint", "hooks", "anomaly"],
)
def test_an_interrupt_at_any_moment_leaves_no_context_behind(body, monkeypatch) -> None:
    """3.11, issue: KeyboardInterrupt. Entering and leaving are one step each, with nothing of Python between."""
    # What a handler raises while the collector works goes to this hook, and is no failure.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    x = tp.ones((3, 2)).requires_grad_()
    body(x)
    assert left_in_force(x) == []
    rng = random.Random(0)
    running = False

    def handler(_signal: int, _frame: object) -> None:
        if running:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for turn in range(400):
            try:
                running = True
                # Again and again: Python drops what a handler raises inside of a destructor.
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.0008), 0.01)
                while True:
                    body(x)
            except KeyboardInterrupt:
                running = False
            assert left_in_force(x) == [], f"after {turn + 1} interrupts"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
