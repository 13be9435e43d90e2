"""A program for `test_recursion`: endless recursion by every way in which Python is called back, on stacks of any size.

    python tests/recursion.py KIND KILOBYTES [LIMIT]

On a thread with a stack of so many KiB (on the main thread where that is 0), with that recursion limit. It prints what
ended the recursion, and how many calls deep.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import tensorplay as tp
from tensorplay import library
from tensorplay.library import custom_op

depth = 0


def deeper() -> None:
    global depth
    depth += 1


def leaf() -> tp.Tensor:
    return tp.ones((2,)).requires_grad_()


def kernel(name: str, **options) -> Callable[[], object]:
    def body(x, out=None):
        deeper()
        return op(x)

    schema = "(Tensor x) -> Tensor"
    op = custom_op(f"deep::{name}", lambda x: x * 1.0, mutates_args=(), schema=schema)
    op.register_fake(lambda x: tp.empty_like(x))
    op.register_kernel("cpu", body, **options)
    op.register_autograd(lambda ctx, grad: grad)
    return lambda: op(leaf())


def fake() -> Callable[[], object]:
    def rule(x):
        deeper()
        return op(x)

    op = custom_op("deep::fake", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(rule)
    return lambda: tp.graph.capture(op, tp.ones((2,)))


def predicate() -> Callable[[], object]:
    def when(x):
        deeper()
        return op(x) is None

    op = custom_op("deep::predicate", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_kernel("cpu", lambda x: x * 2.0, name="other", when=when)
    return lambda: op(tp.ones((2,)))


def backward() -> Callable[[], object]:
    def rule(ctx, grad):
        deeper()
        with tp.enable_grad():
            op(leaf()).sum().backward()
        return grad

    op = custom_op("deep::backward", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_autograd(rule)
    return lambda: op(leaf()).sum().backward()


def setup_context() -> Callable[[], object]:
    def setup(ctx, inputs, output):
        deeper()
        op(leaf())

    op = custom_op("deep::setup", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_autograd(lambda ctx, grad: grad, setup_context=setup)
    return lambda: op(leaf())


def hook() -> Callable[[], object]:
    def run(grad=None):
        deeper()
        with tp.enable_grad():
            y = leaf() * 2.0
            y.register_hook(run)
            y.sum().backward()

    return run


def function_forward() -> Callable[[], object]:
    class Deep(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            deeper()
            return Deep.apply(x)

    return lambda: Deep.apply(leaf())


def function_backward() -> Callable[[], object]:
    class Deep(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            deeper()
            with tp.enable_grad():
                Deep.apply(leaf()).sum().backward()
            return grad

    return lambda: Deep.apply(leaf()).sum().backward()


def batching_rule() -> Callable[[], object]:
    def rule(info, in_dims, x):
        deeper()
        return tp.func.vmap(op)(x), 0

    op = custom_op("deep::batch", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_vmap(rule)
    return lambda: tp.func.vmap(op)(tp.ones((2, 2)))


def unpack() -> Callable[[], object]:
    def again(kept):
        deeper()
        with tp.enable_grad():
            with tp.autograd.saved_tensors_hooks(lambda t: t, again):
                y = tp.exp(leaf())
            y.sum().backward()
        return kept

    return lambda: again(tp.ones((2,)))


def compiled() -> Callable[[], object]:
    def body(x):
        deeper()
        return run(x) + 1.0

    run = tp.compile(body)
    return lambda: run(tp.ones((2,)))


def debugged() -> Callable[[], object]:
    call = kernel("debugged")

    def run():
        with library.debug_checks(), tp.trace():
            call()

    return run


KINDS: dict[str, Callable[[], Callable[[], object]]] = {
    "kernel": lambda: kernel("kernel"),
    "out": lambda: kernel("out", out=True),
    "fake": fake,
    "predicate": predicate,
    "backward": backward,
    "setup_context": setup_context,
    "hook": hook,
    "function_forward": function_forward,
    "function_backward": function_backward,
    "batching_rule": batching_rule,
    "unpack": unpack,
    "compiled": compiled,
    "debugged": debugged,
}


def run(kind: str) -> None:
    global depth
    call = KINDS[kind]()
    depth = 0
    try:
        call()
    except RecursionError as error:
        sys.stdout.write(f"{kind} RecursionError {depth} {error}\n")
    else:
        sys.stdout.write(f"{kind} ended {depth}\n")
    assert tp.is_grad_enabled()
    assert (leaf() * 2.0).requires_grad


def main() -> None:
    kinds, kilobytes = sys.argv[1].split(","), int(sys.argv[2])
    if len(sys.argv) > 3:
        sys.setrecursionlimit(int(sys.argv[3]))
    for kind in kinds:
        if kilobytes == 0:
            run(kind)
            continue
        threading.stack_size(kilobytes << 10)
        thread = threading.Thread(target=run, args=(kind,))
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()
