"""Copies and pickles of tensors.

Lives here: what of a tensor is kept: values, dtype, device and `requires_grad` of a leaf. Not here: files (the extension).
"""

from __future__ import annotations

from tensorplay import _native
from tensorplay._later import hints
from tensorplay.errors import AutogradError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from typing import Any

    from tensorplay._native import Tensor, dtype
else:
    (Any,) = hints("typing", "Any")
    Tensor, dtype = _native.Tensor, _native.dtype

__all__ = ["copy", "deepcopy", "reduce_ex"]


def _leaf_like(self: Tensor, made: Tensor) -> Tensor:
    if self.requires_grad and self.is_leaf:
        made.requires_grad = True
    return made


def copy(self: Tensor) -> Tensor:
    """Another tensor over the same memory."""
    return _leaf_like(self, self.detach())


def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy with memory of its own, and its gradient copied along."""
    if id(self) in memo:
        found: Tensor = memo[id(self)]
        return found
    if self.requires_grad and not self.is_leaf:
        raise AutogradError(
            "a computed tensor cannot be deep-copied: its history would be lost",
            code="TP3041",
            notes=("copy x.detach() instead",),
        )
    made = _leaf_like(self, self.detach().clone())
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = deepcopy(self.grad, memo)
    return made


def reduce_ex(self: Tensor, protocol: int) -> tuple[Any, ...]:
    """Pickles values, dtype, device and `requires_grad`; not the gradient, and not the graph.

    From protocol 5 on the memory travels as a `PickleBuffer`, out of band where the pickler takes it.
    """
    import pickle

    values = _native.tensor_to_device(self.detach(), "cpu").contiguous()
    memory = _native.tensor_bytes(values)
    data = pickle.PickleBuffer(memory) if protocol >= 5 else memoryview(memory).tobytes()
    leaf = self.requires_grad and self.is_leaf
    return _rebuild, (data, self.dtype, self.shape, str(self.device), leaf)


def _rebuild(data: Any, dtype: dtype, shape: tuple[int, ...], device: str, requires_grad: bool) -> Tensor:
    # Bytes are shared by whoever interned them; any other buffer was made for this tensor.
    made = _native.tensor_from_bytes(data, dtype, shape, copy=isinstance(data, bytes))
    made = _native.tensor_to_device(made, device)
    if requires_grad:
        made.requires_grad = True
    return made
