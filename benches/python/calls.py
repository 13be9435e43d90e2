"""What each call costs, in units of one trivial builtin call in the same process.

The unit is `operator.is_(x, y)` timed the same way: a loop over names that are locals. Every round times every
case once, in a fresh random order, on one core with the garbage collector off; the figure is the median over
rounds of (time of the case / time of the unit in that round). Each has a bar, and is met or not.

    python benches/python/calls.py [--rounds 61] [--block-ms 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from timeit import Timer
from typing import Any

import tensorplay as tp

CHAIN = 100


@dataclass(frozen=True)
class Call:
    """`statement` over `names`, per `per` units of work; `over` is a call subtracted in the same round."""

    what: str
    statement: str
    names: dict[str, Any]
    bar: float | None = None
    per: int = 1
    over: str | None = None


def calls() -> list[Call]:
    x, y = tp.ones(8), tp.ones(8)
    xr = tp.tensor([1.0] * 8, requires_grad=True)

    def scaled_body(x):
        return tp.mul(x, 2.0)

    scaled = tp.library.custom_op("calls::scaled", scaled_body, mutates_args=())
    scaled.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0),))

    def chain(x):
        for _ in range(CHAIN):
            x = x * 1.01
        return x

    compiled = tp.compile(lambda x: x * 2 + 1)
    body = "body"
    return [
        Call("operator.is_(x, y)", "f(x, y)", {"f": operator.is_, "x": x, "y": y}),
        Call(body, "f(x)", {"f": scaled_body, "x": x}),
        Call("tp.add(x, y)", "f(x, y)", {"f": tp.add, "x": x, "y": y}, 4.0),
        Call("x + x", "x + x", {"x": x}, 3.0),
        Call("x * 2.0", "x * 2.0", {"x": x}, 4.0),
        Call("custom op over its body", "f(x)", {"f": scaled, "x": x}, 4.5, over=body),
        Call("custom op over its body, grad recorded", "f(x)", {"f": scaled, "x": xr}, 7.5, over=body),
        Call("(x * 2).sum().backward()", "(x * 2).sum().backward()", {"x": xr}, 23.0),
        Call("seed op forward + sum + backward", "f(x).sum().backward()", {"f": scaled, "x": xr}, 46.0),
        Call(
            "chain of 100 forward + backward, per op",
            "f(x).backward(y)",
            {"f": chain, "x": xr, "y": y},
            12.0,
            CHAIN,
        ),
        Call("compiled x * 2 + 1", "f(x)", {"f": compiled, "x": x}, 3.3),
    ]


def timer(call: Call) -> Callable[[int], float]:
    """Seconds for `n` runs, names bound as locals of the loop (timeit puts its setup inside that function)."""
    setup = "; ".join(f"{name} = _{name}" for name in call.names)
    return Timer(
        call.statement, setup, globals={f"_{name}": value for name, value in call.names.items()}
    ).timeit


def iterations(run: Callable[[int], float], block: float) -> int:
    """How many runs fill a block, after warming up."""
    count = 1
    while (seconds := run(count)) < block / 4:
        count *= 2
    return max(1, int(count * block / min(seconds, run(count))))


def measure(cases: list[Call], rounds: int, block: float) -> dict[str, list[float]]:
    """Nanoseconds per unit of work of every case, in round order."""
    runs = {call.what: timer(call) for call in cases}
    counts = {what: iterations(run, block) for what, run in runs.items()}
    per = {call.what: call.per for call in cases}
    found: dict[str, list[float]] = {what: [] for what in runs}
    order = list(runs)
    for _ in range(rounds):
        random.shuffle(order)
        for what in order:
            found[what].append(runs[what](counts[what]) / counts[what] / per[what] * 1e9)
    return found


def in_units(call: Call, found: dict[str, list[float]], unit: str) -> float:
    """Median over rounds of the cost in units of that round."""
    less = found[call.over] if call.over else [0.0] * len(found[unit])
    rounds = zip(found[call.what], less, found[unit], strict=True)
    return statistics.median((own - body) / one for own, body, one in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--block-ms", type=float, default=4.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cases = calls()
    found = measure(cases, options.rounds, options.block_ms / 1e3)
    unit = cases[0].what
    print(f"unit: {unit} = {statistics.median(found[unit]):.1f} ns (median of {options.rounds} rounds)")
    print(f"{'call, 8 float32':44}{'ns':>9}{'units':>8}{'bar':>7}")
    rows = []
    for call in cases[1:]:
        units = in_units(call, found, unit)
        met = None if call.bar is None else units <= call.bar
        rows.append({"call": call.what, "units": units, "bar": call.bar, "met": met})
        bar, verdict = ("", "") if call.bar is None else (f"{call.bar:g}", "met" if met else "NOT MET")
        nanoseconds = statistics.median(found[call.what])
        print(f"{call.what:44}{nanoseconds:9.1f}{units:8.2f}{bar:>7}  {verdict}".rstrip())
    if options.json:
        options.json.write_text(json.dumps({"unit_ns": found[unit], "rows": rows, "samples": found}))


if __name__ == "__main__":
    main()
