"""Capabilities in tests: `@pytest.mark.requires("tvm")`, `--require NAME`, and the table at the end of a run.

An absent capability is a skip that says why. Under `--require NAME` that skip is a failure, so that a run
meant to prove something cannot pass by not running it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from capabilities import Found, survey

OUTCOMES = ("passed", "failed", "skipped")


@cache
def surveyed() -> dict[str, Found]:
    """The survey, made once per process."""
    return survey()


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
