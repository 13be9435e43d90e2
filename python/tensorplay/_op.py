"""What can be registered for an op, by name or as a method of the op object.

Lives here: kernels, fake rules, backward rules and batching rules. Every function
takes an op or its name first; `_op_type` makes them methods. Not here: defining ops (`_definitions`).
"""

from __future__ import annotations

import functools
import warnings

from tensorplay import _arguments, _native
from tensorplay._later import any_function, hints
from tensorplay._layout import contiguous_gradients, with_layout
from tensorplay._native import CustomOpDef
from tensorplay._places import caller, place_of, stack_level
from tensorplay._record import (
    binds_as,
    check_accepts,
    check_binds,
    full_name,
    kernel_slot,
    layouts,
    record_of,
    require_device,
    require_library,
    schema_of,
    slots,
    writable_record,
)
from tensorplay._wishes import switches
from tensorplay.errors import (
    ArgumentError,
    DTypeError,
    InvalidValueError,
    KernelNotFoundError,
    RegistrationError,
)

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol, TypeAlias, TypeVar

    from tensorplay._record import Record

    F = TypeVar("F", bound=Callable[..., Any])

    class Lifetime(Protocol):
        """What a registration may be tied to: a `Library`."""

        @property
        def alive(self) -> bool:
            """Whether it was not destroyed yet."""

        def adopt(self, undo: Callable[[], None]) -> None:
            """Runs `undo` when the library is destroyed."""

else:
    Callable, Iterable, Mapping = hints("collections.abc", "Callable", "Iterable", "Mapping")
    Any, F = *hints("typing", "Any"), any_function("F")
    (Record,) = hints("tensorplay._record", "Record")
    (Lifetime,) = hints("tensorplay.library", "Library")


__all__ = [
    "fake_from_body",
    "get_kernel",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_vmap",
    "require_autocast_device",
]

Op: TypeAlias = str | CustomOpDef


class _FakeFromBody:
    """The opt-in for bodies made of tensorplay ops only: the body itself, run over tensors without data."""

    def __repr__(self) -> str:
        return "tensorplay.library.fake_from_body"


fake_from_body = _FakeFromBody()


class _NotGiven:
    """The default of an argument for which None means something; signatures show it as `...`."""

    def __repr__(self) -> str:
        return "..."


_MISSING: Any = _NotGiven()


@_arguments.keywords
def register_kernel(
    op: Op,
    device_types: str | Iterable[str] | None = None,
    fn: F | None = None,
    /,
    *,
    name: str = "default",
    when: Callable[..., bool] | None = None,
    layout: Mapping[str, str] | None = None,
    executor: str = "python",
    out: bool = False,
    lib: Lifetime | None = None,
) -> Any:
    """Registers `fn` as the kernel of `op` for one or more device types, or for all without a kernel of their own (None).

    Of several kernels for one device the newest comes first; the first that is enabled, whose `when(*args)` holds and
    whose `layout` fits runs. The same `name` again replaces. With `out=True` the kernel is
    `fn(*args, out)`: `out` holds the outputs (one tensor, or a tuple), allocated as the fake rule says, which it fills
    and need not return. Without `fn` this is a decorator; it returns `fn`.
    """
    if callable(device_types):
        raise ArgumentError(
            "register_kernel needs a device type before the kernel",
            code="TP1312",
            notes=("write @op.register_kernel('cpu'), or @op.register_kernel(None) for all devices",),
        )
    require_library("register_kernel", lib)
    if fn is None:
        return lambda f: register_kernel(
            op, device_types, f, name=name, when=when, layout=layout, executor=executor, out=out, lib=lib
        )
    target = full_name(op)
    record = record_of(target)
    parts = kernel_parts(
        schema_of(target),
        record.layout if record else {},
        slots(device_types),
        fn,
        name=name,
        when=when,
        layout=layout,
        executor=executor,
        out=out,
    )
    if lib is None and record is not None:
        _warn_of_body(target, record, name, fn, slots(device_types))
    for part in parts:
        registration = _native.register_kernel(target, part)
        if lib is not None:
            lib.adopt(registration.undo)
    return fn


def _warn_of_body(target: str, record: Record, name: str, fn: Any, wanted: tuple[str, ...]) -> None:
    """Says that a kernel takes the place of the body of the op, which has the name "default" too."""
    place = place_of(fn)
    lost = [slot for slot in wanted if slot in record.devices] if name == "default" and record.body else []
    if not lost or place.same_as(record.place):
        return
    here = record.place.provenance("default", "python")[:3]
    # Newest first: where the body is the last of that name, nothing stands before it yet.
    newest = {slot: at for slot, at, _ in _native.op_info(target)["kernels"][::-1] if at[0] == "default"}
    if not any(slot in newest and newest[slot][:3] == here for slot in lost):
        return
    warnings.warn(
        f"{target}: the kernel at {place} takes the place of the op's own body at {record.place} for "
        f"{', '.join(map(repr, lost))}; pass name= to register_kernel to call either by its name",
        UserWarning,
        stacklevel=stack_level(),
    )


def kernel_parts(
    schema: _native.Schema,
    op_layout: Mapping[str, str],
    wanted: tuple[str, ...],
    fn: Any,
    *,
    name: str = "default",
    when: Callable[..., bool] | None = None,
    layout: Mapping[str, str] | None = None,
    executor: str = "python",
    out: bool = False,
) -> list[_native.KernelParts]:
    """`fn` as the registry takes it, once per slot; SchemaError where it cannot be called with those arguments."""
    _require_callable(fn, "a kernel")
    if when is not None:
        _require_callable(when, "when=")
        check_accepts(when, schema, names=False, what="the predicate")
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a kernel is a string, got {type(name).__name__}", code="TP1322")
    _arguments.string("register_kernel", "name", name)
    _arguments.string("register_kernel", "executor", executor, "the name of an executor")
    if _arguments.boolean("register_kernel", "out", out):
        _require_outputs(schema)
    check_accepts(fn, schema, names=False, what="the kernel", extra=("out",) if out else ())
    if wanted != ("default",):
        require_device(schema)
    contiguous = [arg for arg, how in layouts(layout, schema).items() if how == "contiguous"]
    function = with_layout(fn, schema, op_layout)
    at = place_of(fn).provenance(name, executor)
    return [(slot, function, at, when, contiguous, out) for slot in wanted]


def _require_outputs(schema: _native.Schema) -> None:
    """Refuses out=True for an op that returns something else than tensors: nothing else can be filled."""
    others = [r.type for r in schema.returns if not r.type.startswith(("Tensor", "(Tensor"))]
    if others or not schema.returns:
        what = f"a value of type {others[0]}" if others else "nothing"
        raise RegistrationError(
            f"{schema.name} returns {what}: a kernel with out=True fills tensors, and only those",
            code="TP1339",
            op=schema.name,
            notes=("register it without out=True, and return the results",),
        )


def _require_callable(fn: Any, what: str) -> None:
    if not callable(fn):
        raise ArgumentError(f"{what} must be callable, got {type(fn).__name__}", code="TP1316")


@_arguments.keywords
def register_fake(
    op: Op,
    fn: F | None = None,
    /,
    *,
    lib: Lifetime | None = None,
    allow_override: bool | None = None,
) -> Any:
    """Registers the rule that predicts shape, dtype, strides and device of the results; it must not read data.

    `fake_from_body` stands for the op's own body, for bodies made of tensorplay ops only. Without `fn` this is a
    decorator; it returns `fn`.

    Where the op has a rule already, `allow_override` decides: True replaces it, False is an error that says where it
    was written, and None replaces those of ops that `custom_op` made, and those from the same place (a cell that is run
    again); for any other op, the built-in ones among them, it is the error.
    """
    require_library("register_fake", lib)
    if fn is None:
        return lambda f: register_fake(op, f, lib=lib, allow_override=allow_override)
    target = full_name(op)
    info = _native.op_info(target)
    if allow_override is not None:
        _arguments.boolean("register_fake", "allow_override", allow_override)
    record = writable_record(target)
    rule: Callable[..., Any] | None = fn
    if isinstance(fn, _FakeFromBody):
        rule = record.body
        if rule is None:
            raise RegistrationError(
                f"{target} has no Python body to make a fake rule from", code="TP1319", op=target
            )
    else:
        require_fake(fn, schema_of(target))
    if info["fake"] in ("native", "python") and not allow_override:
        _require_replaceable(target, record, rule, info["at"], never=allow_override is False)
    assert rule is not None
    keep_fake(target, record, rule, lib)
    _native.register_fake(target, rule)
    return fn


def _require_replaceable(target: str, before: Record | None, fn: Any, at: Any, *, never: bool) -> None:
    """Refuses a second fake rule, unless the op is the author's own or the rule comes from the same place again."""
    place = before.fake_place if before is not None else None
    own = before is not None and before.kind != "op"
    if not never and (own or (place is not None and place_of(fn).same_as(place))):
        return
    raise RegistrationError(
        f"{target} has a fake rule already at {place or f'{at[1]}:{at[2]}'}",
        code="TP1318",
        op=target,
        notes=("pass allow_override=True to put this one in its place",),
    )


def require_fake(fn: Any, schema: _native.Schema) -> None:
    """Refuses what cannot be the fake rule of that schema."""
    _require_callable(fn, "a fake rule")
    check_accepts(fn, schema, names=False, what="the fake rule")


def keep_fake(target: str, record: Record, rule: Callable[..., Any], lib: Lifetime | None) -> None:
    """Notes the rule in force, and ties it to the life of a library."""
    entry = (rule, place_of(rule))
    if lib is None:
        record.fakes[:] = [entry]
    else:
        lib.adopt(functools.partial(_drop_fake, target, record, entry))
        record.fakes.append(entry)


def _drop_fake(target: str, record: Record, entry: tuple[Callable[..., Any], Any]) -> None:
    """Takes one rule back; what it stood before, the built-in rule at last, is in force again."""
    at = next((i for i, kept in enumerate(record.fakes) if kept is entry), None)
    if at is None:
        return
    newest = at == len(record.fakes) - 1
    del record.fakes[at]
    if newest and record_of(target) is record:
        _native.register_fake(target, record.fake)


@_arguments.keywords
def register_autograd(
    op: Op,
    backward: Any = _MISSING,
    /,
    *,
    setup_context: Callable[..., None] | None = None,
    lib: Lifetime | None = None,
) -> Any:
    """Registers `backward(ctx, *grads)`, which returns one gradient (or None) per positional argument.

    None stands for zero: the input's `grad` stays as it was. Where the gradient is not zero, `verify` and `opcheck` fail.

    `setup_context(ctx, inputs, output)` runs after the forward call when a gradient may be needed, and saves what
    backward reads. `register_autograd(None)` declares the op non-differentiable. As a decorator, with or without
    parentheses, it returns `backward`. With `lib` the rule before comes back when that library is destroyed.
    """
    require_library("register_autograd", lib)
    if backward is _MISSING:
        return lambda f: register_autograd(op, f, setup_context=setup_context, lib=lib)
    target = full_name(op)
    schema = schema_of(target)
    record = writable_record(target)
    previous = (record.backward, record.setup_context, record.autograd_place)
    if backward is None:
        registration = _native.register_autograd_none(target)
        record.backward = record.setup_context = record.autograd_place = None
        _adopt_rule(lib, target, registration, previous, None)
        return None
    _require_callable(backward, "a backward rule")
    if schema.is_mutable:
        raise RegistrationError(
            f"{target} writes to {', '.join(map(repr, schema.mutated))}: an op that mutates has no backward rule",
            code="TP1320",
            op=target,
            notes=("return a new tensor instead of writing, and write outside of the op",),
        )
    if not schema.returns:
        raise RegistrationError(
            f"{target} returns nothing: there is nothing to differentiate", code="TP1320", op=target
        )
    grads = tuple(f"grad{i}" for i in range(len(schema.returns))) if len(schema.returns) > 1 else ("grad",)
    check_binds(backward, schema, "backward", "ctx", *grads)
    rule = contiguous_gradients(backward, target) if "contiguous" in record.layout.values() else backward
    if setup_context is None:
        registration = _native.register_autograd(target, rule)
    else:
        _require_callable(setup_context, "setup_context")
        extra = ("keyword_only_inputs",) if any(a["kwarg_only"] for a in schema.arguments) else ()
        keywords = ("ctx", "inputs", "output", *extra)
        check_binds(setup_context, schema, "setup_context", keywords=keywords)
        registration = _native.register_autograd(target, rule, setup_context)
    record.backward, record.setup_context, record.autograd_place = backward, setup_context, place_of(backward)
    _adopt_rule(lib, target, registration, previous, backward)
    return backward


def _adopt_rule(
    lib: Lifetime | None,
    target: str,
    registration: _native.GradRegistration,
    previous: tuple[Any, Any, Any],
    own: Any,
) -> None:
    """Ties a backward rule to the life of a library."""
    if lib is None:
        return

    def undo() -> None:
        record = record_of(target)
        if record is not None and record.backward is own:
            registration.undo()
            record.backward, record.setup_context, record.autograd_place = previous

    lib.adopt(undo)


@_arguments.keywords
def register_vmap(op: Op, fn: Any = _MISSING, /, *, lib: Lifetime | None = None) -> Any:
    """Registers the batching rule `fn(info, in_dims, *args, **keywords) -> (output, out_dims)` that `tp.func.vmap` uses.

    `info` has `batch_size` and `randomness`; `in_dims` holds the batch axis of every argument, None for one that all
    samples share. `register_vmap(op, None)` takes the rule away. Without `fn` this is a decorator; it returns `fn`.
    """
    require_library("register_vmap", lib)
    if fn is _MISSING:
        return lambda f: register_vmap(op, f, lib=lib)
    target = full_name(op)
    if fn is not None:
        _require_callable(fn, "a batching rule")
        schema = schema_of(target)
        names = [a["name"] for a in schema.arguments if not a["kwarg_only"]]
        keywords = tuple(a["name"] for a in schema.arguments if a["kwarg_only"])
        check_binds(fn, schema, "the batching rule", "info", "in_dims", *names, keywords=keywords)
    record = writable_record(target)
    before = (record.vmap, record.vmap_place)
    record.vmap, record.vmap_place = fn, None if fn is None else place_of(fn)
    if lib is not None:
        lib.adopt(functools.partial(_restore_vmap, record, before))
    return fn


def _restore_vmap(record: Record, before: tuple[Any, Any]) -> None:
    record.vmap, record.vmap_place = before


def require_autocast_device(device_type: str) -> None:
    """InvalidValueError for a device without autocast."""
    if device_type not in ("cpu", "cuda"):
        raise InvalidValueError(
            f"there is no autocast for device {device_type!r}: use 'cpu' or 'cuda'", code="TP3420"
        )


@_arguments.keywords
def register_autocast(op: Op, device_type: str, cast_inputs: Any, /, *, lib: Lifetime | None = None) -> None:
    """Under `tp.autocast(device_type)` the op gets its floating tensors of that device, except float64, in `cast_inputs`.

    Tensors in lists and keyword arguments are cast too, everything else is handed on as it is; the op itself runs
    with autocast off, and gradients come back in the original dtype.
    """
    require_library("register_autocast", lib)
    require_autocast_device(device_type)
    if not isinstance(cast_inputs, _native.dtype) or not cast_inputs.is_floating_point:
        raise DTypeError(f"cast_inputs must be a floating dtype, got {cast_inputs!r}", code="TP3421")
    target = full_name(op)
    record = writable_record(target)
    before = (_native.autocast_policy(target, device_type, cast_inputs), record.autocast.get(device_type))
    record.autocast[device_type] = (cast_inputs, caller())
    if lib is not None:
        lib.adopt(functools.partial(_restore_autocast, target, record, device_type, before))


def _restore_autocast(target: str, record: Record, device_type: str, before: tuple[Any, Any]) -> None:
    dtype, noted = before
    if _native.get_op(target) is not None:
        _native.autocast_policy(target, device_type, dtype)
    record.autocast.pop(device_type, None)
    if noted is not None:
        record.autocast[device_type] = noted


def get_kernel(op: Op, key: str | None) -> Callable[..., Any]:
    """The kernel registered for exactly that device ("cpu", "cuda", "default"), as a callable.

    It stays that kernel whatever is registered later, so that a new kernel may wrap it. Arguments are bound as those of
    the op, defaults included. KernelNotFoundError, which is a LookupError, where there is none.
    """
    target, slot = full_name(op), kernel_slot(key)
    found = [at for where, at, _ in _native.op_info(target)["kernels"] if where == slot and at[3] != "absent"]
    if not found or not switches.enabled(target, slot):
        state = "its kernels are disabled" if found else "no kernel is registered"
        raise KernelNotFoundError(f"{target}: {state} for {slot!r}", code="TP1321", op=target)
    function = _native.kernel_function(target, slot, found[0][0])
    if function is not None and binds_as(function, schema_of(target)):
        return function
    handle = _native.kernel_handle(target, slot, found[0][0])
    assert handle is not None, target
    return handle
