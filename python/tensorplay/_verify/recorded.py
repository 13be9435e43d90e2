"""One recorded call of a subject and its gradients. What is said of them is in `gradients`, `second` and `compiled`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tensorplay import _native
from tensorplay._verify.arrays import flatten, is_float, is_tensor, packed
from tensorplay._verify.inputs import Built, Case, TensorRecipe, lay_out
from tensorplay._verify.subject import Subject

__all__ = ["Recorded", "WithGrad", "cotangents", "differentiable", "exact_form", "misfit", "record"]


class WithGrad:
    """Grad mode on while it lasts, on this thread."""

    def __enter__(self) -> None:
        self._before = _native.set_grad_enabled(True)

    def __exit__(self, *_: object) -> None:
        _native.set_grad_enabled(self._before)


@dataclass
class Recorded:
    """One recorded call: the outputs that can be differentiated and the inputs they may depend on."""

    built: Built
    outputs: list[Any]
    indices: list[int]
    inputs: list[tuple[str, Any]]

    def gradients(self, cotangents: list[Any]) -> list[Any]:
        """One gradient or None per input; the graph stays."""
        tensors = [tensor for _, tensor in self.inputs]
        with WithGrad():
            return list(_native.grad(self.outputs, tensors, cotangents, True, False, True))


def differentiable(case: Case, dtype: str | None) -> Case:
    """The case with every floating tensor in `dtype` and requiring a gradient."""

    def change(recipe: TensorRecipe) -> TensorRecipe:
        if not is_float(recipe.dtype):
            return recipe
        return dataclasses.replace(recipe.cast(dtype) if dtype else recipe, requires_grad=True)

    return case.map(f"{case.label}, {dtype}" if dtype else case.label, change)


def exact_form(subject: Subject, case: Case) -> Case | None:
    """The case to differentiate: in float64, or else as it is; in float32 where that is narrower. None: it takes neither."""
    own = {recipe.dtype for recipe in case.recipes() if is_float(recipe.dtype)}
    for dtype in ("float64", None if own <= {"float32", "float64"} else "float32"):
        exact = differentiable(case, dtype)
        if subject.run(exact, subject.reference()).error is None:
            return exact
    return None


def record(subject: Subject, case: Case, function: Any = None) -> Recorded:
    """Calls the subject, or another form of it, with gradients recorded."""
    function = function or subject.function
    built = case.build()
    subject.seed()
    with WithGrad():
        results = flatten(function(*built.args, **built.kwargs))
    found = [(i, r) for i, r in enumerate(results) if is_tensor(r) and r.requires_grad]
    inputs = [(name, tensor) for name, tensor, _ in built.tensors if tensor.requires_grad]
    return Recorded(built, [r for _, r in found], [i for i, _ in found], inputs)


def misfit(recorded: Recorded, found: list[Any]) -> str | None:
    """What of shape, dtype and device differs between a gradient and its input, if anything."""
    for (argument, tensor), gradient in zip(recorded.inputs, found, strict=False):
        for what in ("shape", "dtype", "device") if gradient is not None else ():
            got, want = getattr(gradient, what), getattr(tensor, what)
            if got != want:
                return f"{what} of the gradient of '{argument}' is {got}, the input's is {want}"
    return None


def cotangents(outputs: list[Any], seed: int, layout: str = "contiguous") -> list[Any]:
    """A seeded gradient per output, in this layout ("expanded" repeats its first row)."""
    import numpy as np

    rng = np.random.Generator(np.random.PCG64([seed, 7]))
    made = []
    for output in outputs:
        values = np.asarray(rng.standard_normal(tuple(output.shape)) + 0.25)
        stored = "float32" if output.dtype.name == "bfloat16" else output.dtype.name
        values = values.astype(stored)
        if layout == "expanded" and values.ndim and values.shape[0]:
            values = packed(np.broadcast_to(values[:1], values.shape))
        made.append(lay_out(values, output.dtype.name, layout)[0])
    return made
