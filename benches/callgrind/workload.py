"""The calls whose instructions are counted. Run by `check.py` under callgrind, never for time.

`os.getppid()` is the mark: callgrind writes a profile before each call of that C function, so every profile
holds what ran since the mark before it. A case is warmed up, then run N times and 2N times between marks; the
difference is N runs and nothing else.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable

import tensorplay as tp

WARM_UP = 300


def cases() -> dict[str, tuple[int, Callable[[], object]]]:
    """name -> (runs counted, one run)."""
    x, y = tp.ones(8), tp.ones(8)
    xr = tp.tensor([1.0] * 8, requires_grad=True)
    text = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"

    def scaled_body(x):
        return tp.mul(x, 2.0)

    scaled = tp.library.custom_op("callgrind::scaled", scaled_body, mutates_args=())
    scaled.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0),))

    class Double(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return tp.mul(x, 2.0)

        @staticmethod
        def backward(ctx, grad):
            return tp.mul(grad, 2.0)

    compiled = tp.compile(lambda x: x * 2 + 1)
    add, parse, capture = tp.add, tp.library.Schema.parse, tp.graph.capture

    def writing(count):
        """An op of so many arguments that writes to the first; the others may be left out."""
        more = "".join(f", Tensor? a{i}=None" for i in range(1, count))
        return tp.library.custom_op(
            f"callgrind::write{count}",
            lambda x, *rest: None,
            mutates_args=("x",),
            schema=f"(Tensor(a!) x{more}) -> ()",
        )

    write2, write16, write17, write30 = map(writing, (2, 16, 17, 30))
    others = [tp.ones(8) for _ in range(29)]

    def chain(x):
        for _ in range(10):
            x = x * 1.01
        return x

    return {
        "add(x, y)": (400, lambda: add(x, y)),
        "x + x": (400, lambda: x + x),
        "x * 2.0": (400, lambda: x * 2.0),
        "custom op": (400, lambda: scaled(x)),
        "custom op, grad recorded": (400, lambda: scaled(xr)),
        "(x * 2).sum().backward()": (200, lambda: (xr * 2).sum().backward()),
        "custom op forward + sum + backward": (200, lambda: scaled(xr).sum().backward()),
        "Function forward + backward": (200, lambda: Double.apply(xr).backward(y)),
        "chain of 10 forward + backward": (100, lambda: chain(xr).backward(y)),
        "capture of 10 ops": (50, lambda: capture(chain, x)),
        "compiled x * 2 + 1": (400, lambda: compiled(x)),
        "2 arguments, 1 given": (400, lambda: write2(x)),
        "30 arguments, 1 given": (400, lambda: write30(x)),
        "2 arguments": (400, lambda: write2(x, y)),
        "16 arguments": (400, lambda: write16(x, *others[:15])),
        "17 arguments": (400, lambda: write17(x, *others[:16])),
        "30 arguments": (400, lambda: write30(x, *others)),
        "schema parse": (200, lambda: parse(text)),
    }


def main() -> None:
    selected = cases()
    print(json.dumps({name: runs for name, (runs, _) in selected.items()}), file=sys.stderr)
    gc.disable()
    for runs, once in selected.values():
        for _ in range(WARM_UP):
            once()
        os.getppid()
        for _ in range(runs):
            once()
        os.getppid()
        for _ in range(2 * runs):
            once()
        os.getppid()


if __name__ == "__main__":
    main()
