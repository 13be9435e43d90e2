"""Can Triton be used here: is it installed in a version that this adapter was run with, and is there a GPU to launch on?

Lives here: a probe that reads package metadata only. Compiling to a cubin and interpreting need no GPU: where the
package is there and the device is not, `details` say so, and the reason says why nothing can be launched.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from tensorplay.backends import base
from tensorplay.outcome import how_to_install

SUPPORTED = ("3.6", "3.9")


def probe() -> dict[str, Any]:
    """`{"available", "reason", "details"}`; the reason names what is missing and the way out.

    `details` has "compiles" and "launches"; "needs" names the capability that launching waits for.
    """
    try:
        found = metadata.version("triton")
    except metadata.PackageNotFoundError:
        details = {"kind": "BackendUnavailable", "missing": "triton", "found": None}
        return base.absent(f"triton is not installed; {how_to_install('triton')}", details)
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        details = {"kind": "VersionUnpinned", "package": "triton", "found": found}
        known = " and ".join(SUPPORTED)
        reason = f"triton {found} is installed, this adapter was run with {known}"
        return base.absent(f"{reason}; {how_to_install('triton')} pins it", details)
    facts: dict[str, Any] = {"found": found, "supported": list(SUPPORTED), "compiles": True}
    cuda = base.capability("cuda")
    if not cuda.available:
        details = facts | {"kind": "BackendUnavailable", "launches": False, "needs": "cuda"}
        return base.absent(
            f"triton {found} compiles kernels to cubins here, and cannot launch them: {cuda.reason}", details
        )
    return {"available": True, "reason": None, "details": facts | {"launches": True}}
