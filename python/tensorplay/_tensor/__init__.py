"""Members of `Tensor` that are not called in hot loops, as Python functions put on the type by `install`.

Lives here: conversion, moving between devices, notebook display, and short forms of ops. Not here: operators, indexing,
reductions and other methods of the hot path (the extension), copies and pickles (`copying`), and what an op computes
(the docstring of its function).
"""

from __future__ import annotations

import sys

from tensorplay import _arguments, _native, functions
from tensorplay._later import hints
from tensorplay._native import SymInt, Tensor
from tensorplay._tensor.copying import copy, deepcopy, reduce_ex
from tensorplay._tensor.storage import Size, UntypedStorage
from tensorplay.errors import ArgumentError, IndexOutOfRangeError, InvalidValueError, ShapeError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from tensorplay._native import HookHandle, dtype
else:
    Callable, Sequence = hints("collections.abc", "Callable", "Sequence")
    (ModuleType,), (Any,) = hints("types", "ModuleType"), hints("typing", "Any")
    HookHandle, dtype = _native.HookHandle, _native.dtype

__all__ = ["install"]

ARRAY_API_VERSION = "2025.12"
_READABLE_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", ARRAY_API_VERSION)

# Ops whose first argument is the tensor and that need no other form as a method.
_OPS = (
    "broadcast_to",
    "clamp",
    "clip",
    "copysign",
    "cumulative_sum",
    "divide",
    "expand_dims",
    "gelu",
    "hypot",
    "leaky_relu",
    "logaddexp",
    "multiply",
    "negative",
    "permute_dims",
    "power",
    "roll",
    "signbit",
    "softplus",
    "subtract",
    "take_along_axis",
    "true_divide",
)

_CASTS = {
    "bfloat16": _native.bfloat16,
    "bool": _native.bool,
    "byte": _native.uint8,
    "double": _native.float64,
    "float": _native.float32,
    "half": _native.float16,
    "int": _native.int32,
    "long": _native.int64,
    "short": _native.int16,
}


def untyped_storage(self: Tensor) -> UntypedStorage:
    """The memory under this tensor."""
    return UntypedStorage(self)


def size(self: Tensor) -> int | SymInt:
    """Number of elements."""
    count: Any = self.numel()
    return count if isinstance(count, SymInt) else Size(self)


# --- as other objects ---


def numpy(self: Tensor) -> Any:
    """A NumPy array over this tensor's memory; each sees what the other writes, and read-only stays read-only.

    CPU tensors that require no gradient only; bfloat16 needs ml_dtypes.
    """
    return _native.tensor_numpy(self)


def array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """A NumPy array: shared where possible, copied where `copy` is True or `dtype` is another one."""
    return _native.tensor_array(self, dtype, copy)


def tolist(self: Tensor) -> Any:
    """The elements as nested lists of Python numbers; one number for a 0-d tensor."""
    return _native.tensor_tolist(self)


def format_(self: Tensor, spec: str) -> str:
    """A 0-d tensor formats as its value does; any other only without a format."""
    return _native.tensor_format(self, spec)


def contains(self: Tensor, element: Any) -> bool:
    """Whether any element equals `element`; False for what no tensor compares with."""
    equal: Any = self == element
    return bool(equal.any().item() if isinstance(equal, type(self)) else equal)


def array_namespace(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """The module with the functions of the array API standard."""
    if api_version is not None and api_version not in _READABLE_VERSIONS:
        known = ", ".join(_READABLE_VERSIONS)
        raise InvalidValueError(
            f"array API version {api_version!r} is not supported; known are {known}", code="TP1041"
        )
    return sys.modules["tensorplay"]


# --- dtype and device ---


def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """This tensor on `device`: itself when it is there already, else a copy."""
    if stream is not None:
        raise ArgumentError(
            "to_device takes no stream: the copy is ordered with the work before it", code="TP1006"
        )
    return _native.tensor_to_device(self, device)


def to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Tensor:
    """This tensor with another dtype, on another device, or like another tensor; itself when nothing changes.

    `x.to(float16)`, `x.to("cuda:0")`, `x.to("cpu", float32)`, `x.to(other)`.
    """
    for arg in args:
        if isinstance(arg, Tensor):
            dtype, device = arg.dtype, arg.device
        elif isinstance(arg, _native.dtype):
            dtype = arg
        elif isinstance(arg, str | _native.device):
            device = arg
        else:
            raise ArgumentError(
                f"to() takes a dtype, a device or a tensor, got {type(arg).__name__}", code="TP1002", op="to"
            )
    out = self
    if dtype is not None and dtype is not out.dtype:
        out = functions.astype(out, dtype)
    if device is not None:
        out = _native.tensor_to_device(out, device)
    return out.clone() if _arguments.boolean("to", "copy", copy) and out is self else out


def cpu(self: Tensor) -> Tensor:
    """This tensor in CPU memory: itself when it is there already."""
    return _native.tensor_to_device(self, "cpu")


def cuda(self: Tensor, index: int | None = None) -> Tensor:
    """This tensor on a CUDA device, the first one by default."""
    number = 0 if index is None else _arguments.integer("cuda", "index", index)
    return _native.tensor_to_device(self, f"cuda:{number}")


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor with the dtype and device of another."""
    return to(self, _arguments.tensor("type_as", "other", other))


def is_floating_point(self: Tensor) -> bool:
    """Whether the elements are floating-point numbers."""
    return self.dtype.is_floating_point


def is_cuda(self: Tensor) -> bool:
    """Whether the data is on a CUDA device."""
    return self.device.type == "cuda"


def _cast(name: str, target: dtype) -> Callable[[Tensor], Tensor]:
    def cast(self: Tensor) -> Tensor:
        return self if self.dtype is target else functions.astype(self, target)

    cast.__name__ = name
    cast.__doc__ = f"This tensor as {target.name}: itself when it is already."
    return cast


def astype(self: Tensor, dtype: dtype, /, *, copy: bool = True) -> Tensor:
    """The elements as another dtype; with `copy=False` the tensor itself where it has that dtype already."""
    return functions.astype(self, dtype, copy=copy)


# --- shapes ---


def t(self: Tensor) -> Tensor:
    """The transpose of a matrix, as a view."""
    return self.T


def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions from `start_dim` to `end_dim` as one: a view when possible."""
    shape = self.shape
    if not shape:
        return self.reshape((1,))
    start = _axis("flatten", start_dim, len(shape), "start_dim")
    end = _axis("flatten", end_dim, len(shape), "end_dim")
    if start > end:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}", code="TP1150")
    return self.reshape((*shape[:start], _product(shape[start : end + 1]), *shape[end + 1 :]))


def _axis(owner: str, dim: int, ndim: int, name: str = "dim") -> int:
    dim = _arguments.integer(owner, name, dim)
    if not -ndim <= dim < ndim:
        raise IndexOutOfRangeError(f"axis {dim} is out of range for {ndim} dimensions", code="TP1104")
    return dim % ndim


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for one in sizes:
        total *= one
    return total


def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along one dimension, as views."""
    axis = _axis("unbind", dim, self.ndim)
    front = (slice(None),) * axis
    return tuple(self[(*front, i)] for i in range(self.shape[axis]))


def split(self: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive pieces along one dimension, as views: all of one size but the last, or of the sizes given."""
    axis = _axis("split", dim, self.ndim)
    total = self.shape[axis]
    if isinstance(split_size, int):
        if split_size <= 0:
            raise ShapeError(f"split: the size of a piece must be positive, got {split_size}", code="TP1151")
        full, rest = divmod(total, split_size)
        sizes = [split_size] * full + ([rest] if rest or not total else [])
    else:
        given = _arguments.items("split", "split_size", split_size, "an int or a list of them")
        sizes = [_arguments.integer("split", f"split_size[{i}]", n) for i, n in enumerate(given)]
        if sum(sizes) != total:
            raise ShapeError(f"split: the sizes {sizes} do not add up to {total}", code="TP1151")
    front = (slice(None),) * axis
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(self[(*front, slice(at, at + n))] for at, n in zip(starts, sizes, strict=True))


def chunk(self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size along one dimension, the last one smaller."""
    total = self.shape[_axis("chunk", dim, self.ndim)]
    if _arguments.integer("chunk", "chunks", chunks) < 1:
        raise ShapeError(f"chunk: the number of pieces must be positive, got {chunks}", code="TP1151")
    return split(self, max(1, -(-total // chunks)), dim)


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor with the shape of another, as a view."""
    return self.view(_arguments.tensor("view_as", "other", other).shape)


def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor with the shape of another: a view when possible."""
    return self.reshape(_arguments.tensor("reshape_as", "other", other).shape)


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor broadcast to the shape of another, as a view."""
    return self.expand(_arguments.tensor("expand_as", "other", other).shape)


def where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where `condition` holds, `other` elsewhere."""
    return functions.where(condition, self, other)


def new_full(self: Tensor, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor filled with one value, with this one's dtype and device unless others are given."""
    sizes = (shape,) if isinstance(shape, int) else shape
    return functions.full(sizes, fill_value, dtype=dtype or self.dtype, device=device or self.device)


def new_ones(self: Tensor, *shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones, with this one's dtype and device unless others are given."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return new_full(self, sizes, 1, dtype=dtype, device=device)


def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A copy of `data` as a tensor, with this one's dtype and device unless others are given."""
    return _native.tensor(data, dtype=dtype or self.dtype, device=device or self.device)


# --- differentiation ---


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
    """Calls `hook(gradient)` when the gradient of this tensor is known; what it returns, if anything, replaces it."""
    return _native.register_hook(self, hook)


def retain_grad(self: Tensor) -> None:
    """Keeps `.grad` of this tensor although it is no leaf."""
    _native.retain_grad(self)


def retains_grad(self: Tensor) -> bool:
    """Whether `.grad` is kept although the tensor is no leaf."""
    return _native.retains_grad(self)


# --- notebooks ---


def repr_html(self: Tensor) -> str:
    """A table of facts with the values folded below it."""
    import html

    facts = {"shape": str(self.shape), "dtype": self.dtype.name, "device": str(self.device)}
    if self.requires_grad:
        facts["requires_grad"] = "True"
    if self.device.type == "cpu" and not self.is_fake and self.size:
        facts |= _statistics(self.detach())
    head = "".join(f"<th>{html.escape(name)}</th>" for name in facts)
    row = "".join(f"<td>{html.escape(value)}</td>" for value in facts.values())
    values = html.escape(repr(self))
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>"
        f"<details><summary>values</summary><pre>{values}</pre></details>"
    )


def _statistics(self: Tensor) -> dict[str, str]:
    if self.dtype is _native.bool:
        return {"true": str(self.sum().item())}
    found = {"min": f"{self.min().item():.6g}", "max": f"{self.max().item():.6g}"}
    if self.dtype.is_floating_point:
        found["mean"] = f"{self.mean().item():.6g}"
        found["nan"] = str(functions.isnan(self).sum().item())
    return found


def _op_method(name: str) -> Callable[..., Any]:
    op = getattr(functions, name)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return op(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = op.__doc__
    return method


_METHODS: dict[str, Callable[..., Any]] = {
    "__array__": array,
    "__array_namespace__": array_namespace,
    "__contains__": contains,
    "__copy__": copy,
    "__deepcopy__": deepcopy,
    "__format__": format_,
    "__reduce_ex__": reduce_ex,
    "_repr_html_": repr_html,
}

_PLAIN = (
    astype,
    chunk,
    cpu,
    cuda,
    expand_as,
    flatten,
    is_floating_point,
    new_full,
    new_ones,
    new_tensor,
    numpy,
    register_hook,
    reshape_as,
    retain_grad,
    split,
    t,
    to,
    to_device,
    tolist,
    type_as,
    unbind,
    untyped_storage,
    view_as,
    where,
)

_PROPERTIES = (is_cuda, retains_grad, size)


def install(cls: type[Tensor]) -> None:
    """Puts every member of this module on the tensor type."""
    members: dict[str, Any] = {name: _op_method(name) for name in _OPS}
    members |= {name: _cast(name, target) for name, target in _CASTS.items()}
    members |= {function.__name__: function for function in _PLAIN}
    members |= _METHODS
    for name, function in members.items():
        function.__qualname__ = f"Tensor.{name}"
        setattr(cls, name, function)
    for getter in _PROPERTIES:
        setattr(cls, getter.__name__, property(getter))
