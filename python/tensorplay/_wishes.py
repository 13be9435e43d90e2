"""What a thread wishes about the kernels of its calls: which to prefer, which to leave out, how closely to look.

Lives here: the contexts. What they set belongs to the thread that entered them. Not here: the kernels (`_op`).
"""

from __future__ import annotations

import threading
import warnings

from tensorplay import _arguments, _native
from tensorplay._later import hints
from tensorplay._native import CustomOpDef, Entries, Scope
from tensorplay._places import stack_level
from tensorplay._record import full_name, slots
from tensorplay.errors import RegistrationError, SchemaError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self
else:
    (Iterable,), (Self,) = hints("collections.abc", "Iterable"), hints("typing", "Self")

__all__ = ["debug_checks", "prefer", "set_kernel_enabled", "switches"]


class _Switches(threading.local):
    """Kernel slots that this thread has switched, innermost last."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], dict[int, bool]] = {}

    def enabled(self, target: str, slot: str) -> bool:
        """What the newest context says that has not ended; contexts may end in any order."""
        return next(reversed(self.states.get((target, slot), {}).values()), True)


switches = _Switches()


class KernelSwitch:
    """Switches the kernels of some device slots on or off for this thread while it is entered."""

    def __init__(self, target: str, slots: tuple[str, ...], enabled: bool) -> None:
        self._target, self._slots, self._enabled = target, slots, enabled
        self._entries = Entries("set_kernel_enabled", RegistrationError, "TP1337")

    def __enter__(self) -> None:
        tokens: list[int] = []
        self._entries.push(tokens)
        registered = {slot for slot, *_ in _native.op_info(self._target)["kernels"]}
        word = "enable" if self._enabled else "disable"
        for slot in self._slots:
            if slot not in registered:
                self._warn(f"{self._target} has no kernel for {slot!r} to {word}")
            elif switches.enabled(self._target, slot) is self._enabled:
                self._warn(
                    f"nothing to {word}: the kernels of {self._target} for {slot!r} are {word}d already"
                )
            tokens.append(_native.push_enabled(self._target, slot, self._enabled))
            switches.states.setdefault((self._target, slot), {})[tokens[-1]] = self._enabled

    def __exit__(self, *_: object) -> None:
        for slot, token in zip(self._slots, self._entries.pop(), strict=False):
            _native.pop_preference(token)
            del switches.states[self._target, slot][token]

    def __repr__(self) -> str:
        return f"<kernels of {self._target} for {', '.join(self._slots)} {'on' if self._enabled else 'off'}>"

    @staticmethod
    def _warn(message: str) -> None:
        warnings.warn(message, UserWarning, stacklevel=stack_level())


def set_kernel_enabled(
    op: str | CustomOpDef, device_type: str | Iterable[str] | None, enabled: bool = True
) -> KernelSwitch:
    """A context in which this thread does (not) use the kernels of a device type; the default kernel answers instead.

    Raises
    ------
    SchemaError
        For what is no device type (TP1312): the default kernel itself cannot be switched off.
    """
    on = _arguments.boolean("set_kernel_enabled", "enabled", enabled)
    found = slots(device_type)
    if not on and "default" in found:
        message = "the default kernel answers where others are disabled, and cannot be disabled itself: name a device type"
        raise SchemaError(message, code="TP1312", op=full_name(op))
    return KernelSwitch(full_name(op), found, on)


class Preference(Scope):
    """Puts one kernel in front for this thread while it is entered."""

    _target: str
    _kernel: str

    def __new__(cls, target: str, kernel: str) -> Self:
        push, pop = _native.push_preference, _native.pop_preference
        self = super().__new__(cls, "prefer", RegistrationError, "TP1337", pop, push, target, kernel)
        self._target, self._kernel = target, kernel
        return self

    def __repr__(self) -> str:
        return f"<kernel {self._kernel!r} of {self._target} first>"


def prefer(op: str | CustomOpDef, name: str) -> Preference:
    """A context in which this thread tries the kernel `name` first."""
    target = full_name(op)
    known = list(dict.fromkeys(at[0] for _, at, _ in _native.op_info(target)["kernels"]))
    if name not in known:
        raise RegistrationError(
            f"{target} has no kernel named {name!r}; its kernels are {', '.join(known) or 'none'}",
            code="TP1321",
            op=target,
        )
    return Preference(target, name)


class DebugChecks(Scope):
    """Checks around every kernel that is not built in, on this thread, while it is entered."""

    def __new__(cls) -> Self:
        push, pop = _native.push_debug, _native.pop_debug
        return super().__new__(cls, "debug_checks", RegistrationError, "TP1337", pop, push)

    def __repr__(self) -> str:
        return "debug_checks()"


def debug_checks() -> DebugChecks:
    """A context in which eager calls of this thread are checked: `with tensorplay.library.debug_checks(): ...`.

    A kernel that writes to an argument undeclared (compared bit by bit, and by version), or returns another shape, dtype,
    stride or value than its fake rule promises, raises ContractError (TP3211, TP3205). Slow; see `tensorplay.verify`.
    """
    return DebugChecks()
