"""For tests of operators: comparison with stated tolerances, inputs in every layout, poisoned memory.

The whole contract of an operator at once is ``tensorplay.verify``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorplay import _arguments
from tensorplay._verify.arrays import bits, flatten, is_tensor, snapshot, tensors_in
from tensorplay._verify.compare import TOLERANCES, Comparison, compare, default_tolerance
from tensorplay._verify.inputs import LAYOUTS, make_tensor, with_layout
from tensorplay._verify.poison import poisoned
from tensorplay._verify.report import VerifyReport
from tensorplay._verify.subject import tracing
from tensorplay._verify.transforms import (
    one_element,
    resized,
    with_other_contents,
    with_specials,
    with_zero,
)
from tensorplay.backends import base

__all__ = [
    "LAYOUTS",
    "TOLERANCES",
    "assert_close",
    "assert_equal",
    "assert_unchanged",
    "check_backend",
    "compare_tensors",
    "default_tolerance",
    "executors",
    "make_tensor",
    "one_element",
    "poisoned",
    "resized",
    "with_layout",
    "with_other_contents",
    "with_specials",
    "with_zero",
]


def _as_tensor(value: Any) -> Any:
    """Arrays and lists as tensors; tensors and numbers as they are."""
    from tensorplay import _native

    if is_tensor(value) or isinstance(value, (bool, int, float, str, type(None))):
        return value
    if type(value).__module__.partition(".")[0] == "numpy":
        return _native.tensor(value)
    return value


@_arguments.keywords
def compare_tensors(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    check_stride: bool = False,
) -> Comparison:
    """The verdict on one pair, with the worst element and the tolerance in `.detail`."""
    base.require_package("numpy", "comparing tensors")
    if rtol is not None:
        rtol = _arguments.tolerance("compare_tensors", "rtol", rtol)
    if atol is not None:
        atol = _arguments.tolerance("compare_tensors", "atol", atol)
    for name, flag in (
        ("equal_nan", equal_nan),
        ("check_dtype", check_dtype),
        ("check_stride", check_stride),
    ):
        _arguments.boolean("compare_tensors", name, flag)
    got, want = snapshot(_as_tensor(actual)), snapshot(_as_tensor(expected))
    if got.values is not None and want.values is not None and not check_dtype and got.dtype != want.dtype:
        import dataclasses

        rtol = default_tolerance(got.dtype, want.dtype)[0] if rtol is None else rtol
        atol = default_tolerance(got.dtype, want.dtype)[1] if atol is None else atol
        got = dataclasses.replace(got, dtype=want.dtype)
    if got.values is None and want.values is None:
        return _compare_numbers(got.literal, want.literal, rtol, atol, equal_nan)
    return compare(got, want, rtol=rtol, atol=atol, equal_nan=equal_nan, check_stride=check_stride)


def _compare_numbers(
    got: Any, want: Any, rtol: float | None, atol: float | None, equal_nan: bool
) -> Comparison:
    if not isinstance(got, float) and not isinstance(want, float):
        return Comparison(got == want, f"got {got!r}, expected {want!r}")
    default = TOLERANCES["float64"]
    rtol, atol = default[0] if rtol is None else rtol, default[1] if atol is None else atol
    both_nan = got != got and want != want
    ok = got == want or (both_nan and equal_nan) or abs(got - want) <= atol + rtol * abs(want)
    return Comparison(bool(ok), f"got {got!r}, expected {want!r}; allowed rtol {rtol:.3g}, atol {atol:.3g}")


@_arguments.keywords
def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """AssertionError with the worst element unless ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

    Shape, dtype and device must agree. Tolerances default to those of the dtype (``default_tolerance``): float16
    1e-3 and 1e-5, bfloat16 1.6e-2 and 1e-5, float32 1.3e-6 and 1e-5, float64 1e-7 and 1e-7, others exact. Lists,
    tuples and dicts are compared item by item.
    """
    if msg is not None and not callable(msg):
        _arguments.string("assert_close", "msg", msg, "str or a function of the text")
    for where, got, want in _pairs(actual, expected):
        comparison = compare_tensors(
            got,
            want,
            rtol=rtol,
            atol=atol,
            equal_nan=equal_nan,
            check_dtype=check_dtype,
            check_stride=check_stride,
        )
        if not comparison.ok:
            text = f"values are not close{f' at {where}' if where else ''}: {comparison.detail}"
            raise AssertionError(msg(text) if callable(msg) else f"{msg}\n{text}" if msg else text)


def assert_equal(actual: Any, expected: Any) -> None:
    """AssertionError unless both are equal to the last bit; NaN equals NaN, and -0 differs from 0."""
    for where, got, want in _pairs(actual, expected):
        left, right = snapshot(_as_tensor(got)), snapshot(_as_tensor(want))
        if not left.same_bits(right):
            detail = compare(left, right, rtol=0.0, atol=0.0).detail
            raise AssertionError(f"values differ{f' at {where}' if where else ''}: {detail}")


def _pairs(actual: Any, expected: Any) -> list[tuple[str, Any, Any]]:
    """Leaves in order with their place; AssertionError where the nesting differs."""
    pending: list[tuple[str, Any, Any]] = [("", actual, expected)]
    found: list[tuple[str, Any, Any]] = []
    while pending:
        where, got, want = pending.pop(0)
        if isinstance(got, dict) and isinstance(want, dict):
            if got.keys() != want.keys():
                raise AssertionError(
                    f"keys differ{f' at {where}' if where else ''}: {sorted(got)} and {sorted(want)}"
                )
            pending = [*((f"{where}[{key!r}]", got[key], want[key]) for key in got), *pending]
        elif isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
            if len(got) != len(want):
                raise AssertionError(
                    f"lengths differ{f' at {where}' if where else ''}: {len(got)} and {len(want)}"
                )
            pairs = enumerate(zip(got, want, strict=True))
            pending = [*((f"{where}[{i}]", a, b) for i, (a, b) in pairs), *pending]
        else:
            found.append((where, got, want))
    return found


def assert_unchanged(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``function`` and returns its result; AssertionError if a tensor argument changed in any bit, or was written
    to and restored.
    """
    _arguments.function("assert_unchanged", "function", function)
    tensors = list(tensors_in([*args, *kwargs.values()]))
    before = [(bits(t), t._version) for t in tensors]
    result = function(*args, **kwargs)
    for index, (tensor, (contents, version)) in enumerate(zip(tensors, before, strict=True)):
        if bits(tensor) != contents:
            raise AssertionError(f"tensor argument {index} was written to")
        if tensor._version != version:
            raise AssertionError(f"tensor argument {index} was written to and restored")
    return result


@_arguments.keywords
def check_backend(
    name: str, *, ops: Sequence[str] | None = None, dtypes: Sequence[str] | None = None
) -> VerifyReport:
    """The backend of that name held to its contract: the conformance programs, compiled with it and compared with eager.

    Every pointwise row on every dtype, casts, broadcasting, layouts, empty and 0-d tensors, NaN, infinities and -0, several
    outputs. What the backend refuses is a skip with its reason; what it takes and does not do right is a failure, and so
    are a written input, memory given out twice, work that another executor did, and a proof that does not tell programs
    apart. `ops` (full names) and `dtypes` (names) make a shorter run. Where the backend is absent the report is one skip.
    InvalidValueError for a backend, an op or a dtype that is not known.
    """
    from tensorplay._verify import backend_check

    _arguments.string("check_backend", "name", name)
    base.require_package("numpy", "checking a backend")
    return backend_check.check(name, ops, dtypes)


def executors(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    """(op, executor) of every call that ``function(*args, **kwargs)`` makes, in order."""
    _arguments.function("executors", "function", function)
    with tracing() as events:
        flatten(function(*args, **kwargs))
    return [(event.op, event.marker.executor) for event in events()]


def __dir__() -> list[str]:
    return sorted(__all__)
