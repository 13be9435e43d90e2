"""The capability marker itself: a skip says why, and `--require` turns it into a failure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent
BODY = """
import pytest

@pytest.mark.requires("valgrind")
def test_needs_a_tool():
    pass

@pytest.mark.requires("native")
def test_needs_the_library():
    pass

@pytest.mark.requires("nonsense")
def test_needs_nothing_known():
    pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs BODY under this project's conftest; PATH decides whether the tool exists."""
    shutil.copy(HERE / "conftest.py", pytester.path)
    shutil.copy(HERE / "capabilities.py", pytester.path)
    pytester.makeini("[pytest]\nmarkers = requires(*names): x\npythonpath = .\n")
    pytester.makepyfile(BODY)
    monkeypatch.setenv("PATH", str(pytester.path))

    def go(*args: str, tool: bool = False) -> pytest.RunResult:
        if tool:
            program = pytester.path / "valgrind"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
        return pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:benchmark", *args)

    return go


def test_an_absent_capability_is_a_skip_with_its_reason(run) -> None:
    result = run("-rs", "-k", "needs_a_tool")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["*needs valgrind: no program 'valgrind' on PATH*"])
    result.stdout.fnmatch_lines(["valgrind *absent *1 skipped*"])


def test_require_turns_the_skip_into_a_failure(run) -> None:
    result = run("--require", "valgrind", "-k", "needs_a_tool")
    result.assert_outcomes(errors=1, deselected=2)
    result.stdout.fnmatch_lines(["*--require valgrind: no program 'valgrind' on PATH*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_present_capability_lets_the_test_run(run) -> None:
    result = run("--require", "valgrind", "-k", "needs_a_tool", tool=True)
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["valgrind *available *1 passed*required*"])


def test_a_library_that_does_not_import_is_a_failure_not_a_skip(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(tensorplay="raise ImportError('planted')")
    result = run("-k", "needs_the_library")
    result.assert_outcomes(errors=1, deselected=2)
    result.stdout.fnmatch_lines(["*needs native: tensorplay does not import: ImportError: planted*"])


def test_an_unknown_name_is_never_silent(run) -> None:
    run("-k", "needs_nothing").assert_outcomes(errors=1, deselected=2)
    result = run("--require", "warp-drive")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no capability named warp-drive (known: *valgrind*"])
