"""This project's form of each case."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from worker import (
    BATCHES,
    CAPTURED,
    CHAIN,
    GELU_SIZE,
    RATE,
    SOFTMAX_SIZE,
    Builder,
    Case,
    chain,
    gelu,
    many_arguments,
    parameters,
    pointwise8,
)

import tensorplay as tp


def version() -> str:
    return tp.__version__


def executor(compiled: Any, wanted: str) -> Callable[[], str]:
    """A note that names who ran; a fallback says so, for its time is no result."""

    def note() -> str:
        regions = compiled.last_run.forward
        ran = ", ".join(sorted({region.marker.executor for region in regions}))
        reasons = [str(region.reason) for region in regions if region.reason is not None]
        if reasons or ran != wanted:
            return f"FALLBACK ran on {ran}: {'; '.join(reasons)}"
        return f"ran on {ran}"

    return note


def train(w1, b1, w2, b2, x, y):
    """One step of gradient descent in place; the loss before it."""
    weights = (w1, b1, w2, b2)
    hidden = tp.relu(x @ w1 + b1)
    logs = tp.log_softmax(hidden @ w2 + b2, -1)
    loss = -tp.mean(tp.gather(logs, 1, y))
    gradients = tp.autograd.grad(loss, weights)
    with tp.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient * RATE)
    return loss.detach()


def digits(settings: dict, batch: int) -> Case:
    f = tp.compile(train)
    p = parameters(lambda values: tp.tensor(values, requires_grad=True))
    x = tp.tensor(settings["digits"]["x"][:batch], dtype=tp.float32)
    y = tp.tensor([[label] for label in settings["digits"]["y"][:batch]])
    return Case("f(*p, x, y)", {"f": f, "p": p, "x": x, "y": y}, note=executor(f, "native"))


def builders(settings: dict) -> dict[str, Builder]:
    tp.set_num_threads(settings["threads"])
    x, y = tp.ones(8), tp.ones(8)
    xr = tp.tensor([1.0] * 8, requires_grad=True)

    def body(x):
        return tp.mul(x, 2.0)

    scaled = tp.library.custom_op("peers::scaled", body, mutates_args=())
    scaled.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0),))

    many = tp.library.custom_op(
        "peers::many", many_arguments({"tp": tp, "mul": tp.mul}, "tp.Tensor"), mutates_args=()
    )
    many.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0), *[None] * 13))
    numbers = tuple(range(13))

    class Double(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return tp.mul(x, 2.0)

        @staticmethod
        def backward(ctx, grad):
            return tp.mul(grad, 2.0)

    def compiled8() -> Case:
        f = tp.compile(pointwise8)
        return Case("f(x)", {"f": f, "x": x}, note=executor(f, "native"))

    def large(function, backend: str, *shape: int) -> Builder:
        def build() -> Case:
            f = tp.compile(function, backend=backend, on_fallback="record")
            data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            return Case("f(x)", {"f": f, "x": tp.tensor(data)}, note=executor(f, backend))

        return build

    def capture() -> Case:
        names = {"capture": tp.graph.capture, "f": lambda x: chain(x, CAPTURED), "x": x}
        return Case("capture(f, x)", names, per=CAPTURED)

    def schema() -> Case:
        texts = settings["schemas"]
        return Case(
            "for text in texts: parse(text)",
            {"parse": tp.library.Schema.parse, "texts": texts},
            per=len(texts),
        )

    return {
        "add": lambda: Case("f(x, y)", {"f": tp.add, "x": x, "y": y}),
        "op_body": lambda: Case("f(x)", {"f": body, "x": x}),
        "op": lambda: Case("f(x)", {"f": scaled, "x": x}),
        "op_grad": lambda: Case("f(x)", {"f": scaled, "x": xr}),
        "op14": lambda: Case("f(x, *n)", {"f": many, "x": x, "n": numbers}),
        "op14_grad": lambda: Case("f(x, *n)", {"f": many, "x": xr, "n": numbers}),
        "function": lambda: Case("f(x).backward(y)", {"f": Double.apply, "x": xr, "y": y}),
        "op_step": lambda: Case("f(x).sum().backward()", {"f": scaled, "x": xr}),
        "native_step": lambda: Case("(x * 2).sum().backward()", {"x": xr}),
        "chain": lambda: Case(f"f(x, {CHAIN}).backward(y)", {"f": chain, "x": xr, "y": y}, per=CHAIN),
        "capture": capture,
        "compiled8": compiled8,
        "schema": schema,
        "gelu": large(lambda x: gelu(x, tp.tanh), "tvm", GELU_SIZE),
        "gelu_native": large(lambda x: gelu(x, tp.tanh), "native", GELU_SIZE),
        "double": large(lambda x: x * 2.0, "native", GELU_SIZE),
        "softmax": large(lambda x: tp.softmax(x, -1), "native", SOFTMAX_SIZE, SOFTMAX_SIZE),
        **{f"digits{batch}": partial(digits, settings, batch) for batch in BATCHES},
    }
