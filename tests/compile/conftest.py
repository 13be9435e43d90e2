"""A namespace of its own for every test, so that no test sees the ops of another."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture
def ns() -> str:
    return f"compiled{next(_numbers)}"
