"""Refusals of a capture, for tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay.errors import CaptureError

__all__ = ["refused"]


def refused(code: str, fn: Callable[..., Any], *args: Any, match: str | None = None) -> CaptureError:
    """The refusal of a capture, which has to name the line of the function."""
    with pytest.raises(CaptureError, match=match) as caught:
        tp.compile(fn)(*args)
    assert caught.value.code == code, caught.value
    notes = "\n".join(caught.value.__notes__)
    if code not in ("TP4032", "TP4033"):
        source, first = inspect.getsourcelines(fn)
        file = (inspect.getsourcefile(fn) or "").rpartition("/")[2]
        assert any(f"{file}:{n}" in notes for n in range(first, first + len(source))), notes
    return caught.value
