"""What `Tensor.size` and `Tensor.untyped_storage()` give.

Lives here: two small classes for code written for other libraries. Not here: the memory itself (the extension).
"""

from __future__ import annotations

from tensorplay import _native
from tensorplay.errors import ArgumentError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from typing import Any

    from tensorplay._native import Tensor, device

__all__ = ["Size", "UntypedStorage"]


class Size(int):
    """The number of elements; called, it tells that sizes are in `shape`."""

    shape: tuple[int, ...]

    def __new__(cls, tensor: Tensor) -> Size:
        found = super().__new__(cls, tensor.numel())
        found.shape = tensor.shape
        return found

    def __call__(self, *dim: int) -> tuple[int, ...]:
        if not dim:
            return self.shape
        raise ArgumentError(
            f"Tensor.size is the number of elements; the size of one dimension is x.shape[{dim[0]}]",
            code="TP1040",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class UntypedStorage:
    """The memory under a tensor and all its views, as bytes."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return _native.tensor_storage(self.tensor)[0]

    def nbytes(self) -> int:
        """Number of bytes."""
        return _native.tensor_storage(self.tensor)[1]

    def __len__(self) -> int:
        return self.nbytes()

    @property
    def device(self) -> device:
        """Where the memory is."""
        return self.tensor.device

    def cpu(self) -> UntypedStorage:
        """This storage if it is in CPU memory already, else a copy that is."""
        return (
            self
            if self.tensor.device.type == "cpu"
            else UntypedStorage(_native.tensor_to_device(self.tensor, "cpu"))
        )

    def copy_(self, source: UntypedStorage) -> UntypedStorage:
        """Copies all bytes of `source`, which must have as many."""
        _native.storage_copy(self.tensor, source.tensor)
        return self

    def __repr__(self) -> str:
        return f"UntypedStorage({self.nbytes()} bytes on {self.device})"
