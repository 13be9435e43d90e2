"""Operators: define one, give it kernels, a fake rule and a backward rule, look it up.

Only re-exports. Definitions live in `_definitions`, registrations in `_op`, inference in `_infer`, libraries in
`_library`, Triton ops in `_triton_op`.
"""

from __future__ import annotations

from tensorplay import _native
from tensorplay._definitions import custom_op, define
from tensorplay._infer import infer_schema
from tensorplay._library import Library, impl
from tensorplay._native import CustomOpDef, Schema
from tensorplay._op import (
    fake_from_body,
    get_kernel,
    register_autograd,
    register_fake,
    register_kernel,
    register_vmap,
)
from tensorplay._op import register_fake as impl_abstract
from tensorplay._op_type import get_op, has_op, install
from tensorplay._triton_op import triton_op, wrap_triton

list_ops = _native.list_ops
install()

__all__ = [
    "CustomOpDef",
    "Library",
    "Schema",
    "custom_op",
    "define",
    "fake_from_body",
    "get_kernel",
    "get_op",
    "has_op",
    "impl",
    "impl_abstract",
    "infer_schema",
    "list_ops",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_vmap",
    "triton_op",
    "wrap_triton",
]
