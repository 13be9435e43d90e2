"""The documentation runs: every python block of README and docs/, and the examples, with and without TVM.

The python blocks of one page are one program. A text block right behind one is what the program has printed by then,
where TVM is installed and Triton is not (so `make demo` leaves it); in it `...` stands for anything.
"""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import error_page

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "examples" / "quickstart.py"
README = ROOT / "README.md"
MARK = "---- end of block ----"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:\.venv/bin/)?(?:make|cargo|python3?|pytest|maturin|pip|bash) ")
LINK = re.compile(r"\]\(([^)#]+)")

# Runs its arguments behind the first as a script in a process where that package cannot be found.
WITHOUT = """
import runpy, sys
from importlib import metadata

find, package = metadata.version, sys.argv[1]

def version(name):
    if name.removeprefix("apache-").startswith(package):
        raise metadata.PackageNotFoundError(name)
    return find(name)

metadata.version = version
sys.modules[package] = None
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first line, from 1."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    page = path.read_text()
    return [Block(m[1], m[2], page.count("\n", 0, m.start(2)) + 1) for m in BLOCK.finditer(page)]


def program(found: list[Block]) -> str:
    """The python blocks at the lines they have in the page; a line behind each says that it is done."""
    lines: list[str] = []
    for block in found:
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines))
            lines += [*block.text.splitlines(), f"print({MARK!r})"]
    return "\n".join(lines) + "\n"


@cache
def run_page(path: Path, folder: Path) -> list[str]:
    """What each python block of the page printed."""
    script = folder / f"{path.stem}.py"
    script.write_text(program(blocks(path)))
    return run(["-c", WITHOUT, "triton", str(script)]).split(f"{MARK}\n")


def run(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ
    )
    assert done.returncode == 0, f"{arguments[-1]} failed\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


def shown(path: Path) -> list[tuple[int, str]]:
    """(number of the python block, its output as the page shows it)."""
    out, number = [], -1
    previous = ""
    for block in blocks(path):
        number += block.language == "python"
        if block.language == "text" and previous == "python":
            out.append((number, block.text))
        previous = block.language
    return out


def check_output(path: Path, folder: Path) -> None:
    printed = run_page(path, folder)
    assert shown(path), f"{path.name} shows no output"
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for number, want in shown(path):
        got = printed[number]
        if not doctest.OutputChecker().check_output(want, got, options):
            pytest.fail(f"block {number} of {path.name} says\n{want}\nand prints\n{got}", pytrace=False)


# --- pages ------------------------------------------------------------------------------------------


def test_readme_example_runs_and_is_twenty_lines(folder: Path) -> None:
    examples = [block for block in blocks(README) if block.language == "python"]
    assert len(examples) == 1
    assert len([line for line in examples[0].text.splitlines() if line.strip()]) <= 20
    printed = run_page(README, folder)[0]
    assert printed.startswith("tensor([0.1413")
    assert re.search(r"^forward +1 +(tvm|native) +tp::add.Scalar, tp::tanh.default ", printed, re.MULTILINE)
    assert re.search(r"^PASSED: \d+ passed, 0 failed", printed, re.MULTILINE)


@pytest.mark.requires("tvm")
def test_readme_shows_what_its_example_prints(folder: Path) -> None:
    check_output(README, folder)


@pytest.mark.parametrize("page", ["backends.md", "capture.md", "compiled.md", "torch-library.md"])
def test_a_page_runs_and_shows_what_it_prints(page: str, folder: Path) -> None:
    check_output(ROOT / "docs" / page, folder)


# Verifies every op that the program before it defined, on inputs that follow from the schema.
CONTRACTS = """
from tensorplay import library, verify
for name in [name for name in library.list_ops() if name.partition("::")[0] not in ("tp", "tensorplay")]:
    print(name)
    for check in verify(name).graph:
        if check.verdict != "pass" and check.name == "fake rule: dtype":
            print(check)
"""


@pytest.mark.parametrize(
    "page", ["README.md", "docs/capture.md", "docs/compiled.md", "docs/torch-library.md"]
)
def test_the_fake_rules_that_a_page_shows_promise_what_the_kernels_return(page: str, tmp_path: Path) -> None:
    """For integers too, which nobody passes on the page."""
    script = tmp_path / "contracts.py"
    script.write_text(program(blocks(ROOT / page)) + CONTRACTS)
    found = run([str(script)]).rpartition(f"{MARK}\n")[2].splitlines()
    assert found
    assert [line for line in found if "fake rule" in line] == []


def test_a_block_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(pytest.fail.Exception, match="says\n2\n\nand prints\n1\n"):
        check_output(page, tmp_path)


def test_a_block_that_fails_is_named_by_its_line(tmp_path: Path) -> None:
    page = tmp_path / "bad.md"
    page.write_text("text\n\n```python\nx = 1\nraise ValueError(x)\n```\n")
    with pytest.raises(AssertionError, match="line 5"):
        run_page(page, tmp_path)


def test_page_of_error_codes_is_current() -> None:
    assert error_page.PATH.read_text() == error_page.page(), (
        "run: python tests/error_page.py (the table of codes changed)"
    )


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benches" / "README.md"]
    assert {p.name for p in pages} >= {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_files_that_the_map_names_exist() -> None:
    """ARCHITECTURE and CONTRIBUTING name files by their path from the root."""
    text = (ROOT / "ARCHITECTURE.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:crates|python|tests|benches|examples|docs)/[\w./-]*\w)`", text))
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def commands(text: str) -> list[str]:
    """Lines of a page that are typed into a shell: of blocks without a language, and inline code that starts a program."""
    lines = [line.strip() for block in BLOCK.finditer(text) if not block[1] for line in block[2].splitlines()]
    return [line for line in [*lines, *re.findall(r"`([^`\n]+)`", text)] if PROGRAM.match(line)]


def test_commands_that_pages_show_name_files_targets_and_subcommands_that_exist() -> None:
    """Every Markdown file: paths in commands, targets of make, commands of `python -m tensorplay`."""
    from tensorplay import cli

    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    top = cli.parser()
    known = set(next(a.choices for a in top._actions if isinstance(a.choices, dict)))  # type: ignore[union-attr]
    wrong = []
    pages = [p for p in ROOT.rglob("*.md") if not {".venv", "target", ".git", "node_modules"} & set(p.parts)]
    shown = [(page.name, line) for page in pages for line in commands(page.read_text())]
    assert len(shown) > 30
    for page, line in shown:
        paths = re.findall(r"(?<![\w./-])((?:crates|python|tests|benches|examples|docs)/[\w./-]*\w)", line)
        wrong += [(page, line) for path in paths if not (ROOT / path).exists()]
        wrong += [
            (page, line) for target in re.findall(r"\bmake ([a-z][a-z-]*)", line) if target not in targets
        ]
        asked = re.findall(r"-m tensorplay ([a-z]+)", line)
        wrong += [(page, line) for command in asked if command not in known]
    assert wrong == []


def test_a_command_with_a_path_that_is_not_there_is_seen() -> None:
    page = (
        "```\n.venv/bin/python -m pytest tests/test_library.py -k fake\n```\n`make nothing` and `x.numpy()`\n"
    )
    assert commands(page) == [".venv/bin/python -m pytest tests/test_library.py -k fake", "make nothing"]


# --- examples ---------------------------------------------------------------------------------------


def section(printed: str, title: str) -> str:
    """What stands under one of the demo's titles."""
    return printed.partition(f"== {title}")[2].partition("\n== ")[0]


def executors(printed: str, title: str = "who ran") -> dict[str, set[str]]:
    """Executors of the regions in a table of the demo, by phase."""
    table = section(printed, title)
    out: dict[str, set[str]] = {"forward": set(), "backward": set()}
    for phase, executor in re.findall(r"^(forward|backward) +\d+ +(\S+)", table, re.MULTILINE):
        out[phase].add(executor)
    return out


@pytest.mark.requires("sklearn", "tvm")
def test_quickstart_names_tvm_forward_and_backward() -> None:
    printed = run([str(QUICKSTART), "--steps", "120"])
    assert executors(printed) == {"forward": {"native", "python", "tvm"}, "backward": {"native", "tvm"}}
    assert executors(printed, "the same activation") == {"forward": {"tvm"}, "backward": {"tvm"}}
    assert printed.endswith("OK\n")


@pytest.mark.requires("sklearn", "tvm")
def test_the_quickstart_compiles_the_operator_itself_and_says_each_fact_once() -> None:
    """Two calls of the operator, each a region of its own, and its gradient in two regions of TVM."""
    printed = run([str(QUICKSTART), "--steps", "120"])
    ran = section(printed, "who ran").splitlines()
    assert len([line for line in ran if re.match(r"forward +\d+ +python +demo::gated\.default ", line)]) == 2
    assert len([line for line in ran if re.match(r"backward +\d+ +tvm +tp::sigmoid\.default, ", line)]) == 2
    assert any(
        line.startswith("the operator's kernel: python:demo::gated/numpy on cpu [") and "], " not in line
        for line in ran
    )
    assert len(re.findall("UnsupportedOp: not pointwise", "\n".join(ran))) == 1
    contract = section(printed, "its contract").splitlines()
    skips = [re.split(r" {2,}", line.strip(), maxsplit=2) for line in contract if line.startswith("  skip")]
    assert skips
    kinds = [(name, re.findall(r"(Layout|Predicate|UnsupportedOp): ", why)) for _, name, why in skips]
    assert len({str(kind) for kind in kinds}) == len(kinds)
    executor = contract[contract.index("EXECUTOR") :]
    assert not [line for line in executor if re.search(r"\S {40,}\S", line)]


def definitions(source: str) -> dict[str, str]:
    """The functions and classes of a program, and what it does between them, each as a syntax tree."""
    found = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            found[getattr(node, "name", ast.unparse(node))] = ast.dump(node)
    return found


def test_the_notebook_defines_what_the_script_defines() -> None:
    """The script has a command line beside it; the notebook calls the steps and says what must hold."""
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    notebook = definitions("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))
    script = definitions(QUICKSTART.read_text())
    only_script = {name for name in script if script[name] != notebook.get(name)}
    assert {name for name in only_script if name.isidentifier()} == {"positive", "main"}
    assert {name.partition("\n")[0] for name in only_script if not name.isidentifier()} == {
        "from __future__ import annotations",
        "import argparse",
        "if __name__ == '__main__':",
    }
    steps = [name for name in notebook if name not in script]
    assert steps[:3] == ["show_operator()", "show_contract()", "show_graph()"]
    assert "assert failed + failed_whole == []" in steps


@pytest.mark.requires("sklearn")
def test_quickstart_runs_natively() -> None:
    printed = run([str(QUICKSTART), "--steps", "120", "--backend", "native"])
    assert executors(printed) == {"forward": {"native", "python"}, "backward": {"native"}}
    assert executors(printed, "the same activation") == {"forward": {"native"}, "backward": {"native"}}
    assert "not covered" not in printed
    assert printed.endswith("OK\n")


@pytest.mark.requires("sklearn", "triton")
@pytest.mark.skipif(tp.cuda.is_available(), reason="there is a GPU")
def test_quickstart_with_triton_and_no_gpu_says_that_everything_ran_natively() -> None:
    """The demo tells what `capabilities()` tells."""
    printed = run([str(QUICKSTART), "--steps", "120", "--backend", "triton"])
    assert executors(printed) == {"forward": {"native", "python"}, "backward": {"native"}}
    assert executors(printed, "the same activation") == {"forward": {"native"}, "backward": {"native"}}
    found = tp.backends.capabilities()["triton"]
    assert f"\n{found}\n" in printed
    assert f"note: triton did not run here ({found.reason}); its times are" in printed


@pytest.mark.requires("sklearn")
def test_quickstart_says_which_check_failed() -> None:
    demo = runpy.run_path(str(QUICKSTART))
    good, short = (demo["Outcome"]([0.0] * steps, 0.97 - 0.1 * (steps < 50), 1.0) for steps in (400, 20))
    assert demo["failures"]({"eager": good}, 1e-6) == []
    assert demo["failures"]({"eager": good, "compiled": short}, 1e-6) == [
        "compiled: accuracy 87.0 % after 20 steps, 95 % is wanted; --steps 120 is enough"
    ]
    (drifted,) = demo["failures"]({"eager": good}, 0.5)
    assert drifted.startswith("eager and compiled disagree: the largest loss difference is 5.00e-01")
    assert len(demo["failures"]({"eager": good}, float("nan"))) == 1


@pytest.mark.requires("sklearn")
def test_quickstart_without_tvm_says_so_and_passes() -> None:
    printed = run(["-c", WITHOUT, "tvm", str(QUICKSTART), "--steps", "120"])
    assert executors(printed) == {"forward": {"native", "python"}, "backward": {"native"}}
    assert executors(printed, "the same activation") == {"forward": {"native"}, "backward": {"native"}}
    assert "BackendUnavailable: backend 'tvm' is not available: apache-tvm is not installed" in printed
    assert "note: tvm did not run here" in printed
    assert printed.endswith("OK\n")
