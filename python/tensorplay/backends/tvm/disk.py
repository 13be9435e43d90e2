"""Compiled kernels on disk: shared objects that a later process loads without TVM.

Lives here: where they lie, how one is written, found again, listed and removed. Not here: what goes into a key
(`compile`), and how a kernel is made.

A kernel is `KEY.so` with `KEY.json` beside it, written under another name and renamed, so that a process sees a file
whole or not at all. Nothing is loaded but what lies in a folder of the user's own that nobody else can write to, with
the digest that its description gives. Without the linker `ld` nothing is written, and kernels live in memory alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

from .probe import PINNED

# What all kernels together may take; the ones that were not used for longest go first.
LIMIT = 256 << 20
_FLAG_LINES = ("vendor_id", "model name", "flags", "features", "cpu family", "model", "stepping")


def directory() -> Path | None:
    """The folder of kernels, made if need be; None where there is none that is safe."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "tensorplay" / "tvm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):
        return None
    private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private else None


@functools.cache
def setting() -> str:
    """What else a kernel depends on: the packages, this adapter's sources, and the machine as the system tells of it."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = [platform.processor()]
    machine = [line for line in lines if line.partition("\t")[0].strip() in _FLAG_LINES]
    parts = [repr(sorted(PINNED.items())), platform.machine(), platform.system(), *machine]
    return hashlib.sha256("\n".join(parts).encode() + sources).hexdigest()


def target() -> str | None:
    """The compiler's target for this machine as a process before this one noted it."""
    folder = directory()
    note = _read(folder / f"machine-{setting()[:32]}.json") if folder else None
    return note["target"] if note else None


def note_target(text: str) -> None:
    """Notes the target, so that a later process need not ask the compiler."""
    folder = directory()
    if folder is not None:
        _write(folder / f"machine-{setting()[:32]}.json", json.dumps({"target": text}).encode())


def store(key: str, module: Any, description: dict[str, Any]) -> bool:
    """Writes a compiled module; one that cannot be written is no error. Whether it was tried to the end."""
    folder, linker = directory(), shutil.which("ld")
    if folder is None or linker is None:
        return False
    with (
        contextlib.suppress(OSError, subprocess.SubprocessError),
        tempfile.TemporaryDirectory(dir=folder) as work,
    ):
        made, linked = Path(work) / "k.o", Path(work) / "k.so"
        module.write_to_file(str(made), "o")
        subprocess.run([linker, "-shared", "-o", linked, made], check=True, capture_output=True, timeout=60)
        content = linked.read_bytes()
        text = json.dumps(description | {"digest": hashlib.sha256(content).hexdigest()})
        _write(folder / f"{key}.json", text.encode())
        _write(folder / f"{key}.so", content)
        _shrink(folder)
        return True
    return False


def load(key: str, name: str) -> tuple[int, Any, dict[str, Any]] | None:
    """Address of the kernel, what keeps it loaded, and its description; None where it is not there as it was written."""
    folder = directory()
    description = _read(folder / f"{key}.json") if folder else None
    if folder is None or description is None:
        return None
    path = folder / f"{key}.so"
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() != description["digest"]:
            return None
        os.utime(path)
        # Kernels call its functions, and were linked to no library.
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
        function = getattr(library, f"__tvm_ffi_{name}")
    except (OSError, AttributeError, KeyError):
        return None
    # Its code goes with the last who holds it, but not at exit, where a thread may still be inside.
    weakref.finalize(library, _close, library._handle).atexit = False
    return ctypes.cast(function, ctypes.c_void_p).value or 0, library, description


def _close(handle: int) -> None:
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))


def entries() -> list[dict[str, Any]]:
    """What is there: key, bytes, time of the last use, target and program of each, the latest first."""
    folder = directory()
    found = []
    for path in folder.glob("*.so") if folder else ():
        with contextlib.suppress(OSError):
            facts = path.stat()
            found.append(
                {"key": path.stem, "bytes": facts.st_size, "used": facts.st_mtime}
                | (_read(path.with_suffix(".json")) or {})
            )
    return sorted(found, key=lambda entry: -entry["used"])


def purge() -> int:
    """Removes all kernels and notes; how many kernels there were. Processes that have loaded one keep it."""
    folder = directory()
    count = 0
    for path in [*folder.glob("*.so"), *folder.glob("*.json")] if folder else ():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            count += path.suffix == ".so"
    return count


def _shrink(folder: Path) -> None:
    with os.scandir(folder) as files, contextlib.suppress(OSError):
        if sum(file.stat().st_size for file in files if file.name.endswith(".so")) <= LIMIT:
            return
    total = 0
    for entry in entries():
        total += entry["bytes"]
        if total > LIMIT:
            for suffix in (".so", ".json"):
                (folder / entry["key"]).with_suffix(suffix).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing, whoever reads or writes the same file meanwhile."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
