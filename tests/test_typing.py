"""What type checkers see: a small program under `mypy --strict`, and stubs that agree with the extension."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stubs
import tensorplay as tp
from tensorplay import _native

PACKAGE = Path(tp.__file__).parent
PROGRAM = Path(__file__).parent / "data" / "typed_program.py"
WANTED = re.compile(r"# refused: ([a-z-]+)$")
FOUND = re.compile(r"^typed_program\.py:(\d+): error: .*\[([a-z-]+)\]$")


@pytest.mark.thread_unsafe(reason="one checker at a time is slow enough")
def test_a_users_program_has_types_under_mypy_strict(tmp_path: Path) -> None:
    """Results and arguments of functions, ops, `Function.apply` and `tp.func` have types; wrong calls are refused."""
    text = PROGRAM.read_text()
    (tmp_path / PROGRAM.name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--hide-error-context"]
    done = subprocess.run([*command, PROGRAM.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {(int(m[1]), m[2]) for m in map(FOUND.match, done.stdout.splitlines()) if m}
    wanted = {(n, m[1]) for n, line in enumerate(text.splitlines(), 1) if (m := WANTED.search(line))}
    assert found == wanted, done.stdout + done.stderr
    assert len(wanted) >= 10
    assert (PACKAGE / "py.typed").is_file()


def test_the_stub_of_the_functions_is_made_from_their_schemas() -> None:
    """Run `python tests/stubs.py` after a change of an op's schema or of `functions.py`."""
    assert stubs.PATH.read_text() == stubs.page()


def test_the_stubs_of_the_extension_name_what_it_has() -> None:
    """Every public function and class of `_native` is in a stub, and every name of the stubs is there."""
    declared: set[str] = set()
    for path in ("_native.pyi", "_sizes.pyi", "_values.pyi"):
        for node in ast.parse((PACKAGE / path).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                declared.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                declared.add(node.target.id)
    only_types = {
        "SchemaField",
        "_Apply",
        "_Plain",
        "_WithContext",
        "Builtin",
        "GradRegistration",
        "KernelParts",
    }
    present = {name for name in vars(_native) if not name.startswith("__") or name == "__version__"}
    assert declared - only_types - present == set()
    assert present - declared == set()
