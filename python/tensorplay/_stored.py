"""Captured programs outside of the process: JSON text, safetensors files, and a script that shows one.

Reading runs no code. What is read is checked: its form, the ops that it calls against those that are defined here, and the
rules of a graph by the verifier. Not here: running a graph (`_program`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorplay import _native, functions
from tensorplay._native import Graph, Tensor
from tensorplay._program import captured, resolve, targets, type_text
from tensorplay.errors import GraphError, TensorPlayError

__all__ = ["from_json", "load", "save", "save_repro", "to_json"]

FORMAT = "tensorplay.graph"
VERSION = 1
_KEY = "tensorplay.graph"
_HELD = ("lifted", "constant")
"""The kinds of inputs whose tensors the graph holds."""


def _schemas(graph: Graph) -> dict[str, str]:
    """The schema of each op that the graph calls, by its full name."""
    found: dict[str, str] = {}
    for target in sorted(targets(graph._structure())):
        found.setdefault(target, str(resolve(target).schema))
    return found


def to_json(graph: Graph) -> str:
    """The graph as JSON text, without the data of its constants: its text, the schemas of its ops, its nodes in order."""
    nodes = [
        {"target": n.target, "inputs": list(n.inputs), "outputs": list(n.outputs), "effects": list(n.effects)}
        for n in graph.nodes
    ]
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "text": graph.text(),
        "ops": _schemas(graph),
        "nodes": nodes,
        "outputs": graph.outputs,
    }
    return json.dumps(whole, indent=1)


def _broken(what: str) -> GraphError:
    return GraphError(f"this is no saved program: {what}", code="TP5005")


def from_json(text: str) -> Graph:
    """The graph that `to_json` wrote, checked by the verifier; it has no constants."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(f"it is no JSON ({error})") from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise _broken(f"its format is not {FORMAT!r}")
    version, body, ops = whole.get("version"), whole.get("text"), whole.get("ops")
    if type(version) is not int or version != VERSION:
        raise _broken(f"its version is {version!r}, this tensorplay reads {VERSION}")
    if (
        not isinstance(body, str)
        or not isinstance(ops, dict)
        or not all(isinstance(s, str) for s in ops.values())
    ):
        raise _broken("it lacks the text of a graph or the schemas of its ops")
    graph = _native.parse_graph(body)
    _check_ops(targets(graph._structure()), ops)
    violations = graph.verify()
    if violations:
        raise GraphError("the program breaks rules of its form", code="TP5002", notes=tuple(violations[:20]))
    return graph


def _check_ops(targets: set[str], schemas: dict[str, str]) -> None:
    """All that is missing or otherwise at once, with the schemas that the program was captured with."""
    untold = sorted(targets - schemas.keys())
    if untold:
        raise _broken(f"it lacks the schemas of {', '.join(untold)}")
    missing, other = [], []
    for target in sorted(targets):
        wanted = schemas[target]
        op = _native.get_op(target)
        if op is None:
            missing.append(wanted)
        elif str(op.schema) != wanted:
            other.append(f"{wanted} is {op.schema} here")
    if missing:
        raise GraphError(
            f"ops that the program calls are not defined here: {'; '.join(missing)}",
            code="TP5006",
            notes=("import the modules that define them, then load it again", *other),
        )
    if other:
        raise GraphError(
            f"ops that the program calls have other schemas here: {'; '.join(other)}",
            code="TP5006",
            notes=("import the version that the program was captured with, or capture it again",),
        )


def save(graph: Graph, path: Any) -> None:
    """Writes the graph and its constants to a safetensors file."""
    constants = graph.constants
    lifted = [name for _, name, kind in graph._structure()["inputs"] if kind in _HELD]
    if len(lifted) != len(constants):
        raise GraphError(
            f"the graph has no data for {', '.join(lifted)}, which its function reached on its own",
            code="TP5005",
            notes=("save what capture() gave, not what was read from its text",),
        )
    # Two that share memory are one in the program that ran; a file cannot say so, and nothing tells unless one is written.
    written = any("mutates" in node.effects for node in graph.nodes)
    header = graph.text().partition(" {\n")[0]
    if written and constants and " shares %" in header:
        raise GraphError(
            "the program writes to memory that its constants and arguments share, which a file cannot say",
            code="TP5005",
            notes=("let the function reach a clone",),
        )
    tensors = constants if written else {name: functions.clone(t.detach()) for name, t in constants.items()}
    _native.save(path, tensors, metadata={_KEY: to_json(graph)})


def load(path: Any) -> Graph:
    """The graph of a file that `save` wrote, with its constants."""
    try:
        metadata, tensors = _native.load_metadata(path), _native.load(path)
    except TensorPlayError as error:
        raise _broken(str(error)) from error
    if _KEY not in metadata:
        raise _broken("the file holds tensors alone")
    graph = from_json(metadata[_KEY])
    parts = graph._structure()
    lifted = {f"%{number}": parts["types"][number] for number, _, kind in parts["inputs"] if kind in _HELD}
    if lifted.keys() != tensors.keys():
        raise _broken(f"the graph needs the tensors {sorted(lifted)}, the file holds {sorted(tensors)}")
    made = []
    for name, kind in lifted.items():
        dtype, sizes, *_ = kind
        tensor = tensors[name]
        if tensor.dtype.name != dtype or [str(n) for n in tensor.shape] != list(sizes):
            raise _broken(f"{name} is {tensor.dtype.name}{list(tensor.shape)}, not {type_text(kind)}")
        made.append(_laid_out(tensor, kind))
    return graph._with_constants(made)


def _laid_out(tensor: Tensor, kind: Any) -> Tensor:
    """The same values with the strides of the type, where they can be given: they are no part of what is computed."""
    if not all(text.lstrip("-").isdigit() for text in kind[2]):
        raise _broken(f"a constant is {type_text(kind)}, strides [{', '.join(kind[2])}]")
    shape, strides = list(tensor.shape), [int(text) for text in kind[2]]
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
    # Not an expanded tensor, nor one that lies backwards, nor a view far into other memory.
    fits = bool(tensor.size) and min(strides, default=0) > 0 and reach <= 2 * tensor.size + 1024
    if list(tensor.stride()) == strides or not fits:
        return tensor
    try:
        return functions.empty_strided(shape, strides, dtype=tensor.dtype).copy_(tensor)
    except TensorPlayError:
        # Elements that share a place.
        return tensor


# --- scripts ----------------------------------------------------------------------------------------

_SCRIPT = '''"""A captured program with random inputs of the shapes that it was captured for. Written by Graph.save_repro."""

import numpy as np

import tensorplay as tp
{imports}
PROGRAM = r"""
{program}"""


def random(shape, dtype, seed):
    """Normal numbers; 0 and 1 of dtypes that hold none, so that they are indices too."""
    draw = np.random.default_rng(seed)
    whole = not dtype.startswith(("float", "bfloat"))
    values = draw.integers(0, 2, shape) if whole else draw.standard_normal(shape)
    return tp.astype(tp.asarray(np.asarray(values)), getattr(tp, dtype))


def strided(values, strides):
    """The same values with these strides, where they can be given."""
    if not strides or min(strides) <= 0 or tuple(values.stride()) == tuple(strides):
        return values
    return tp.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)


graph = tp.graph.parse(PROGRAM)
assert graph.verify() == [], graph.verify()


def inputs():
    return [
{inputs}    ]


if __name__ == "__main__":
    eager = graph(*inputs())
    compiled = tp.compile(graph)(*inputs())
    print("eager   ", eager)
    print("compiled", compiled)
'''


def save_repro(graph: Graph, path: Any) -> None:
    """Writes a script that runs the graph on random inputs of the same shapes, eager and compiled."""
    parts = graph._structure()
    builtin = ("tp::", "tensorplay::")
    custom = sorted(target for target in targets(parts) if not target.startswith(builtin))
    imports = [f"# It calls {name}: import what defines it here.\n" for name in custom]
    lines = []
    frame = captured(parts)
    for seed, (number, name, _) in enumerate(parts["inputs"]):
        dtype, sizes, strides, _ = parts["types"][number]
        shape, steps = ([frame.number(n) for n in texts] for texts in (sizes, strides))
        made = f"strided(random({tuple(shape)}, {dtype!r}, {seed}), {tuple(steps)})"
        lines.append(f"        {made},  # {name!a}\n")
    # A raw string holds every text but its own quotes, which the text of a graph writes between double quotes only.
    body = graph.text()
    if '"""' in body or body.endswith("\\"):
        raise GraphError("a text in the graph holds three quotes", code="TP5005")
    text = _SCRIPT.format(imports="".join(imports), program=body, inputs="".join(lines))
    Path(path).write_text(text, encoding="utf-8")
