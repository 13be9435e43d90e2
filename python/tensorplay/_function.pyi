"""Types of `Function`: `apply` takes what `forward` takes, without the context where that comes first."""

from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, overload

from tensorplay._native import Context

FunctionContext = Context

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_R = TypeVar("_R")

class _WithContext(Protocol[_P, _R_co]):
    def forward(self, ctx: FunctionContext, /, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

class _Plain(Protocol[_P, _R_co]):
    def forward(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

class _Apply:
    @overload
    def __get__(self, instance: None, owner: _WithContext[_P, _R]) -> Callable[_P, _R]: ...
    @overload
    def __get__(self, instance: None, owner: _Plain[_P, _R]) -> Callable[_P, _R]: ...

class Function:
    """A forward and a backward written together; `apply` is the call that is recorded."""

    apply: ClassVar[_Apply]
    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any: ...
    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None: ...
    @staticmethod
    def backward(ctx: FunctionContext, /, *grads: Any, **kwargs: Any) -> Any: ...
