"""Inputs of one call as recipes: contents, layout around them, and the Python text that makes them again.

A recipe builds fresh tensors for every run, so that no run sees what another wrote. Which inputs to try is decided in
`generate`.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorplay import _arguments, _native
from tensorplay._tree import flatten, map_named, tree_map
from tensorplay._verify.arrays import NoGrad, astype, is_float, is_tensor, packed, to_numpy
from tensorplay.errors import InvalidValueError

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
        raise InvalidValueError(
            f"make_tensor: fill must be one of {', '.join(FILLS)}, not {fill!r}", code="TP1041"
        )
    sizes = _arguments.items("make_tensor", "shape", shape)
    sizes = [_arguments.integer("make_tensor", f"shape[{i}]", n) for i, n in enumerate(sizes)]
    dtype = _arguments.string("make_tensor", "dtype", dtype, "the name of a dtype")
    if not isinstance(getattr(_native, dtype, None), _native.dtype):
        raise InvalidValueError(f"make_tensor: no dtype is named {dtype!r}", code="TP1041")
    seed = _arguments.integer("make_tensor", "seed", seed)
    return new_tensor(contents(tuple(sizes), dtype, seed, fill), dtype)


def with_layout(tensor: Any, layout: str) -> Any:
    """The same shape and contents in other memory: "contiguous", "transposed" (dimensions stored in reverse), "sliced"
    (every second element of a larger tensor), "offset" (behind one leading row) or "expanded" (stride 0 in the first
    dimension; every row then equals the first).
    """
    _arguments.tensor("with_layout", "tensor", tensor)
    if layout != "contiguous" and layout not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise InvalidValueError(
            f"with_layout: layout must be 'contiguous' or one of {known}, not {layout!r}", code="TP1041"
        )
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
    """One tensor argument. `strides` reproduces the layout of a tensor that somebody gave.

    Invariant: `values` are those of the tensor, so that elements which share a place have one value.
    """

    values: np.ndarray[Any, Any]
    dtype: str
    source: str
    layout: str = "contiguous"
    strides: tuple[int, ...] | None = None
    requires_grad: bool = False
    # Whether the text says if a gradient is wanted.
    marked: bool = False

    def __post_init__(self) -> None:
        if not self.shared:
            return
        # As `with_layout` does, which the text of an expanded one calls.
        first = self.layout == "expanded"
        one = repeated(self.values) if first else packed(strided(self.values, self.steps)[0])
        object.__setattr__(self, "values", one)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides in elements, as far as they say which elements are stored once for several."""
        if self.layout == "contiguous" and self.strides is not None:
            return self.strides
        dense = [step // max(1, self.values.itemsize) for step in self.values.strides]
        return (0, *dense[1:]) if self.layout == "expanded" and dense else tuple(dense)

    @property
    def shared(self) -> bool:
        """Whether several elements may share one place in memory."""
        return _overlaps(self.shape, self.steps)

    def build(self) -> tuple[Any, Any]:
        """(a fresh tensor, the base that owns its memory)."""
        if self.strides is not None and self.layout == "contiguous":
            tensor, base = _restride(self)
        else:
            tensor, base = lay_out(self.values, self.dtype, self.layout)
        if self.requires_grad:
            tensor.requires_grad = True
        return tensor, base

    def text(self) -> str:
        """Python text that makes this tensor."""
        text = self.source if self.layout == "contiguous" else f"with_layout({self.source}, {self.layout!r})"
        if not self.marked:
            return text
        return f"{text}.detach().requires_grad_()" if self.requires_grad else f"{text}.detach()"

    def laid_out(self, layout: str) -> TensorRecipe:
        """The same contents in another layout (an expanded tensor repeats its first row)."""
        return dataclasses.replace(self, layout=layout, strides=None)

    def plain(self) -> TensorRecipe:
        """The same contents in plain memory."""
        return dataclasses.replace(self, layout="contiguous", strides=None)

    def moved(self, at: tuple[int, ...], step: float) -> TensorRecipe:
        """One element moved by `step`; in plain memory where others share its place."""
        values = self.values.copy()
        values[at] += step
        free = self.plain() if self.shared else self
        return dataclasses.replace(free, values=values)

    def cast(self, dtype: str) -> TensorRecipe:
        """The same contents in another dtype; only a floating one can require a gradient."""
        if dtype == self.dtype:
            return self
        converted = astype(new_tensor(self.values, self.dtype), dtype)
        source = f"{self.source}.astype(tp.{dtype})"
        asks = self.requires_grad and is_float(dtype)
        return dataclasses.replace(
            self, values=to_numpy(converted), dtype=dtype, source=source, requires_grad=asks
        )


def _overlaps(shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    reach = 0
    for step, n in sorted((abs(step), n) for step, n in zip(steps, shape, strict=True)):
        if n > 1 and step <= reach:
            return True
        reach += (n - 1) * step
    return False


def strided(values: np.ndarray[Any, Any], steps: tuple[int, ...]) -> tuple[Any, Any]:
    """(an array of these contents and strides in elements, the flat array that owns its memory).

    Of elements that share a place the last one counts. What lies between the elements is `GAP`.
    """
    import numpy as np

    reaches = [(n - 1) * step for n, step in zip(values.shape, steps, strict=True)] if values.size else [0]
    start = -sum(reach for reach in reaches if reach < 0)
    flat = np.full(start + sum(reach for reach in reaches if reach > 0) + 1, _gap(values), values.dtype)
    in_bytes = [step * values.itemsize for step in steps]
    array = np.lib.stride_tricks.as_strided(flat[start:], values.shape, in_bytes)
    array[...] = values
    return array, flat


def _restride(recipe: TensorRecipe) -> tuple[Any, Any]:
    """A tensor with the recipe's strides; NumPy has no bfloat16, so that one is expanded where it has stride 0."""
    steps, values = recipe.steps, recipe.values
    if recipe.dtype != "bfloat16":
        array, flat = strided(values, steps)
        return _native.from_numpy(array), _native.from_numpy(flat)
    once = [step == 0 and n > 1 for step, n in zip(steps, values.shape, strict=True)]
    dense = new_tensor(packed(values[tuple(slice(0, 1) if o else slice(None) for o in once)]), "bfloat16")
    if any(step < 0 for step in steps) or _overlaps(tuple(dense.shape), steps):
        plain = new_tensor(values, "bfloat16")
        return plain, plain
    with NoGrad():
        base = _native.builtins["empty_strided"](dense.shape, [max(1, s) for s in steps], dtype=dense.dtype)
        _native.builtins["copy_"](base, dense)
        return (_native.builtins["expand"](base, values.shape), base) if any(once) else (base, base)


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
    # With another number, bool or optional argument than was given, or than is the default: a gradient may depend on it.
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
            return value

        args = tuple(map_named(make, value, self._name(i)) for i, value in enumerate(self.args))
        kwargs = {key: map_named(make, value, key) for key, value in self.kwargs.items()}
        return Built(args, kwargs, tensors)

    def _name(self, position: int) -> str:
        return self.names[position] if position < len(self.names) else f"args[{position}]"

    def recipes(self) -> list[TensorRecipe]:
        """The tensor recipes in order, those in lists, tuples and dicts included, each once."""
        leaves = flatten([*self.args, *self.kwargs.values()])[0]
        return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, TensorRecipe)}.values())

    def replace(self, label: str, change: dict[int, TensorRecipe]) -> Case:
        """A case with other recipes; `change` goes from `id(old recipe)` to the new one."""

        def swap(value: Any) -> Any:
            if isinstance(value, TensorRecipe):
                return change.get(id(value), value)
            return value

        args = tuple(tree_map(swap, value) for value in self.args)
        kwargs = {key: tree_map(swap, value) for key, value in self.kwargs.items()}
        return dataclasses.replace(self, label=label, args=args, kwargs=kwargs, given=False)

    def apart(self) -> tuple[Case, list[tuple[str, TensorRecipe]]]:
        """The case with a recipe of its own at every place, and these with their names: one tensor given twice is two."""
        found: list[tuple[str, TensorRecipe]] = []

        def own(value: Any, name: str) -> Any:
            if not isinstance(value, TensorRecipe):
                return value
            found.append((name, dataclasses.replace(value)))
            return found[-1][1]

        args = tuple(map_named(own, value, self._name(i)) for i, value in enumerate(self.args))
        kwargs = {key: map_named(own, value, key) for key, value in self.kwargs.items()}
        return dataclasses.replace(self, args=args, kwargs=kwargs, given=False), found

    def map(self, label: str, change: Any) -> Case:
        """A case with `change(recipe)` for every tensor."""
        return self.replace(label, {id(recipe): change(recipe) for recipe in self.recipes()})

    def with_value(self, place: int | str, value: Any, *, speculative: bool) -> Case:
        """A case with another number, choice or tensor at a position or for a keyword."""
        args, kwargs = self.args, self.kwargs
        if isinstance(place, int):
            args = (*args[:place], value, *args[place + 1 :])
            name = self._name(place)
        else:
            kwargs, name = {**kwargs, place: value}, place
        shown = "a tensor" if isinstance(value, TensorRecipe) else repr(value)
        label = f"{self.label}, {name}={shown}"
        return dataclasses.replace(
            self,
            label=label,
            args=args,
            kwargs=kwargs,
            given=False,
            speculative=speculative,
            numbers=True,
        )

    def text(self, function: str) -> str:
        """The call as Python text that can be run again."""

        def show(value: Any) -> str:
            if isinstance(value, TensorRecipe):
                return value.text()
            if isinstance(value, dict):
                return f"{{{', '.join(f'{key!r}: {show(item)}' for key, item in value.items())}}}"
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
        return value

    taken = tuple(map_named(take, value, f"args[{i}]") for i, value in enumerate(args))
    by_name = {key: map_named(take, value, f"kwargs[{key!r}]") for key, value in kwargs.items()}
    return Case(label, taken, by_name, names, given=True)


def _recipe_of(tensor: Any, source: str) -> TensorRecipe:
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    values = to_numpy(tensor)
    return TensorRecipe(
        values, tensor.dtype.name, source, strides=strides, requires_grad=bool(tensor.requires_grad)
    )
