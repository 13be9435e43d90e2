"""Inputs of one call as recipes: contents, layout around them, and the Python text that makes them again.

A recipe builds fresh tensors for every run, so that no run sees what another wrote. Which inputs to try is decided in
`generate`.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay._verify.arrays import NoGrad, astype, dtype_object, is_float, is_tensor, packed, to_numpy

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "LAYOUTS",
    "Built",
    "Case",
    "TensorRecipe",
    "capture_args",
    "contents",
    "lay_out",
    "make_tensor",
    "new_tensor",
    "with_layout",
]

LAYOUTS = ("transposed", "sliced", "offset", "expanded")
FILLS = ("normal", "positive", "special", "counting", "zeros")
SPECIALS = 10  # values that `spread_specials` knows
# What lies around a view in its base: a kernel that reads it shows in the values.
GAP = {"float": float("nan"), "int": 77, "uint": 77, "bool": True}


def contents(shape: tuple[int, ...], dtype: str, seed: int, fill: str) -> np.ndarray[Any, Any]:
    """Values of `make_tensor`; bfloat16 comes as float32."""
    import numpy as np

    stored = "float32" if dtype == "bfloat16" else dtype
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(f"{shape}{fill}".encode())]))
    count = int(np.prod(shape, dtype=np.int64))
    flat: np.ndarray[Any, Any]
    if dtype == "bool":
        flat = rng.integers(0, 2, count)
    elif fill == "counting":
        flat = np.arange(count) % 3
    elif fill == "zeros":
        flat = np.zeros(count)
    elif not is_float(dtype):
        flat = rng.integers(0 if dtype == "uint8" or fill == "positive" else -9, 10, count)
    else:
        flat = rng.uniform(0.5, 1.5, count) if fill == "positive" else rng.standard_normal(count)
        if fill == "special":
            flat = _with_specials(flat, dtype)
    return packed(flat.astype(stored).reshape(shape))


def _with_specials(flat: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return spread_specials(flat, dtype, 0)


def spread_specials(flat: np.ndarray[Any, Any], dtype: str, start: int) -> np.ndarray[Any, Any]:
    """NaN, infinities, both zeros, and magnitudes near both ends of the dtype in every second element, the first of them
    being number `start` of the `SPECIALS`.
    """
    import numpy as np

    large = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[dtype]
    tiny = {"float16": 6e-8, "bfloat16": 1e-38, "float32": 1e-45, "float64": 5e-324}[dtype]
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, large, -large, tiny, 88.0, -104.0])
    at = np.arange(0, flat.size, 2)[: values.size * max(1, flat.size // 64)]
    flat = flat.copy()
    flat[at] = values[(start + np.arange(at.size)) % values.size]
    return flat


def new_tensor(values: np.ndarray[Any, Any], dtype: str) -> Any:
    """A contiguous tensor in memory of its own."""
    tensor = _native.tensor(values)
    return tensor if tensor.dtype.name == dtype else astype(tensor, dtype)


def make_tensor(
    shape: tuple[int, ...], dtype: str = "float32", *, seed: int = 0, fill: str = "normal"
) -> Any:
    """A tensor with reproducible contents.

    `fill`: "normal", "positive" (0.5 to 1.5), "special" (NaN, infinities, -0, huge and tiny among normal values),
    "counting" (0, 1, 2, 0, ...) or "zeros".
    """
    if fill not in FILLS:
        raise ValueError(f"fill must be one of {', '.join(FILLS)}, not {fill!r}")
    return new_tensor(contents(tuple(shape), dtype, seed, fill), dtype)


def with_layout(tensor: Any, layout: str) -> Any:
    """The same shape and contents in other memory: "contiguous", "transposed" (dimensions stored in reverse), "sliced"
    (every second element of a larger tensor), "offset" (behind one leading row) or "expanded" (stride 0 in the first
    dimension; every row then equals the first).
    """
    return lay_out(to_numpy(tensor), tensor.dtype.name, layout)[0]


def lay_out(values: np.ndarray[Any, Any], dtype: str, layout: str) -> tuple[Any, Any]:
    """(the tensor, the base that owns its memory)."""
    import numpy as np

    if layout == "contiguous" or (values.ndim == 0 and layout in ("transposed", "expanded")):
        base = new_tensor(values, dtype)
        return base, base
    with NoGrad():
        if layout == "transposed":
            order = tuple(reversed(range(values.ndim)))
            base = new_tensor(packed(values.transpose(order)), dtype)
            return _native.builtins["permute_dims"](base, order), base
        if layout == "expanded":
            base = new_tensor(packed(values[:1]), dtype)
            return _native.builtins["expand"](base, values.shape), base
        if layout == "sliced":
            wide = values.reshape(1) if values.ndim == 0 else values
            base = new_tensor(_widened(wide), dtype)
            view = _native.builtins["slice"](base, wide.ndim - 1, 0, None, 2)
            return (_native.builtins["select"](view, 0, 0) if values.ndim == 0 else view), base
        if layout == "offset":
            row = np.full_like(values[:1] if values.ndim else values.reshape(1), _gap(values))
            base = new_tensor(np.concatenate([row, np.atleast_1d(values)]), dtype)
            view = _native.builtins["slice"](base, 0, 1, None, 1)
            return (_native.builtins["select"](view, 0, 0) if values.ndim == 0 else view), base
    raise ValueError(f"layout must be 'contiguous' or one of {', '.join(LAYOUTS)}, not {layout!r}")


def _gap(values: np.ndarray[Any, Any]) -> Any:
    return {"f": GAP["float"], "i": GAP["int"], "u": GAP["uint"], "b": GAP["bool"]}[values.dtype.kind]


def _widened(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    wide = np.full((*values.shape[:-1], values.shape[-1] * 2), _gap(values), dtype=values.dtype)
    wide[..., ::2] = values
    return wide


def repeated(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The first row in place of every row."""
    import numpy as np

    return packed(np.broadcast_to(values[:1], values.shape)) if values.shape[0] else values


@dataclass(frozen=True)
class TensorRecipe:
    """One tensor argument. `strides` reproduces the layout of a tensor that somebody gave."""

    values: np.ndarray[Any, Any]
    dtype: str
    source: str
    layout: str = "contiguous"
    strides: tuple[int, ...] | None = None
    requires_grad: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def build(self) -> tuple[Any, Any]:
        """(a fresh tensor, the base that owns its memory)."""
        if self.strides is not None and self.layout == "contiguous":
            tensor, base = _restride(self.values, self.dtype, self.strides)
        else:
            tensor, base = lay_out(self.values, self.dtype, self.layout)
        if self.requires_grad:
            tensor.requires_grad = True
        return tensor, base

    def text(self) -> str:
        """Python text that makes this tensor."""
        return self.source if self.layout == "contiguous" else f"with_layout({self.source}, {self.layout!r})"

    def laid_out(self, layout: str) -> TensorRecipe:
        """The same contents in another layout (an expanded tensor repeats its first row)."""
        values = self.values
        if layout == "expanded" and values.ndim:
            values = repeated(values)
        return dataclasses.replace(self, values=values, layout=layout, strides=None)

    def plain(self) -> TensorRecipe:
        """The same contents in plain memory."""
        return dataclasses.replace(self, layout="contiguous", strides=None)

    def cast(self, dtype: str) -> TensorRecipe:
        """The same contents in another dtype."""
        if dtype == self.dtype:
            return self
        converted = astype(new_tensor(self.values, self.dtype), dtype)
        source = f"{self.source}.astype(tp.{dtype})"
        return dataclasses.replace(self, values=to_numpy(converted), dtype=dtype, source=source)


def through(values: np.ndarray[Any, Any], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """What a tensor of these strides holds once the values are written to it: elements that share a place are equal."""
    import numpy as np

    if not values.size:
        return values
    memory = np.zeros(1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True)), values.dtype)
    view = np.lib.stride_tricks.as_strided(memory, values.shape, [s * memory.itemsize for s in strides])
    view[...] = values
    return packed(view)


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements share a place otherwise than by a stride of 0; sorted by stride, each dimension has to step over
    all of those before it.
    """
    reach = 0
    for stride, n in sorted((s, n) for s, n in zip(strides, shape, strict=True) if s > 0 and n > 1):
        if stride <= reach:
            return True
        reach += (n - 1) * stride
    return False


def _overlapping(values: np.ndarray[Any, Any], dtype: str, strides: tuple[int, ...]) -> tuple[Any, Any]:
    """As `_restride`, over the memory of an array; bfloat16, which NumPy lacks, comes in plain memory."""
    import numpy as np

    if dtype == "bfloat16":
        base = new_tensor(values, dtype)
        return base, base
    extent = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
    memory = np.zeros(extent, values.dtype)
    view = np.lib.stride_tricks.as_strided(memory, values.shape, [s * memory.itemsize for s in strides])
    view[...] = values
    return _native.from_numpy(view), _native.from_numpy(memory)


def _restride(values: np.ndarray[Any, Any], dtype: str, strides: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor with these strides: dimensions of stride 0 are expanded, the others laid out as given."""
    if _overlaps(values.shape, strides):
        return _overlapping(values, dtype, strides)
    repeated = [i for i, (n, s) in enumerate(zip(values.shape, strides, strict=True)) if s == 0 and n > 1]
    dense = packed(values[tuple(slice(0, 1) if i in repeated else slice(None) for i in range(values.ndim))])
    kept = [max(1, s) for s in strides]
    with NoGrad():
        base = _native.builtins["empty_strided"](dense.shape, kept, dtype=dtype_object(dtype))
        _native.builtins["copy_"](base, new_tensor(dense, dtype))
        return (_native.builtins["expand"](base, values.shape), base) if repeated else (base, base)


@dataclass
class Built:
    """The arguments of one call, made afresh."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    # Per tensor: (argument name, the tensor the call gets, the base that owns its memory).
    tensors: list[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Case:
    """The inputs of one call. `label` says what is particular about them."""

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    given: bool = False
    # Of dtypes that nobody gave and that an op need not have been written for.
    speculative: bool = False
    # With another number than was given, or than is the default: a gradient may depend on it.
    numbers: bool = False

    def build(self) -> Built:
        """Fresh tensors; one recipe met twice gives the same tensor twice."""
        built: dict[int, tuple[Any, Any]] = {}
        tensors: list[tuple[str, Any, Any]] = []

        def make(value: Any, name: str) -> Any:
            if isinstance(value, TensorRecipe):
                if id(value) not in built:
                    built[id(value)] = value.build()
                    tensors.append((name, *built[id(value)]))
                return built[id(value)][0]
            if isinstance(value, (list, tuple)):
                return type(value)(make(item, f"{name}[{i}]") for i, item in enumerate(value))
            return value

        args = tuple(make(value, self._name(i)) for i, value in enumerate(self.args))
        kwargs = {key: make(value, key) for key, value in self.kwargs.items()}
        return Built(args, kwargs, tensors)

    def _name(self, position: int) -> str:
        return self.names[position] if position < len(self.names) else f"args[{position}]"

    def recipes(self) -> list[TensorRecipe]:
        """The tensor recipes in order, those in lists included, each once."""
        found: dict[int, TensorRecipe] = {}
        pending = [*self.args, *self.kwargs.values()]
        while pending:
            value = pending.pop(0)
            if isinstance(value, TensorRecipe):
                found[id(value)] = value
            elif isinstance(value, (list, tuple)):
                pending = [*value, *pending]
        return list(found.values())

    def replace(self, label: str, change: dict[int, TensorRecipe]) -> Case:
        """A case with other recipes; `change` goes from `id(old recipe)` to the new one."""

        def swap(value: Any) -> Any:
            if isinstance(value, TensorRecipe):
                return change.get(id(value), value)
            return type(value)(map(swap, value)) if isinstance(value, (list, tuple)) else value

        args = tuple(map(swap, self.args))
        kwargs = {key: swap(value) for key, value in self.kwargs.items()}
        return dataclasses.replace(self, label=label, args=args, kwargs=kwargs, given=False)

    def map(self, label: str, change: Any) -> Case:
        """A case with `change(recipe)` for every tensor."""
        return self.replace(label, {id(recipe): change(recipe) for recipe in self.recipes()})

    def with_number(self, place: int | str, value: float) -> Case:
        """A case with another number at a position or for a keyword."""
        args, kwargs = self.args, self.kwargs
        if isinstance(place, int):
            args = (*args[:place], value, *args[place + 1 :])
            name = self._name(place)
        else:
            kwargs, name = {**kwargs, place: value}, place
        label = f"{self.label}, {name}={value!r}"
        return dataclasses.replace(
            self, label=label, args=args, kwargs=kwargs, given=False, speculative=True, numbers=True
        )

    def text(self, function: str) -> str:
        """The call as Python text that can be run again."""

        def show(value: Any) -> str:
            if isinstance(value, TensorRecipe):
                return value.text()
            if isinstance(value, (list, tuple)):
                inner = ", ".join(map(show, value))
                return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
            return repr(value)

        parts = [*map(show, self.args), *(f"{key}={show(value)}" for key, value in self.kwargs.items())]
        return f"{function}({', '.join(parts)})"


def capture_args(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...], label: str) -> Case:
    """A case that reproduces a call somebody gave: contents, dtypes, layouts, and which tensors are the same one."""
    known: dict[int, TensorRecipe] = {}

    def take(value: Any, source: str) -> Any:
        if is_tensor(value):
            if id(value) not in known:
                known[id(value)] = _recipe_of(value, source)
            return known[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(take(item, f"{source}[{i}]") for i, item in enumerate(value))
        return value

    taken = tuple(take(value, f"args[{i}]") for i, value in enumerate(args))
    by_name = {key: take(value, f"kwargs[{key!r}]") for key, value in kwargs.items()}
    return Case(label, taken, by_name, names, given=True)


def _recipe_of(tensor: Any, source: str) -> TensorRecipe:
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    values = to_numpy(tensor)
    return TensorRecipe(
        values, tensor.dtype.name, source, strides=strides, requires_grad=bool(tensor.requires_grad)
    )
