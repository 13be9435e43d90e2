"""The report of a verification: checks in three columns, as text, HTML, JSON and JUnit XML. It runs nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any
from xml.sax.saxutils import quoteattr

from tensorplay.errors import ContractError
from tensorplay.outcome import Record

__all__ = ["Check", "Tally", "VerifyReport"]

COLUMNS = ("values", "graph", "executor")
# A longer name of a check has its detail on a line below, so that it does not push those of all others to the right.
WIDEST = 52
# So many cases of a skip are named; the rest are counted.
NAMED_CASES = 4


@dataclass(frozen=True, slots=True)
class Check(Record):
    """One thing that was looked at. `verdict` is "pass", "fail" or "skip"; nothing softer exists."""

    name: str
    verdict: str
    detail: str = ""
    location: str | None = None

    def __str__(self) -> str:
        place = f"  ({self.location})" if self.location else ""
        mark = (
            f"{self.verdict}({self.detail})" if self.verdict == "skip" else f"{self.verdict}: {self.detail}"
        )
        return f"{self.name}: {mark}{place}"


@dataclass(frozen=True, slots=True)
class VerifyReport(Record):
    """What held, what did not and what could not be tried, for VALUES, GRAPH and EXECUTOR."""

    subject: str
    seed: int
    values: list[Check] = field(default_factory=list)
    graph: list[Check] = field(default_factory=list)
    executor: list[Check] = field(default_factory=list)

    def _all(self) -> list[tuple[str, Check]]:
        return [(column, check) for column in COLUMNS for check in getattr(self, column)]

    @property
    def passed(self) -> bool:
        """Whether nothing failed. A skip is no failure, unless it was required: then it is listed as one."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        """Checks that failed, in order."""
        return [check for _, check in self._all() if check.verdict == "fail"]

    @property
    def skips(self) -> list[Check]:
        """Checks that could not be made, each with its reason."""
        return [check for _, check in self._all() if check.verdict == "skip"]

    def counts(self) -> str:
        """`12 passed, 0 failed, 3 skipped`."""
        verdicts = [check.verdict for _, check in self._all()]
        return f"{verdicts.count('pass')} passed, {verdicts.count('fail')} failed, {verdicts.count('skip')} skipped"

    def text(self) -> str:
        """The report for people; the last line has the counts of each verdict."""
        lines = [f"verify {self.subject} (seed {self.seed})"]
        for column in COLUMNS:
            lines.append(column.upper())
            checks: list[Check] = getattr(self, column)
            width = max((len(check.name) for check in checks if len(check.name) <= WIDEST), default=0)
            lines += [_line(check, width) for check in checks]
            if not checks:
                lines.append("  nothing to check")
        return "\n".join([*lines, f"{'PASSED' if self.passed else 'FAILED'}: {self.counts()}"])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<VerifyReport {self.subject}: {'passed' if self.passed else 'FAILED'} ({self.counts()})>"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe dict, with `passed` and the counts."""
        columns = {column: [check.to_dict() for check in getattr(self, column)] for column in COLUMNS}
        return {
            "subject": self.subject,
            "seed": self.seed,
            "passed": self.passed,
            "counts": self.counts(),
            **columns,
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_junit(self) -> str:
        """JUnit XML: one suite per column, one case per check."""
        lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites name={_attribute(self.subject)}>"]
        for column in COLUMNS:
            checks: list[Check] = getattr(self, column)
            failed = sum(check.verdict == "fail" for check in checks)
            skipped = sum(check.verdict == "skip" for check in checks)
            head = f'tests="{len(checks)}" failures="{failed}" skipped="{skipped}"'
            lines.append(f'  <testsuite name="{column}" {head}>')
            lines.extend(_junit_case(self.subject, column, check) for check in checks)
            lines.append("  </testsuite>")
        return "\n".join([*lines, "</testsuites>"])

    def raise_if_failed(self) -> None:
        """ContractError with every failure in its message, when there is one."""
        if not self.passed:
            shown = "\n".join(f"  {check}" for check in self.failures)
            message = f"{self.subject} does not keep its contract ({self.counts()}):\n{shown}"
            raise ContractError(message, code="TP3901", op=self.subject)

    def _repr_html_(self) -> str:
        colour = {"pass": "#1a7f37", "fail": "#cf222e", "skip": "#9a6700"}
        rows = []
        for column, check in self._all():
            verdict = f'<b style="color:{colour[check.verdict]}">{check.verdict}</b>'
            cells = [column, escape(check.name), verdict, escape(check.detail), escape(check.location or "")]
            rows.append(
                "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
            )
        title = f"verify {escape(self.subject)}: {self.counts()}"
        head = "".join(f"<th>{name}</th>" for name in ("column", "check", "verdict", "detail", "where"))
        return f"<table><caption>{title}</caption><tr>{head}</tr>{''.join(rows)}</table>"


def _line(check: Check, width: int) -> str:
    """A check in the report for people, its detail in a column of its own where the name leaves room."""
    place = f"  [{check.location}]" if check.location and check.verdict != "pass" else ""
    indent = width + 10 if len(check.name) <= WIDEST else 10
    gap = "  " if indent > 10 else "\n" + " " * indent
    detail = f"{check.detail}{place}".replace("\n", "\n" + " " * indent)
    return f"  {check.verdict:<4}  {check.name:<{width}}{gap}{detail}".rstrip()


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(
        c if c in "\n\t" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c > "\uffff" else "?"
        for c in text
    )


def _attribute(text: str) -> str:
    return quoteattr(_printable(text))


def _junit_case(subject: str, column: str, check: Check) -> str:
    head = f"    <testcase classname={_attribute(f'{subject}.{column}')} name={_attribute(check.name)}"
    if check.verdict == "pass":
        return head + "/>"
    tag = "failure" if check.verdict == "fail" else "skipped"
    place = f"\n{check.location}" if check.location else ""
    body = escape(_printable(check.detail + place), quote=False)
    return f"{head}><{tag} message={_attribute(check.detail.splitlines()[0] if check.detail else '')}>{body}</{tag}></testcase>"


class Tally:
    """Gathers one verdict per name over many cases: the first failure and how many more, or the worst pass."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._skips: dict[tuple[str, str, str | None], _Skip] = {}

    def declare(self, name: str, location: str | None = None) -> None:
        """Fixes the place of a name in the report before its first verdict."""
        self._entry(name, location)

    def ok(self, name: str, detail: str = "", *, score: float = 0.0, location: str | None = None) -> None:
        """One case of `name` held; the detail with the highest score is kept."""
        entry = self._entry(name, location)
        entry.passes += 1
        if entry.best is None or score > entry.score:
            entry.best, entry.score = detail, score

    def fail(self, name: str, detail: str, location: str | None = None) -> None:
        """One case of `name` failed; the first one's detail is kept."""
        self._entry(name, location).failures.append(detail)

    def skip(self, name: str, reason: str, location: str | None = None) -> None:
        """One case could not be tried. The same reason is listed once."""
        self.skip_case(name, reason, "", "", location)

    def skip_case(self, name: str, reason: str, lead: str, case: str, location: str | None = None) -> None:
        """As `skip`, for a reason that several cases share: it is listed once, behind `lead`, where `{}` names them.

        Reasons of one kind (`Layout: ...`) differ in the numbers of their case only: the first stands for all.
        """
        key = (name, reason.partition(": ")[0] if lead else reason, location)
        cases = self._skips.setdefault(key, _Skip(reason, lead)).cases
        if case not in cases:
            cases.append(case)

    def extend(self, other: Tally) -> None:
        """Takes over what another tally holds."""
        for name, entry in other._entries.items():
            own = self._entry(name, entry.location)
            own.passes += entry.passes
            own.failures += entry.failures
            if entry.best is not None and (own.best is None or entry.score > own.score):
                own.best, own.score = entry.best, entry.score
        for key, skip in other._skips.items():
            for case in skip.cases:
                self.skip_case(key[0], skip.reason, skip.lead, case, key[2])

    def failed(self, name: str) -> bool:
        """Whether a case of `name` failed already."""
        return name in self._entries and bool(self._entries[name].failures)

    def checks(self) -> list[Check]:
        """One check per name, in order of first mention, then the skips."""
        tried = [check for name, entry in self._entries.items() if (check := entry.check(name))]
        skips = [Check(name, "skip", s.detail(), location) for (name, _, location), s in self._skips.items()]
        return tried + skips

    def _entry(self, name: str, location: str | None) -> _Entry:
        entry = self._entries.setdefault(name, _Entry(location))
        entry.location = entry.location or location
        return entry


@dataclass
class _Skip:
    """A reason, and the cases that share it."""

    reason: str
    lead: str
    cases: list[str] = field(default_factory=list)

    def detail(self) -> str:
        more = len(self.cases) - NAMED_CASES
        named = [*self.cases[:NAMED_CASES], *([f"{more} more"] if more > 0 else [])]
        return self.lead.format("; ".join(named)) + self.reason


class _Entry:
    def __init__(self, location: str | None) -> None:
        self.location = location
        self.passes = 0
        self.best: str | None = None
        self.score = 0.0
        self.failures: list[str] = []

    def check(self, name: str) -> Check | None:
        if self.failures:
            more = len(self.failures) - 1
            rest = f"\n(and {more} more of {more + 1 + self.passes} cases)" if more else ""
            return Check(name, "fail", self.failures[0] + rest, self.location)
        if not self.passes:
            return None
        count = f"{self.passes} cases" if self.passes > 1 else "1 case"
        return Check(name, "pass", f"{count}; {self.best}" if self.best else count, self.location)
