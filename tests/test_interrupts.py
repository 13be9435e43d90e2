"""A long backward pass and the rest of the process: signals, timers and other threads get their turn."""

from __future__ import annotations

import _thread
import os
import signal
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
    """The lock is shared while a pass of built-in ops runs."""
    _, loss = long_chain(600_000)
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        started = time.perf_counter()
        loss.backward()
        ended = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    assert sum(started < t < ended for t in ticks) >= 2, (ended - started, len(ticks))


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
