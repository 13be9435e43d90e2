"""Random calls from Python: whatever the objects are, a result or an ordinary error, and memory stays flat."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorplay as tp
from tensorplay import errors, library


class Odd(Exception):
    """What the odd objects below raise."""


class Raises:
    def __index__(self) -> int:
        raise Odd

    def __float__(self) -> float:
        raise Odd

    def __repr__(self) -> str:
        return "Raises()"


class Wide:
    def __index__(self) -> int:
        return 2**100


class Lies:
    def __index__(self) -> int:
        return "3"  # type: ignore[return-value]

    def __len__(self) -> int:
        return -1


DTYPES = [tp.bool, tp.uint8, tp.int8, tp.int32, tp.int64, tp.float16, tp.bfloat16, tp.float32, tp.float64]
SIZES = st.sampled_from([0, 1, 2, 3, 5, 17, 2**31, 2**40, 2**62, 2**63, -1, -(2**63), 2**70])
NUMBERS = st.one_of(
    SIZES, st.booleans(), st.floats(), st.sampled_from([0.0, -0.0, 1e300, float("nan"), float("inf")])
)
ODD = st.sampled_from(
    [
        None,
        "",
        "text",
        b"bytes",
        object(),
        Raises(),
        Wide(),
        Lies(),
        int,
        {},
        {1: 2},
        ...,
        slice(None),
        1j,
        range(3),
    ]
)


@st.composite
def tensors(draw: st.DrawFn) -> tp.Tensor:
    """Few elements, every dtype, strides of every kind; now and then on 'meta'."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 4]), max_size=4)))
    x = tp.zeros(shape, dtype=draw(st.sampled_from(DTYPES)))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return tp.permute_dims(x, tuple(reversed(range(x.ndim))))
    if kind == 1 and x.ndim:
        return x[::2]
    if kind == 2:
        return tp.broadcast_to(tp.zeros((1,) * len(shape), dtype=x.dtype), shape)
    if kind == 3 and x.ndim:
        return x[1:]
    return x.to("meta") if kind == 4 else x


NESTED = st.recursive(st.one_of(NUMBERS, ODD), lambda inner: st.lists(inner, max_size=4), max_leaves=12)
OBJECTS = st.one_of(
    tensors(), tensors(), NUMBERS, ODD, NESTED, st.sampled_from(DTYPES), st.lists(tensors(), max_size=3)
)
# Sizes that come to gigabytes are honest work; what `zeros` makes of them is `test_hostile_calls`' matter.
CALLED = sorted(
    name
    for name in library.list_ops("tp")
    if not any(word in name for word in ("eye", "linspace", "arange", "repeat"))
)
EXPECTED = (errors.TensorPlayError, Odd, TypeError, ValueError, OverflowError)
RANDOM = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def attempt(call: object) -> None:
    """Runs it; an error must be one that people can act on."""
    try:
        call()  # type: ignore[operator]
    except EXPECTED as error:
        code = getattr(error, "code", "")
        assert not code.startswith("TP90"), error  # noqa: PT017
        assert code != "TP4002", error  # noqa: PT017


@RANDOM
@given(data=st.data())
def test_any_call_of_any_op(data: st.DataObject) -> None:
    """Arguments from Python."""
    op = library.get_op(data.draw(st.sampled_from(CALLED)))
    args = data.draw(st.lists(OBJECTS, max_size=5))
    names = st.sampled_from(["axis", "dtype", "device", "x", "other", "nonsense"])
    kwargs = data.draw(st.dictionaries(names, OBJECTS, max_size=2))
    attempt(lambda: op(*args, **kwargs))


@RANDOM
@given(data=NESTED, dtype=st.sampled_from([None, *DTYPES]))
def test_any_nested_data(data: object, dtype: object) -> None:
    """Nested lists of anything."""
    attempt(lambda: tp.tensor(data, dtype=dtype))
    attempt(lambda: tp.asarray(data, dtype=dtype))


@RANDOM
@given(x=tensors(), key=st.one_of(OBJECTS, st.lists(OBJECTS, max_size=4).map(tuple)), value=OBJECTS)
def test_any_index(x: tp.Tensor, key: object, value: object) -> None:
    """Keys and stored values of any kind."""
    attempt(lambda: x[key])
    attempt(lambda: x.__setitem__(key, value))
    attempt(lambda: repr(x))


@RANDOM
@given(x=tensors(), shape=st.lists(st.one_of(SIZES, ODD), max_size=5))
def test_any_shape(x: tp.Tensor, shape: list[object]) -> None:
    """Sizes up to 2**62 and beyond."""
    for call in (
        x.reshape,
        x.view,
        x.expand,
        lambda s: tp.broadcast_to(x, s),
        lambda s: tp.permute_dims(x, s),
    ):
        attempt(lambda call=call: call(shape))
    attempt(lambda: tp.empty(shape, device="meta"))


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell resident memory")
def test_memory_stays_flat_over_failing_calls() -> None:
    """Errors leak nothing."""
    x = tp.ones((4, 4))
    calls = [
        lambda: x + tp.ones((3,)),
        lambda: x[Raises()],
        lambda: tp.tensor([[1.0], [2.0, 3.0]]),
        lambda: tp.reshape(x, (3, Wide())),
        lambda: x + tp.empty((4, 4), device="meta"),
        lambda: tp.mul(x, "text"),
        lambda: library.Schema.parse("f(Tensor x -> Tensor"),
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            for call in calls:
                attempt(call)

    rounds(2000)
    gc.collect()
    before = resident()
    rounds(10_000)
    gc.collect()
    assert resident() - before < 8 << 20
