"""Changes to the contents of inputs, each as a function of arrays and, for replaying a case, as a function of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay import _arguments
from tensorplay._verify.arrays import is_float, packed, to_numpy
from tensorplay._verify.inputs import TensorRecipe, new_tensor, spread_specials

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["changed", "one_element", "resized", "with_other_contents", "with_specials", "with_zero"]


def resize(values: Array, dtype: str, old: int, new: int, only: int | None = None) -> Array:
    """Every dimension of size `old`, or number `only` of them, becomes `new`: contents are repeated, or ones where there
    were none.
    """
    import numpy as np

    del dtype
    for axis, n in enumerate(values.shape):
        if only is not None and axis != only:
            continue
        if n == old and old:
            values = values.take(np.arange(new) % old, axis=axis)
        elif n == old:
            values = np.ones(
                tuple(new if i == axis else m for i, m in enumerate(values.shape)), dtype=values.dtype
            )
    return values


def keep_one(values: Array, dtype: str, ndim: int) -> Array:
    """The first element alone (a one where there is none), in `ndim` dimensions of size 1."""
    import numpy as np

    del dtype
    one = values.reshape(-1)[:1] if values.size else np.ones(1, dtype=values.dtype)
    return one.reshape((1,) * ndim)


def put_specials(values: Array, dtype: str, start: int = 0) -> Array:
    """NaN, infinities, -0 and extremes over half of the elements of a floating array; see `spread_specials`."""
    if not is_float(dtype) or not values.size:
        return values
    return spread_specials(values.reshape(-1), dtype, start).reshape(values.shape)


def put_zero(values: Array, dtype: str) -> Array:
    """The first element of a floating array becomes 0, where many functions have their kink."""
    if not is_float(dtype) or not values.size:
        return values
    values = values.copy()
    values.reshape(-1)[0] = 0.0
    return values


def put_other(values: Array, dtype: str) -> Array:
    """Other contents of the same kind: rolled by one, and scaled where that means something."""
    import numpy as np

    rolled = np.roll(values.reshape(-1), 1).reshape(values.shape)
    if is_float(dtype):
        return (rolled * rolled.dtype.type(0.75)).astype(rolled.dtype)
    return ~rolled if dtype == "bool" else rolled


def changed(recipe: TensorRecipe, change: Callable[..., Array], name: str, *extra: int) -> TensorRecipe:
    """A recipe with `change` applied to its contents; `name` is the public function that does the same to a tensor."""
    values = change(recipe.values, recipe.dtype, *extra)
    if values is recipe.values:
        return recipe
    source = f"{name}({', '.join([recipe.source, *map(str, extra)])})"
    kept = recipe.strides if values.shape == recipe.values.shape else None
    return TensorRecipe(packed(values), recipe.dtype, source, recipe.layout, kept, recipe.requires_grad)


def _on_tensor(owner: str, change: Callable[..., Array], tensor: Any, *extra: int) -> Any:
    _arguments.tensor(owner, "tensor", tensor)
    return new_tensor(change(to_numpy(tensor), tensor.dtype.name, *extra), tensor.dtype.name)


def resized(tensor: Any, old: int, new: int, axis: int | None = None) -> Any:
    """A copy in which every dimension of size ``old`` has size ``new``, or only the one at ``axis`` (counted from 0);
    contents are repeated.
    """
    sizes = [_arguments.integer("resized", name, n) for name, n in (("old", old), ("new", new))]
    places = () if axis is None else (_arguments.integer("resized", "axis", axis),)
    return _on_tensor("resized", resize, tensor, *sizes, *places)


def one_element(tensor: Any, ndim: int) -> Any:
    """The first element of a tensor, in ``ndim`` dimensions of size 1."""
    return _on_tensor("one_element", keep_one, tensor, _arguments.integer("one_element", "ndim", ndim))


def with_specials(tensor: Any, start: int = 0) -> Any:
    """A copy with NaN, infinities, -0 and extremes over half of its elements, number `start` of them first."""
    return _on_tensor(
        "with_specials", put_specials, tensor, _arguments.integer("with_specials", "start", start)
    )


def with_zero(tensor: Any) -> Any:
    """A copy whose first element is 0."""
    return _on_tensor("with_zero", put_zero, tensor)


def with_other_contents(tensor: Any) -> Any:
    """A copy with other contents of the same kind."""
    return _on_tensor("with_other_contents", put_other, tensor)
