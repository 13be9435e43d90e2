"""The types of the built-in functions, made from the schemas in the op table.

    python tests/stubs.py      writes python/tensorplay/functions.pyi anew

Nothing here decides what a function takes: that is its schema. The few functions written in Python keep their own
annotations.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

from tensorplay import _native, functions

PATH = Path(functions.__file__).with_suffix(".pyi")
COLUMNS = 110

_HEAD = '''\
"""Types of the built-in functions. Made by `python tests/stubs.py` from the schemas of the op table; do not edit."""

from collections.abc import Sequence
from typing import overload

from tensorplay._native import SymInt, Tensor, device, dtype

_Number = bool | int | float
_Size = int | SymInt
_DType = dtype
'''

# Schema type -> type of the argument; `?` adds None. `T[1]` takes a single T too.
_TYPES = {
    "Tensor": "Tensor",
    "Scalar": "_Number",
    "int": "int",
    "SymInt": "_Size",
    "float": "float",
    "bool": "bool",
    "ScalarType": "_DType",
    "Device": "device | str",
}


def page() -> str:
    """The whole stub."""
    return _formatted(_HEAD + "\n".join(_lines()) + "\n")


def public() -> dict[str, Any]:
    """The public functions by name, in the order of their definition."""
    return {n: f for n, f in vars(functions).items() if not n.startswith("_") and _is_function(f)}


def _is_function(value: object) -> bool:
    if isinstance(value, BuiltinFunctionType):
        return isinstance(value.__self__, _native.CustomOpDef)
    return inspect.isfunction(value) and value.__module__ == functions.__name__


def _lines() -> Iterator[str]:
    first: dict[int, str] = {}
    for name, function in public().items():
        known = first.setdefault(id(getattr(function, "__self__", function)), name)
        if known != name:
            yield f"{name} = {known}"
        elif inspect.isfunction(function):
            annotated = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
            yield f"def {name}{annotated}: ...".replace(": dtype,", ": _DType,")
        else:
            yield from _definitions(name, function.__self__)


def _definitions(name: str, op: Any) -> Iterator[str]:
    overloads = [full for full in _native.op_overloads(op) if not _apart(full)]
    for full in overloads:
        if len(overloads) > 1:
            yield "@overload"
        schema = _native.Schema.parse(_native.op_info(full)["schema"])
        assert [r["type"] for r in schema.returns] == ["Tensor"], full
        yield f"def {name}({', '.join(_parameters(schema.arguments))}) -> Tensor: ..."


def _apart(full: str) -> bool:
    """Whether the overload has the parameters of the unnamed one, so that it is reached by its own name alone."""
    base = full.partition(".")[0]
    parameters = [_native.Schema.parse(_native.op_info(f)["schema"]).arguments for f in (full, base)]
    return full != base and parameters[0] == parameters[1]


def _parameters(arguments: list[dict[str, Any]]) -> Iterator[str]:
    keyword_only = False
    for argument in arguments:
        if argument["kwarg_only"] and not keyword_only:
            keyword_only = True
            yield "*"
        default = f" = {_default(argument['default'])}" if argument["has_default"] else ""
        yield f"{argument['name']}: {_type(argument['type'])}{default}"


def _default(text: str) -> str:
    """A default of a schema as Python text: `0.` is written `0.0`."""
    return f"{text}0" if text.endswith(".") else text


def _type(text: str) -> str:
    optional = text.endswith("?")
    bare = text.removesuffix("?").replace("(a)", "")
    if bare.endswith("]"):
        item, _, size = bare.removesuffix("]").partition("[")
        inner = _TYPES[item.removesuffix("?")] + (" | None" if item.endswith("?") else "")
        found = f"{inner} | Sequence[{inner}]" if size else f"Sequence[{inner}]"
    else:
        found = _TYPES[bare]
    return f"{found} | None" if optional else found


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={COLUMNS}"]
    command.append("--stdin-filename=functions.pyi")
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    PATH.write_text(page())
