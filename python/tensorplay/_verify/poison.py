"""Poisoned memory: fresh allocations that hold a known pattern, so that reading what was never written shows.

The pattern goes in by allocating, filling and freeing blocks of the sizes in question: the allocator hands out the
block freed last. Nothing here compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tensorplay import _arguments, _native
from tensorplay.errors import InvalidValueError

__all__ = ["PATTERNS", "poison", "poisoned"]

# 0xFF is NaN in every floating dtype and -1 in signed integers; 0x3B is a small positive number in all of them.
PATTERNS = (0xFF, 0x3B)
DEPTH = 6  # blocks of each size: outputs and the temporaries before them
# Kernels allocate temporaries of their own; these sizes are always poisoned along with those that are asked for.
COMMON = (64, 128, 256, 512, 1024)
LARGEST = 1 << 24


def poison(sizes: Iterable[int], pattern: int) -> None:
    """Leaves `pattern` in free blocks of these sizes in bytes, of tensors and of NumPy."""
    import numpy as np

    signed = pattern - 256 if pattern > 127 else pattern
    for size in dict.fromkeys([*COMMON, *(s for s in sizes if 0 < s <= LARGEST)]):
        held = [_native.builtins["full"]((size,), signed, dtype=_native.int8) for _ in range(DEPTH)]
        arrays = [np.full(size, signed, np.int8) for _ in range(DEPTH)]
        del held, arrays


@contextmanager
def poisoned(sizes: Iterable[int], pattern: int = PATTERNS[0]) -> Iterator[None]:
    """Poisons free memory on entry. What was allocated before is left alone."""
    if not 0 <= _arguments.integer("poisoned", "pattern", pattern) <= 255:
        raise InvalidValueError(f"poisoned: argument 'pattern' is a byte, got {pattern!r}", code="TP1048")
    poison(_arguments.items("poisoned", "sizes", sizes), pattern)
    yield
