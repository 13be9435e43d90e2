"""The op object as people meet it: its properties, its printed form, copying and pickling.

Lives here: the methods put into the extension's `CustomOpDef` type, which cannot be subclassed without losing its fast
call. Not here: what the registering methods do (`_op`).
"""

from __future__ import annotations

from tensorplay import _arguments, _native, _op, _wishes
from tensorplay._later import hints
from tensorplay._native import CustomOpDef
from tensorplay._record import full_name, record_of, schema_of
from tensorplay.errors import RegistrationError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature
    from typing import Any

    from tensorplay._native import Schema
    from tensorplay._places import Place
    from tensorplay._record import Record
    from tensorplay.outcome import Provenance
else:
    (Callable,), (Any,) = hints("collections.abc", "Callable"), hints("typing", "Any")
    (Signature,), (Schema,) = hints("inspect", "Signature"), hints("tensorplay._native", "Schema")
    (Provenance,) = hints("tensorplay.outcome", "Provenance")

__all__ = ["get_op", "has_op", "install"]


def _kernels(op: CustomOpDef) -> dict[str, list[Provenance]]:
    """Registered kernels by device slot, newest first."""
    return _kernels_of(_native.op_info(full_name(op)))


def _kernels_of(info: dict[str, Any]) -> dict[str, list[Provenance]]:
    from tensorplay.outcome import Provenance

    found: dict[str, list[Provenance]] = {}
    for slot, (name, file, line, executor), when in info["kernels"]:
        if executor != "absent":
            found.setdefault(slot, []).append(Provenance(name, file, line, executor, when))
    return found


def _schema(op: CustomOpDef) -> Schema:
    """The parsed schema."""
    return schema_of(full_name(op))


def _effects(op: CustomOpDef) -> tuple[str, ...]:
    """What a call does besides computing results: "mutates", "random", "ordered", "nondeterministic"."""
    return tuple(_native.op_info(full_name(op))["effects"])


def _tags(op: CustomOpDef) -> tuple[str, ...]:
    """Labels given at definition."""
    return tuple(_native.op_info(full_name(op))["tags"])


def _mutates_args(op: CustomOpDef) -> frozenset[str]:
    """Names of the arguments that a call writes to."""
    return frozenset(_schema(op).mutated)


def _base(op: CustomOpDef) -> str:
    """`ns::name`, without the overload that an object may stand for."""
    space, _, local = _native.op_name(op).partition("::")
    return f"{space}::{local.split('.')[0]}"


def _name(op: CustomOpDef) -> str:
    """`ns::name`, with `.overload` where the object stands for one overload."""
    return _native.op_name(op)


def _namespace(op: CustomOpDef) -> str:
    """`ns` of `ns::name`."""
    return _native.op_name(op).partition("::")[0]


def _overload(op: CustomOpDef) -> str:
    """The one overload that the object stands for, "default" for the unnamed one; "" where there are several."""
    found = _overloads(op)
    return found[0] if len(found) == 1 else ""


def _overloads(op: CustomOpDef) -> list[str]:
    """Names of the overloads in definition order; the unnamed one is "default"."""
    base = _base(op)
    return [name[len(base) + 1 :] or "default" for name in _native.op_overloads(op)]


def _kind(op: CustomOpDef) -> str:
    record = record_of(full_name(op))
    if record is not None and record.kind != "op":
        return record.kind
    return "custom_op" if _native.op_info(full_name(op))["custom"] else "op"


def _is_triton_op(op: CustomOpDef) -> bool:
    """Whether `triton_op` made it."""
    return _kind(op) == "triton_op"


def _fake_line(info: dict[str, Any], record: Record | None) -> str:
    if info["fake"] == "missing":
        return "missing: add @op.register_fake"
    place = record.fake_place if record else None
    return {"nothing": "not needed (returns nothing)", "python": f"python, {place}"}.get(
        info["fake"], info["fake"]
    )


def _autograd_line(info: dict[str, Any], record: Record | None) -> str:
    if info["autograd"] == "missing":
        return "missing: add @op.register_autograd"
    place = record.autograd_place if record else None
    return f"{info['autograd']}, {place}" if place else str(info["autograd"])


def _repr_of(name: str) -> list[str]:
    info, record = _native.op_info(name), record_of(name)
    rows = [("schema", info["schema"]), ("effects", ", ".join(info["effects"]) or "pure")]
    kernels = [(slot, kernel) for slot, found in _kernels_of(info).items() for kernel in found]
    rows += [("kernel", f"{slot}: {kernel}") for slot, kernel in kernels] or [("kernel", "none")]
    rows += [("fake", _fake_line(info, record)), ("autograd", _autograd_line(info, record))]
    if record is not None and record.vmap is not None:
        rows.append(("vmap", f"python, {record.vmap_place}"))
    if record is not None:
        rows += [("autocast", f"{device}: {to}, {at}") for device, (to, at) in record.autocast.items()]
    return [f"  {label:<9}{text}" for label, text in rows]


def _facts(name: str) -> dict[str, Any]:
    """What is known of one overload, JSON-safe."""
    info, record = _native.op_info(name), record_of(name)

    def rule(kind: str, place: Place | None) -> dict[str, Any]:
        return {"kind": kind, "location": str(place) if place else None}

    return {
        **schema_of(name).to_dict(),
        "kind": record.kind if record and record.kind != "op" else "custom_op" if info["custom"] else "op",
        "location": str(record.place) if record else f"{info['at'][1]}:{info['at'][2]}",
        "tags": list(info["tags"]),
        "effects": list(info["effects"]),
        "kernels": {
            slot: [kernel.to_dict() for kernel in found] for slot, found in _kernels_of(info).items()
        },
        "fake": rule(info["fake"], record.fake_place if record else None),
        "autograd": rule(info["autograd"], record.autograd_place if record else None),
        "vmap": rule(
            "python" if record and record.vmap else "missing", record.vmap_place if record else None
        ),
        "autocast": {
            device: {"dtype": to.name, "location": str(at)}
            for device, (to, at) in (record.autocast if record else {}).items()
        },
        "has_vmap": record is not None and record.vmap is not None,
    }


def _to_dict(op: CustomOpDef) -> dict[str, Any]:
    """The registrations of the op as a JSON-safe dict: schema, effects, kernels, rules and where each was written.

    An op object with several overloads gives `{"name": ..., "overloads": [one dict each]}`.
    """
    found = _native.op_overloads(op)
    if len(found) > 1:
        return {"name": _name(op), "overloads": [_facts(name) for name in found]}
    return _facts(full_name(op))


def _repr(op: CustomOpDef) -> str:
    base = _native.op_name(op)
    overloads = _native.op_overloads(op)
    if not overloads:
        return f"<op {base}> (unregistered)"
    lines = []
    for name in overloads:
        kind = _kind(op) if len(overloads) == 1 else "op"
        lines += [f"<{kind} {name}>", *_repr_of(name)]
    return "\n".join(lines)


def _str(op: CustomOpDef) -> str:
    overloads = _native.op_overloads(op)
    kind = _kind(op) if len(overloads) == 1 else "op"
    return f"<{kind} {_native.op_name(op)}>"


def _getattr(op: CustomOpDef, name: str) -> Any:
    """Overloads by name, `default` among them."""
    base = _native.op_name(op)
    if name == "__name__":
        return base
    if name == "__signature__" and not hasattr(op, "__wrapped__") and len(_native.op_overloads(op)) == 1:
        return _signature(op)
    if not name.startswith("_"):
        found = _native.get_op(f"{base}.{name}")
        if found is not None:
            return found
        # A builtin pickles as an attribute of the op it is bound to.
        builtin = _native.builtins.get(name)
        if builtin is not None and getattr(builtin, "__self__", None) is op:
            return builtin
    raise AttributeError(f"{base} has no attribute or overload {name!r}")


def _signature(op: CustomOpDef) -> Signature:
    """What `inspect.signature` gives for an op without a function of its author's: the schema's arguments."""
    import inspect

    info = _native.op_info(full_name(op))
    schema = _native.Schema.parse(info["schema"])
    kinds = inspect.Parameter
    parameters = [
        kinds(
            a["name"],
            kinds.KEYWORD_ONLY if a["kwarg_only"] else kinds.POSITIONAL_OR_KEYWORD,
            default=info["defaults"].get(a["name"], kinds.empty),
        )
        for a in schema.arguments
    ]
    return inspect.Signature(parameters)


def _reduce(op: CustomOpDef) -> tuple[Callable[[str], CustomOpDef], tuple[str]]:
    return (get_op, (_native.op_name(op),))


def get_op(name: str) -> CustomOpDef:
    """The op of that name, built-in or custom; RegistrationError when there is none."""
    found = _native.get_op(name)
    if found is None:
        try:
            _native.op_info(name)  # raises with the closest name
        except RegistrationError as error:
            from tensorplay._waiting import notes_for

            for note in notes_for(name):
                error.add_note(note)
            raise
        raise AssertionError(name)
    return found


def has_op(name: str) -> bool:
    """Whether an op of that name is defined."""
    return _native.get_op(_arguments.string("has_op", "name", name)) is not None


def _itself(op: CustomOpDef, _memo: object = None) -> CustomOpDef:
    return op


_DOC = """An operator: callable like the function it was made of, and where its rules are registered.

`custom_op`, `triton_op`, `define` and `get_op` give one; `tensorplay.ops.ns.name` is the same object. `register_kernel`,
`register_fake`, `register_autograd`, `register_vmap` and `register_autocast` add to it, `prefer` and `set_kernel_enabled`
choose among its kernels for a while, and `repr` and `to_dict()` show what is registered, with file and line.
"""
_METHODS: dict[str, Any] = {
    "__copy__": _itself,
    "__deepcopy__": _itself,
    "__getattr__": _getattr,
    "__reduce__": _reduce,
    "__repr__": _repr,
    "__str__": _str,
    "overloads": _overloads,
    "prefer": _wishes.prefer,
    "register_autocast": _op.register_autocast,
    "register_autograd": _op.register_autograd,
    "register_fake": _op.register_fake,
    "register_kernel": _op.register_kernel,
    "register_vmap": _op.register_vmap,
    "set_kernel_enabled": _wishes.set_kernel_enabled,
    "to_dict": _to_dict,
}
_PROPERTIES = {
    "effects": _effects,
    "is_triton_op": _is_triton_op,
    "kernels": _kernels,
    "mutates_args": _mutates_args,
    "name": _name,
    "namespace": _namespace,
    "overload": _overload,
    "schema": _schema,
    "tags": _tags,
}


def install() -> None:
    """Puts the methods into the type."""
    CustomOpDef.__doc__ = _DOC
    for name, function in _METHODS.items():
        setattr(CustomOpDef, name, function)
    for name, getter in _PROPERTIES.items():
        setattr(CustomOpDef, name, property(getter, doc=getter.__doc__))
