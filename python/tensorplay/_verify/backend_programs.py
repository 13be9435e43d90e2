"""Programs that every backend is asked to run: each pointwise row on each dtype, and what else a region can be.

Lives here: the functions and their inputs. Not here: what is asked of a run (`backend_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorplay import _native, functions, library, ops
from tensorplay._verify.arrays import FLOATS, INTEGERS, dtype_object
from tensorplay._verify.inputs import LAYOUTS, make_tensor, with_layout
from tensorplay.errors import TensorPlayError

__all__ = ["DTYPES", "Program", "is_row", "programs", "rows"]

DTYPES = ("bool", *INTEGERS, *FLOATS)
# No multiple of a vector's length.
_LENGTH = 67
_CHAIN = ("float32", "int32", "float64", "bool")


@dataclass(frozen=True)
class Program:
    """A function of tensors, and what makes these: fresh ones each time, None where there are none that it takes."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], list[Any] | None]


def is_row(name: str) -> bool:
    """Whether the op of that full name has a scalar program."""
    op = library.get_op(name)
    arguments = op.schema.arguments
    if op.effects or any(a.type not in ("Tensor", "Scalar") for a in arguments):
        return False
    try:
        _native.pointwise_program(name, [_native.float32] * len(arguments))
    except TensorPlayError as error:
        return error.code != "TP5010"
    return True


def rows() -> list[str]:
    """Full names of the built-in pointwise ops that write to nothing."""
    return [name for name in library.list_ops("tp") if is_row(name)]


def programs(names: Sequence[str], dtypes: Sequence[str]) -> Iterator[Program]:
    """One program per op and dtype, then those of shapes, layouts, casts and several outputs."""
    for name in names:
        for dtype in dtypes:
            yield _row(name, dtype)
    for dtype in dtypes:
        if dtype in _CHAIN:
            yield from _shapes(dtype)
            yield from _layouts(dtype)
            yield from _several(dtype)
    for source in dtypes:
        for target in dtypes:
            yield _cast(source, target)


def _row(name: str, dtype: str) -> Program:
    namespace, _, rest = name.partition("::")
    op, _, overload = rest.partition(".")
    called = getattr(getattr(getattr(ops, namespace), op), overload or "default")
    kinds = [a.type for a in library.get_op(name).schema.arguments]

    def run(*tensors: Any) -> Any:
        given = iter(tensors)
        numbers = iter((2, 3))
        return called(*(next(given) if kind == "Tensor" else next(numbers) for kind in kinds))

    def inputs() -> list[Any] | None:
        # What the op refuses on one kind of contents (a zero divisor, a count out of range) it may take on another.
        for fill in ("special", "counting", "positive"):
            made = [
                make_tensor((_LENGTH,), dtype, seed=seed, fill=fill) for seed in range(kinds.count("Tensor"))
            ]
            if name.startswith("tp::where"):
                made[0] = make_tensor((_LENGTH,), "bool")
            try:
                run(*made)
            except (TensorPlayError, ArithmeticError):
                continue
            return made
        return None

    return Program(f"{name} {dtype}", run, inputs)


def _chain(x: Any, y: Any) -> Any:
    if x.dtype is _native.bool:
        return (x & y) | ~x
    z = x * y - x
    return functions.maximum(z, y) + functions.where(z > y, x, z)


def _pair(first: tuple[int, ...], second: tuple[int, ...], dtype: str) -> Callable[[], list[Any]]:
    return lambda: [
        make_tensor(first, dtype, seed=1, fill="special"),
        make_tensor(second, dtype, seed=2, fill="special"),
    ]


def _shapes(dtype: str) -> Iterator[Program]:
    shapes = {
        "0-d": ((), ()),
        "empty": ((0, 3), (0, 3)),
        "one element": ((1,), (1,)),
        "a row over columns": ((4, 1), (1, 5)),
        "fewer dimensions": ((2, 3, 5), (5,)),
        "0-d over a matrix": ((), (3, 7)),
        "empty by broadcasting": ((0, 1), (1, 4)),
        "six dimensions": ((2, 1, 3, 1, 2, 1), (1, 2, 3, 2, 1, 2)),
        "long": ((40_003,), (40_003,)),
    }
    for name, (first, second) in shapes.items():
        yield Program(f"{name} {dtype}", _chain, _pair(first, second, dtype))


def _layouts(dtype: str) -> Iterator[Program]:
    def laid_out(layout: str) -> Callable[[], list[Any]]:
        return lambda: [
            with_layout(make_tensor((5, 7), dtype, seed=1, fill="special"), layout),
            make_tensor((5, 7), dtype, seed=2, fill="special"),
        ]

    def flipped() -> list[Any]:
        x, y = _pair((5, 7), (5, 7), dtype)()
        return [_native.from_numpy(x.numpy()[::-1]), y]

    for layout in LAYOUTS:
        yield Program(f"{layout} {dtype}", _chain, laid_out(layout))
    yield Program(f"negative strides {dtype}", _chain, flipped)


def _several(dtype: str) -> Iterator[Program]:
    def outputs(x: Any, y: Any) -> Any:
        z = _chain(x, y)
        return z, z == y, _chain(z, x)

    yield Program(f"several outputs {dtype}", outputs, _pair((3, 5), (3, 5), dtype))
    yield Program(f"an input used twice {dtype}", lambda x, y: _chain(x, x), _pair((9,), (9,), dtype))


def _cast(source: str, target: str) -> Program:
    wanted = dtype_object(target)

    def inputs() -> list[Any]:
        return [make_tensor((_LENGTH,), source, seed=3, fill="special")]

    return Program(f"cast {source} to {target}", lambda x: functions.astype(x, wanted), inputs)
