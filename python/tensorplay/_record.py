"""What Python remembers of an op beside the registry: the author's functions and where they were written.

Lives here: the record kept on each op object, and the look-up of an op by name or object. Not here: what is
registered for it (`_op`) and how it comes to be (`_definitions`).
"""

from __future__ import annotations

import functools
import weakref

from tensorplay import _arguments, _native
from tensorplay._native import CustomOpDef
from tensorplay._places import Place
from tensorplay.errors import ArgumentError, RegistrationError, SchemaError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Function = Callable[..., Any]

__all__ = [
    "Record",
    "check_accepts",
    "check_binds",
    "full_name",
    "labels",
    "layouts",
    "record_of",
    "require_device",
    "schema_of",
    "slots",
]


def _nobody() -> None:
    """Of what has no owner."""


class Record:
    """One overload as its author wrote it, and the functions registered for it since."""

    __slots__ = (
        "__weakref__",
        "autocast",
        "autograd_place",
        "backward",
        "body",
        "devices",
        "fakes",
        "inferred",
        "kind",
        "layout",
        "owner",
        "place",
        "setup_context",
        "unknown_writes",
        "vmap",
        "vmap_place",
    )

    def __init__(
        self,
        place: Place,
        kind: str = "op",
        body: Function | None = None,
        devices: tuple[str, ...] = (),
        layout: Mapping[str, str] | None = None,
        *,
        inferred: bool = False,
        unknown_writes: bool = False,
    ) -> None:
        # Whether the annotations of `body` made the schema.
        self.inferred = inferred
        # Whether nobody said which arguments are written to (mutates_args="unknown"): the schema then has them all.
        self.unknown_writes = unknown_writes
        self.place, self.kind, self.body, self.devices, self.layout = place, kind, body, devices, layout or {}
        # The library that the definition ends with; refers to nothing where there is none, or it is gone.
        self.owner: Callable[[], Any] = _nobody
        # Fake rules in force and those they stand before, newest last, each with its place.
        self.fakes: list[tuple[Function, Place]] = []
        self.backward: Function | None = None
        self.setup_context: Function | None = None
        self.autograd_place: Place | None = None
        self.vmap: Function | None = None
        self.vmap_place: Place | None = None
        # Device to the dtype that autocast gives this op's tensors, and where that was written.
        self.autocast: dict[str, tuple[_native.dtype, Place]] = {}

    @property
    def fake(self) -> Function | None:
        """The fake rule registered from Python, if any."""
        return self.fakes[-1][0] if self.fakes else None

    @property
    def fake_place(self) -> Place | None:
        """Where that rule was written."""
        return self.fakes[-1][1] if self.fakes else None


def full_name(op: str | CustomOpDef) -> str:
    """`ns::name` or `ns::name.overload` of the one overload that `op` stands for."""
    if isinstance(op, str):
        if not op.isascii():
            # No op has such a name; text that UTF-8 cannot hold would not even reach the registry.
            raise RegistrationError(f"no operator named {op!r}", code="TP1301")
        return op.removesuffix(".default")
    if not isinstance(op, CustomOpDef):
        raise ArgumentError(f"expected an op or its name 'ns::name', got {type(op).__name__}", code="TP1310")
    name = _native.op_name(op)
    overloads = _native.op_overloads(op)
    if not overloads or name in overloads:
        return name
    if len(overloads) == 1:
        return overloads[0]
    raise RegistrationError(
        f"{name} has several overloads: name one of {', '.join(overloads)}", code="TP1311", op=name
    )


def record_of(name: str) -> Record | None:
    """The record of that overload, if Python defined or touched it."""
    return _held(getattr(packet_of(name), "_records", {}).get(name))


def _held(kept: Record | weakref.ref[Record] | None) -> Record | None:
    return kept() if isinstance(kept, weakref.ref) else kept


def packet_of(name: str) -> CustomOpDef | None:
    """The op object of all overloads of that name, which keeps their records."""
    head, _, local = name.rpartition("::")
    return _native.get_op(f"{head}::{local.split('.')[0]}")


def keep_record(op: CustomOpDef, name: str, record: Record, *, weakly: bool = False) -> None:
    """Makes `record` the one of that overload. Kept `weakly`, it and the functions in it are its library's."""
    if not hasattr(op, "_records"):
        op._records = {}
    op._records[name] = weakref.ref(record) if weakly else record


def forget_record(op: CustomOpDef, record: Record) -> None:
    """Drops a record and what it holds, unless another one has taken its place."""
    for name, kept in list(getattr(op, "_records", {}).items()):
        if _held(kept) is record:
            del op._records[name]


def writable_record(name: str) -> Record:
    """The record to note a registration in; made for an op that Python did not define."""
    record = record_of(name)
    if record is None:
        info = _native.op_info(name)
        op = packet_of(name)
        assert op is not None, name
        record = Record(Place(info["at"][1], info["at"][2], name))
        keep_record(op, name, record)
    return record


def schema_of(name: str) -> _native.Schema:
    """The parsed schema of an overload; RegistrationError when there is none."""
    return _native.Schema.parse(_native.op_info(name)["schema"])


def slots(devices: str | _native.device | Iterable[str | _native.device] | None) -> tuple[str, ...]:
    """Registration slots for device names; the default slot for None."""
    if devices is None:
        return ("default",)
    given: list[Any] = [devices] if isinstance(devices, (str, _native.device)) else []
    if not given:
        given = list(devices) if hasattr(devices, "__iter__") else [devices]
    found = tuple(d.type if isinstance(d, _native.device) else d for d in given)
    known = ("cpu", "cuda", "meta", "default")
    for device in found:
        if not isinstance(device, str) or device not in known:
            raise SchemaError(
                f"{device!r} is no device type; known are 'cpu', 'cuda' and 'meta', and None for all",
                code="TP1312",
            )
    if not found:
        raise SchemaError("the list of device types is empty; pass None for all", code="TP1312")
    return found


def kernel_slot(key: str | None) -> str:
    """The slot that a device name or a dispatch key of other frameworks means."""
    if isinstance(key, _native.device):
        return slots(key)[0]
    if key is None or _arguments.string("a kernel's slot", "key", key, "the name of a device") in (
        "",
        "default",
        "composite",
    ):
        return "default"
    return "default" if key.startswith("Composite") else slots(key.lower())[0]


def require_device(schema: _native.Schema) -> None:
    """Refuses kernels for devices of an op with neither Tensors nor an argument `device`: nothing would choose."""
    arguments = schema.arguments
    if any(a["is_tensor"] for a in arguments):
        return
    if not any(a["name"] == "device" and a["type"].startswith("Device") for a in arguments):
        raise SchemaError(
            f"{schema.name} has no Tensor argument: nothing says which device's kernel to run",
            code="TP1327",
            notes=("add an argument `device: tensorplay.device`, or leave device_types out",),
        )


def labels(values: str | Iterable[str] | None, known: tuple[str, ...] | None, what: str) -> list[str]:
    """A string or several as a list, checked against the known ones where there is a closed set."""
    if values is not None and not isinstance(values, str) and not hasattr(values, "__iter__"):
        raise SchemaError(f"{what} {values!r} is neither a string nor several", code="TP1313")
    found = [] if values is None else [values] if isinstance(values, str) else list(values)
    for value in found:
        if (
            not isinstance(value, str)
            or (known is None and not value.isprintable())
            or (known is not None and value not in known)
        ):
            choice = " or ".join(map(repr, known)) if known else "strings"
            raise SchemaError(f"{what} {value!r} is not known: use {choice}", code="TP1313")
    return found


def layouts(layout: Mapping[str, str] | None, schema: _native.Schema) -> dict[str, str]:
    """Argument name to "any" or "contiguous", checked against the schema."""
    tensors = [a["name"] for a in schema.arguments if a["is_tensor"]]
    if layout is not None and not hasattr(layout, "items"):
        raise SchemaError(
            f"layout maps argument names to 'any' or 'contiguous', got {layout!r}", code="TP1314"
        )
    for name, wanted in (layout or {}).items():
        if name not in tensors:
            known = ", ".join(tensors) or "none"
            raise SchemaError(
                f"layout names {name!r}, which is no Tensor argument (they are {known})", code="TP1314"
            )
        if wanted not in ("any", "contiguous"):
            raise SchemaError(
                f"layout of {name!r} must be 'any' or 'contiguous', got {wanted!r}", code="TP1314"
            )
    return dict(layout or {})


def lacks_annotation(name: str, parameter: str) -> bool:
    """Whether the schema was inferred from a function that has that parameter, and no annotation for it."""
    import inspect

    record = record_of(name)
    if record is None or not record.inferred or record.body is None:
        return False
    found = inspect.signature(record.body).parameters.get(parameter)
    return found is not None and found.annotation is found.empty


def binds_as(function: Any, schema: _native.Schema) -> bool:
    """Whether a call of the author's function takes every argument list that the op takes."""
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    for a in schema.arguments:
        parameter = parameters.get(a["name"])
        if parameter is None or (a["default"] is not None and parameter.default is parameter.empty):
            return False
    return True


def require_library(owner: str, lib: Any) -> None:
    """Refuses what registrations cannot be tied to, before anything is registered."""
    if lib is None:
        return
    if not (hasattr(lib, "adopt") and hasattr(lib, "alive")):
        _arguments.instance(owner, "lib", lib, (), "a Library")
    if not lib.alive:
        raise RegistrationError(
            f"{owner}: the library of '{getattr(lib, 'ns', '?')}' was destroyed", code="TP1332"
        )


def check_accepts(
    fn: Function, schema: _native.Schema, *, names: bool, what: str, extra: tuple[str, ...] = ()
) -> None:
    """Refuses a function that cannot be called with the arguments of `schema`, and the keywords of `extra`."""
    import inspect

    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return  # a builtin without a signature: the first call decides
    positional = [a["name"] for a in schema.arguments if not a["kwarg_only"]]
    keywords = [a["name"] for a in schema.arguments if a["kwarg_only"]] + list(extra)
    given = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_positional = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_keyword = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    problem = _deferred(fn)
    if problem is None and len(given) < len(positional) and not any_positional:
        problem = f"it takes {_arguments.counted(len(given), 'positional argument')}, the schema has {len(positional)}"
    for parameter, name in zip(given, positional, strict=False):
        if names and parameter.name != name and problem is None:
            problem = f"its parameter {parameter.name!r} stands where the schema has {name!r}"
    needed = [p.name for p in given[len(positional) :] if p.default is p.empty and p.name not in keywords]
    needed += [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in keywords
    ]
    if needed and problem is None:
        problem = f"it needs {needed[0]!r}, which the schema lacks"
    lacking = [name for name in keywords if name not in by_keyword and not any_keyword]
    if lacking and problem is None:
        problem = f"it does not take the keyword-only argument {lacking[0]!r}"
    if problem is not None:
        shown = getattr(fn, "__name__", type(fn).__name__)
        raise SchemaError(f"{what} {shown!r} does not fit {schema}: {problem}", code="TP1315")


def _deferred(fn: Function) -> str | None:
    """What is wrong with a function whose call only makes a coroutine or a generator."""
    import inspect

    plain = inspect.isroutine(fn) or isinstance(fn, functools.partial)
    inner = fn if plain else type(fn).__call__
    for kind, found in (
        ("a coroutine", inspect.iscoroutinefunction),
        ("a generator", inspect.isgeneratorfunction),
        ("an asynchronous generator", inspect.isasyncgenfunction),
    ):
        if found(inner):
            return f"a call of it makes {kind} and runs nothing"
    return None


def check_binds(
    fn: Function, schema: _native.Schema, what: str, *positional: str, keywords: tuple[str, ...] = ()
) -> None:
    """Refuses a function that cannot be called with so many positional arguments, and these keywords."""
    import inspect

    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # as in `check_accepts`
    try:
        if problem := _deferred(fn):
            raise TypeError(problem)
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        shown = getattr(fn, "__name__", type(fn).__name__)
        raise SchemaError(
            f"{what} {shown!r} does not fit {schema}: {error}",
            code="TP1315",
            notes=(f"it is called with ({', '.join([*positional, *(f'{k}=...' for k in keywords)])})",),
        ) from None
