"""From a scalar program to machine code in this process.

Lives here: the stages, the compile lock and the in-memory cache.
Not here: loading tvm (`host`) and building the loop nest (`kernel`).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from . import disk, host, kernel
from . import layout as layouts
from .artifact import ArgSpec, Artifact, LoweringError
from .options import adapted
from .probe import probe
from .program import Program, guarded, output_dtypes, text
from .support import supports

# A live kernel holds about a megabyte.
_CAPACITY = 256
# Alias metadata is named after heap addresses of the compiler; the code does not depend on them.
_ADDRESS = re.compile(r'"0x[0-9a-f]+"')
# A function object of the runtime: a 24-byte header, then its C entry point.
_ENTRY_OFFSET = 24


class _Cache:
    """Artifacts by content, least recently used dropped first; one compilation at a time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.compiling = threading.Lock()
        self._guard = threading.Lock()
        self._items: OrderedDict[str, Artifact] = OrderedDict()

    def get(self, key: str) -> Artifact | None:
        with self._guard:
            if key in self._items:
                self._items.move_to_end(key)
                return dataclasses.replace(self._items[key], cached=True, seconds=0.0)
        return None

    def put(self, key: str, artifact: Artifact) -> None:
        with self._guard:
            self._items[key] = artifact
            while len(self._items) > _CAPACITY:
                self._items.popitem(last=False)


_cache = _Cache()
# A fork may happen while another thread holds a lock that no thread of the child will release.
os.register_at_fork(after_in_child=_cache.reset)


def lower(program: Program, layout: dict[str, Any], options: Mapping[str, Any] | None = None) -> Artifact:
    """Compiles `program` for operands that lie as `layout` says, as `options` want it; LoweringError when it cannot."""
    refusal = supports(program)
    if refusal is not None:
        raise LoweringError(refusal["kind"], "supports", refusal["message"], refusal["details"])
    with _stage("layout"):
        parsed = layouts.parse(layout, len(program["inputs"]))
    with _stage("probe"):
        target, versions = _setting()
    # Only what changes the code: how long loops are split is no business of the kernel's.
    wanted = {name: value for name, value in (options or {}).items() if name != "parallel" and value}
    key = _digest(text(program), parsed.text, target, versions, repr(sorted(wanted.items())))
    found = _cache.get(key)
    if found is not None:
        return found
    with _cache.compiling:
        found = _cache.get(key)
        if found is None:
            found = _from_disk(program, parsed, key)
            if found is None:
                machine = _machine()
                with _stage("target"):
                    machine = adapted(machine, wanted)
                found = _compile(program, parsed, machine, key)
            _cache.put(key, found)
    return found


def _setting() -> tuple[str, str]:
    """Target and versions that code is made for: noted on disk, or asked of the compiler."""
    machine = host.loaded()
    if machine is not None:
        return machine.target_text, machine.versions
    noted = disk.target()
    if noted is not None and probe()["available"]:
        return noted, host.versions()
    with _cache.compiling:
        machine = _machine()
    return machine.target_text, machine.versions


def _machine() -> host.Host:
    """The compiler, imported if need be; the caller holds the lock."""
    machine = host.loaded()
    if machine is None:
        with _stage("import"):
            machine = host.load()
        disk.note_target(machine.target_text)
    return machine


def _from_disk(program: Program, layout: layouts.Layout, key: str) -> Artifact | None:
    start = time.perf_counter()
    found = disk.load(_digest(key, disk.setting()), f"tp_{key[:16]}")
    if found is None:
        return None
    address, library, description = found
    return Artifact(
        address=address,
        handle=0,
        hash=description["hash"],
        target=description["target"],
        seconds=time.perf_counter() - start,
        argspec=_argspec(program, layout),
        proof=description["proof"],
        owner=library,
        cached=True,
    )


def _argspec(program: Program, layout: layouts.Layout) -> ArgSpec:
    return ArgSpec(len(program["inputs"]), len(program["outputs"]), layout.ints, int(guarded(program)))


def _compile(program: Program, layout: layouts.Layout, machine: host.Host, key: str) -> Artifact:
    start = time.perf_counter()
    tvm, name = machine.tvm, f"tp_{key[:16]}"
    with _stage("build"):
        func = kernel.build(tvm, program, layout, name, machine.has_fma)
    # Asserts would check argument types per call, which the caller has done for the whole plan.
    config = {"tirx.disable_assert": True}
    with _stage("compile"), tvm.transform.PassContext(opt_level=3, config=config):
        executable = tvm.compile(func, target=machine.target, tir_pipeline=host.PIPELINE)
        code = executable.mod.inspect_source("ll")
    digest = _digest(key, _ADDRESS.sub('""', code))
    proof = f"tvm {digest[:16]} {re.sub(' -mattr=[^ ]*', '', machine.target_text)}"
    described = {"hash": digest, "target": machine.target_text, "proof": proof, "program": _summary(program)}
    with _stage("link"):
        address, handle, owner = _linked(executable, name, key, described)
    if not address:
        raise LoweringError("LoweringFailed", "link", "the runtime gave no entry point")
    return Artifact(
        address=address,
        handle=handle,
        hash=digest,
        target=machine.target_text,
        seconds=time.perf_counter() - start,
        argspec=_argspec(program, layout),
        proof=proof,
        owner=owner,
    )


def _linked(executable: Any, name: str, key: str, described: dict[str, Any]) -> tuple[int, int, Any]:
    """Entry point, handle and owner of the machine code.

    That is generated once: to a file, which is loaded as a later process will load it, or in memory where there is no
    file to be had.
    """
    at = _digest(key, disk.setting())
    if disk.store(at, executable.mod, described):
        found = disk.load(at, name)
        if found is not None:
            address, library, _ = found
            return address, 0, library
    function = executable[name]
    handle = _handle(function)
    return ctypes.c_void_p.from_address(handle + _ENTRY_OFFSET).value or 0, handle, function


def _summary(program: Program) -> str:
    outputs = ", ".join(output_dtypes(program))
    return f"({', '.join(program['inputs'])}) -> ({outputs}), {len(program['instrs'])} instructions"


def _handle(function: Any) -> int:
    handle = function.__chandle__()
    return int(getattr(handle, "value", handle))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextlib.contextmanager
def _stage(name: str) -> Iterator[None]:
    """Any failure inside becomes a LoweringError that names the stage."""
    try:
        yield
    except LoweringError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = lines[-1] if lines else type(error).__name__
        raise LoweringError("LoweringFailed", name, message, {"exception": type(error).__name__}) from error
