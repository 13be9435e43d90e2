"""Defining ops: from a function or a schema text to an entry of the registry.

Lives here: `custom_op` and `define`, the checks on names and functions, and what happens when a name is defined again.
Not here: inference (`_infer`) and what is registered for an op afterwards (`_op`).
"""

from __future__ import annotations

import functools
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from tensorplay import _arguments, _native, _op, _waiting, ops
from tensorplay._infer import infer_schema, mutated_names
from tensorplay._native import CustomOpDef, Schema
from tensorplay._places import caller, place_of, stack_level
from tensorplay._record import (
    Record,
    check_accepts,
    forget_record,
    keep_record,
    labels,
    layouts,
    record_of,
    require_library,
    schema_of,
    slots,
)
from tensorplay.errors import ArgumentError, RegistrationError, SchemaError, UnsupportedError

__all__ = ["custom_op", "define", "define_record"]

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = frozenset({"tp", "tensorplay", "prim"})
_EFFECTS = ("random", "ordered")


@overload
def custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: Iterable[str] | str,
    device_types: str | Sequence[str] | None = ...,
    schema: str | None = ...,
    effects: str | Iterable[str] | None = ...,
    deterministic: bool = ...,
    layout: Mapping[str, str] | None = ...,
    tags: str | Iterable[str] = ...,
    override: bool = ...,
) -> CustomOpDef[P, R]: ...
@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: Iterable[str] | str,
    device_types: str | Sequence[str] | None = ...,
    schema: str | None = ...,
    effects: str | Iterable[str] | None = ...,
    deterministic: bool = ...,
    layout: Mapping[str, str] | None = ...,
    tags: str | Iterable[str] = ...,
    override: bool = ...,
) -> Callable[[Callable[P, R]], CustomOpDef[P, R]]: ...
@_arguments.keywords
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Iterable[str] | str,
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    effects: str | Iterable[str] | None = None,
    deterministic: bool = True,
    layout: Mapping[str, str] | None = None,
    tags: str | Iterable[str] = (),
    override: bool = False,
) -> Any:
    """Makes `fn` an operator: its body is the default kernel (or that of `device_types`), its annotations the schema.

    `mutates_args` names the arguments the body writes to ("unknown" for every Tensor); `effects` is None, "random" or
    "ordered"; `deterministic=False` says that equal calls may differ in bits; `layout` maps arguments to "contiguous".
    A kernel runs with grad mode off and returns tensors that share no memory with its arguments. Without `fn` this is
    a decorator.

    The op stays registered, with everything its functions refer to, until the process ends or the name is defined
    again: dropping the object that comes back does not end it. An op with a shorter life is defined by a `Library`.
    """
    check_name(name)
    labels(effects, _EFFECTS, "effect")
    if fn is None:
        return lambda f: custom_op(
            name,
            f,
            mutates_args=mutates_args,
            device_types=device_types,
            schema=schema,
            effects=effects,
            deterministic=deterministic,
            layout=layout,
            tags=tags,
            override=override,
        )
    if not callable(fn):
        raise ArgumentError(f"custom_op needs a function, got {type(fn).__name__}", code="TP1316")
    parsed = op_schema(name, fn, mutates_args, schema, labels(tags, None, "tag"))
    record = Record(
        place_of(fn),
        "custom_op",
        fn,
        slots(device_types),
        layouts(layout, parsed),
        inferred=schema is None,
        unknown_writes=mutates_args == "unknown",
    )
    body = _op.kernel_parts(parsed, record.layout, record.devices, fn)
    op, _ = define_record(
        parsed,
        record,
        _effects(effects, deterministic),
        labels(tags, None, "tag"),
        override,
        kernels=body,
        bodies=len(body),
    )
    document(op, fn)
    return op


def document(op: CustomOpDef, fn: Callable[..., Any]) -> None:
    """Gives an op the name, the docstring and the signature of its author's function."""
    author = fn
    while isinstance(author, functools.partial):
        author = author.func
    functools.update_wrapper(op, author, updated=())
    # `inspect.signature` follows it: what a partial has bound is no argument of the op.
    op.__wrapped__ = fn


def check_namespace(ns: str) -> None:
    """Refuses what is no identifier, and namespaces that are taken."""
    _arguments.string("Library", "ns", ns, "the name of a namespace")
    if not _NAMESPACE.fullmatch(ns):
        raise SchemaError(
            f"{ns!r} is no namespace: it must be one identifier",
            code="TP1323",
            notes=("ops are named within it: Library('ns', 'DEF').define('name(Tensor x) -> Tensor')",),
        )
    if ns in _RESERVED:
        raise RegistrationError(
            f"the namespace '{ns}' is reserved for built-in ops: choose one of your own",
            code="TP1324",
            notes=("kernels for built-in ops are registered with Library('tp', 'IMPL')",),
        )


def check_name(name: str) -> None:
    """Refuses what is not `ns::name`, and namespaces that are taken."""
    if not isinstance(name, str):
        raise ArgumentError(f"the name of an op is a string, got {type(name).__name__}", code="TP1322")
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"{name!r} is no op name: it must be 'namespace::name', two identifiers and one '::'",
            code="TP1323",
            notes=("an overload is defined with library.define('ns::name.overload(...) -> ...')",),
        )
    if name.split("::")[0] in _RESERVED:
        raise RegistrationError(
            f"the namespace of {name!r} is reserved for built-in ops: choose one of your own",
            code="TP1324",
            op=name,
            notes=("kernels for built-in ops are registered with register_kernel",),
        )


def _effects(effects: str | Iterable[str] | None, deterministic: bool) -> list[str]:
    same = _arguments.boolean("custom_op", "deterministic", deterministic)
    return labels(effects, _EFFECTS, "effect") + ([] if same else ["nondeterministic"])


def op_schema(
    name: str,
    fn: Callable[..., Any],
    mutates_args: Iterable[str] | str,
    text: str | None,
    tags: Sequence[str],
) -> Schema:
    """The schema of `fn`: as given, checked against the function and `mutates_args`, or inferred."""
    if text is not None:
        _arguments.string(name, "schema", text, "the text of a schema")
    _check_tags(name, tags)
    if text is None:
        inferred = infer_schema(fn, mutates_args=mutates_args, op_name=name, tags=tags)
        return _without_keyword_tensors(Schema.parse(inferred), tags)
    parsed = Schema.parse(name + text if text.lstrip().startswith("(") else text)
    if parsed.name != name:
        raise SchemaError(f"the schema is of {parsed.name!r}, the op is {name!r}", code="TP1325")
    declared = mutated_names(mutates_args, {a["name"]: a["type"] for a in parsed.arguments})
    if declared != set(parsed.mutated) and mutates_args != "unknown":
        raise SchemaError(
            f"mutates_args has {sorted(declared)}, the schema writes to {sorted(parsed.mutated)}: {parsed}",
            code="TP1326",
        )
    check_accepts(fn, parsed, names=True, what="the function")
    return _without_keyword_tensors(parsed, tags)


def _check_tags(name: str, tags: Sequence[str]) -> None:
    """Refuses an op that would return what it writes to and be given its outputs at once."""
    if {"inplace", "out"} <= set(tags):
        raise SchemaError(
            f"{name} has the tags 'inplace' and 'out', of which an op has one at most", code="TP1329", op=name
        )


def _without_keyword_tensors(schema: Schema, tags: Sequence[str]) -> Schema:
    """Refuses keyword-only Tensors that are no outputs: a backward rule has no place for their gradients."""
    found = [a["name"] for a in schema.arguments if a["kwarg_only"] and a["is_tensor"]]
    if found and "out" not in tags:
        raise UnsupportedError(
            f"argument {found[0]!r} is a keyword-only Tensor, whose gradient a backward rule could not return",
            code="TP1328",
            op=schema.name,
            notes=("make it positional; outputs that are passed in need tags=('out',)",),
        )
    return schema


def define_record(
    schema: Schema,
    record: Record,
    effects: Sequence[str],
    tags: Sequence[str],
    override: bool,
    *,
    kernels: Sequence[_native.KernelParts] = (),
    bodies: int = 0,
    fake: Callable[..., Any] | None = None,
    lib: _op.Lifetime | None = None,
) -> tuple[CustomOpDef, _native.Registration]:
    """Enters a definition into the registry, replacing the one from the same place; see `_replaces`.

    Its kernels, of which the first `bodies` are its own body, and its fake rule, and what waits for it, come into force in the same step: a call on another thread
    meets the op as it was, or as it will be.
    """
    name = f"{schema.name}.{schema.overload}" if schema.overload else schema.name
    _arguments.boolean(schema.name, "override", override)
    at = record.place.provenance("definition", "python")
    if lib is not None:
        record.owner = weakref.ref(lib)
    with _waiting.defining:
        before = record_of(name)
        # Held until the end: a library that the collector took meanwhile would take the definition along.
        owner = before.owner() if before is not None else None
        changes = _replaces(name, schema, record, effects, tags, override)
        gone = _registered_since(name, fake is not None) if changes is not None else []
        waiting = _waiting.take(name)
        parts = _parts_of(name, waiting, schema, record)
        rules = [fake, *(p.fn for p in waiting if p.fake)]
        try:
            op, registration, registered = _native.define_op(
                str(schema),
                at,
                effects=list(effects),
                tags=list(tags),
                kernels=[*kernels, *(k for own in parts for k in own)],
                bodies=bodies,
                fake=rules[-1],
                replace=changes is not None,
            )
        except BaseException:
            _waiting.put_back(name, waiting)
            raise
        keep_record(op, name, record, weakly=lib is not None)
        if fake is not None:
            _op.keep_fake(name, record, fake, None)
        del registered[: len(kernels)]
        for pending, own in zip(waiting, parts, strict=True):
            pending.adopted(record, [registered.pop(0) for _ in own])
    if changes is not None and not override:
        what = "; ".join(changes) or "nothing in its contract changed"
        lost = f"; gone with it, until registered again: {', '.join(gone)}" if gone else ""
        lost += _changed_hands(owner, lib)
        warnings.warn(
            f"{name} was defined again at {record.place} and replaces the earlier definition: {what}{lost}",
            UserWarning,
            stacklevel=stack_level(),
        )
    return op, registration


def _changed_hands(owner: Any, lib: _op.Lifetime | None) -> str:
    """What to say where the library that had defined the op is alive, and the op ends with another one from now on."""
    if owner is None or owner is lib or not owner.alive:
        return ""
    ends = f"ends with {lib!r} now" if lib is not None else "ends with no library now"
    return f"; the op {ends}, and the definition of {owner!r} does not come back"


def _parts_of(
    name: str, waiting: list[_waiting.Pending], schema: Schema, record: Record
) -> list[list[_native.KernelParts]]:
    """The kernels that wait for the op. Where one does not fit, the op is not defined and the others wait on."""
    parts = []
    for i, pending in enumerate(waiting):
        try:
            parts.append(pending.parts(schema, record))
        except BaseException:
            _waiting.put_back(name, waiting[:i] + waiting[i + 1 :])
            raise
    return parts


def _replaces(
    name: str, schema: Schema, record: Record, effects: Sequence[str], tags: Sequence[str], override: bool
) -> list[str] | None:
    """What differs from the definition that is replaced; None when there is none. Another place is an error."""
    if not _waiting.is_defined(name):
        return None
    before = record_of(name)
    info = _native.op_info(name)
    changes = _changes(name, before, info, schema, record, effects, tags)
    if override or (before is not None and record.place.same_as(before.place)):
        return changes
    place = before.place if before is not None else f"{info['at'][1]}:{info['at'][2]}"
    raise RegistrationError(
        f"operator '{name}' is already defined at {place}, and defined again at {record.place}",
        code="TP1302",
        op=name,
        notes=(
            f"first difference: {changes[0]}" if changes else "the two definitions have the same contract",
            "choose another name, or pass override=True",
        ),
    )


def _registered_since(name: str, keeps_fake: bool) -> list[str]:
    """What was registered for the op beside its definition, and goes when that is replaced."""
    record, info = record_of(name), _native.op_info(name)
    body = record.place.provenance("default", "python")[:3] if record is not None else None
    kernels = [(slot, at[0]) for slot, at, _ in info["kernels"] if at[:3] != body and at[3] != "absent"]
    found = [
        f"the kernel for {slot!r}" + (f" named {kernel!r}" if kernel != "default" else "")
        for slot, kernel in kernels
    ]
    if info["fake"] in ("native", "python") and not keeps_fake:
        found.insert(0, "the fake rule")
    if record is not None and record.backward is not None:
        found.insert(0, "the gradient")
    if record is not None and record.vmap is not None:
        found.append("the batching rule")
    return found


def _changes(
    name: str,
    before: Record | None,
    info: dict[str, Any],
    schema: Schema,
    record: Record,
    effects: Sequence[str],
    tags: Sequence[str],
) -> list[str]:
    """Parts of the contract that differ, the weightiest first."""
    mutates = ["mutates"] if schema.is_mutable else []
    pairs: list[tuple[str, Any, Any]] = [
        ("schema", str(schema_of(name)), str(schema)),
        ("effects", sorted(info["effects"]), sorted([*mutates, *effects])),
        ("tags", sorted(info["tags"]), sorted(tags)),
    ]
    if before is not None:
        pairs += [
            ("device_types", before.devices, record.devices),
            ("layout", dict(before.layout), dict(record.layout)),
        ]
    found = [f"{what} was {old}, is {new}" for what, old, new in pairs if old != new]
    if before is not None and _code(before.body) != _code(record.body):
        found.append("the body changed")
    return found


def _code(fn: Any) -> Any:
    code = getattr(fn, "__code__", None)
    return fn if code is None else (code.co_code, code.co_consts, code.co_names)


@_arguments.keywords
def define(
    qualname: str,
    schema: str | None = None,
    /,
    *,
    lib: _op.Lifetime | None = None,
    effects: str | Iterable[str] | None = None,
    deterministic: bool = True,
    tags: str | Iterable[str] = (),
    override: bool = False,
) -> CustomOpDef:
    """Defines an op by its schema text: `define("ns::f", "(Tensor x) -> Tensor")` or `define("ns::f(Tensor x) -> Tensor")`."""
    require_library("define", lib)
    _arguments.string("define", "qualname", qualname, "the text of a schema")
    if schema is not None:
        _arguments.string("define", "schema", schema, "the text of a schema")
    text = qualname if schema is None else f"{qualname}{schema}"
    parsed = Schema.parse(text)
    check_name(parsed.name)
    if parsed.overload and hasattr(CustomOpDef, parsed.overload):
        raise SchemaError(
            f"no overload can be called {parsed.overload!r}: op objects have an attribute of that name",
            code="TP1338",
            op=parsed.name,
            notes=("choose another name, for example with a trailing underscore",),
        )
    _check_tags(parsed.name, labels(tags, None, "tag"))
    record = Record(caller(), "op", devices=())
    op, registration = define_record(
        parsed,
        record,
        _effects(effects, deterministic),
        labels(tags, None, "tag"),
        override,
        lib=lib,
    )
    if lib is not None:
        lib.adopt(functools.partial(_undefine, op, record, registration))
    return op


def _undefine(op: CustomOpDef, record: Record, registration: _native.Registration) -> None:
    registration.undo()
    forget_record(op, record)
    if not _native.op_overloads(op):
        ops._forget(_native.op_name(op))
