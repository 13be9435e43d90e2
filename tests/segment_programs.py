"""Random programs with breaks at random places, for tests of ``fullgraph=False``: the same seed is the same program."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay import Tensor

__all__ = ["leaves", "program"]

SHAPE = (3, 4)

_ONE: list[Callable[[Tensor], Tensor]] = [
    tp.tanh,
    tp.exp,
    tp.sin,
    tp.abs,
    tp.log1p,
    lambda x: -x,
    lambda x: x * 0.5,
    lambda x: x + 1.5,
    lambda x: 1.0 - x,
    lambda x: tp.where(x > 0, x, x * 0.1),
    lambda x: x.sum() * tp.ones(SHAPE),
    lambda x: x.T.contiguous().T,
    lambda x: x.reshape((4, 3)).T,
    lambda x: x.mean(axis=0) + x,
    lambda x: x @ tp.ones((4, 4)),
    lambda x: tp.softmax(x, axis=-1),
    lambda x: x[1:].sum(axis=0) + x,
    lambda x: tp.concat([x[:1], x[1:] * 2.0]),
    lambda x: x.clone(),
    lambda x: (x > 0.0).astype(tp.float32) * x,
]

_TWO: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a - b,
    tp.maximum,
]


def leaves(seed: int) -> tuple[Tensor, Tensor]:
    """The inputs of a program; for odd seeds the second one requires a gradient."""
    rng = np.random.default_rng(seed)
    x, w = (tp.tensor(rng.standard_normal(SHAPE).astype(np.float32)) for _ in range(2))
    return x, w.requires_grad_() if seed % 2 else w


def _written(a: Tensor, pick: random.Random) -> Tensor:
    out = a.clone()
    if pick.random() < 0.5:
        out.mul_(1.5)
    else:
        out[0] = 0.25
    return out


def _unrecorded(a: Tensor) -> Tensor:
    with tp.no_grad():
        return a * 3.0


def _branch(a: Tensor) -> Tensor:
    return a * 2.0 if a.sum() > 0 else a - 1.0


def _lent(a: Tensor) -> Tensor:
    array = np.full(SHAPE, float(a.sum() > 0) + 0.5, dtype=np.float32)
    out = tp.from_numpy(array) * a
    array[:] = 9.0
    return out


def _look(a: Tensor, pick: random.Random, log: list[Any]) -> None:
    """Reads or keeps a tensor."""
    kind = pick.randrange(4)
    if kind == 0:
        log.append(a.sum().item())
    elif kind == 1:
        log.append(a.detach().numpy().copy())
    elif kind == 2:
        log.append((a.requires_grad, a.is_leaf))
    else:
        log.append(a)


def program(seed: int, x: Tensor, w: Tensor, log: list[Any]) -> tuple[Tensor, Tensor]:
    """A loss and the last value; what it reads on the way goes to `log`."""
    pick = random.Random(seed)
    values = [x, w]
    for _ in range(pick.randint(4, 18)):
        a = values[-1] if pick.random() < 0.6 else pick.choice(values)
        choice = pick.random()
        if choice < 0.5:
            values.append(pick.choice(_ONE)(a))
        elif choice < 0.7:
            values.append(pick.choice(_TWO)(a, pick.choice(values)))
        elif choice < 0.82:
            _look(a, pick, log)
        elif choice < 0.86:
            values.append(a + tp.uniform(SHAPE))
        elif choice < 0.9:
            values.append(_written(a, pick))
        else:
            values.append(pick.choice([_unrecorded, _branch, _lent])(a))
    total = tp.zeros(())
    for value in values[2:]:
        total = total + (value * value).sum()
    return total, values[-1]
