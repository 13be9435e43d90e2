"""Capabilities in tests: `@pytest.mark.requires("tvm")`, `--require NAME`, and the table at the end of a run.

An absent capability is a skip that says why. Under `--require NAME` that skip is a failure, so that a run
meant to prove something cannot pass by not running it.

Under `--parallel-threads=N` (pytest-run-parallel) N threads run each test at once; what must not says why in
ONE_THREAD here, or beside the test in `@pytest.mark.thread_unsafe(reason=...)`. Each thread has a namespace `ns` of
its own.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from capabilities import Found, survey

OUTCOMES = ("passed", "failed", "skipped")
HERE = Path(__file__).parent

# Files and folders whose tests several threads cannot run at once, whatever the library does, and why.
ONE_THREAD = {
    "autograd/test_lifetime.py": "counts the nodes of the process",
    "backends": "programs of the adapters; compiled regions run them in threads under compile/",
    "compile/test_background.py": "starts programs, and changes how kernels are made",
    "compile/test_constants.py": "its ops have fixed names",
    "compile/test_explanations.py": "its ops have fixed names",
    "compile/test_fused_rows.py": "registers a backend by a fixed name",
    "compile/test_memory_planning.py": "its ops have fixed names",
    "compile/test_random_pointwise.py": "passes, but four times its examples take a minute",
    "compile/test_observability.py": "counts what the process does",
    "compile/test_python_state_guards.py": "changes the state that its functions read in every thread",
    "compile/test_recomputation.py": "its ops have fixed names",
    "compile/test_registrations.py": "registers kernels for built-in ops, which the other threads call",
    "compile/test_saved_programs.py": "seeds the generator of the process",
    "compile/test_upstream_defects.py": "its ops have fixed names",
    "compile/test_view_passes.py": "registers kernels for built-in ops, which the other threads call",
    "test_architecture.py": "reads sources",
    "test_cli.py": "starts programs",
    "test_conftest.py": "starts programs",
    "test_contract_rows.py": "reads sources",
    "test_docs.py": "starts programs",
    "test_hostile_calls.py": "its ops have fixed names; where threads matter it starts its own",
    "test_instruction_counts.py": "reads a table",
    "test_interrupts.py": "signals go to the process",
    "test_opcheck.py": "its ops have fixed names",
    "test_packaging.py": "starts programs",
    "test_peer_report.py": "reads reports",
    "test_recursion.py": "starts programs",
    "test_random_calls.py": "passes, but four times its examples take a minute",
    "test_verify.py": "its ops have fixed names",
    "test_wrong_arguments.py": "its ops have fixed names, and it sets modes of the process",
    "test_typing.py": "reads sources",
    "test_verify_inputs.py": "verify watches the state of the process",
    "test_verify_sharing.py": "verify watches the state of the process",
    "test_verify_choices.py": "its ops have fixed names",
    "test_verify_faults.py": "its ops have fixed names",
    "test_verify_more_faults.py": "its ops have fixed names",
    "test_verify_parts.py": "its ops have fixed names",
    "test_verify_second_look.py": "its ops have fixed names",
    "test_verify_sizes.py": "its ops have fixed names",
}


@cache
def surveyed() -> dict[str, Found]:
    """The survey, made once per process."""
    return survey()


@pytest.fixture(scope="session", autouse=True)
def _no_kernels_kept() -> None:
    """What tests compile stays off the disk, but where a test says otherwise: some of it is wrong on purpose."""
    from tensorplay.backends.tvm import disk

    disk.directory = lambda: None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="NAME",
        help="fail, instead of skip, the tests that need capability NAME where it is absent (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = set(config.getoption("--require")) - surveyed().keys()
    if unknown:
        known = ", ".join(sorted(surveyed()))
        raise pytest.UsageError(
            f"--require: no capability named {', '.join(sorted(unknown))} (known: {known})"
        )
    config.pluginmanager.register(CapabilityTable(config), "capability-table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("parallel_threads", 1) in (1, "1"):
        return
    for item in items:
        for place in (item.path, *item.path.parents):
            if place.is_relative_to(HERE) and (why := ONE_THREAD.get(place.relative_to(HERE).as_posix())):
                item.add_marker(pytest.mark.thread_unsafe(reason=why))
        if isinstance(item, pytest.Function) and "ns" in item.fixturenames:
            item.obj = _own_namespace(item.obj)


def _own_namespace(test: Callable[..., None]) -> Callable[..., None]:
    """`test`, with a namespace for each call where the fixture would give all threads the same."""
    numbers = itertools.count()

    def call(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs | {"ns": f"{kwargs['ns']}_{next(numbers)}"} if "ns" in kwargs else kwargs)

    # With the globals of the test, in which pytest-run-parallel looks for functions that are not thread-safe.
    own = FunctionType(call.__code__, test.__globals__, test.__name__, None, call.__closure__)
    return functools.wraps(test)(own)


def needs(item: pytest.Item) -> list[str]:
    """The capabilities that `item` is marked with, outermost marker last, each once."""
    return list(dict.fromkeys(name for mark in item.iter_markers("requires") for name in mark.args))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in needs(item):
        item.user_properties.append(("requires", name))
    for name in needs(item):
        found = surveyed().get(name)
        if found is None:
            pytest.fail(f"requires({name!r}): no such capability", pytrace=False)
        if found.available:
            continue
        if found.broken:
            pytest.fail(f"needs {name}: {found.reason}", pytrace=False)
        if name in item.config.getoption("--require"):
            pytest.fail(f"--require {name}: {found.reason}", pytrace=False)
        pytest.skip(f"needs {name}: {found.reason} (use --require {name} to make this an error)")


class CapabilityTable:
    """Counts the outcomes of the tests that asked for each capability; prints them once, on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self.required: set[str] = set(config.getoption("--require"))
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test counts once: at its call, or at the setup that stopped it.
        if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
            return
        for key, value in report.user_properties:
            if key == "requires":
                self.outcomes[str(value), report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("capabilities")
        names = sorted(surveyed())
        width = max(map(len, names))
        for name in names:
            found = surveyed()[name]
            counts = ", ".join(f"{self.outcomes[name, o]} {o}" for o in OUTCOMES if self.outcomes[name, o])
            state = "available" if found.available else "broken" if found.broken else "absent"
            why = "" if found.available else f"  ({found.reason})"
            required = "  required" if name in self.required else ""
            terminalreporter.line(f"{name:<{width}}  {state:<9}  {counts or 'no test asked'}{required}{why}")
