"""Callbacks of every kind: their exceptions pass by identity, state is restored, threads and forks do not mix."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest

import tensorplay as tp
from tensorplay import errors
from tensorplay.library import custom_op

current = threading.local()
_numbers = itertools.count()


def fail(*_args: object) -> None:
    raise current.error


class Custom(Exception):
    def __init__(self, a: int, *, b: int) -> None:
        super().__init__(a)
        self.b = b


class Base(BaseException):
    pass


EXCEPTIONS = [
    lambda: Custom(1, b=2),
    lambda: Base("b"),
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt("k"),
    lambda: GeneratorExit(),
    lambda: StopIteration(5),
    lambda: asyncio.CancelledError(),
    lambda: ExceptionGroup("g", [ValueError(1)]),
    lambda: MemoryError("m"),
    lambda: RecursionError("r"),
    lambda: errors.ShapeError("user", code="TP1101"),
    lambda: NotImplementedError("n"),
    lambda: OSError(2, "no"),
]


class Number:
    """An object that raises when it is read as a number."""

    __index__ = __float__ = fail  # type: ignore[assignment]

    def __len__(self) -> int:
        raise TypeError("no length")


class Sized:
    def __len__(self) -> int:
        return fail()  # type: ignore[return-value]


class Forward(tp.autograd.Function):
    forward = staticmethod(fail)


class Backward(tp.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    backward = staticmethod(fail)


def op(name: str, body: Callable[..., object] = lambda x: x * 2.0):
    made = custom_op(f"callbacks::{name}", body, mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(lambda x: tp.empty_like(x))
    return made


@pytest.fixture(scope="module")
def routes() -> dict[str, Callable[[], object]]:
    """A call per kind of callback, which raises the current exception."""
    x, leaf = tp.ones((2,)), tp.ones((2,)).requires_grad_()
    kernel = op("kernel", fail)
    outer = op("outer", lambda x: kernel(x))
    backward = op("backward")
    backward.register_autograd(lambda ctx, grad: fail())
    setup = op("setup")
    setup.register_autograd(lambda ctx, grad: (grad,), setup_context=lambda ctx, inputs, output: fail())
    fake = custom_op("callbacks::fake", lambda x: x * 2.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    fake.register_fake(fail)
    when = op("when")
    when.register_kernel("cpu", lambda x: x * 3.0, name="second", when=fail)
    compiled, compiled_backward = (
        tp.compile(lambda x: kernel(x) + 1.0),
        tp.compile(lambda x: backward(x).sum()),
    )

    def hooked() -> None:
        h = tp.ones((1,)).requires_grad_()
        h.register_hook(fail)
        (h * 2.0).sum().backward()

    def store() -> None:
        x[0] = Number()

    def store_at() -> None:
        x[Number()] = 1.0

    return {
        "kernel": lambda: kernel(x),
        "kernel that records": lambda: kernel(leaf),
        "kernel within a kernel": lambda: outer(x),
        "backward": lambda: backward(leaf).sum().backward(),
        "backward by grad": lambda: tp.autograd.grad(backward(leaf).sum(), leaf),
        "setup_context": lambda: setup(leaf),
        "fake rule in a capture": lambda: tp.graph.capture(lambda x: fake(x), x),
        "fake rule in a compile": lambda: tp.compile(lambda x: fake(x))(x),
        "predicate": lambda: when(x),
        "kernel in a compiled call": lambda: compiled(x),
        "backward in a compiled call": lambda: compiled_backward(leaf).backward(),
        "captured function": lambda: tp.graph.capture(lambda x: fail(), x),
        "compiled function": lambda: tp.compile(lambda x: fail(), assume_constant=[current])(x),
        "hook": hooked,
        "Function.forward": lambda: Forward.apply(leaf),
        "Function.backward": lambda: Backward.apply(leaf).sum().backward(),
        "__index__ of an index": lambda: x[Number()],
        "__index__ of a stored index": store_at,
        "__index__ of a stored value": store,
        "__index__ in data": lambda: tp.tensor([Number()]),
        "__index__ of a size": lambda: tp.zeros((Number(),)),
        "__index__ of an operand": lambda: x + Number(),
        "__index__ of a left operand": lambda: Number() * x,
        "__float__ of an argument": lambda: tp.mul(x, Number()),
        "__index__ of an axis": lambda: tp.sum(x, axis=Number()),
        "__len__ of an argument": lambda: tp.full((2,), Sized()),
    }


ROUTES = [
    "kernel", "kernel that records", "kernel within a kernel", "backward", "backward by grad", "setup_context",
    "fake rule in a capture", "fake rule in a compile", "predicate", "kernel in a compiled call",
    "backward in a compiled call", "captured function", "compiled function", "hook", "Function.forward",
    "Function.backward", "__index__ of an index", "__index__ of a stored index", "__index__ of a stored value",
    "__index__ in data", "__index__ of a size", "__index__ of an operand", "__index__ of a left operand",
    "__float__ of an argument", "__index__ of an axis", "__len__ of an argument",
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_exceptions_pass_by_identity_and_modes_are_restored(
    route: str, routes: dict[str, Callable[[], object]]
) -> None:
    """Exceptions unchanged, whatever raised them; no mode is left behind."""
    assert set(routes) == set(ROUTES)
    for make in EXCEPTIONS:
        error = make()
        current.error = error
        try:
            routes[route]()
        except BaseException as caught:
            assert caught is error, (route, caught)  # noqa: PT017
        else:
            pytest.fail(f"{route}: {error!r} was swallowed")
        assert tp.autograd.is_grad_enabled()
        assert not tp._native.is_capturing()
        assert getattr(error, "__notes__", []) == []


def test_captures_belong_to_their_thread() -> None:
    """Dispatch and fake context are thread-local (F7)."""
    barrier = threading.Barrier(6, timeout=30)
    failures: list[object] = []

    def work(number: int) -> None:
        def function(x: tp.Tensor) -> tp.Tensor:
            barrier.wait()
            for _ in range(number + 1):
                x = x * float(number)
            barrier.wait()
            return x

        try:
            graph = tp.graph.capture(function, tp.ones((number + 1,)))
            targets = [node.target for node in graph.nodes]
            if targets != ["tp::mul.Scalar"] * (number + 1):
                failures.append(targets)
            if f"float32[{number + 1}]" not in graph.text():
                failures.append(graph.text())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert not tp._native.is_capturing()


def test_many_threads_register_call_capture_and_differentiate() -> None:
    """H1: nothing deadlocks or mixes; each thread sees its own op's values."""
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            for round_ in range(10):
                made = op(f"t{next(_numbers)}", lambda x: x * float(number + 1))
                made.register_autograd(lambda ctx, grad: (grad * float(number + 1),))
                x = tp.ones((3,)).requires_grad_()
                made(x).sum().backward()
                compiled = tp.compile(lambda x, made=made: made(x) + 1.0)(x.detach())
                expected = float(number + 1)
                if x.grad.tolist() != [expected] * 3 or compiled.tolist() != [expected + 1.0] * 3:
                    failures.append((number, round_, x.grad, compiled))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


@pytest.fixture
def busy() -> Iterator[None]:
    """Another thread that calls ops while the process forks."""
    stop = threading.Event()

    def call() -> None:
        x = tp.ones((1000,))
        while not stop.is_set():
            x = x * 1.0

    thread = threading.Thread(target=call)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_registers_records_and_compiles(busy: None) -> None:
    """Child after fork: registry, tape, pool and compile work in it."""
    warm = tp.compile(lambda x: tp.sum(x * 2.0))
    warm(tp.ones((100_000,)))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made = op("forked")
            made.register_autograd(lambda ctx, grad: (grad * 2.0,))
            x = tp.ones((100_000,)).requires_grad_()
            tp.compile(lambda x: made(x).sum())(x).backward()
            ok = x.grad[0].item() == 2.0 and warm(tp.ones((100_000,))).item() == 200_000.0
            status = 0 if ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
