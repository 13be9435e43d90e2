"""Calls a compiled TVM kernel on NumPy arrays, as the executor does.

Lives here: the 16-byte tagged argument and the two calling conventions. Not here: any assertion.
"""

from __future__ import annotations

import ctypes

import numpy as np

from backends.scalar_program import HELD
from tensorplay.backends import tvm

_INT, _POINTER = 1, 4


class Tagged(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint64)]


_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tagged), ctypes.c_int32, ctypes.POINTER(Tagged)
)


def pack(artifact, pointers, ints):
    """The argument array; its length is checked here because the kernel does not."""
    spec = artifact.argspec
    assert (len(pointers), len(ints)) == (spec.inputs + spec.outputs + spec.flags, spec.ints)
    words = [(_POINTER, p) for p in pointers] + [(_INT, i % 2**64) for i in ints]
    return (Tagged * len(words))(*[Tagged(tag, 0, word) for tag, word in words])


def invoke(artifact, args):
    result = Tagged()
    status = _KERNEL(artifact.address)(artifact.handle, args, len(args), ctypes.byref(result))
    assert status == 0


def outputs_for(program, size):
    return [np.zeros(size, HELD[program["instrs"][out][1]]) for out in program["outputs"]]


def address(array):
    return array.__array_interface__["data"][0]


def run_flat(program, arrays, scalars=None, pieces=1, outputs=None, flag=None):
    """Contiguous arrays of one size; `scalars` marks the one-element ones; `pieces` splits the range.

    `flag`: the int32 that a guarded kernel sets.
    """
    scalars = scalars or [False] * len(arrays)
    size = next((a.size for a, scalar in zip(arrays, scalars, strict=True) if not scalar), 1)
    artifact = tvm.lower(program, {"kind": "flat", "scalar_inputs": scalars})
    outputs = outputs_for(program, size) if outputs is None else outputs
    bounds = [size * k // pieces for k in range(pieces + 1)]
    for lo, hi in zip(bounds, bounds[1:], strict=False):
        flags = [np.zeros(1, np.int32) if flag is None else flag] * artifact.argspec.flags
        invoke(artifact, pack(artifact, [address(a) for a in [*arrays, *outputs, *flags]], [lo, hi]))
    return outputs


def run_strided(program, arrays, inner=None, pieces=1):
    """Arrays of one shape and any strides; outputs come back contiguous in that shape."""
    shape = arrays[0].shape
    inner = inner or [None] * len(arrays)
    artifact = tvm.lower(program, {"kind": "strided", "ndim": len(shape), "inner": inner})
    outputs = outputs_for(program, shape)
    strides = [s // a.itemsize for a in arrays for s in a.strides]
    pointers = [address(a) for a in [*arrays, *outputs]]
    bounds = [shape[0] * k // pieces for k in range(pieces + 1)]
    for lo, hi in zip(bounds, bounds[1:], strict=False):
        invoke(artifact, pack(artifact, pointers, [lo, hi, *shape[1:], *strides]))
    return outputs
