"""The public functions: complete, the builtins themselves, and the few wrappers."""

from __future__ import annotations

import math

import pytest

import tensorplay as tp
from tensorplay import _native, functions
from tensorplay.errors import ArgumentError


def test_every_public_builtin_is_exported_as_it_is() -> None:
    """Ops ending in `_` are methods and `tp.ops.tp.*`, ops ending in `_backward` and `alias` are for rules."""
    wrapped = {"gelu", "clamp", "clip", "astype"}
    public = {
        name for name in _native.builtins if not name.endswith(("_", "_backward")) and name != "alias"
    } - wrapped
    assert {name for name in public if getattr(tp, name, None) is not _native.builtins[name]} == set()
    assert wrapped <= set(tp.__all__)
    assert tp.multiply is tp.mul
    assert functions.cat is tp.concat


def test_gelu() -> None:
    x = tp.tensor([1.0, -2.0], dtype=tp.float64)
    exact = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in (1.0, -2.0)]
    tanh = [v * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in (1.0, -2.0)]
    assert tp.gelu(x).tolist() == pytest.approx(exact, rel=1e-12)
    with tp.trace() as events:
        y = tp.gelu(x, approximate="tanh")
    assert y.tolist() == pytest.approx(tanh, rel=1e-12)
    assert [e.op for e in events] == ["tp::gelu.tanh"]
    with pytest.raises(ArgumentError, match="approximate must be 'none' or 'tanh', got 'fast'"):
        tp.gelu(x, approximate="fast")


def test_clamp_with_one_bound() -> None:
    x = tp.tensor([-2.0, 0.5, math.nan, 3.0])
    assert tp.clamp(x, -1, 1).tolist()[:2] == [-1.0, 0.5]
    assert tp.clip(x, min=0).tolist()[:2] == [0.0, 0.5]
    assert tp.clamp(x, max=1.0).tolist()[3] == 1.0
    assert math.isnan(tp.clamp(x, min=0).tolist()[2])
    assert tp.clamp(x, tp.zeros([4]), tp.ones([4])).tolist()[3] == 1.0
    same = tp.clamp(x)
    assert same is not x
    assert same.tolist()[:2] == [-2.0, 0.5]


def test_astype() -> None:
    x = tp.tensor([1.7, -1.7])
    assert tp.astype(x, tp.int32).tolist() == [1, -1]
    assert tp.astype(x, tp.float32, copy=False) is x
    copied = tp.astype(x, tp.float32)
    assert copied is not x
    assert copied.tolist() == x.tolist()


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "axis"), [((0, 1 << 44), 0), ((1 << 44, 0), 0)])
def test_a_softmax_of_nothing_is_over_at_once(op: str, shape: tuple[int, ...], axis: int) -> None:
    """Sizes beside a zero may be of any magnitude: no loop may run over them."""
    assert getattr(tp, op)(tp.zeros(shape), axis=axis).shape == shape
