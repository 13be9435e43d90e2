"""The loop nest around a scalar program.

Lives here: parameters, addresses, loops, and the finished PrimFunc.
Not here: what one element computes (`emit`) and compilation (`compile`).

Pointers arrive raw and every size, stride and bound is an int64 parameter, so that one kernel
serves all shapes. Loops are serial: LLVM vectorises them, and the caller splits the range.
"""

from __future__ import annotations

from typing import Any

from .convert import HELD
from .emit import Emitter
from .layout import Flat, Layout, Strided
from .program import Program, guarded, output_dtypes

_I64 = "int64"


class _Nest:
    """Loop variables and addresses of one kernel."""

    def __init__(self, tirx: Any, layout: Layout):
        self.t = tirx
        self.layout = layout
        self.lo, self.hi = self._var("lo"), self._var("hi")
        ndim = layout.ndim if isinstance(layout, Strided) else 1
        self.loops = [self._var(f"i{d}") for d in range(ndim)]
        self.sizes = [self._var(f"size{d}") for d in range(1, ndim)]
        self.strides = [[self._var(f"stride{j}_{d}") for d in range(ndim)] for j in range(layout.inputs)]

    def _var(self, name: str) -> Any:
        return self.t.Var(name, _I64)

    def ints(self) -> list[Any]:
        """The int64 parameters in calling order."""
        if isinstance(self.layout, Flat):
            return [self.lo, self.hi]
        return [self.lo, self.hi, *self.sizes, *(s for row in self.strides for s in row)]

    def _positions(self) -> list[Any]:
        """The index in each dimension; the outermost loop counts from `lo`."""
        return [self.t.Add(self.lo, self.loops[0]), *self.loops[1:]]

    def output_at(self) -> Any:
        first, *rest = self._positions()
        at = first
        for position, size in zip(rest, self.sizes, strict=True):
            at = self.t.Add(self.t.Mul(at, size), position)
        return at

    def input_at(self, j: int) -> Any:
        if isinstance(self.layout, Flat):
            return self.t.const(0, _I64) if self.layout.scalar_inputs[j] else self._positions()[0]
        *outer, last = self._positions()
        inner = self.layout.inner[j]
        terms = [self.t.Mul(i, s) for i, s in zip(outer, self.strides[j], strict=False)]
        if inner is None:
            terms.append(self.t.Mul(last, self.strides[j][-1]))
        elif inner == 1:
            terms.append(last)
        at = terms[0] if terms else self.t.const(0, _I64)
        for term in terms[1:]:
            at = self.t.Add(at, term)
        return at

    def sequence(self, statements: list[Any]) -> Any:
        """One statement; SeqStmt refuses a list of one."""
        return self.t.SeqStmt(statements) if len(statements) > 1 else statements[0]

    def wrap(self, body: list[Any]) -> Any:
        extents = [self.t.Sub(self.hi, self.lo), *self.sizes]
        nest = self.sequence(body)
        for var, extent in zip(reversed(self.loops), reversed(extents), strict=True):
            nest = self.t.For(var, self.t.const(0, _I64), extent, self.t.ForKind.SERIAL, nest)
        return nest


def build(tvm: Any, program: Program, layout: Layout, name: str, has_fma: bool) -> Any:
    """The PrimFunc of `program` over operands that lie as `layout` says."""
    tirx = tvm.tirx
    nest = _Nest(tirx, layout)
    ins, outs = program["inputs"], output_dtypes(program)
    dtypes = [HELD[dtype] for dtype in ins + outs]
    pointer = lambda dtype: tvm.ir.PointerType(tvm.ir.PrimType(dtype))  # noqa: E731
    pointers = [tirx.Var(f"p{j}", pointer(dtype)) for j, dtype in enumerate(dtypes)]
    buffers = [
        # The default of 64 bytes is assumed, never checked.
        tirx.decl_buffer((nest.hi,), dtype, f"b{j}", data=p, data_alignment=1, layout=None)
        for j, (p, dtype) in enumerate(zip(pointers, dtypes, strict=True))
    ]
    flags = [tirx.Var("flag", pointer("int32"))] if guarded(program) else []
    flag = [tirx.decl_buffer((1,), "int32", "by_zero", data=p, data_alignment=1, layout=None) for p in flags]
    emitter = Emitter(tirx, nest.lo, has_fma, *flag)
    loaded = [_load(emitter, layout, nest, j, buffers[j], dtype) for j, dtype in enumerate(ins)]
    results = emitter.emit(program, loaded)
    at = nest.output_at()
    stores = [tirx.BufferStore(b, r, [at]) for b, r in zip(buffers[len(ins) :], results, strict=True)]
    pointers += flags
    declared = [tirx.DeclBuffer(b, data=p) for b, p in zip(buffers + flag, pointers, strict=True)]
    loops = nest.wrap(emitter.body + stores)
    func = tirx.PrimFunc(pointers + nest.ints(), nest.sequence([*declared, *emitter.prelude, loops]))
    return func.with_attr({"global_symbol": name, "tirx.noalias": True, "s_tir": True})


def _load(emitter: Emitter, layout: Layout, nest: _Nest, j: int, buffer: Any, dtype: str) -> Any:
    held = buffer[nest.input_at(j)]
    if dtype == "bool":  # any non-zero byte is true
        held = emitter.convert.test(emitter.convert.truth(held))
    once = isinstance(layout, Flat) and layout.scalar_inputs[j]
    return emitter.keep(HELD[dtype], held, emitter.prelude if once else None)
