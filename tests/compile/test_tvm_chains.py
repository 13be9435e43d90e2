"""Pointwise chains through `compile(backend="tvm")`: every parity test asserts the marker of what ran.

Ids (V*, T*, L*) name the public reports and upstream behaviours that a test restates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tensorplay as tp

pytestmark = pytest.mark.requires("tvm")


def run(fn: Callable, *args: tp.Tensor) -> tuple[tp.Tensor, list[str]]:
    """The compiled result and the executors that ran."""
    outputs, report = tp.compile(fn, backend="tvm", on_fallback="record").run(*args)
    return outputs, [r.marker.executor for r in report.forward]


def bits(x: tp.Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


def same_with_nan(a: tp.Tensor, b: tp.Tensor) -> bool:
    return a.dtype is b.dtype and np.array_equal(a.numpy(), b.numpy(), equal_nan=True)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 1e-40, 3e38]


@pytest.mark.parametrize(
    ("chain", "wanted"),
    [
        (lambda x, y: tp.relu(x) + y * 0.0, lambda x, y: np.maximum(x, 0) + y * 0),
        (lambda x, y: tp.maximum(x, y), np.maximum),
        (lambda x, y: tp.maximum(y, x), np.maximum),
        (lambda x, y: tp.minimum(x, y), np.minimum),
        (lambda x, y: tp.clamp(x, -1, 1), lambda x, y: np.clip(x, -1, 1)),
    ],
)
def test_nan_stays_nan(chain: Callable, wanted: Callable) -> None:
    """V1: NaN in either position survives relu, maximum, minimum and clamp, on TVM as in eager and NumPy."""
    x = tp.tensor([a for a in SPECIAL for _ in SPECIAL])
    y = tp.tensor([b for _ in SPECIAL for b in SPECIAL])
    got, executors = run(chain, x, y)
    assert executors == ["tvm"]
    assert same_with_nan(got, chain(x, y))
    with np.errstate(invalid="ignore"):
        want = wanted(x.numpy(), y.numpy())
    assert np.array_equal(got.numpy(), want, equal_nan=True)
    assert same_with_nan(tp.relu(tp.tensor([math.nan])), tp.tensor([math.nan]))


def test_exp_of_integers() -> None:
    """V3: exp of an int tensor is a float32 function everywhere."""
    x = tp.tensor([0, 1, -2, 10], dtype=tp.int32)
    got, executors = run(lambda x: tp.exp(x) + 1, x)
    assert got.dtype is tp.float32
    assert executors == ["tvm"]
    assert bits(got) == bits(tp.exp(x) + 1)
    assert got.numpy() == pytest.approx(np.exp(x.numpy()) + 1, rel=1e-6)


def test_casts_are_one_definition() -> None:
    """V5: float to int8 truncates, saturates and maps NaN to 0, with the same bits on every executor."""
    x = tp.tensor([300.0, math.nan, math.inf, -math.inf, -300.0, 1.9, -1.9, 127.5])
    chain = lambda x: tp.astype(x * 1.0, tp.int8)  # noqa: E731
    got, executors = run(chain, x)
    assert executors == ["tvm"]
    assert got.tolist() == chain(x).tolist() == [127, 0, 127, -128, -128, 1, -1, 127]


def layouts() -> dict[str, tp.Tensor]:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    return {
        "offset": tp.from_numpy(base)[1:],
        "step": tp.from_numpy(base)[::2],
        "transposed": tp.from_numpy(base).T,
        "row of 77": tp.from_numpy(np.arange(77, dtype=np.float32).reshape(1, 77)),
        "flipped": tp.from_numpy(base[::-1]),
        "unaligned": tp.from_numpy(np.frombuffer(b"\0\0\0\0" + base.tobytes(), dtype=np.float32, offset=4)),
        "0-d": tp.tensor(3.0),
        "expanded": tp.expand(tp.tensor([[1.0], [2.0]]), (2, 5)),
    }


@pytest.mark.parametrize("name", layouts())
def test_every_layout_gives_the_right_values(name: str) -> None:
    """V7: views, flips, one-row shapes and scalars give eager's bits, by TVM."""
    x = layouts()[name]
    got, executors = run(lambda x: x * 2.0 + 1.0, x)
    assert executors == ["tvm"]
    assert got.shape == x.shape
    assert bits(got) == bits(x * 2.0 + 1.0)


def test_empty_tensors_run_nothing() -> None:
    """V7: a zero-size input gives a zero-size output, from the same region."""
    got, executors = run(lambda x: x * 2.0 + 1.0, tp.zeros((0, 3)))
    assert executors == ["tvm"]
    assert (got.shape, got.dtype, got.tolist()) == ((0, 3), tp.float32, [])


def test_strides_of_a_row_survive() -> None:
    """V7: strides of shape (1, 77) are those of the tensor, and of what comes of it."""
    x = layouts()["row of 77"]
    got, executors = run(lambda x: x - 1.0, x)
    assert executors == ["tvm"]
    assert x.stride() == got.stride() == (77, 1)


def test_an_unknown_op_splits_the_chain() -> None:
    """V8: matmul in the middle runs native with a reason; the chains around it are TVM's."""
    x, w = tp.tensor(np.eye(3, dtype=np.float32)), tp.tensor(np.ones((3, 3), dtype=np.float32))
    chain = lambda x, w: tp.tanh((x * 2.0) @ w) + 1.0  # noqa: E731
    got, report = tp.compile(chain, backend="tvm", on_fallback="record").run(x, w)
    assert [r.marker.executor for r in report.forward] == ["tvm", "native", "tvm"]
    reason = report.forward[1].reason
    assert reason.kind == "UnsupportedOp"
    assert "not pointwise" in str(reason)
    assert reason.op == "tp::matmul.default"
    assert bits(got) == bits(chain(x, w))


@pytest.mark.parametrize("n", [2, 200_001])
def test_integer_division_by_zero_is_an_error_not_a_crash(n: int) -> None:
    """V9, 5.4: `//` with one zero raises eager's error from TVM's code, and the process lives."""
    x = tp.arange(n, dtype=tp.int64) - 4
    y = tp.where(tp.arange(n) == n - 1, 0, 2)
    chain = lambda x, y: (x // y + 1) % 7  # noqa: E731
    compiled = tp.compile(chain, backend="tvm", on_fallback="error")
    with pytest.raises(ZeroDivisionError) as eager:
        chain(x, y)
    with pytest.raises(ZeroDivisionError) as caught:
        compiled(x, y)
    assert str(caught.value) == str(eager.value)
    got, report = compiled.run(x, tp.where(y == 0, -1, y))
    assert [r.marker.executor for r in report.forward] == ["tvm"]
    assert bits(got) == bits(chain(x, tp.where(y == 0, -1, y)))
    assert chain(tp.tensor([4, 5]), tp.tensor([2, -2])).tolist() == [3, 5]


def test_wide_functions_are_those_of_native_code() -> None:
    """5.4: float64 functions run in TVM's code as calls of the library that native code calls: the same bits."""
    rng = np.random.default_rng(0)
    x = tp.tensor([*SPECIAL, *(rng.standard_normal(2000) * 20).tolist()], dtype=tp.float64)
    unary = (
        tp.exp,
        tp.exp2,
        tp.expm1,
        tp.log,
        tp.log2,
        tp.log10,
        tp.log1p,
        tp.sigmoid,
        tp.tanh,
        tp.erf,
        tp.sin,
        tp.cos,
    )
    unary += (
        tp.tan,
        tp.asin,
        tp.acos,
        tp.atan,
        tp.sinh,
        tp.cosh,
        tp.asinh,
        tp.acosh,
        tp.atanh,
        tp.gelu,
        tp.softplus,
    )
    powers = [lambda x: 2.0**x, lambda x: 10.0**x, lambda x: x**0.5, lambda x: x**2.0, lambda x: x**-1.0]
    pairs = [lambda x: tp.pow(abs(x), x), lambda x: tp.atan2(x, x - 1.0), lambda x: tp.hypot(x, x * 0.5)]
    for op in [*unary, *powers, *pairs, lambda x: x % 0.7, lambda x: x // -3.0]:
        got, executors = run(op, x)
        assert executors == ["tvm"]
        assert same_with_nan(got, op(x)), op


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_integer_powers_wrap_on_tvm_as_in_eager(dtype: str) -> None:
    """5.4: powers of ints by squaring, known and unknown exponents, negative ones too."""
    values = [0, 1, 2, 3, 7, 100, 127] + ([] if dtype == "uint8" else [-1, -2, -3, -128])
    x = tp.tensor([a for a in values for _ in values], dtype=getattr(tp, dtype))
    y = tp.tensor([b for _ in values for b in values], dtype=getattr(tp, dtype))
    for chain in (lambda x, y: x**y, lambda x, y: x**5 + y, lambda x, y: 3**y + x):
        got, executors = run(chain, x, y)
        assert executors == ["tvm"]
        assert bits(got) == bits(chain(x, y))


def test_tvm_is_listed_whether_or_not_it_is_there() -> None:
    """T02, K3: the capability table always has the name."""
    assert {"native", "python", "tvm", "triton", "cuda"} <= set(tp.backends.capabilities())


def test_the_flagship_chain_reaches_tvm() -> None:
    """T03, W1: sigmoid(tanh(a+b)*(a*b)) - a is one TVM region, bit-equal to eager."""
    rng = np.random.default_rng(0)
    a, b = (tp.tensor(rng.normal(size=(16, 16)).astype(np.float32)) for _ in range(2))
    chain = lambda a, b: tp.sigmoid(tp.tanh(tp.add(a, b)) * (a * b)) - a  # noqa: E731
    got, executors = run(chain, a, b)
    assert executors == ["tvm"]
    assert bits(got) == bits(chain(a, b))
    exact = 1 / (1 + np.exp(-np.tanh(a.numpy() + b.numpy()) * (a.numpy() * b.numpy()))) - a.numpy()
    assert np.abs(got.numpy() - exact).max() < 1e-5


def test_scalars_and_division_reach_tvm() -> None:
    """T04, W1: abs((a - b) * 2.0) / 3 with numbers on both sides."""
    a, b = tp.arange(8, dtype=tp.float32), tp.ones((8,))
    got, executors = run(lambda a, b: 1.0 - abs((a - b) * 2.0) / 3, a, b)
    assert executors == ["tvm"]
    assert bits(got) == bits(1.0 - abs((a - b) * 2.0) / 3)


def test_int_with_a_python_float() -> None:
    """W7: an int32 tensor plus 0.5 is float32 with the fraction."""
    got, executors = run(lambda x: x + 0.5, tp.tensor([1, 2, 3], dtype=tp.int32))
    assert executors == ["tvm"]
    assert got.dtype is tp.float32
    assert got.tolist() == [1.5, 2.5, 3.5]


def test_a_custom_op_is_a_boundary(ns: str) -> None:
    """T05, L15, L16: the op is one opaque node in Python, the chains around it are TVM's."""
    calls: list[int] = []

    @tp.library.custom_op(f"{ns}::opaque", mutates_args=())
    def opaque(x: tp.Tensor) -> tp.Tensor:
        calls.append(1)
        return tp.add(x, 10.0)

    opaque.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda a: tp.mul(opaque(a * 2.0), 2), backend="tvm", on_fallback="record")
    got, report = compiled.run(tp.tensor([1.0, 2.0]))
    assert got.tolist() == [24.0, 28.0]
    assert len(calls) == 1
    assert [r.marker.executor for r in report.forward] == ["tvm", "python", "tvm"]
    assert report.forward[1].reason is not None
    targets = [n.target for n in compiled.graphs[0].nodes]
    assert targets == ["tp::mul.Scalar", f"{ns}::opaque.default", "tp::mul.Scalar"]


def test_training_regions_reach_tvm() -> None:
    """T06, L17: forward and backward regions of a training call are TVM's."""
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    compiled = tp.compile(lambda x: tp.exp(x) * 2.0, backend="tvm", on_fallback="error")
    y = compiled(x)
    y.backward(tp.ones_like(y))
    report = compiled.last_run
    assert [r.marker.executor for r in report.forward + report.backward] == ["tvm", "tvm"]
    eager = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    z = tp.exp(eager) * 2.0
    z.backward(tp.ones_like(z))
    assert bits(x.grad) == bits(eager.grad)


def test_another_shape_is_never_wrong() -> None:
    """T07: a shape change recompiles or falls back; values and shape stay right."""
    compiled = tp.compile(lambda x: tp.tanh(x) * 2.0, backend="tvm", on_fallback="record")
    for n in (4, 32, 1, 0, 5):
        x = tp.arange(n, dtype=tp.float32)
        got = compiled(x)
        assert got.shape == (n,)
        assert bits(got) == bits(tp.tanh(x) * 2.0)
        if n:
            assert {r.marker.executor for r in compiled.last_run.forward} == {"tvm"}


def test_markers_carry_hash_and_target() -> None:
    """The proof of a TVM region is its module hash; the kernel names the target."""
    _, report = tp.compile(lambda x: x * 3.0 + 2.0, backend="tvm").run(tp.ones((9,)))
    marker = report.forward[0].marker
    assert len(marker.proof) == 64
    assert int(marker.proof, 16) >= 0
    assert marker.kernel


def test_outputs_keep_their_structure() -> None:
    """W7: tuples, dicts and single tensors come back as the function made them."""
    x = tp.ones((3,))
    got, executors = run(lambda x: {"a": (x * 2.0, x + 1.0), "b": [x - 1.0], "c": 7}, x)
    assert set(executors) == {"tvm"}
    assert list(got) == ["a", "b", "c"]
    assert isinstance(got["a"], tuple)
    assert isinstance(got["b"], list)
    assert got["c"] == 7
    assert got["a"][0].tolist() == [2.0] * 3
    assert got["b"][0].tolist() == [0.0] * 3
    one, executors = run(lambda x: (x * 2.0,), x)
    assert executors == ["tvm"]
    assert isinstance(one, tuple)
    assert len(one) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int64"])
def test_dtypes_agree_with_eager(dtype: str) -> None:
    """Every dtype of the subset gives eager's bits; halves round after each op, as eager does."""
    kind = getattr(tp, dtype)
    x = tp.astype(tp.tensor([1, 2, 3, 100, 5, 6, 7]), kind)
    chain = lambda x: (x + x) * x - 3  # noqa: E731
    got, executors = run(chain, x)
    assert executors == ["tvm"]
    assert got.dtype is kind
    assert tp.astype(got, tp.float64).tolist() == tp.astype(chain(x), tp.float64).tolist()


@pytest.mark.parametrize("dtype", [tp.float32, tp.float64])
def test_a_remainder_of_what_is_finite_by_nan_is_nan(dtype: tp.DType) -> None:
    """T: LLVM takes a `fmod` that it knows for one without NaN where the dividend is finite, and then drops the store."""
    mask = tp.tensor([0, 0, 1, 0], dtype=tp.uint8)
    compiled = tp.compile(
        lambda x: tp.remainder(tp.astype(tp.isnan(x), dtype), math.nan), backend="tvm", on_fallback="error"
    )
    for _ in range(3):
        # What the pool hands out next holds no NaN.
        junk = tp.full((4,), 7.0, dtype=dtype)
        del junk
        assert all(math.isnan(v) for v in compiled(mask).tolist())
    assert [run.marker.executor for run in compiled.last_run.forward] == ["tvm"]
