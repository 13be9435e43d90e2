"""Kernels and fake rules registered for ops that are not defined yet: they come into force with the definition.

Lives here: the list of them, and what the definition of an op takes over. Not here: definitions (`_definitions`) and
what a kernel is (`_op`).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorplay import _native, _op, ops
from tensorplay._places import Place
from tensorplay._record import Record

__all__ = [
    "Pending",
    "defining",
    "is_defined",
    "notes_for",
    "put_back",
    "register_or_wait",
    "take",
    "waiting",
]

# Held while it is decided whether an op is defined, and while it is defined: nothing is late for a definition.
defining = threading.RLock()

# What a library registered is held by it, and waits as long as it lives.
_waiting: dict[str, list[Pending | weakref.ref[Pending]]] = {}


class Pending:
    """A kernel, or the fake rule (`fake`), on its way to the op `target`; `lib` is the library that it ends with."""

    __slots__ = ("__weakref__", "before", "fake", "fn", "lib", "place", "slots", "target")

    def __init__(
        self,
        target: str,
        fn: Callable[..., Any],
        place: Place,
        *,
        slots: Sequence[str] = (),
        fake: bool = False,
        lib: _op.Lifetime | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.target, self.fn, self.place, self.slots = target, fn, place, tuple(slots)
        self.fake, self.lib, self.before = fake, lib, before

    def __str__(self) -> str:
        what = "the fake rule" if self.fake else f"the kernel for {', '.join(map(repr, self.slots))}"
        return f"{what} at {self.place}"

    @property
    def alive(self) -> bool:
        """Whether the library that asked for it still is there."""
        return self.lib is None or self.lib.alive

    def register(self) -> None:
        """Registers it for an op that is defined."""
        if self.before is not None:
            self.before()
        if self.fake:
            _op.register_fake(self.target, self.fn, lib=self.lib, allow_override=True)
        else:
            # The kernel whose place it takes comes back when the library ends.
            _op.register_kernel(self.target, self.slots, self.fn, lib=self.lib)

    def parts(self, schema: _native.Schema, record: Record) -> list[_native.KernelParts]:
        """Its kernels for a definition under way; SchemaError where the function does not fit."""
        if self.fake:
            _op.require_fake(self.fn, schema)
            return []
        return _op.kernel_parts(schema, record.layout, self.slots, self.fn)

    def adopted(self, record: Record, registrations: list[_native.Registration]) -> None:
        """Notes what the definition made of it."""
        if self.fake:
            _op.keep_fake(self.target, record, self.fn, self.lib)
        elif self.lib is not None:
            for registration in registrations:
                self.lib.adopt(registration.undo)


def register_or_wait(pending: Pending) -> None:
    """Registers now if the op is defined, else with its definition."""
    with defining:
        if not is_defined(pending.target):
            if pending.lib is not None:
                pending.lib.adopt(functools.partial(_hold, pending))
            put_back(pending.target, [], pending)
            return
    pending.register()


def is_defined(name: str) -> bool:
    """Whether that overload is in the registry."""
    op = _native.get_op(name)
    return op is not None and name in _native.op_overloads(op)


def take(name: str) -> list[Pending]:
    """What waits for that op and is still wanted; it waits no longer."""
    return _alive(_waiting.pop(name, []))


def _alive(waiting: list[Pending | weakref.ref[Pending]]) -> list[Pending]:
    held = [p() if isinstance(p, weakref.ref) else p for p in waiting]
    return [p for p in held if p is not None and p.alive]


def put_back(name: str, pending: list[Pending], *newer: Pending) -> None:
    """Lets them wait on, before what waits already and what is `newer`: the op was not defined."""

    def waits(p: Pending) -> Pending | weakref.ref[Pending]:
        return p if p.lib is None else weakref.ref(p)

    if pending or newer:
        _waiting[name] = [*map(waits, pending), *_waiting.get(name, []), *map(waits, newer)]


def _hold(_pending: Pending, /) -> None:
    """What a library keeps of a registration that waits; there is nothing to undo."""


def waiting() -> dict[str, list[str]]:
    """Kernels and fake rules that were registered for ops nobody has defined: op name to what waits, and its place."""
    found = {name: [str(p) for p in _alive(pending)] for name, pending in list(_waiting.items())}
    return {name: shown for name, shown in found.items() if shown}


def notes_for(name: str, /) -> tuple[str, ...]:
    """What an error about an undefined op says of registrations that wait for it."""
    shown = waiting().get(name.removesuffix(".default"), [])
    return tuple(f"{what} waits for its definition" for what in shown)


ops._notes = notes_for
