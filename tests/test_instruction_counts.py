"""Instructions per call do not creep up; and the counter itself counts what it says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benches" / "callgrind" / "check.py"


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(f"callgrind_{name}", SCRIPT.with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check():
    return loaded("check")


@pytest.fixture(scope="module")
def layout():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return loaded("layout")
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.mark.requires("valgrind", "native")
def test_instructions_per_call_are_as_committed() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_only_the_extensions_own_instructions_count(check) -> None:
    profile = """events: Ir
ob=(1) /lib/python/_native.abi3.so
fn=(1) add
16 100
+3 20
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=4 8
16 4000
* 5
ob=(2)
fn=(2)
8 4000
ob=(1)
fn=(3) mul
-2 7
"""
    assert check.extension_instructions(profile.splitlines()) == 100 + 20 + 5 + 7


def test_a_planted_regression_is_found(check) -> None:
    table = {"tolerance": 0.1, "instructions": {"add": 1000, "mul": 1000, "gone": 1}}
    assert check.compare({"add": 1101, "mul": 1100, "new": 1}, table) == [
        "add: 1101 instructions, 1000 expected (tolerance 10%)",
        "gone: in the table, not measured",
        "new: not in the table",
    ]
    assert check.compare({"add": 900, "mul": 1000, "gone": 1}, table) == []


def test_the_page_of_benches_shows_the_committed_table(check) -> None:
    """`check.py --update` writes both."""
    page, found = check.PAGE.read_text(), json.loads(check.TABLE.read_text())["instructions"]
    assert check.with_figures(page, found) == page
    rows = [line.split("|") for line in page.splitlines()]
    shown = [row[1].strip() for row in rows if len(row) == check.COLUMNS + 2]
    assert [row for row in check.ROWS if shown.count(row) != 1] == []
    assert set(check.ROWS.values()) <= set(found)
    other = check.with_figures(page, found | {"custom op": 7})
    assert "| 7, body included |" in other
    assert other.replace("| 7, body included |", f"| {found['custom op']}, body included |") == page


def test_the_page_says_of_every_bar_whether_it_is_met(check) -> None:
    """The units beside the bar, and the bar that `make bench-calls` prints."""
    rows = [line.split("|") for line in check.PAGE.read_text().splitlines()]
    found = {row[1].strip(): row for row in rows if len(row) == check.COLUMNS + 2}
    bars = {name: found[name][4].split(", ") for name in check.ROWS}
    for name, (bar, verdict) in bars.items():
        assert verdict.strip() == ("met" if float(found[name][3]) <= float(bar) else "not met"), name
    calls = (check.PAGE.parent / "python" / "calls.py").read_text()
    assert [name for name, (bar, _) in bars.items() if f", {float(bar)}" not in calls] == []


def test_the_cost_of_a_call_grows_evenly_with_its_arguments() -> None:
    """P2: an argument left out costs nothing, one given a few dozen instructions, the 17th like the 16th."""
    counts = json.loads(SCRIPT.with_name("expected.json").read_text())["instructions"]
    assert counts["30 arguments, 1 given"] <= counts["2 arguments, 1 given"] + 28
    per_argument = (counts["30 arguments"] - counts["2 arguments"]) / 28
    assert per_argument < 60
    assert counts["17 arguments"] - counts["16 arguments"] < 2 * per_argument


PROFILE = """ob=/lib/python
fn=eval
3 9
ob=/lib/_native.so
fn=_ZN4call17h00000000000000aaE
16 50
cfn=_ZN4cold17h00000000000000bbE
calls=1 8
+1 20
cfn=_ZN4warm17h00000000000000ccE.llvm.5
calls=2 8
+1 400
cob=/lib/libc.so.6
cfn=memcpy
calls=1 8
* 7000
fn=_ZN4cold17h00000000000000bbE
8 20
+2
fn=_ZN4warm17h00000000000000ccE.llvm.5
-2 400
"""


def test_functions_are_laid_out_callee_after_caller_the_dearest_first(layout) -> None:
    calls = layout.Calls()
    calls.read(PROFILE.splitlines())
    names = [layout.HASH.sub("", name) for name in calls.ordered()]
    assert names == ["_ZN4call17h", "_ZN4warm17h", "_ZN4cold17h"]
    assert calls.own.total() == 470
    text = layout.script(names)
    assert text.index("*(.text._ZN4warm17h*)") < text.index("*(.text._ZN4cold17h*)")
    assert layout.covered(calls, text) == 1.0
    # A script that knows only one of them is told from one that knows all.
    assert layout.covered(calls, layout.script(["_ZN4call17h"])) == 50 / 470


@pytest.mark.requires("valgrind", "native")
def test_the_linker_script_names_the_functions_of_calls() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("layout.py")), "--check"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
