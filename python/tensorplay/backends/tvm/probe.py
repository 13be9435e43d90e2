"""Is the TVM backend usable on this machine?

Lives here: the pinned versions and a probe that reads package metadata only.
Not here: importing tvm, which costs a second and is left to the first compilation.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from tensorplay.backends import base
from tensorplay.outcome import how_to_install

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"}
_WAY_OUT = how_to_install("tvm")


def _found(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def probe() -> dict[str, Any]:
    """`{"available", "reason", "details"}`; the reason names the package and the way out."""
    found = {package: _found(package) for package in PINNED}
    details: dict[str, Any] = {"found": found, "pinned": dict(PINNED)}
    for package, version in found.items():
        if version is None:
            details |= {"kind": "BackendUnavailable", "missing": package}
            return base.absent(f"{package} is not installed; {_WAY_OUT}", details)
    for package, version in found.items():
        if version != PINNED[package]:
            details |= {"kind": "VersionUnpinned", "package": package}
            reason = f"{package} {version} is installed, this backend is written for {PINNED[package]}"
            return base.absent(f"{reason}; {_WAY_OUT} pins it", details)
    return {"available": True, "reason": None, "details": details}
