"""Captured programs: what a function does, as a graph that can be read, checked and drawn.

``capture`` runs a function on tensors without data: every operator call becomes exactly one node, and no kernel body
runs. ``str(graph)`` is a text that ``parse`` reads back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from tensorplay import _arguments, _native, _program, _stored
from tensorplay._triton_op import watch_launches
from tensorplay.outcome import Record, TensorSpec

__all__ = [
    "Graph",
    "Node",
    "TensorSpec",
    "ValueSpec",
    "capture",
    "from_json",
    "load",
    "parameter_names",
    "parse",
    "save",
]

Graph = _native.Graph


@dataclass(frozen=True, slots=True)
class ValueSpec(Record):
    """An output that is no tensor: the name of its type (``"int"``, ``"list[float]"``), and the value that the fake rule
    gave, a list as a tuple; None where it gave none.
    """

    type: str
    value: Any = None

    def __str__(self) -> str:
        return self.type if self.value is None else f"{self.type} is {self.value}"


@dataclass(frozen=True, slots=True)
class Node(Record):
    """One operator call of a graph.

    ``target`` is ``"ns::op.overload"`` (``.default`` when unnamed); ``inputs`` and ``outputs`` name values (``"%3"``) or
    literals; ``location`` is the user's ``file:line``; ``spec`` holds one entry per output. A node of control flow holds its
    ``blocks``, two graphs: true and false of ``"tp::cond"``, cond and body of ``"tp::while_loop"``.
    """

    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    effects: tuple[str, ...]
    location: str | None
    spec: tuple[TensorSpec | ValueSpec, ...]
    blocks: tuple[Graph, ...] = ()

    def __str__(self) -> str:
        outputs = ", ".join(self.outputs)
        return f"{outputs} = {self.target}({', '.join(self.inputs)})"


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters of ``fn`` as far as they are known; empty for builtins."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def capture(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """Capture the forward graph of ``fn(*args, **kwargs)``.

    Tensors that ``fn`` reaches through closures, globals or attributes become inputs marked ``lifted``. Raises
    ``CaptureError`` with the user's line for what cannot be captured: reading a tensor's value, or an operator
    without a fake rule.
    """
    _arguments.function("capture", "fn", fn)
    watch_launches()
    return _native.capture_function(fn, args, kwargs or None, parameter_names(fn))


def parse(text: str) -> Graph:
    """Read the text form of a graph; ``GraphError`` with line and column where it is none."""
    return _native.parse_graph(text)


def _repr_html_(graph: Graph) -> str:
    return f"<pre>{escape(graph.text())}</pre>"


def save(graph: Graph, path: Any) -> None:
    """Write a captured program to a safetensors file: its graph, the schemas of its ops, and its constants.

    Constants are the tensors that the function reached on its own. GraphError for a graph without their data (one that
    was read from text), OSError where the file cannot be written.
    """
    _arguments.instance("save", "graph", graph, Graph, "a Graph")
    _stored.save(graph, path)


def load(path: Any) -> Graph:
    """Read a program that ``save`` wrote. No code of the file runs.

    The graph is checked by the verifier, and its ops against those that are defined here: GraphError lists all that are
    missing, with the schemas that the program was captured with. What is no such file is a GraphError too.
    """
    return _stored.load(path)


def from_json(text: str) -> Graph:
    """Read what ``Graph.to_json`` wrote, with the checks of ``load``. The graph has no constants: pass them as inputs."""
    return _stored.from_json(_arguments.string("from_json", "text", text))


def _print(graph: Graph) -> None:
    """Print the text of the graph."""
    print(graph.text())  # noqa: T201  (that is what it is for)


# The class lives in the extension.
for _name, _member in (
    ("_repr_html_", _repr_html_),
    ("__call__", _program.call),
    ("code", _program.code),
    ("print", _print),
    ("to_json", _stored.to_json),
    ("save_repro", _stored.save_repro),
):
    setattr(Graph, _name, _member)


def __dir__() -> list[str]:
    return sorted(__all__)
