"""Inputs whose elements share memory, and special values in the shortest inputs."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay._verify.inputs import TensorRecipe


def read_only() -> np.ndarray:
    return np.broadcast_to(np.float32(1), (3,))


def overlapping() -> np.ndarray:
    return np.lib.stride_tricks.as_strided(np.arange(6.0), (3, 3), (8, 8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tp.ones((1,)).expand((3,)),
        lambda: tp.ones((1, 3)).expand((2, 3)),
        lambda: tp.from_numpy(read_only()),
        lambda: tp.from_numpy(overlapping()),
    ],
)
def test_an_honest_op_passes_on_inputs_whose_elements_share_a_place(make) -> None:
    """7, T7: expanded, read-only and self-overlapping."""
    f = library.custom_op("sharing::f", lambda x: x + x, mutates_args=(), override=True)
    f.register_fake(lambda x: tp.empty_like(x))
    report = tp.verify(f, (make(),))
    assert report.passed, report.text()


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64])
def test_every_special_value_is_tried_at_any_length(size: int) -> None:
    """NaN, infinities, both zeros, large and tiny magnitudes."""
    seen: set[str] = set()

    def body(x):
        a = x.numpy()
        if a.dtype == np.float32 and a.size:
            with np.errstate(invalid="ignore"):
                tests = {
                    "nan": np.isnan(a),
                    "inf": np.isposinf(a),
                    "-inf": np.isneginf(a),
                    "-0": (a == 0) & np.signbit(a),
                    "+0": (a == 0) & ~np.signbit(a),
                    "large": np.isfinite(a) & (a > 1e38),
                    "-large": np.isfinite(a) & (a < -1e38),
                    "tiny": (np.abs(a) < 1e-38) & (a != 0),
                }
            if a.size == size:
                seen.update(name for name, found in tests.items() if found.any())
        return x * 1.0

    f = library.custom_op("sharing::f", body, mutates_args=(), override=True)
    tp.verify(f, (tp.tensor(np.linspace(1, 2, size).astype(np.float32)),))
    assert seen == {"nan", "inf", "-inf", "-0", "+0", "large", "-large", "tiny"}


def test_an_expanded_case_is_what_its_text_makes() -> None:
    """R5: the first row, as `with_layout` has it, so that a replay runs the case."""
    given = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    recipe = TensorRecipe(given, "float32", "x").laid_out("expanded")
    assert recipe.build()[0].tolist() == tp.testing.with_layout(tp.tensor(given), "expanded").tolist()
    assert recipe.values.tolist() == [[1.0, 2.0], [1.0, 2.0]]
