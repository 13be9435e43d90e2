"""The dependency picture, the sizes and the manners of the code base, and proof that each check can fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

import architecture as rules

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "tensorplay"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    """(path, text) of everything written here in Rust or Python."""
    for folder in ("crates", "python", "tests", "benches", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "target" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def violations(check: Callable[[str, str], list[str]], *suffixes: str) -> str:
    return "\n".join(line for path, text in sources(*suffixes) for line in check(path, text))


# --- the tree ---------------------------------------------------------------------------------------


@pytest.mark.requires("cargo")
def test_crates_use_only_what_lies_below_them() -> None:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    metadata = json.loads(out)
    assert {p["name"] for p in metadata["packages"]} >= rules.CRATE_EDGES.keys() | rules.ABOVE_ALL
    assert rules.crate_violations(metadata) == []


def test_files_and_functions_are_short() -> None:
    assert violations(rules.size_violations, ".rs", ".py", ".pyi", ".md") == ""


def test_nothing_is_left_unfinished_and_every_module_introduces_itself() -> None:
    assert violations(rules.prose_violations, ".rs", ".py", ".pyi") == ""


def test_every_function_of_the_extension_turns_a_panic_into_our_error() -> None:
    """B8: PyO3 would raise its own BaseException; `error::guarded` raises InternalError, as every other door does."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "crates/tp-python/src").rglob("*.rs")
        for name in rules.unguarded_functions(path.read_text())
    ]
    assert found == []


def test_an_unguarded_function_is_found() -> None:
    text = """
#[pyfunction]
#[pyo3(signature = (a=None))]
pub fn good(a: Option<(u8, u8)>) -> PyResult<()> {
    guarded(|| Ok(()))
}

#[pyfunction]
fn bad(n: u8) -> u8 {
    n
}

#[pymethods]
impl Thing {
    #[new]
    fn new() -> Thing {
        Thing
    }

    #[getter]
    fn name(&self) -> PyResult<&str> {
        guarded(|| {
            Ok("n")
        })
    }
}

fn helper() {}
"""
    assert rules.unguarded_functions(text) == ["bad", "new"]


def test_names_of_files_are_plain() -> None:
    """A name with other characters is what a test wrote into the working directory, or trouble on another system."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = (
        listed.stdout.split("\0") if listed.returncode == 0 else [path for path, _ in sources(".rs", ".py")]
    )
    assert [name for name in names if not re.fullmatch(r"[A-Za-z0-9._/+-]*", name)] == []


def test_python_layers_point_downward() -> None:
    result = lint_imports(ROOT / "pyproject.toml", ROOT / "python")
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_python_module_has_a_layer() -> None:
    modules = [rules.module_name(PurePosixPath(p.relative_to(PACKAGE))) for p in PACKAGE.rglob("*.py")]
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    assert rules.unlayered_modules(modules, layers) == []


def test_no_module_leans_on_the_package_init() -> None:
    paths = {p: rules.module_name(PurePosixPath(p.relative_to(PACKAGE))) for p in PACKAGE.rglob("*.py")}
    modules = {name.split(".")[0] for name in paths.values()} | {"_native"}
    found = [
        line
        for path, name in paths.items()
        if name not in ("", "cli", "__main__")  # above the package's face: they may use it
        for line in rules.self_import_violations(path.relative_to(ROOT).as_posix(), path.read_text(), modules)
    ]
    assert found == []


def test_package_inits_only_reexport() -> None:
    for path in (PACKAGE / "__init__.py", PACKAGE / "backends" / "__init__.py"):
        assert rules.reexport_violations(path.name, path.read_text()) == []


def test_exact_pins_agree_with_the_constraints() -> None:
    constraints = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    extras = PYPROJECT["project"]["optional-dependencies"]
    pinned = [pin for extra in ("triton", "tvm") for pin in extras[extra]]
    assert len(pinned) == 3
    assert [pin for pin in pinned if pin not in constraints] == []


# --- the checks can fail ----------------------------------------------------------------------------


def metadata_with(**dependencies: list[str]) -> dict:
    """`cargo metadata` of a workspace with these crates (`_` for `-`)."""
    packages = [
        {"name": name.replace("_", "-"), "id": name, "dependencies": [{"name": d} for d in used]}
        for name, used in dependencies.items()
    ]
    return {"packages": packages, "workspace_members": list(dependencies)}


@pytest.mark.parametrize(
    ("crates", "complaint"),
    [
        ({"tp_tensor": ["tp-expr"], "tp_expr": []}, "tp-tensor -> tp-expr: this edge is not legal"),
        (
            {"tp_kernels": ["tp-autograd"], "tp_autograd": []},
            "tp-kernels -> tp-autograd: this edge is not legal",
        ),
        ({"tp_graph": ["tp-python"], "tp_python": []}, "tp-graph -> tp-python: this edge is not legal"),
        ({"tp_dispatch": ["pyo3"]}, "tp-dispatch -> pyo3: only tp-python may name it"),
        ({"tp_misc": []}, "tp-misc: not in the dependency picture"),
    ],
)
def test_a_planted_crate_edge_is_found(crates: dict[str, list[str]], complaint: str) -> None:
    assert rules.crate_violations(metadata_with(**crates)) == [complaint]


def test_legal_crate_edges_pass() -> None:
    legal = metadata_with(tp_python=["pyo3", "tp-graph"], tp_graph=["tp-autograd", "serde"], tp_autograd=[])
    assert rules.crate_violations(legal) == []


def test_a_long_file_and_a_long_function_are_found() -> None:
    for page in ("a.py", "a.md"):
        assert rules.size_violations(page, "x = 1\n" * 501) == [f"{page}: 501 lines (at most 500)"]
    body = "    x = 1\n" * 80
    assert rules.size_violations("a.py", f"def f():\n{body}") == ["a.py:1: f has 81 lines (at most 80)"]
    assert rules.size_violations("a.py", f"def f():\n{body[10:]}") == []
    rust = "impl T {\n    fn g(a: [u8; 2]) -> u8 {\n" + "        h();\n" * 79 + "    }\n    fn ok() {}\n}\n"
    assert rules.size_violations("a.rs", rust) == ["a.rs:2: g has 81 lines (at most 80)"]


def test_rust_functions_are_measured_through_what_looks_like_braces() -> None:
    text = """
trait T { fn declared(&self); }
fn literals<'a>(x: &'a str) -> char {
    let _ = ("}", r#"" } "#, '}', '\\'', b'}'); // }
    /* } /* } */ } */
    'x'
}
fn next() { }
"""
    assert list(rules.rust_functions(text)) == [("literals", 3, 5), ("next", 8, 1)]


def test_unfinished_work_and_missing_introductions_are_found() -> None:
    marker = "TO" + "DO"
    assert rules.prose_violations("a.py", f'"""Doc."""\n# {marker}: later\n') == [
        f"a.py:2: unfinished work ({marker})"
    ]
    assert rules.prose_violations("a.rs", "//! Doc.\nfn f() { to" + "do!() }\n") == [
        "a.rs:2: unfinished work (to" + "do!)"
    ]
    assert rules.prose_violations("a.py", "x = 1\n") == ["a.py: does not open with a doc comment"]
    assert rules.prose_violations("a.rs", "// not a doc\nfn f() {}\n") == [
        "a.rs: does not open with a doc comment"
    ]
    assert rules.prose_violations("a.rs", "#![allow(x)]\n//! Doc.\n") == []


def test_a_module_without_a_layer_and_a_working_init_are_found() -> None:
    layers = ["compiler", "graph | backends.tvm"]
    assert rules.unlayered_modules(["", "backends", "graph", "backends.tvm.lower"], layers) == []
    assert rules.unlayered_modules(["helpers"], layers) == ["helpers: in no layer of [tool.importlinter]"]
    inside = "from tensorplay import _native, graph\nfrom tensorplay.graph import Graph\n"
    assert rules.self_import_violations("a.py", inside, {"_native", "graph"}) == []
    upward = "def f():\n    import tensorplay as tp\n    from tensorplay import mul\n"
    assert len(rules.self_import_violations("a.py", upward, {"_native", "graph"})) == 2
    lazy = '"""Doc."""\nfrom a import b\n__all__ = ["b"]\ndef __getattr__(name): ...\n'
    assert rules.reexport_violations("__init__.py", lazy) == []
    assert rules.reexport_violations("__init__.py", "for x in y: x()\n") == [
        "__init__.py:1: __init__ only re-exports"
    ]


def lint_imports(config: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """import-linter, in its own process and without a cache, over the package found under `path`."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from importlinter.cli import lint_imports_command as c; c()"
    command = [sys.executable, "-c", code, str(path), str(config), "--no-cache"]
    return subprocess.run(command, cwd=path, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "line", "clean"),
    [
        ("errors", "from tensorplay import _native", True),
        ("compiler", "from tensorplay import graph", True),
        ("errors", "from tensorplay import compiler", False),
        ("graph", "def late():\n    import tensorplay.library", False),
        ("backends/tvm", "from tensorplay import compiler", False),
        ("compiler", "from tensorplay.backends import tvm", False),
    ],
)
def test_a_planted_python_import_is_found(tmp_path: Path, module: str, line: str, clean: bool) -> None:
    package = tmp_path / "tensorplay"
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    named = [name.strip().replace(".", "/") for line in layers for name in line.split("|")]
    names = ["__init__", "backends/__init__", *named]
    (package / "backends").mkdir(parents=True)
    for name in names:
        (package / f"{name}.py").write_text("")
    (package / "__init__.py").write_text("from tensorplay import cli, compiler\n")
    (package / "_native.abi3.so").write_bytes(b"")
    (package / f"{module}.py").write_text(line + "\n")
    result = lint_imports(ROOT / "pyproject.toml", tmp_path)
    assert (result.returncode == 0) is clean, result.stdout + result.stderr
