"""A plain backend for tests: the scalar program evaluated by the reference of `scalar_program`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.scalar_program import evaluate
from tensorplay.backends import Artifact, Backend, FallbackReason, Region

_TAKEN = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32")


class NumPy(Backend):
    """Takes everything but bfloat16, float64 and what has no plain NumPy function."""

    contract = 1

    def supports(self, region: Region) -> FallbackReason | None:
        for i in region.instructions:
            if i.dtype not in _TAKEN:
                return FallbackReason("UnsupportedDType", i.op, f"no {i.dtype}", {"dtype": i.dtype})
            if i.op in ("floordiv", "mod", "fmod", "intpow"):
                return FallbackReason("UnsupportedOp", i.op, f"no {i.op}")
        return None

    def lower(self, region: Region) -> Artifact:
        return Artifact("reference", hashlib.sha256(repr(region).encode()).hexdigest(), region)

    def run(self, artifact: Artifact, inputs: Sequence[Any]) -> list[Any]:
        region: Region = artifact.payload
        program = {
            "instrs": list(region.instructions),
            "inputs": [t.dtype for t in region.inputs],
            "outputs": list(region.results),
        }
        shape = region.outputs[0].shape
        arrays = [np.ascontiguousarray(np.broadcast_to(_held(x), shape)).reshape(-1) for x in inputs]
        empty = 0 in shape
        outputs = [np.empty(0, t.dtype) for t in region.outputs] if empty else evaluate(program, arrays)
        return [
            np.array(o.astype(bool) if t.dtype == "bool" else o).reshape(t.shape)
            for o, t in zip(outputs, region.outputs, strict=True)
        ]


def _held(x: Any) -> Any:
    array = x.numpy()
    return array.view(np.uint8) if array.dtype == bool else array
