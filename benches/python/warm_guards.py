"""What the guards on Python state of a 12-block network cost a warm call: ``python benches/python/warm_guards.py``.

The network is compiled twice, once as it is and once vouched for by ``assume_constant``, which leaves its guards out. The
graphs are the same, so the difference of two calls is what the guards cost.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import tensorplay as tp
from tensorplay import Tensor

ROUNDS, CALLS = 301, 200
_NAMES = ("net", "Net", "Block", "Linear", "Norm", "act", "tp", "global tp")


class Linear:
    """A layer with its parameters in a dict."""

    def __init__(self, k: float) -> None:
        self.parameters = {"w": tp.full((4,), k), "b": tp.full((4,), 0.5)}
        self.bias = True

    def __call__(self, x: Tensor) -> Tensor:
        x = x * self.parameters["w"]
        return x + self.parameters["b"] if self.bias else x


class Norm:
    """A scale with a constant of the class."""

    gain = 0.5

    def __init__(self) -> None:
        self.affine = True

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.gain if self.affine else x


def act(x: Tensor) -> Tensor:
    """What follows each layer."""
    return tp.relu(x)


class Block:
    """Two layers around a choice, with a shortcut."""

    def __init__(self, k: float) -> None:
        self.norm, self.layers, self.act, self.scale = Norm(), [Linear(k), Linear(k / 2.0)], act, 0.25

    def __call__(self, x: Tensor) -> Tensor:
        out = self.norm(x)
        for layer in self.layers:
            out = self.act(layer(out))
        return x + out * self.scale


class Net:
    """Twelve blocks."""

    def __init__(self) -> None:
        self.blocks, self.training = [Block(0.1 * i) for i in range(12)], False

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x * 0.5 if self.training else x


def _seconds(fn: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        fn(x)
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    """Prints the number of guards and the microseconds that they add to a call."""
    net, x = Net(), tp.ones((4,))
    guarded = tp.compile(lambda x: net(x))
    free = tp.compile(lambda x: net(x), assume_constant=_NAMES)
    assert guarded(x).tolist() == free(x).tolist() == net(x).tolist()
    assert str(guarded.graphs[0]) == str(free.graphs[0])
    left = len(free.report.guards)
    gc.disable()
    times: dict[Callable[[Tensor], Tensor], list[float]] = {guarded: [], free: []}
    for i in range(ROUNDS):
        for fn in (guarded, free) if i % 2 else (free, guarded):
            times[fn].append(_seconds(fn, x) * 1e6)
    least, median = ({fn: of(all_) for fn, all_ in times.items()} for of in (min, statistics.median))
    print(f"guards {len(guarded.report.guards)} beside {left}, ops {len(guarded.graphs[0].nodes)}")
    for name, figure in (("least", least), ("median", median)):
        print(
            f"{name}: call {figure[guarded]:.2f} us, without its guards {figure[free]:.2f} us, "
            f"guards {figure[guarded] - figure[free]:.2f} us"
        )


if __name__ == "__main__":
    main()
