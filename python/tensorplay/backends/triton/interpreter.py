"""Triton's interpreter as a checker: an op's Triton kernel on CPU tensors, in a process of its own.

Lives here: the tensor that the interpreter sees, and the process that runs one call. The mode is chosen when triton is
imported, for the whole process, and so the caller's process is never switched. Not here: comparing results.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from tensorplay import _native
from tensorplay._jit import kernel_name
from tensorplay.backends import base
from tensorplay.errors import ArgumentError, ContractError

__all__ = ["launch", "run_op"]

_SCALARS = (bool, int, float, str, type(None))


class Storage:
    """The memory behind a tensor, as Triton's interpreter asks for it: already on the host."""

    def __init__(self, tensor: _native.Tensor) -> None:
        self._tensor = tensor

    def data_ptr(self) -> int:
        """Address of the tensor's first element; only used to tell memories apart."""
        return self._tensor.data_ptr()

    def cpu(self) -> Storage:
        """Itself: nothing has to be copied to be read."""
        return self

    def copy_(self, other: Storage) -> None:
        """Nothing: the kernel wrote to this very memory."""


class HostTensor:
    """What Triton's interpreter needs of a tensor, over a tensorplay tensor on the CPU."""

    def __init__(self, tensor: _native.Tensor) -> None:
        self._tensor = tensor

    @property
    def dtype(self) -> _native.dtype:
        """The element type; its name is what Triton reads."""
        return self._tensor.dtype

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self._tensor.data_ptr()

    def untyped_storage(self) -> Storage:
        """The memory behind it."""
        return Storage(self._tensor)

    def storage_offset(self) -> int:
        """Zero: `data_ptr` includes the offset."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Sizes."""
        return self._tensor.shape

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self._tensor.stride()

    def new_empty(self, size: int, device: str) -> HostTensor:
        """The twin that `set_` is called on: the same memory."""
        return HostTensor(self._tensor)

    def set_(self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        """Nothing: the twin is this tensor already."""


def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """One launch in interpreter mode, in this process."""
    if len(getattr(kernel, "configs", ())) > 1:
        # Tuning needs a device to time on; any configuration computes the same.
        kwargs = {**kwargs, **kernel.configs[0].all_kwargs()}
        kernel = kernel.fn
    kernel[grid](*[_host(a, kernel) for a in args], **{k: _host(v, kernel) for k, v in kwargs.items()})


def _host(value: Any, kernel: Any) -> Any:
    if not isinstance(value, _native.Tensor):
        return value
    if value.dtype is _native.bfloat16:
        raise ArgumentError(
            f"Triton's interpreter computes bfloat16 on bit patterns: {kernel_name(kernel)} cannot be checked with it",
            code="TP2014",
            notes=("use float16 or float32 inputs for this check",),
        )
    return HostTensor(value)


def run_op(op: Any, args: tuple[Any, ...], *, timeout: float = 300.0) -> tuple[list[_native.Tensor], str]:
    """Calls the Triton op `op` on CPU tensors in a process where Triton interprets; its results and the executor.

    The module that defines the op is imported there. Tensors and plain values can be passed.
    """
    base.require("triton", "checking a Triton kernel", part="compiles")
    function = _native.kernel_function(op.name, "cuda")
    if function is None:
        raise ArgumentError(f"{op.name} has no Triton kernel", code="TP2015", op=op.name)
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        raise ArgumentError(
            f"{op.name} is defined in {function.__module__!r}, which another process cannot import",
            code="TP2015",
            op=op.name,
        )
    with tempfile.TemporaryDirectory() as folder:
        tensors = {str(i): a for i, a in enumerate(args) if isinstance(a, _native.Tensor)}
        plain = {str(i): a for i, a in enumerate(args) if isinstance(a, _SCALARS)}
        if len(tensors) + len(plain) != len(args):
            raise ArgumentError("only tensors, numbers and strings can be passed to the check", code="TP2032")
        _native.save(f"{folder}/in", tensors)
        task = {"op": op.name, "module": function.__module__, "file": file, "plain": plain, "path": sys.path}
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        command = [sys.executable, "-m", "tensorplay.backends.triton.interpreter", folder, json.dumps(task)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise ContractError(
                f"{op.name} failed in Triton's interpreter",
                code="TP3210",
                op=op.name,
                notes=(done.stderr[-2000:],),
            )
        found = _native.load(f"{folder}/out")
        return [found[str(i)] for i in range(len(found))], done.stdout.strip()


def _import_author(task: Mapping[str, Any]) -> None:
    """Imports the module that defines the op, under its own name where that is possible."""
    sys.path[:] = task["path"]
    name = task["module"]
    if name != "__main__":
        try:
            importlib.import_module(name)
            return
        except ImportError:
            pass
    spec = importlib.util.spec_from_file_location("tensorplay_checked_module", task["file"])
    if spec is None or spec.loader is None:
        raise ImportError(f"{task['file']} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _main(folder: str, text: str) -> None:
    """The other process: defines the op, calls it, and leaves its results and the executor that ran."""
    task = json.loads(text)
    _import_author(task)
    name = task["op"]
    op, function = _native.get_op(name), _native.kernel_function(name, "cuda")
    if op is None or function is None:
        raise LookupError(f"importing {task['module']} did not define {name} with a Triton kernel")
    at = ("interpreted", task["file"], 0, "triton-interpreter")
    _native.register_kernel(name, ("cpu", function, at, None, (), False))
    tensors = _native.load(f"{folder}/in")
    arguments = {int(k): v for k, v in {**tensors, **task["plain"]}.items()}
    values = [arguments[i] for i in range(len(arguments))]
    sink = _native.TraceSink()
    sink.start()
    result = op(*values)
    sink.stop()
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    written = [v for i, v in enumerate(values) if i in _written(name)]
    kept = [r for r in results if r is not None] + written
    _native.save(f"{folder}/out", {str(i): r.contiguous() for i, r in enumerate(kept)})
    sys.stdout.write(next(e.marker.executor for e in sink.events() if e.op.startswith(name)))


def _written(name: str) -> set[int]:
    arguments = _native.Schema.parse(_native.op_info(name)["schema"]).arguments
    return {i for i, a in enumerate(arguments) if a["mutated"]}


if __name__ == "__main__":
    _main(*sys.argv[1:3])
