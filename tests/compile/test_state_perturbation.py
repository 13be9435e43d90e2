"""Hundreds of functions of Python state, each location of which is changed in turn beside an eager twin."""

from __future__ import annotations

import functools

import pytest

from state_perturbation import FILES, Verdict, functions, perturb
from tensorplay import _native

pytestmark = [
    pytest.mark.skipif(
        not _native.watches_python_state(),
        reason="frames of this version of Python are not known to the extension",
    ),
    pytest.mark.filterwarnings("ignore"),
]

#: Functions that could be captured and are refused, and why.
FALSE_REFUSALS = {
    "functools.singledispatch": "keeps the implementation by type, on first use",
    "copy.copy of an instance": "copyreg keeps the names of slots in the class, on first use",
    "pathlib": "a path keeps its parts, on first use",
}


@functools.cache
def _verdicts(file: str) -> dict[str, Verdict]:
    return {name: perturb(source) for name, source in functions(file).items()}


@pytest.mark.parametrize("file", FILES)
def test_no_change_of_reachable_state_is_missed_and_no_result_is_wrong(file: str) -> None:
    """C: results and effects are those of eager code, before a change, after it, and when it is put back."""
    wrong = {name: verdict.wrong for name, verdict in _verdicts(file).items() if verdict.wrong}
    assert not wrong
    refused = {n for n, v in _verdicts(file).items() if v.refused is not None and not n.endswith("!")}
    assert refused == FALSE_REFUSALS.keys() & functions(file).keys()


def test_the_functions_are_many_and_few_are_refused_needlessly() -> None:
    """C: at least 300 functions; false refusals are at most 3 in 100, and listed above."""
    names = [name for file in FILES for name in functions(file)]
    assert len(names) >= 300
    assert len(set(names)) == len(names)
    ordinary = [name for name in names if not name.endswith("!")]
    assert len(FALSE_REFUSALS) <= 0.03 * len(ordinary)
    assert FALSE_REFUSALS.keys() <= set(ordinary)


def test_the_changes_are_effectful_and_most_harmless_ones_cost_nothing() -> None:
    """C: a test that changes nothing would hold as well."""
    verdicts = [verdict for file in FILES for verdict in _verdicts(file).values()]
    effectful = sum(verdict.effectful for verdict in verdicts)
    harmless = sum(verdict.harmless for verdict in verdicts)
    assert effectful >= 700
    assert harmless >= 150
    assert sum(verdict.needless for verdict in verdicts) <= 0.6 * harmless


@pytest.mark.parametrize(
    ("source", "left_out"),
    [
        ("k = 2.0\ndef f(x):\n    return x * k\n", "k"),
        ("class C:\n    k = 2.0\nc = C()\ndef f(x):\n    return x * c.k\n", "c.k"),
        ("ks = [2.0]\ndef f(x):\n    for k in ks:\n        x = x * k\n    return x\n", "ks"),
    ],
)
def test_a_guard_that_is_left_out_is_found(source: str, left_out: str) -> None:
    """C: the test of perturbations fails where a guard is missing."""
    assert not perturb(source).wrong
    assert perturb(source, assume_constant=[left_out]).wrong


def test_a_read_that_lies_is_found() -> None:
    """C: a native function that says it reads nothing, and does."""
    source = "ks = [2.0, 3.0]\nread = ks.__getitem__\ndef f(x):\n    return x * read(1) * len(ks)\n"
    assert not perturb(source).wrong
    assert perturb(source, assume_constant=["__getitem__"]).wrong


def test_an_effect_of_the_capture_is_found() -> None:
    """C: a write that only the capture would do shows in the state of the twin."""
    source = "seen = []\ndef f(x):\n    seen.append(1)\n    return x * 2.0\n"
    verdict = perturb(source)
    assert verdict.refused is not None
    assert not verdict.wrong
