"""Backends and devices: what can be used here, and the protocol of a plugged-in backend. Only re-exports."""

from tensorplay.backends.base import Backend, capabilities, capability, names, register

__all__ = ["Backend", "capabilities", "capability", "names", "register"]


def __dir__() -> list[str]:
    return sorted(__all__)
