"""Is Triton installed, and in a version that this adapter was run with?

Lives here: a probe that reads package metadata only. Not here: whether there is a GPU, which is the capability "cuda":
compiling and interpreting need none.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

SUPPORTED = ("3.6", "3.9")


def probe() -> dict[str, Any]:
    """`{"available", "reason", "details"}`; the reason names the package and the way out."""
    try:
        found = metadata.version("triton")
    except metadata.PackageNotFoundError:
        details = {"kind": "BackendUnavailable", "missing": "triton", "found": None}
        return _absent("triton is not installed; install the 'triton' extra of tensorplay", details)
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        details = {"kind": "VersionUnpinned", "package": "triton", "found": found}
        known = " and ".join(SUPPORTED)
        return _absent(f"triton {found} is installed, this adapter was run with {known}", details)
    return {"available": True, "reason": None, "details": {"found": found, "supported": list(SUPPORTED)}}


def _absent(reason: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"available": False, "reason": reason, "details": details}
