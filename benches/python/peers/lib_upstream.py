"""The form of each case in the package published as `tensorplay` by another project (1.0.0)."""

from __future__ import annotations

from importlib import metadata

from worker import CAPTURED, CHAIN, GELU_SIZE, SOFTMAX_SIZE, Builder, Case, chain, gelu, pointwise8

import tensorplay as tp


def version() -> str:
    return metadata.version("tensorplay")


def builders(settings: dict) -> dict[str, Builder]:
    tp.set_num_threads(settings["threads"])
    x, y, xr = tp.ones(8), tp.ones(8), tp.ones(8)
    xr.requires_grad_(True)

    def body(x):
        return tp.mul(x, 2.0)

    scaled = tp.library.custom_op("peers::scaled", body, mutates_args=())
    scaled.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0),))

    def big() -> Case:
        f = tp.compile(lambda x: gelu(x, tp.tanh))
        return Case("f(x)", {"f": f, "x": tp.randn(GELU_SIZE)})

    def capture() -> Case:
        return Case("t(f)", {"t": tp.graph.symbolic_trace, "f": lambda x: chain(x, CAPTURED)}, per=CAPTURED)

    return {
        "add": lambda: Case("f(x, y)", {"f": tp.add, "x": x, "y": y}),
        "op_body": lambda: Case("f(x)", {"f": body, "x": x}),
        "op": lambda: Case("f(x)", {"f": scaled, "x": x}),
        "op_grad": lambda: Case("f(x)", {"f": scaled, "x": xr}),
        "op_step": lambda: Case("f(x).sum().backward()", {"f": scaled, "x": xr}),
        "native_step": lambda: Case("(x * 2).sum().backward()", {"x": xr}),
        "chain": lambda: Case(f"f(x, {CHAIN}).backward(y)", {"f": chain, "x": xr, "y": y}, per=CHAIN),
        "capture": capture,
        "compiled8": lambda: Case("f(x)", {"f": tp.compile(pointwise8), "x": x}),
        "gelu": big,
        "double": lambda: Case("f(x)", {"f": tp.compile(lambda x: x * 2.0), "x": tp.randn(GELU_SIZE)}),
        "softmax": lambda: Case("f(x, -1)", {"f": tp.softmax, "x": tp.randn(SOFTMAX_SIZE, SOFTMAX_SIZE)}),
    }
