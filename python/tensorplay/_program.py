"""A captured graph as a program: run over tensors, and as Python source.

Nothing of a graph that was read is evaluated as code: its nodes are calls of ops that are defined here, by name. Not here:
the graph's text and its verifier (the extension), files (`_stored`).
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorplay import _arguments, _native
from tensorplay._control import cond, while_loop
from tensorplay._expressions import evaluate, symbols
from tensorplay._native import Graph, Tensor
from tensorplay.errors import ContractError, GraphError, InvalidValueError

__all__ = ["call", "captured", "code", "resolve", "targets", "type_text"]

_UNBOUNDED = 2**63 - 1
"""No size is this large."""


# --- calls ------------------------------------------------------------------------------------------


def call(graph: Graph, *args: Any) -> Any:
    """The outputs of the graph for these tensors: its arguments in order, and then, unless the graph holds them, what it
    lifted.
    """
    violations = graph.verify()
    if violations:
        raise GraphError(
            f"the graph breaks a rule: {violations[0]}", code="TP5002", notes=tuple(violations[1:])
        )
    parts = graph._structure()
    frame = _Frame(parts)
    for (number, name, _), (value, held) in zip(parts["inputs"], _inputs(graph, parts, args), strict=True):
        frame.take(number, name, value, held)
    frame.hold()
    results = frame.run()
    return results[0] if len(results) == 1 else tuple(results)


def targets(parts: dict[str, Any]) -> set[str]:
    """The ops that a graph calls, in blocks too."""
    found = {target for i, (target, *_) in enumerate(parts["nodes"]) if i not in parts["blocks"]}
    return found.union(*(targets(block) for blocks in parts["blocks"].values() for block in blocks))


def _inputs(graph: Graph, parts: dict[str, Any], args: tuple[Any, ...]) -> list[tuple[Any, bool]]:
    """One value per input, and whether the graph holds it: what was passed, and the constants."""
    constants = graph.constants
    wanted = [i for i in parts["inputs"] if f"%{i[0]}" not in constants]
    if len(args) != len(wanted):
        names = ", ".join(f"{name}: {type_text(parts['types'][number])}" for number, name, _ in wanted)
        raise GraphError(
            f"the graph takes {len(wanted)} tensors, got {len(args)}",
            code="TP5007",
            notes=(f"they are {names}",),
        )
    given = iter(args)
    held = [constants.get(f"%{number}") for number, *_ in parts["inputs"]]
    return [(next(given), False) if tensor is None else (tensor, True) for tensor in held]


def type_text(kind: Any) -> str:
    """The type of a tensor as the graph's text has it."""
    dtype, sizes, _, device = kind
    return f"{dtype}[{', '.join(sizes)}]" + ("" if device == "cpu" else f" on {device}")


class _Frame:
    """One run: the values so far, and what the symbols stand for."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts
        self.values: dict[int, Any] = {}
        self.sizes: dict[str, int] = {}

    def take(self, number: int, name: str, value: Any, held: bool) -> None:
        """An input, held to its type. Strides of arguments count: the function may have asked for them."""
        dtype, sizes, strides, device = kind = self.parts["types"][number]
        if not isinstance(value, Tensor):
            raise GraphError(f"{name} is a {type(value).__name__}, not a tensor", code="TP5007")
        same = value.dtype.name == dtype and str(value.device) == device and value.ndim == len(sizes)
        if same and self._shows(sizes, value.shape) and (held or _lies(value, strides, self)):
            self.values[number] = value
            return
        got = f"{value.dtype.name}{list(value.shape)}, strides {list(value.stride())}, on {value.device}"
        raise GraphError(
            f"{name} is {got}; the graph was captured for {type_text(kind)}, strides [{', '.join(strides)}]",
            code="TP5007",
            notes=tuple(statement for statement, symbol in _ranges(self.parts) if symbol in sizes),
        )

    def hold(self) -> None:
        """What the capture took to hold of the sizes of the inputs. A backward may have symbols that none of them shows."""
        for statement in self.parts["guards"]:
            name, _, number = statement.partition(" == ")
            if name.isidentifier() and name not in self.sizes and number.lstrip("-").isdigit():
                self.sizes[name] = int(number)
        for statement in self.parts["guards"]:
            if symbols(statement) <= self.sizes.keys() and not self.number(statement):
                known = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
                raise GraphError(
                    f"the graph was captured for sizes with {statement}", code="TP5007", notes=(known,)
                )

    def run(self) -> list[Any]:
        """The outputs, once the inputs are there."""
        for i, (target, given, outputs, _) in enumerate(self.parts["nodes"]):
            if i in self.parts["blocks"]:
                self.choose(target, given, outputs[0], self.parts["blocks"][i])
            else:
                self.step(target, given, outputs)
        self.confirm()
        return [self.value(operand) for operand in self.parts["outputs"]]

    def choose(self, target: str, given: list[Any], outputs: list[int], blocks: list[dict[str, Any]]) -> None:
        """A node of control flow."""

        def block(parts: dict[str, Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
            inner = _Frame(parts)
            inner.sizes |= self.sizes
            for (number, name, _), value in zip(parts["inputs"], inputs, strict=True):
                inner.take(number, name, value, True)
            return tuple(inner.run())

        first, second = blocks
        results: tuple[Any, ...]
        if target == "tp::cond":
            pred, operands = map(self.value, given)
            results = cond(
                pred, lambda *inputs: block(first, inputs), lambda *inputs: block(second, inputs), operands
            )
        else:
            carried, captured = map(self.value, given)
            results = while_loop(
                lambda *inputs: block(first, (*inputs, *captured))[0],
                lambda *inputs: block(second, (*inputs, *captured)),
                carried,
            )
        for number, result in zip(outputs, results, strict=True):
            self._keep(target, number, result)

    def step(self, target: str, given: list[Any], outputs: list[Any]) -> None:
        op = resolve(target)
        positional, named = _operands(op, given, self.value)
        made = op(*positional, **named)
        results = (made,) if len(outputs) == 1 else made if isinstance(made, (tuple, list)) else ()
        if len(results) != len(outputs) and outputs:
            raise ContractError(f"{target} returned {len(results)} values, not {len(outputs)}", code="TP3201")
        for output, result in zip(outputs, results, strict=False):
            if isinstance(output, list):
                if len(result) != len(output):
                    what = f"a list of {len(result)} tensors, the graph has {len(output)}"
                    raise ContractError(f"{target} returned {what}", code="TP3205")
                for number, tensor in zip(output, result, strict=True):
                    self._keep(target, number, tensor)
            else:
                self._keep(target, output, result)

    def _keep(self, target: str, number: int, result: Any) -> None:
        """An output, held to what the fake rule promised of it: later nodes rely on that."""
        kind = self.parts["types"][number]
        self.values[number] = result
        if kind is None:
            return
        if kind[0] in ("literal", "list", "size"):
            promised = self.value(kind)
            if not _equal(result, promised):
                what = f"is {result!r}, the fake rule promised {promised!r}"
                raise ContractError(f"an output of {target} {what}", code="TP3205")
            return
        dtype, sizes, _, device = kind
        same = isinstance(result, Tensor) and result.dtype.name == dtype and str(result.device) == device
        if not same or result.ndim != len(sizes) or not self._shows(sizes, result.shape):
            got = f"{result.dtype.name}{list(result.shape)}" if isinstance(result, Tensor) else repr(result)
            what = f"is {got}, the fake rule promised {type_text(kind)}"
            raise ContractError(f"an output of {target} {what}", code="TP3205")

    def _shows(self, sizes: tuple[str, ...], shape: Any) -> bool:
        """Whether a shape is the promised one; a symbol that is shown for the first time gets its value."""
        for text, size in zip(sizes, shape, strict=True):
            if text.isidentifier() and text not in self.sizes:
                # Symbolic itself where this is captured.
                self.sizes[text] = size
                low, high = next(
                    ((a, b) for name, a, b in self.parts["sizes"] if name == text), (0, _UNBOUNDED)
                )
                # A size that is known to a run alone was held to its range by the op that it comes from.
                if not _is_open(size) and not (low <= size and (high >= _UNBOUNDED or size <= high)):
                    return False
            elif self.number(text) != size:
                return False
        return True

    def value(self, operand: Any) -> Any:
        """What an operand is in this run."""
        kind, what = operand
        if kind == "value":
            return self.values[what]
        if kind == "list":
            return [self.value(item) for item in what]
        return self.number(what) if kind == "size" else what

    def number(self, text: str) -> Any:
        """An expression over the symbols."""
        return int(text) if text.lstrip("-").isdigit() else evaluate(text, self.sizes)

    def confirm(self) -> None:
        """The checks of the program."""
        for statement, message in self.parts["checks"]:
            if not symbols(statement) <= self.sizes.keys():
                continue  # a branch that does not run, or the one around this, has its sizes
            holds = self.number(statement)
            if isinstance(holds, _native.SymBool):
                _native.check(holds, message)
            elif not holds:
                known = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
                raise GraphError(message or f"the check {statement} fails", code="TP5007", notes=(known,))


def captured(parts: dict[str, Any]) -> _Frame:
    """A run of no values with the sizes of the capture, and small ones for those that only a run knows."""
    frame = _Frame(parts)
    frame.sizes |= parts["hints"]
    frame.sizes |= {name: max(low, min(3, high)) for name, low, high in parts["sizes"] if name[0] == "u"}
    return frame


def _is_open(size: Any) -> bool:
    """Whether a size is known to runs alone: under capture those of inputs say that they are ints."""
    return not isinstance(size, int)


def _ranges(parts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Statements of the range of each symbol of an input, and the symbol."""
    for name, low, high in parts["sizes"]:
        if name in parts["hints"]:
            yield f"{name} >= {low}", name
            if high < _UNBOUNDED:
                yield f"{name} <= {high}", name


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b) or (a != a and b != b)


def _lies(tensor: Tensor, strides: tuple[str, ...], frame: _Frame) -> bool:
    if not tensor.size:
        return True
    axes = list(zip(tensor.shape, strides, strict=True))
    # A question about the order leaves sizes symbolic where this is captured; one about strides does not.
    step = 1
    for n, text in reversed(axes):
        if n != 1 and frame.number(text) != step:
            break
        step *= n
    else:
        return tensor.is_contiguous()
    pairs = zip(axes, tensor.stride(), strict=True)
    return all(n == 1 or stride == frame.number(text) for (n, text), stride in pairs)


def resolve(target: str) -> Any:
    """The op of that full name."""
    op = _native.get_op(target)
    if op is None:
        raise GraphError(f"no op named {target} is defined", code="TP5006")
    return op


def _operands(op: Any, given: list[Any], value: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The operands of a node as a call takes them: by position, and by name where the schema wants that."""
    arguments = op.schema.arguments
    positional = [value(o) for o, a in zip(given, arguments, strict=True) if not a.kwarg_only]
    named = {a.name: value(o) for o, a in zip(given, arguments, strict=True) if a.kwarg_only}
    return positional, named


# --- source -----------------------------------------------------------------------------------------


def _names(parts: dict[str, Any]) -> dict[int, str]:
    """An identifier for each value: inputs by their own names where these are any, others by number."""
    taken = {"tp"}
    names: dict[int, str] = {}
    for number, name, _ in parts["inputs"]:
        made = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or f"v{number}"
        if made[0].isdigit() or keyword.iskeyword(made) or made in taken or re.fullmatch(r"[vus]\d+", made):
            made = f"input_{number}"
        names[number] = made
        taken.add(made)
    for number in range(len(parts["types"])):
        names.setdefault(number, f"v{number}")
    return names


def code(graph: Graph, name: str = "forward") -> str:
    """The graph as a Python function of its inputs: one call per line, to the same values as the graph.

    InvalidValueError for a `name` that no function can have.
    """
    if not _is_word(_arguments.string("code", "name", name)):
        raise InvalidValueError(f"code: a function cannot be named {name!r}", code="TP1041")
    parts = graph._structure()
    names = _names(parts)
    lines = [
        "import tensorplay as tp",
        "",
        "",
        f"def {name}({', '.join(names[i[0]] for i in parts['inputs'])}):",
    ]
    shown: set[str] = set()
    for number, _, _ in parts["inputs"]:
        lines += _shown(parts, names, number, shown)
    lines += _held(parts, shown)
    lines += _body(parts, names, shown)
    return "\n".join(lines) + "\n"


def _body(parts: dict[str, Any], names: dict[int, str], shown: set[str]) -> list[str]:
    """The lines of a function: calls, checks of sizes that they show, and the results."""
    lines: list[str] = []
    for i, (target, given, outputs, location) in enumerate(parts["nodes"]):
        comment = f"  # at {_printable(location)}" if location else ""
        if i in parts["blocks"]:
            blocks = parts["blocks"][i]
            lines += _choice(target, given, [names[n] for n in outputs[0]], blocks, (names, shown, comment))
            continue
        lines += _call(target, given, outputs, (names, comment))
        for output in outputs:
            for number in output if isinstance(output, list) else [output]:
                lines += _shown(parts, names, number, shown)
    for statement, message in parts["checks"]:
        # The sizes of a branch are its own.
        if symbols(statement) <= shown:
            lines.append(f"    tp.check({statement}{f', {message!r}' if message else ''})")
    results = ", ".join(_source(o, names) for o in parts["outputs"])
    lines.append(f"    return {results}" if len(parts["outputs"]) != 0 else "    return ()")
    return lines


def _call(target: str, given: list[Any], outputs: list[Any], around: tuple[dict[int, str], str]) -> list[str]:
    names, comment = around
    op = _native.get_op(target)
    positional, named = (
        _operands(op, given, lambda o: _source(o, names))
        if op is not None
        else ([_source(o, names) for o in given], {})
    )
    arguments = ", ".join([*positional, *(f"{key}={value}" for key, value in named.items())])
    result = ", ".join(
        f"[{', '.join(names[n] for n in o)}]" if isinstance(o, list) else names[o] for o in outputs
    )
    return [f"    {f'{result} = ' if result else ''}{_callee(target)}({arguments}){comment}"]


def _choice(
    target: str,
    given: list[Any],
    results: list[str],
    blocks: list[dict[str, Any]],
    around: tuple[dict[int, str], set[str], str],
) -> list[str]:
    """A node of control flow: a function for each block, which closes over what is not carried, and the call."""
    names, shown, comment = around
    operands = [names[number] for operand in given for number in _numbers(operand)]
    is_loop = target == "tp::while_loop"
    carried = len(_numbers(given[0])) if is_loop else 0
    reached = operands if is_loop else operands[1:]
    mark = results[0] if results else f"after_{operands[0]}"
    lines: list[str] = []
    functions: list[str] = []
    for which, parts in zip(("cond", "body") if is_loop else ("true", "false"), blocks, strict=True):
        own = {number: f"{which}_{mark}_{number}" for number in range(len(parts["types"]))}
        for position, (number, _, _) in enumerate(parts["inputs"]):
            if position >= carried:
                own[number] = reached[position]
        taken = ", ".join(own[number] for number, _, _ in parts["inputs"][:carried])
        functions.append(f"{which}_{mark}")
        lines.append(f"    def {which}_{mark}({taken}):")
        body = _body(parts, own, set(shown))
        if which != "cond":
            returned = ", ".join(_source(o, own) for o in parts["outputs"])
            body[-1] = f"    return ({returned}{',' if len(parts['outputs']) == 1 else ''})"
        lines += [f"    {line}" for line in body]
    left = f"({', '.join(results)}{',' if len(results) == 1 else ''}) = " if results else ""
    if is_loop:
        lines.append(
            f"    {left}tp.while_loop({', '.join(functions)}, [{', '.join(operands[:carried])}]){comment}"
        )
    else:
        lines.append(f"    {left}tp.cond({operands[0]}, {', '.join(functions)}){comment}")
    return lines


def _numbers(operand: Any) -> list[int]:
    """The values of an operand."""
    kind, what = operand
    return [what] if kind == "value" else [number for item in what for number in _numbers(item)]


def _is_word(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _callee(target: str) -> str:
    namespace, _, local = target.partition("::")
    words = [namespace, *local.split(".")]
    return f"tp.ops.{'.'.join(words)}" if all(map(_is_word, words)) else f"tp.library.get_op({target!r})"


def _printable(text: str) -> str:
    """The place of a call, which stays in its comment whatever a file says."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _shown(parts: dict[str, Any], names: dict[int, str], number: int, shown: set[str]) -> Iterator[str]:
    """Lines that give symbols their values, where a tensor is the first to show them."""
    kind = parts["types"][number]
    if kind is None or kind[0] in ("literal", "list", "size"):
        return
    for axis, text in enumerate(kind[1]):
        if text.isidentifier() and text not in shown:
            shown.add(text)
            yield f"    {text} = {names[number]}.shape[{axis}]"


def _held(parts: dict[str, Any], shown: set[str]) -> Iterator[str]:
    """Lines that hold the sizes of the inputs to what the capture took of them."""
    statements = [statement for statement, _ in _ranges(parts)] + parts["guards"]
    for statement in statements:
        if symbols(statement) <= shown:
            yield f"    tp.check({statement}, {f'the program was captured for {statement}'!r})"


def _source(operand: Any, names: dict[int, str]) -> str:
    kind, what = operand
    if kind == "value":
        return names[what]
    if kind == "list":
        return f"[{', '.join(_source(item, names) for item in what)}]"
    if kind == "size":
        return str(what)
    if isinstance(what, float) and not math.isfinite(what):
        return f'float("{what}")'
    if isinstance(what, _native.dtype):
        return f"tp.{what.name}"
    return f'tp.device("{what}")' if isinstance(what, _native.device) else repr(what)
