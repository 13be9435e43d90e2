"""Measurements that need a process of their own: import time, and resident bytes per op on the tape.

    fresh.py import MODULE        milliseconds that `import MODULE` adds to a bare interpreter
    fresh.py tape NAME            bytes per op that saves nothing (x * 1.01 on 8 floats), forward only
    fresh.py million NAME         the same over a million ops
    fresh.py peak NAME            the most bytes per op, backward included

Run with the library's own interpreter; prints one number.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import sys
import time

OPS = 100_000
MILLION = 1_000_000


def import_milliseconds(module: str) -> float:
    start = time.perf_counter()
    importlib.import_module(module)
    return (time.perf_counter() - start) * 1e3


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123 (a module less to have loaded)
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaf(library: str):
    """(a vector of 8 that requires grad, a vector of 8 ones)"""
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        return torch.ones(8, requires_grad=True), torch.ones(8)
    import tensorplay as tp

    if library == "ours":
        return tp.tensor([1.0] * 8, requires_grad=True), tp.ones(8)
    x = tp.ones(8)
    x.requires_grad_(True)
    return x, tp.ones(8)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tape_bytes(library: str, ops: int = OPS, peak: bool = False) -> float:
    x, ones = leaf(library)

    def build(times: int):
        y = x
        for _ in range(times):
            y = y * 1.01
        return y

    build(1000).backward(ones)  # pools, caches and lazily made things are filled first
    gc.collect()
    gc.disable()
    before = resident_bytes()
    y = build(ops)
    per_op = (resident_bytes() - before) / ops
    y.backward(ones)  # the tape that was measured is one that works
    return (peak_bytes() - before) / ops if peak else per_op


if __name__ == "__main__":
    measures = {
        "import": import_milliseconds,
        "tape": tape_bytes,
        "million": lambda library: tape_bytes(library, MILLION),
        "peak": lambda library: tape_bytes(library, MILLION, peak=True),
    }
    print(measures[sys.argv[1]](sys.argv[2]))
