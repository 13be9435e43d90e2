"""The rules of the code base as functions over text: who may use whom, and how long things may be.

Each returns the violations as lines a person can act on. `test_architecture.py` applies them to the tree and
proves on planted violations that they can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

# crate -> the crates of this workspace that it may name (direct edges; there is no other legal one).
CRATE_EDGES: dict[str, set[str]] = {
    "tp-tensor": set(),
    "tp-expr": {"tp-tensor"},
    "tp-dispatch": {"tp-tensor", "tp-expr"},
    "tp-kernels": {"tp-tensor", "tp-expr", "tp-dispatch"},
    "tp-autograd": {"tp-tensor", "tp-expr", "tp-dispatch"},
    "tp-graph": {"tp-tensor", "tp-expr", "tp-dispatch", "tp-autograd"},
}

# Tests of a layer that need operators to work on. The layer itself builds without them.
DEV_EDGES = {"tp-autograd": {"tp-kernels"}, "tp-graph": {"tp-kernels"}}
ABOVE_ALL = {"tp-python", "tp-bench"}  # may use every crate of CRATE_EDGES; nothing may use them
BINDINGS = {"pyo3", "pyo3-ffi", "pyo3-build-config", "numpy"}
DOOR = "tp-python"

# Put together here so that this file does not violate its own rule.
UNFINISHED = re.compile(
    "|".join([r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bto" + r"do!", r"\bunimple" + r"mented!"])
)


def crate_violations(metadata: dict) -> list[str]:
    """Edges between workspace crates, and uses of Python bindings, that `cargo metadata` shows and the picture lacks."""
    members = {p["name"] for p in metadata["packages"] if p["id"] in metadata["workspace_members"]}
    found = [
        f"{name}: not in the dependency picture" for name in sorted(members - CRATE_EDGES.keys() - ABOVE_ALL)
    ]
    for package in metadata["packages"]:
        name = package["name"]
        if name not in members:
            continue
        # A dev-dependency is an edge too; the few that tests need are named, all others are refused.
        used = {d["name"] for d in package["dependencies"]}
        reached = {d["name"] for d in package["dependencies"] if d.get("kind") == "dev"}
        used -= reached & DEV_EDGES.get(name, set())
        allowed = CRATE_EDGES.get(name, CRATE_EDGES.keys())
        found += [
            f"{name} -> {other}: this edge is not legal" for other in sorted((used & members) - set(allowed))
        ]
        if name != DOOR:
            found += [f"{name} -> {other}: only {DOOR} may name it" for other in sorted(used & BINDINGS)]
    return found


def blank_rust(text: str) -> str:
    """`text` with comments, strings and character literals blanked, line structure kept."""
    token = re.compile(
        r"""//[^\n]*
          | b?r(?P<hash>\#*)".*?"(?P=hash)
          | b?"(?:\\.|[^"\\])*"
          | b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\\n])'
        """,
        re.VERBOSE | re.DOTALL,
    )

    def blank(piece: str) -> str:
        return re.sub(r"[^\n]", " ", piece)

    # Block comments nest, so they are found by hand between the other tokens.
    out, i = [], 0
    while i < len(text):
        if text.startswith("/*", i):
            depth, j = 1, i + 2
            while depth and j < len(text):
                step = text[j : j + 2]
                depth += (step == "/*") - (step == "*/")
                j += 2 if step in ("/*", "*/") else 1
            out.append(blank(text[i:j]))
            i = j
        elif (text[i] in "/\"'br") and (m := token.match(text, i)) and not (i and text[i - 1].isalnum()):
            out.append(blank(m.group()))
            i = m.end()
        else:
            out.append(text[i])
            i += 1
    return "".join(out)


def rust_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, number of lines) of every `fn` with a body, nested ones included."""
    code = blank_rust(text)
    for match in re.finditer(r"\bfn\s+(\w+)", code):
        end = _end_of_body(code, match.end())
        if end is not None:
            first = code.count("\n", 0, match.start())
            yield match.group(1), first + 1, code.count("\n", 0, end) - first + 1


def _end_of_body(code: str, start: int) -> int | None:
    """Offset of the brace that closes the body of the `fn` at `start`; None for a declaration without one."""
    depth = brackets = 0
    for i in range(start, len(code)):
        c = code[i]
        if c in "([":
            brackets += 1
        elif c in ")]":
            brackets -= 1
        elif c == "{" and not brackets:
            depth += 1
        elif c == "}" and not brackets:
            depth -= 1
            if depth == 0:
                return i
        elif c == ";" and not depth and not brackets:
            return None
    return None


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, number of lines) of every function, decorators left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def size_violations(path: str, text: str) -> list[str]:
    """A file or function that is too long to be read at once."""
    found = []
    lines = text.count("\n") + (not text.endswith("\n"))
    if lines > MAX_FILE_LINES:
        found.append(f"{path}: {lines} lines (at most {MAX_FILE_LINES})")
    if path.endswith(".md"):
        return found
    functions = rust_functions(text) if path.endswith(".rs") else python_functions(text)
    for name, first, length in functions:
        if length > MAX_FUNCTION_LINES:
            found.append(f"{path}:{first}: {name} has {length} lines (at most {MAX_FUNCTION_LINES})")
    return found


def prose_violations(path: str, text: str) -> list[str]:
    """Unfinished work, and modules that do not say what lives there."""
    found = [
        f"{path}:{number}: unfinished work ({match.group()})"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := UNFINISHED.search(line))
    ]
    if path.endswith(".rs"):
        opens = re.match(r"(?:\s|#!\[[^\]]*\])*//!", text) is not None
    else:
        opens = ast.get_docstring(ast.parse(text)) is not None
    if text.strip() and not opens:
        found.append(f"{path}: does not open with a doc comment")
    return found


def unlayered_modules(modules: Iterable[str], layers: Iterable[str]) -> list[str]:
    """Modules of the package (dotted, without the package's name) that no layer of the contract holds."""
    named = [name.strip() for line in layers for name in line.split("|")]
    free = {"", "backends"}  # the two packages whose __init__ only re-exports
    return [
        f"{module}: in no layer of [tool.importlinter]"
        for module in sorted(modules)
        if module not in free and not any(module == name or module.startswith(name + ".") for name in named)
    ]


def module_name(path: PurePosixPath) -> str:
    """`backends/tvm/__init__.py` -> `backends.tvm`."""
    return ".".join(p for p in path.with_suffix("").parts if p != "__init__")


def self_import_violations(path: str, text: str, modules: set[str]) -> list[str]:
    """Imports of the package's own `__init__` from below it, which would tie every layer to every other.

    Naming a submodule, or the extension, through the package is no such import.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            bad = [alias.name for alias in node.names if alias.name == "tensorplay"]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "tensorplay":
            bad = [f"tensorplay.{alias.name}" for alias in node.names if alias.name not in modules]
        else:
            continue
        found += [f"{path}:{node.lineno}: imports {name} through the package's __init__" for name in bad]
    return found


def reexport_violations(path: str, text: str) -> list[str]:
    """Statements of an `__init__` that do more than pass names on.

    Lazy re-export (`__getattr__`, `__dir__`) is passing names on; so is `if TYPE_CHECKING`.
    """
    found = []
    for node in ast.parse(text).body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                continue
            case ast.FunctionDef(name="__getattr__" | "__dir__"):
                continue
            case ast.Assign() | ast.AnnAssign() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Delete():
                continue
        found.append(f"{path}:{node.lineno}: __init__ only re-exports")
    return found


_ENTRY = re.compile(r"^#\[pyfunction\][^{]*?\bfn (\w+)[^{]*\{\s*(.*)", re.M)
_METHODS = re.compile(r"^#\[pymethods\]\nimpl .*?^\}", re.M | re.S)
_METHOD = re.compile(r"^    (?:pub )?fn (\w+)[^{]*\{\s*(.*)", re.M)


def unguarded_functions(text: str) -> list[str]:
    """Functions and methods that Python calls through PyO3 and whose body does not run under `guarded`."""
    entries = _ENTRY.findall(text)
    entries += [found for block in _METHODS.findall(text) for found in _METHOD.findall(block)]
    # The collector takes no exception.
    return [n for n, body in entries if not body.startswith("guarded(") and n != "__traverse__"]
