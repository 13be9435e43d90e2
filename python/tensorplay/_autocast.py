"""`autocast`: a thread's calls with their floating tensors converted first.

Lives here: the context. Not here: the casting layer (the extension) and the policies of ops (`_op.register_autocast`).
"""

from __future__ import annotations

import functools

from tensorplay import _arguments, _native
from tensorplay._later import any_function, hints
from tensorplay._native import Scope
from tensorplay._native import dtype as DType
from tensorplay._op import require_autocast_device
from tensorplay.errors import AutogradError, DTypeError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])
else:
    Any, Self, F = *hints("typing", "Any", "Self"), any_function("F")

__all__ = ["autocast"]


class autocast(Scope):
    """Ops with an autocast policy for `device_type` run in lower precision on this thread: a context and a decorator.

    Floating tensors of that device except float64 are converted, also in lists and keyword arguments; gradients come
    back in the original dtype. `matmul` runs in `dtype`, an op with `register_autocast` in its own. With
    `enabled=False` it switches an outer autocast off.
    """

    __slots__ = ("_dtype", "_enabled", "device_type")
    device_type: str
    _dtype: DType
    _enabled: bool

    def __new__(cls, device_type: str = "cpu", dtype: DType = _native.bfloat16, enabled: bool = True) -> Self:
        require_autocast_device(device_type)
        if dtype not in (_native.bfloat16, _native.float16, _native.float32):
            raise DTypeError(f"autocast to {dtype!r}: use bfloat16, float16 or float32", code="TP3421")
        switch, restore = _native.autocast_switch, _native.autocast_restore
        is_on = _arguments.boolean("autocast", "enabled", enabled)
        to = dtype if is_on else None
        self = super().__new__(cls, "autocast", AutogradError, "TP3316", restore, switch, device_type, to)
        self.device_type, self._dtype, self._enabled = device_type, dtype, is_on
        return self

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with autocast(self.device_type, self._dtype, self._enabled):
                return fn(*args, **kwargs)

        wrapped: Any = call
        return wrapped

    def __repr__(self) -> str:
        return f"autocast({self.device_type!r}, dtype={self._dtype!r}, enabled={self._enabled})"
