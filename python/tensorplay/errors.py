"""Exceptions of TensorPlay.

Each class is also the built-in exception people expect (``TypeError``, ``ValueError``, ...), carries a stable ``code``
(``"TP1203"``, see ``python -m tensorplay explain CODE``) and the operator's name in ``op`` where there is one. The fix
is in the notes (PEP 678) that Python prints below the message.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from typing import Any

    from tensorplay.outcome import Capability, FallbackReason
else:
    from tensorplay._later import hints

    (Any,) = hints("typing", "Any")
    Capability, FallbackReason = hints("tensorplay.outcome", "Capability", "FallbackReason")

__all__ = [
    "ArgumentError",
    "AutogradError",
    "CapabilityError",
    "CaptureError",
    "ContractError",
    "DTypeError",
    "DeviceError",
    "DivisionByZeroError",
    "FallbackError",
    "GradcheckError",
    "GraphError",
    "IndexOutOfRangeError",
    "InternalError",
    "InvalidValueError",
    "KernelNotFoundError",
    "NoKernelError",
    "OpCheckError",
    "OutOfMemoryError",
    "RegistrationError",
    "SchemaError",
    "ShapeError",
    "TensorPlayError",
    "UnsupportedError",
]


class TensorPlayError(Exception):
    """Base class of every error that TensorPlay raises."""

    code: str
    op: str | None
    reason: FallbackReason | None
    capability: Capability | None

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "TP0000",
        op: str | None = None,
        reason: FallbackReason | None = None,
        capability: Capability | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.op = op
        self.reason = reason
        self.capability = capability
        for note in notes:
            self.add_note(note)

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__.items())
        return (type(self), self.args, state)


class SchemaError(TensorPlayError, ValueError):
    """A text or an annotation cannot be a schema."""


class RegistrationError(TensorPlayError, RuntimeError):
    """A duplicate, an unknown op, a wrong slot, or use after unregistration."""


class KernelNotFoundError(RegistrationError, LookupError):
    """No kernel is registered where one was asked for."""


class ArgumentError(TensorPlayError, TypeError):
    """A call does not fit the schema."""


class ShapeError(TensorPlayError, ValueError):
    """Shapes of the operands do not go together."""


class DTypeError(TensorPlayError, TypeError):
    """Element types of the operands do not go together."""


class DeviceError(TensorPlayError, RuntimeError):
    """Operands live on different devices, or on the wrong one."""


class DivisionByZeroError(TensorPlayError, ZeroDivisionError):
    """Integer ``//`` or ``%`` by zero on CPU."""


class NoKernelError(TensorPlayError, NotImplementedError):
    """No kernel for the device, and no permitted fallback."""


class UnsupportedError(TensorPlayError, NotImplementedError):
    """A well-formed contract that has no meaning here yet."""


class CapabilityError(TensorPlayError, RuntimeError):
    """Needs a backend or device that is absent; ``capability`` says which and why."""


class ContractError(TensorPlayError, RuntimeError):
    """A kernel, a fake rule or a backward rule broke its promise."""


class AutogradError(TensorPlayError, RuntimeError):
    """Differentiation cannot go on: no formula, a changed saved tensor, a freed graph."""


class GradcheckError(AutogradError):
    """An analytic gradient that finite differences contradict."""


class OpCheckError(ContractError):
    """``library.opcheck`` found a registration that is wrong; the first failure."""


class CaptureError(TensorPlayError, RuntimeError):
    """What cannot be captured, with the user's line."""


class FallbackError(TensorPlayError, RuntimeError):
    """``on_fallback="error"`` met a fallback; ``reason`` holds it."""


class GraphError(TensorPlayError, ValueError):
    """A graph text or a loaded program that the verifier refuses."""


class IndexOutOfRangeError(TensorPlayError, IndexError):
    """An index or an axis outside of its dimension."""


class InvalidValueError(TensorPlayError, ValueError):
    """A value of the right type that cannot be used, such as a write to a read-only tensor."""


class OutOfMemoryError(TensorPlayError, MemoryError):
    """Memory for a tensor could not be had."""


class InternalError(TensorPlayError, RuntimeError):
    """A broken invariant of TensorPlay itself: please report it."""


def __dir__() -> list[str]:
    return sorted(__all__)
