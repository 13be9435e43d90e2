"""Tensors as the verifier sees them: NumPy contents, exact bytes, and a snapshot that outlives the tensor.

Nothing here compares or decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorplay import _native

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FLOATS",
    "INTEGERS",
    "NoGrad",
    "Snapshot",
    "around",
    "astype",
    "bits",
    "dtype_object",
    "flatten",
    "is_float",
    "is_tensor",
    "packed",
    "snapshot",
    "tensors_in",
    "to_numpy",
]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


class NoGrad:
    """Grad mode off while it lasts, on this thread."""

    def __enter__(self) -> None:
        self._before = _native.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        _native.set_grad_enabled(self._before)


def is_tensor(value: object) -> bool:
    """Whether `value` is one of our tensors."""
    return type(value) is _native.Tensor


def is_float(dtype: str) -> bool:
    """Whether the dtype of that name is a floating one."""
    return dtype in FLOATS


def dtype_object(name: str) -> Any:
    """The dtype of that name."""
    return getattr(_native, name)


def astype(tensor: Any, dtype: str) -> Any:
    """`tensor` converted, outside of any recorded history."""
    with NoGrad():
        return _native.builtins["astype"](tensor.detach(), dtype_object(dtype))


def packed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A C-contiguous copy of the same rank (`ascontiguousarray` makes 0-d arrays 1-d)."""
    import numpy as np

    return np.array(array, copy=True, order="C")


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Contents as an array of the caller's own (bfloat16 comes as float32, which holds it exactly)."""
    import numpy as np

    with NoGrad():
        plain = tensor.detach()
        if plain.device.type != "cpu":
            plain = plain.cpu()
        if plain.dtype.name == "bfloat16":
            plain = _native.builtins["astype"](plain, _native.float32)
        return np.array(plain.numpy(), copy=True, order="C")


def around(tensor: Any, base: Any) -> bytes:
    """The exact contents of `base` outside of its view `tensor`; nothing where the two are one."""
    import numpy as np

    if tensor is base or not base.is_contiguous() or not base.size:
        return b""
    whole = np.array(to_numpy(base).reshape(-1))
    start = (tensor.data_ptr() - base.data_ptr()) // tensor.dtype.itemsize if tensor.size else 0
    steps = [step * whole.itemsize for step in tensor.stride()]
    np.lib.stride_tricks.as_strided(whole[start:], tuple(tensor.shape), steps)[...] = whole.dtype.type(0)
    return whole.tobytes()


def bits(tensor: Any) -> bytes:
    """The exact contents, in logical order: -0 differs from 0, and a NaN equals itself."""
    return to_numpy(tensor).tobytes()


@dataclass(frozen=True)
class Snapshot:
    """What one value was at one moment. `values` is None for what is no tensor; then `literal` holds it."""

    values: np.ndarray[Any, Any] | None
    literal: object
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    @property
    def is_tensor(self) -> bool:
        return self.values is not None

    def same_bits(self, other: Snapshot) -> bool:
        """Equal to the last bit, shape and dtype included."""
        if self.values is None or other.values is None:
            return self.values is other.values and repr(self.literal) == repr(other.literal)
        same_type = (self.dtype, self.shape) == (other.dtype, other.shape)
        return same_type and self.values.tobytes() == other.values.tobytes()


def snapshot(value: Any) -> Snapshot:
    """A copy of `value` as it is now."""
    if not is_tensor(value):
        return Snapshot(None, value, type(value).__name__, (), (), "")
    strides = tuple(value.stride())
    return Snapshot(to_numpy(value), None, value.dtype.name, tuple(value.shape), strides, str(value.device))


def flatten(result: Any) -> list[Any]:
    """Results of a call in order, lists and tuples opened; nothing for None."""
    if result is None:
        return []
    pending, flat = [result], []
    while pending:
        value = pending.pop()
        if isinstance(value, (list, tuple)):
            pending.extend(reversed(value))
        elif isinstance(value, dict):
            pending.extend(reversed(list(value.values())))
        else:
            flat.append(value)
    return flat


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Every tensor among `values` and in the lists and dicts among them."""
    return (value for value in flatten(list(values)) if is_tensor(value))
