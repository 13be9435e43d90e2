"""Libraries: definitions and kernels with a common lifetime, in the spelling of `torch.library`.

Lives here: `Library` and the free `impl`. Not here: what a definition or a kernel is (`_definitions`, `_op`).
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NoReturn, TypeVar, overload

from tensorplay import _arguments, _definitions, _native, _waiting
from tensorplay._native import CustomOpDef
from tensorplay._places import Place, caller, place_of, stack_level
from tensorplay._record import full_name, kernel_slot, require_library
from tensorplay.errors import ArgumentError, RegistrationError, SchemaError

__all__ = ["Library", "impl"]

F = TypeVar("F", bound=Callable[..., Any])

_KINDS = ("DEF", "IMPL", "FRAGMENT")
# The DEF library that holds a namespace. Its end takes the entry away, so that none is kept alive here.
_owners: dict[str, weakref.ref[Library]] = {}


class Library:
    """Ops and kernels of one namespace that end together: on `_destroy()`, on leaving `with`, or with the object.

    Keep the object for as long as the ops are wanted. What is registered here is the library's own, and goes with it: a
    library that only its own kernels, fake rules and backward rules refer to is garbage, and the collector takes all of
    it.

    "DEF" owns the namespace (one per namespace), "FRAGMENT" adds ops to it, "IMPL" only registers kernels. The same line
    again, as in a cell that is run a second time, ends the DEF library that it made before, with a warning.
    """

    # Until it is made.
    _alive = False

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise SchemaError(
                f"the kind of a library is one of {', '.join(_KINDS)}, got {kind!r}", code="TP1330"
            )
        if kind != "IMPL":
            _definitions.check_namespace(ns)
        _arguments.string("Library", "ns", ns, "the name of a namespace")
        # Checked before the namespace is taken; `impl` says what to do instead of a kernel for gradients.
        if not (isinstance(dispatch_key, str) and dispatch_key.startswith("Autograd")):
            kernel_slot(dispatch_key)
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key
        self._place = caller()
        self._undo: list[Callable[[], None]] = []
        # Kernels of this library by op and slot, and where each was written.
        self._implemented: dict[tuple[str, str], Place] = {}
        self._defined: list[str] = []
        if kind == "DEF":
            owner = _owners[ns]() if ns in _owners else None
            if owner is not None:
                owner._give_way(self._place)
            _owners[ns] = weakref.ref(self)
            self._undo.append(functools.partial(_disown, ns))
        self._alive = True

    def __repr__(self) -> str:
        return f"Library(ns={self.ns!r}, kind={self.kind!r}) made at {self._place}"

    def _give_way(self, place: Place) -> None:
        """Ends this DEF library for one made at the same place; an error for another place."""
        if not place.same_as(self._place):
            raise RegistrationError(
                f"the namespace '{self.ns}' has a DEF library already, made at {self._place}; this one is at {place}",
                code="TP1331",
                notes=("use Library(ns, 'FRAGMENT') to add ops to it",),
            )
        names = list(dict.fromkeys([*self._defined, *(target for target, _ in self._implemented)]))
        gone = f": gone with it are {', '.join(names)}" if names else ""
        self._destroy()
        warnings.warn(
            f"the DEF library of '{self.ns}' was made again at {place} and replaces the earlier one{gone}",
            UserWarning,
            stacklevel=stack_level(),
        )

    def __reduce__(self) -> NoReturn:
        # A copy would end what the library owns.
        raise TypeError(f"a Library owns its registrations: {self!r} is neither copied nor pickled")

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._destroy()

    def _destroy(self) -> None:
        """Takes back everything defined and registered here. Ops kept elsewhere raise when they are called."""
        self._alive = False
        while self._undo:
            self._undo.pop()()

    def __del__(self) -> None:
        # At the end of the process nothing is taken back.
        if self._alive and not sys.is_finalizing():
            self._destroy()

    @property
    def alive(self) -> bool:
        """Whether it was not destroyed yet."""
        return self._alive

    def adopt(self, undo: Callable[[], None]) -> None:
        """Runs `undo` when the library ends; the last one adopted comes first."""
        require_library("adopt", self)
        self._undo.append(undo)

    def define(
        self,
        schema: str,
        /,
        *,
        effects: str | Iterable[str] | None = None,
        tags: str | Iterable[str] = (),
        override: bool = False,
    ) -> CustomOpDef:
        """Defines an op: `"f(Tensor x) -> Tensor"`, with or without the namespace."""
        require_library("Library.define", self)
        _arguments.string("Library.define", "schema", schema, "the text of a schema")
        if self.kind == "IMPL":
            raise RegistrationError(
                f"an IMPL library defines no ops: {self!r}", code="TP1333", notes=("use 'DEF' or 'FRAGMENT'",)
            )
        op = _definitions.define(
            self._qualified(schema), lib=self, effects=effects, tags=tags, override=override
        )
        name = self._qualified(schema).split("(")[0].strip().removesuffix(".default")
        self._defined.append(name)
        # A definition that took the place of another one left its kernels behind.
        self._implemented = {key: place for key, place in self._implemented.items() if key[0] != name}
        return op

    @overload
    def impl(
        self,
        name: str | CustomOpDef,
        fn: F,
        dispatch_key: str = ...,
        /,
        *,
        device_type: str | None = ...,
        allow_override: bool = ...,
        **kwargs: str,
    ) -> F: ...
    @overload
    def impl(
        self,
        name: str | CustomOpDef,
        fn: None = None,
        dispatch_key: str = ...,
        /,
        *,
        device_type: str | None = ...,
        allow_override: bool = ...,
        **kwargs: str,
    ) -> Callable[[F], F]: ...
    def impl(
        self,
        name: str | CustomOpDef,
        fn: Callable[..., Any] | None = None,
        dispatch_key: str = "",
        /,
        *,
        device_type: str | None = None,
        allow_override: bool = False,
        **kwargs: str,
    ) -> Any:
        """Registers `fn` for an op of this namespace; it waits if the op is not defined yet. Without `fn` a decorator.

        The device is given as `device_type="cpu"` or by the names that other frameworks use: "CPU", "CUDA", "Meta" (the
        fake rule) or "CompositeExplicitAutograd" (the default slot).
        """
        require_library("Library.impl", self)
        _arguments.boolean("Library.impl", "allow_override", allow_override)
        key = device_type or kwargs.pop("dispatch_key", dispatch_key) or self.dispatch_key
        if kwargs:
            raise TypeError(f"impl() got an unexpected keyword argument {next(iter(kwargs))!r}")
        if fn is None:
            return lambda f: self.impl(name, f, key, allow_override=allow_override)
        if isinstance(name, CustomOpDef):
            target = full_name(name)
        else:
            _arguments.string("Library.impl", "name", name, "an op or its name")
            target = self._qualified(name).removesuffix(".default")
        if isinstance(key, str) and key.startswith("Autograd"):
            raise RegistrationError(
                f"{target}: gradients are given by register_autograd, not by a kernel for {key!r}",
                code="TP1334",
            )
        slot = kernel_slot(key)
        place = place_of(fn)
        before = self._implemented.get((target, slot))
        if before is not None and not (allow_override or place.same_as(before)):
            raise RegistrationError(
                f"{target} has a kernel of this library for {slot!r} already, written at {before}: pass allow_override=True",
                code="TP1335",
            )
        self._implemented[target, slot] = place
        _waiting.register_or_wait(
            _waiting.Pending(
                target,
                fn,
                place,
                slots=(slot,),
                fake=slot == "meta",
                lib=self,
                before=functools.partial(_warn_once, target, slot) if allow_override else None,
            )
        )
        return fn

    def _qualified(self, text: str) -> str:
        head = text.split("(")[0]
        if "::" not in head:
            return f"{self.ns}::{text.lstrip()}"
        if head.split("::")[0].strip() != self.ns:
            raise SchemaError(
                f"{head.strip()!r} is not of the namespace '{self.ns}' of this library", code="TP1336"
            )
        return text


_warned = False


def _warn_once(target: str, slot: str) -> None:
    """The first override of a kernel or fake rule in the process warns; others may follow."""
    global _warned
    info = _native.op_info(target)
    has_fake = slot == "meta" and info["fake"] in ("native", "python")
    if _warned or not (has_fake or any(where == slot for where, *_ in info["kernels"])):
        return
    _warned = True
    warnings.warn(
        f"{target}: a kernel for {slot!r} is registered over another one (said once; other ops may follow)",
        UserWarning,
        stacklevel=stack_level(),
    )


def _disown(ns: str) -> None:
    _owners.pop(ns, None)


@_arguments.keywords
def impl(
    qualname: str | CustomOpDef,
    types: str | Iterable[str] | None = None,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
) -> Any:
    """Registers a kernel for an op by name: `impl("ns::f", "cpu", fn)`. Without `func` a decorator."""
    if isinstance(qualname, Library):
        raise ArgumentError(
            "impl: expected an op or its name 'ns::name', got Library",
            code="TP1310",
            notes=('with a library: lib.impl("name", fn, "CPU"), or impl("ns::name", "cpu", fn, lib=lib)',),
        )
    if func is None:
        return lambda f: impl(qualname, types, f, lib=lib)
    require_library("impl", lib)
    one = types is None or isinstance(types, (str, _native.device))
    keys: list[Any] = [types] if one else _arguments.items("impl", "types", types, "a device type or several")
    devices = [kernel_slot(key) for key in keys]
    target = full_name(qualname)
    _waiting.register_or_wait(_waiting.Pending(target, func, place_of(func), slots=devices, lib=lib))
    return func
