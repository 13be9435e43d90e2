"""Recursion through ops, rules and hooks ends as RecursionError, on stacks of any size. Each case is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import recursion

PROGRAM = Path(recursion.__file__)


def outcomes(kinds: list[str], kilobytes: int, *limit: str) -> list[list[str]]:
    """The words that the program says of each kind; a crash is an assertion here."""
    command = [sys.executable, str(PROGRAM), ",".join(kinds), str(kilobytes), *limit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (kilobytes, done.returncode, done.stdout, done.stderr[-2000:])
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kilobytes", [256, 512, 1024, 2048])
def test_recursion_ends_as_an_error_on_a_small_stack(kilobytes: int) -> None:
    """3.12: kernels, fake rules, predicates, backward and setup functions, hooks, Functions, batching rules, compiled."""
    kinds = list(recursion.KINDS)
    found = outcomes(kinds, kilobytes)
    assert [(kind, how) for kind, how, *_ in found] == [(kind, "RecursionError") for kind in kinds]
    assert all(int(depth) >= 3 for _, _, depth, *_ in found)


def test_a_raised_recursion_limit_ends_at_the_end_of_the_stack() -> None:
    """3.12: on the main thread, where Python's own limit says nothing any more."""
    kinds = list(recursion.KINDS)
    found = outcomes(kinds, 0, "1000000")
    assert [(kind, how) for kind, how, *_ in found] == [(kind, "RecursionError") for kind in kinds]
    assert all("the stack of this thread" in " ".join(words) for words in found), found
    assert int({kind: depth for kind, _, depth, *_ in found}["kernel"]) > 1000


def test_a_large_stack_is_used() -> None:
    """3.12: what is left is asked of the thread that runs, so that a larger stack takes a deeper recursion."""
    ((_, _, small, *_),) = outcomes(["kernel"], 1024, "1000000")
    ((_, _, large, *_),) = outcomes(["kernel"], 16384, "1000000")
    assert int(large) > 8 * int(small)
