"""Ops whose kernels are written in Triton: importable and definable without Triton and without a GPU.

Lives here: `triton_op` and the launch handle `wrap_triton`. Not here: compiling and launching, which the adapter found
by name does (`tensorplay.backends.triton`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from tensorplay import _arguments, _native
from tensorplay._definitions import check_name, define_record, document, op_schema
from tensorplay._jit import is_kernel, kernel_name
from tensorplay._native import CustomOpDef
from tensorplay._op import kernel_parts
from tensorplay._places import caller, place_of
from tensorplay._record import Record, labels, layouts
from tensorplay.backends import base
from tensorplay.errors import ArgumentError, CapabilityError, CaptureError

__all__ = ["WrappedKernel", "triton_op", "watch_launches", "wrap_triton"]


@overload
def triton_op(
    name: str,
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: Iterable[str] | str,
    schema: str | None = ...,
    effects: str | Iterable[str] | None = ...,
    layout: Mapping[str, str] | None = ...,
    tags: str | Iterable[str] = ...,
    override: bool = ...,
) -> CustomOpDef: ...
@overload
def triton_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: Iterable[str] | str,
    schema: str | None = ...,
    effects: str | Iterable[str] | None = ...,
    layout: Mapping[str, str] | None = ...,
    tags: str | Iterable[str] = ...,
    override: bool = ...,
) -> Callable[[Callable[..., Any]], CustomOpDef]: ...
@_arguments.keywords
def triton_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Iterable[str] | str,
    schema: str | None = None,
    effects: str | Iterable[str] | None = None,
    layout: Mapping[str, str] | None = None,
    tags: str | Iterable[str] = (),
    override: bool = False,
) -> Any:
    """Makes `fn`, which launches Triton kernels through `wrap_triton`, the CUDA kernel of a new op.

    A call on CPU tensors runs the kernel registered for "cpu" or for all devices, and raises CapabilityError when there
    is none. The fake rule is `fn` itself, whose launches then do nothing. Under capture the op is one opaque node.
    """
    check_name(name)
    if fn is None:
        return lambda f: triton_op(
            name,
            f,
            mutates_args=mutates_args,
            schema=schema,
            effects=effects,
            layout=layout,
            tags=tags,
            override=override,
        )
    parsed = op_schema(name, fn, mutates_args, schema, labels(tags, None, "tag"))
    record = Record(
        place_of(fn),
        "triton_op",
        fn,
        ("cuda",),
        layouts(layout, parsed),
        inferred=schema is None,
        unknown_writes=mutates_args == "unknown",
    )
    kernels = [
        *kernel_parts(parsed, record.layout, ("cuda",), fn, executor="triton"),
        *kernel_parts(parsed, record.layout, ("default",), _absent_kernel(name, fn), executor="absent"),
    ]
    op, _ = define_record(
        parsed,
        record,
        labels(effects, ("random", "ordered"), "effect"),
        labels(tags, None, "tag"),
        override,
        kernels=kernels,
        fake=fn if parsed.returns else None,
    )
    document(op, fn)
    return op


def _absent_kernel(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """What answers for devices without a kernel: an error that says what is missing."""

    @functools.wraps(fn)
    def absent(*args: Any, **kwargs: Any) -> Any:
        device = _device_of([*args, *kwargs.values()])
        triton = base.capability("triton")
        # What Triton itself waits for says more than Triton's own answer.
        missing = base.capability(triton.details.get("needs", "triton" if not triton.available else "cuda"))
        raise CapabilityError(
            f"{name} has no kernel for device '{device}': its Triton kernel needs CUDA. {missing}",
            code="TP2010",
            op=name,
            capability=missing,
            notes=(f"register one with @op.register_kernel('{device}'), or move the tensors to a GPU",),
        )

    return absent


def _device_of(values: list[Any]) -> str:
    for value in values:
        if isinstance(value, (list, tuple)):
            return _device_of(list(value))
        if isinstance(value, _native.Tensor):
            return value.device.type
        if isinstance(value, _native.device):
            return value.type
    return "cpu"


class WrappedKernel:
    """A Triton kernel that launches on tensorplay tensors: `wrapped[grid](*args, **kwargs)`."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"wrap_triton({kernel_name(self.kernel)})"

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(_launch, self.kernel, grid)


def wrap_triton(kernel: Any, /) -> WrappedKernel:
    """The launch handle of a `@triton.jit`, `@triton.autotune` or `@triton.heuristics` kernel. Idempotent."""
    if isinstance(kernel, WrappedKernel):
        return kernel
    if not is_kernel(kernel):
        raise ArgumentError(
            f"wrap_triton takes a kernel made by triton.jit, triton.autotune or triton.heuristics, "
            f"got {type(kernel).__name__}",
            code="TP2011",
        )
    watch_launches()
    return WrappedKernel(kernel)


def _launch(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> Any:
    if _native.is_capturing():
        raise CaptureError(
            f"the Triton kernel {kernel_name(kernel)} was launched inside a capture",
            code="TP4015",
            notes=(
                "put the launch into an op made by tensorplay.library.triton_op: it becomes one node of the graph",
            ),
        )
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, _native.Tensor)]
    if any(t.is_fake or t.device.type == "meta" for t in tensors):
        return None  # predicting the results of an op: there is no data to work on
    return base.adapter("triton").launch(kernel, grid, args, kwargs)


def watch_launches() -> None:
    """From now on a launch past `wrap_triton` is refused while this thread captures: the graph would lack it.

    Nothing happens where the program has not imported Triton. Captures come through here before they begin.
    """
    launches: Any = getattr(sys.modules.get("triton.runtime.jit"), "KernelInterface", None)
    plain = getattr(launches, "__getitem__", None)
    if plain is None or hasattr(plain, "_tensorplay"):
        return

    @functools.wraps(plain)
    def watched(kernel: Any, grid: Any) -> Any:
        if _native.is_capturing():
            raise CaptureError(
                f"the Triton kernel {kernel_name(kernel)} was launched inside a capture, unwrapped, at {caller()}",
                code="TP4015",
                notes=(
                    "launch it as wrap_triton(kernel)[grid](...) in an op made by tensorplay.library.triton_op",
                ),
            )
        return plain(kernel, grid)

    watched._tensorplay = True  # type: ignore[attr-defined]
    launches.__getitem__ = watched
