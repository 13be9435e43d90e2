"""One library's side of the comparison: builds its cases, and times a block of one when told to.

Runs under that library's own interpreter, so it imports nothing but the standard library and `lib_NAME`.
Speaks lines: the settings (JSON) and then names of cases on standard input, an answer (JSON) to each on a private
copy of standard output (what a library prints goes to standard error instead).

    worker.py NAME <<< '{"threads": 1, "block_seconds": 0.025, "schemas": ["..."]}'
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WARM_UP_SHARE = 4  # a warm-up block lasts at least this part of a timed one


@dataclass
class Case:
    """`statement` runs in a loop with `names` as its locals; a result is per `per` units of work in it.

    `before` runs once in front of the loop, outside of the timing; `after` once behind it, inside (to wait for
    asynchronous work). `note` is asked after
    warm-up for what the reader must know: which executor served, or that the row is a fallback.
    """

    statement: str
    names: dict[str, Any]
    per: int = 1
    before: str = "pass"
    after: str = "pass"
    note: Callable[[], str | None] = field(default=lambda: None)


Builder = Callable[[], Case]


class Timed:
    """A built case with the number of iterations that fills a block."""

    def __init__(self, case: Case, block_seconds: float) -> None:
        self.per = case.per
        self.loop = compile_loop(case)
        self.iterations = self._fill(block_seconds * 1e9)

    def _fill(self, target_ns: float) -> int:
        count = 1
        while True:
            wall, _ = self._run(count)
            if wall >= target_ns / WARM_UP_SHARE:
                break
            count = max(2 * count, min(50 * count, int(count * target_ns / max(wall, 1) / 2)))
        wall, _ = self._run(count)  # the second block of this size is warm
        return max(1, int(count * target_ns / max(wall, 1)))

    def _run(self, count: int) -> tuple[int, int]:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self.loop(itertools.repeat(None, count))
        finally:
            if was_enabled:
                gc.enable()

    def block(self) -> list[float]:
        """[wall, process CPU] nanoseconds per unit of work."""
        wall, cpu = self._run(self.iterations)
        units = self.iterations * self.per
        return [wall / units, cpu / units]


def compile_loop(case: Case) -> Callable[..., tuple[int, int]]:
    """A function that runs the statement over an iterator and returns (wall, CPU) nanoseconds."""
    names = case.names | {"_wall": time.perf_counter_ns, "_cpu": time.process_time_ns}
    source = (
        f"def loop(_steps, {', '.join(f'{name}={name}' for name in names)}):\n"
        f"    {case.before}\n"
        f"    _cpu0, _wall0 = _cpu(), _wall()\n"
        f"    for _step in _steps:\n"
        f"        {case.statement}\n"
        f"    {case.after}\n"
        f"    _wall1 = _wall()\n"
        f"    return _wall1 - _wall0, _cpu() - _cpu0\n"
    )
    scope: dict[str, Any] = dict(names)
    exec(source, scope)
    return scope["loop"]


def chain(x: Any, times: int) -> Any:
    """x * 1.01, `times` over: the shape of a long tape or graph with nothing in its ops."""
    for _ in range(times):
        x = x * 1.01
    return x


def pointwise8(x: Any) -> Any:
    """Eight pointwise ops."""
    for _ in range(4):
        x = x * 1.01 + 0.5
    return x


def gelu(x: Any, tanh: Callable[[Any], Any]) -> Any:
    """The tanh form of GELU as nine pointwise ops."""
    return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def many_arguments(scope: dict[str, Any], tensor: str) -> Callable[..., Any]:
    """A function of one tensor, which it doubles, and thirteen integers with defaults, annotated for a schema."""
    numbers = ", ".join(f"n{i}: int = {i}" for i in range(13))
    exec(f"def many(x: {tensor}, {numbers}) -> {tensor}:\n    return mul(x, 2.0)\n", scope)
    return scope["many"]


def parameters(array: Callable[[Any], Any]) -> list[Any]:
    """Weights and biases of a network of 64, 64 and 10, small and the same everywhere; `array` takes nested lists."""

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[0.2 * ((7 * i + 13 * j) % 17 / 16 - 0.5) for j in range(columns)] for i in range(rows)]

    return [array(matrix(64, 64)), array([0.0] * 64), array(matrix(64, 10)), array([0.0] * 10)]


GELU_SIZE = 1 << 24
SOFTMAX_SIZE = 4096
RATE = 0.1
BATCHES = (32, 512)
CHAIN = 100
CAPTURED = 200


def prepare(builders: dict[str, Builder], block_seconds: float) -> tuple[dict[str, Timed], dict[str, dict]]:
    """Builds and warms every case; one that fails is reported and left out."""
    timed: dict[str, Timed] = {}
    said: dict[str, dict] = {}
    for name, build in builders.items():
        try:
            case = build()
            timed[name] = Timed(case, block_seconds)
            said[name] = {"note": case.note()}
        except Exception as error:
            said[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return timed, said


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    library = importlib.import_module(f"lib_{sys.argv[1]}")
    timed, said = prepare(library.builders(settings), settings["block_seconds"])
    print(json.dumps({"version": library.version(), "cases": said}), file=answers)
    for request in sys.stdin:
        print(json.dumps(timed[request.strip()].block()), file=answers)


if __name__ == "__main__":
    # lib_NAME imports this module by name: let it find this very one, not a second copy.
    sys.modules["worker"] = sys.modules[__name__]
    main()
