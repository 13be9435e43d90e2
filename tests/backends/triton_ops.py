"""Triton ops that the tests import, in this process and in the one where Triton interprets."""

from __future__ import annotations

import triton
import triton.language as tl

import tensorplay as tp
from tensorplay import Tensor, library


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(x, n, k, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask) * k, mask)


@library.triton_op("tritontest::add", mutates_args=())
def add(x: Tensor, y: Tensor) -> Tensor:
    out = tp.empty_like(x)
    n = x.size
    library.wrap_triton(add_kernel)[(triton.cdiv(n, 4096),)](x, y, out, n, BLOCK=4096)
    return out


@library.triton_op("tritontest::scale_", mutates_args=("x",))
def scale_(x: Tensor, k: float) -> None:
    library.wrap_triton(scale_kernel)[lambda meta: (triton.cdiv(x.size, meta["BLOCK"]),)](x, x.size, k)
