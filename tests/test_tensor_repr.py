"""`repr` of tensors: NumPy's layout, and what is added where it is not the usual."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: tp.tensor([[1.0, 2.0], [3.0, 4.0]]), "tensor([[1., 2.],\n        [3., 4.]])"),
        (lambda: tp.tensor([1, 10, -5]), "tensor([ 1, 10, -5])"),
        (lambda: tp.tensor([True, False]), "tensor([ True, False])"),
        (lambda: tp.tensor(2.5), "tensor(2.5)"),
        (lambda: tp.tensor(3), "tensor(3)"),
        (lambda: tp.tensor([]), "tensor([])"),
        (lambda: tp.zeros([0, 3]), "tensor([], shape=(0, 3))"),
        (lambda: tp.zeros([0], dtype=tp.int64), "tensor([], dtype=int64)"),
        (lambda: tp.tensor([1.0], dtype=tp.float64), "tensor([1.], dtype=float64)"),
        (lambda: tp.tensor([0.1], dtype=tp.float16), "tensor([0.1], dtype=float16)"),
        (lambda: tp.tensor([0.1, 1.0]).bfloat16(), "tensor([0.1, 1. ], dtype=bfloat16)"),
        (lambda: tp.tensor([1], dtype=tp.int32), "tensor([1], dtype=int32)"),
        (lambda: tp.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: tp.zeros([2, 3]).to("meta"), "tensor(..., shape=(2, 3), dtype=float32, device='meta')"),
    ],
)
def test_texts(tensor, text: str) -> None:
    assert repr(tensor()) == text
    assert str(tensor()) == text


def test_a_computed_tensor_names_its_operation() -> None:
    y = tp.tensor([1.0], requires_grad=True) * 2
    assert repr(y).startswith("tensor([2.], grad_fn=<")
    assert "mul" in repr(y).lower()


VALUES = [
    [1.0, 2.25, -3.125],
    [0.1, 0.2, 0.30000001],
    [1e-8, 1.0],
    [1e10, 1.0],
    [123456.789, 0.5],
    [float("nan"), 1.0, float("-inf"), float("inf")],
    [0.0, -0.0],
    [1 / 3, 2 / 3],
    [1e-5, 2.5e-5],
    [99999999.0],
    [100000000.0],
    [1234.5, 1.0],
    [-1.5e-20, 3e20],
    [float("nan")],
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("values", VALUES, ids=str)
def test_numbers_look_as_in_numpy(values: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        a = np.array(values).astype(dtype)
    ours = repr(tp.tensor(a)).removeprefix("tensor(").removesuffix(")").removesuffix(f", dtype={dtype}")
    with np.printoptions(floatmode="maxprec", legacy=False):
        theirs = np.array2string(a, separator=", ")
    assert ours == theirs


@pytest.mark.parametrize(
    "shape", [(3, 4), (2, 3, 4), (40,), (2, 2, 2, 2), (1001,), (50, 50), (3, 1000), (2, 40, 40), (5, 300)]
)
def test_layout_is_numpys(shape: tuple[int, ...]) -> None:
    a = np.arange(np.prod(shape)).reshape(shape)
    ours = repr(tp.tensor(a)).removeprefix("tensor(").removesuffix(")")
    theirs = np.array2string(a, separator=", ", prefix="tensor(")
    assert ours == theirs


def test_views_print_their_own_elements() -> None:
    x = tp.arange(4000).reshape(2, 2000)
    assert repr(x.T[::1000]) == "tensor([[   0, 2000],\n        [1000, 3000]])"


def test_html() -> None:
    x = tp.tensor([[1.0, float("nan")], [3.0, 4.0]])
    html = x._repr_html_()
    assert html.startswith("<table>")
    assert "<td>(2, 2)</td>" in html
    assert "<td>1</td>" in html
    assert "&lt;" not in repr(x)
    assert "<details>" in html
