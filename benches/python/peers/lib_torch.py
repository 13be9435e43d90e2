"""PyTorch's form of each case."""

from __future__ import annotations

from functools import partial

import torch
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


def version() -> str:
    return torch.__version__


def loss(w1, b1, w2, b2, x, y):
    hidden = torch.relu(x @ w1 + b1)
    return torch.nn.functional.cross_entropy(hidden @ w2 + b2, y)


def train(w1, b1, w2, b2, x, y):
    """One step of gradient descent in place; the loss before it."""
    gradients, value = torch.func.grad_and_value(loss, argnums=(0, 1, 2, 3))(w1, b1, w2, b2, x, y)
    for weight, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
        weight.sub_(gradient, alpha=RATE)
    return value


def digits(settings: dict, batch: int) -> Case:
    p = parameters(torch.tensor)
    x = torch.tensor(settings["digits"]["x"][:batch])
    y = torch.tensor(settings["digits"]["y"][:batch])
    return Case("f(*p, x, y)", {"f": torch.compile(train), "p": p, "x": x, "y": y})


def builders(settings: dict) -> dict[str, Builder]:
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    x, y = torch.ones(8), torch.ones(8)
    xr = torch.ones(8, requires_grad=True)

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2.0)

    scaled = torch.library.custom_op("peers::scaled", body, mutates_args=())
    scaled.register_fake(torch.empty_like)
    scaled.register_autograd(lambda ctx, grad: torch.mul(grad, 2.0))

    many = torch.library.custom_op(
        "peers::many", many_arguments({"torch": torch, "mul": torch.mul}, "torch.Tensor"), mutates_args=()
    )
    many.register_autograd(lambda ctx, grad: (torch.mul(grad, 2.0), *[None] * 13))
    numbers = tuple(range(13))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.mul(x, 2.0)

        @staticmethod
        def backward(ctx, grad):
            return torch.mul(grad, 2.0)

    def compiled8() -> Case:
        f = torch.compile(pointwise8)
        return Case("f(x)", {"f": f, "x": x})

    def big() -> Case:
        f = torch.compile(lambda x: gelu(x, torch.tanh))
        return Case("f(x)", {"f": f, "x": torch.randn(GELU_SIZE)})

    def schema() -> Case:
        texts = settings["schemas"]
        return Case(
            "for text in texts: parse(text)", {"parse": torch._C.parse_schema, "texts": texts}, per=len(texts)
        )

    return {
        "add": lambda: Case("f(x, y)", {"f": torch.add, "x": x, "y": y}),
        "op_body": lambda: Case("f(x)", {"f": body, "x": x}),
        "op": lambda: Case("f(x)", {"f": scaled, "x": x}),
        "op_grad": lambda: Case("f(x)", {"f": scaled, "x": xr}),
        "op14": lambda: Case("f(x, *n)", {"f": many, "x": x, "n": numbers}),
        "op14_grad": lambda: Case("f(x, *n)", {"f": many, "x": xr, "n": numbers}),
        "function": lambda: Case("f(x).backward(y)", {"f": Double.apply, "x": xr, "y": y}),
        "op_step": lambda: Case("f(x).sum().backward()", {"f": scaled, "x": xr}),
        "native_step": lambda: Case("(x * 2).sum().backward()", {"x": xr}),
        "chain": lambda: Case(f"f(x, {CHAIN}).backward(y)", {"f": chain, "x": xr, "y": y}, per=CHAIN),
        "capture": lambda: Case(
            "t(f)", {"t": torch.fx.symbolic_trace, "f": lambda x: chain(x, CAPTURED)}, per=CAPTURED
        ),
        "compiled8": compiled8,
        "schema": schema,
        "gelu": big,
        "double": lambda: Case("f(x)", {"f": torch.compile(lambda x: x * 2.0), "x": torch.randn(GELU_SIZE)}),
        "softmax": lambda: Case(
            "f(x, -1)", {"f": torch.softmax, "x": torch.randn(SOFTMAX_SIZE, SOFTMAX_SIZE)}
        ),
        **{f"digits{batch}": partial(digits, settings, batch) for batch in BATCHES},
    }
