"""PyTorch's form of each case."""

from __future__ import annotations

import torch
from worker import CAPTURED, CHAIN, GELU_SIZE, Builder, Case, chain, gelu, many_arguments, pointwise8


def version() -> str:
    return torch.__version__


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
    }
