"""The peer comparison: how blocks become ratios and verdicts, and that a fallback is never ranked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parent.parent / "benches" / "python" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    """(report, rounds, worker), imported as the scripts import one another."""
    monkeypatch.syspath_prepend(str(PEERS))
    import report
    import rounds
    import worker

    yield report, rounds, worker
    for name in ("report", "rounds", "worker"):
        sys.modules.pop(name)


def results(rounds, notes=None, **walls):
    """Results of one thread; `ours_add=[...]` are the blocks of case `add` of `ours`, all of them kept."""
    samples = {tuple(k.split("_", 1)): rounds.Samples(list(v), list(v)) for k, v in walls.items()}
    return rounds.Results(1, samples, {}, notes or {}, 0.0)


def test_a_ratio_is_the_median_of_same_round_ratios(peers) -> None:
    report, rounds, _ = peers
    # The machine was three times slower in the last two rounds, for both alike.
    run = results(rounds, ours_add=[1, 1, 1, 3, 3], torch_add=[10, 10, 10, 30, 30])
    row = report.timed_row("add", run, "add", "torch", 0.15)
    assert (row.ratio, row.verdict, row.least) == (pytest.approx(0.1), "met", (1, 10))
    assert report.timed_row("add", run, "add", "torch", 0.05).verdict == "not met"


def test_the_cost_over_a_body_is_a_difference_within_the_round(peers) -> None:
    report, rounds, _ = peers
    run = results(rounds, ours_op=[12, 22], ours_op_body=[10, 20], torch_op=[60, 120], torch_op_body=[20, 80])
    assert report.timed_row("op", run, "op", "torch", 0.03, less="op_body").ratio == pytest.approx(0.05)


def test_the_best_peer_is_the_quickest_that_has_the_case(peers) -> None:
    report, rounds, _ = peers
    run = results(
        rounds, ours_native=[8, 8, 8], torch_gelu=[40, 40, 40], jax_gelu=[10, 10, 10], numpy_add=[1, 1, 1]
    )
    row = report.timed_row("gelu", run, "native", "best", 0.8, against="gelu")
    assert (row.peer, row.ratio, row.verdict, row.least) == ("jax", pytest.approx(0.8), "met", (8, 10))
    assert report.timed_row("softmax", run, "softmax", "best", 0.8).verdict == "not measured"


def test_a_fallback_is_not_a_performance_result(peers) -> None:
    report, rounds, _ = peers
    notes = {("ours", "gelu"): "FALLBACK ran on native: TVM is not installed"}
    run = results(rounds, notes, ours_gelu=[1, 1], torch_gelu=[10, 10])
    assert report.timed_row("gelu", run, "gelu", "torch", 0.33).verdict == "not a performance result"


def test_what_was_promised_and_not_measured_is_said(peers) -> None:
    report, rounds, _ = peers
    found = report.rows([results(rounds, ours_add=[1], torch_add=[10])], {})
    assert {row.verdict for row in found if row.what != "tp.add"} == {"not measured"}
    assert "| schema parse | torch | 1 |  |  |  |  | 0.2 | not measured |" in report.ratio_table(found)


def test_preempted_blocks_are_not_kept(peers) -> None:
    _, rounds, _ = peers
    assert rounds.Samples([10, 10, 20], [10, 9.5, 10]).kept == [10, 10]


def test_a_worker_reports_a_case_that_fails_and_times_the_others(peers) -> None:
    *_, worker = peers

    def broken():
        raise ValueError("planted")

    builders = {"good": lambda: worker.Case("f(1)", {"f": abs}, per=2), "bad": broken}
    timed, said = worker.prepare(builders, 0.0005)
    assert said == {"good": {"note": None}, "bad": {"error": "ValueError: planted"}}
    wall, cpu = timed["good"].block()
    assert 0 < wall < 1e6
    assert 0 <= cpu < 1e6
