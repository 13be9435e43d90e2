"""Backends and devices: what can be used here, and the contract of a plugged-in backend. Only re-exports."""

from tensorplay.backends.base import capabilities, capability, names, register, unregister
from tensorplay.backends.contract import CONTRACT_VERSION, Artifact, Backend, Instruction, Region
from tensorplay.outcome import Capability, FallbackReason, TensorSpec

__all__ = [
    "CONTRACT_VERSION",
    "Artifact",
    "Backend",
    "Capability",
    "FallbackReason",
    "Instruction",
    "Region",
    "TensorSpec",
    "capabilities",
    "capability",
    "names",
    "register",
    "unregister",
]


def __dir__() -> list[str]:
    return sorted(__all__)
