"""What errors say beside their message."""

from __future__ import annotations


def notes(error: BaseException) -> str:
    """The notes of an error, one a line."""
    return "\n".join(getattr(error, "__notes__", []))
