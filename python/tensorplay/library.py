"""Operators: define one, give it kernels, a fake rule and a backward rule, look it up.

Mostly re-exports. Definitions live in `_definitions`, registrations in `_op`, inference in `_infer`, libraries in
`_library`, Triton ops in `_triton_op`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from tensorplay import _native
from tensorplay._definitions import custom_op, define
from tensorplay._infer import infer_schema
from tensorplay._library import Library, impl
from tensorplay._native import CustomOpDef, FakeContext, Schema
from tensorplay._op import (
    fake_from_body,
    get_kernel,
    register_autocast,
    register_autograd,
    register_fake,
    register_kernel,
    register_vmap,
)
from tensorplay._op import register_fake as impl_abstract
from tensorplay._op_type import get_op, has_op
from tensorplay._triton_op import triton_op, wrap_triton
from tensorplay._waiting import waiting
from tensorplay._wishes import debug_checks

list_ops = _native.list_ops
get_ctx = _native.get_ctx


def opcheck(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    raise_exception: bool = True,
    **options: Any,
) -> dict[str, str]:
    """Checks an op's registrations on one call: `{check name: "SUCCESS" or what is wrong}`; see `tensorplay.verify`."""
    # By name: the verifier is a layer above this one.
    checker = importlib.import_module("tensorplay.verify")
    found: dict[str, str] = checker.opcheck(op, args, kwargs, raise_exception=raise_exception, **options)
    return found


__all__ = [
    "CustomOpDef",
    "FakeContext",
    "Library",
    "Schema",
    "custom_op",
    "debug_checks",
    "define",
    "fake_from_body",
    "get_ctx",
    "get_kernel",
    "get_op",
    "has_op",
    "impl",
    "impl_abstract",
    "infer_schema",
    "list_ops",
    "opcheck",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_vmap",
    "triton_op",
    "waiting",
    "wrap_triton",
]


def __dir__() -> list[str]:
    return sorted(__all__)
