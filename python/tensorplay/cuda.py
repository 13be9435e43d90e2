"""CUDA devices as far as this build knows them.

Lives here: the questions that portable code asks. Not here: whether there is a driver (`backends.base`).
"""

from __future__ import annotations

from tensorplay.backends import base

__all__ = ["device_count", "is_available", "synchronize"]


def is_available() -> bool:
    """Whether tensors can live on a CUDA device here."""
    return base.capability("cuda").available


def device_count() -> int:
    """Number of usable CUDA devices."""
    return int(base.capability("cuda").details.get("devices", 0))


def synchronize() -> None:
    """Waits for all work on the current device; CapabilityError where there is none."""
    base.require("cuda", "synchronize()")


def __dir__() -> list[str]:
    return sorted(__all__)
