"""What compiled functions tell: logs, events, counters, the report of a run, and strict fallbacks."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import tensorplay as tp
from tensorplay.errors import FallbackError
from tensorplay.outcome import CodegenMarker, FallbackReason, RegionRun, RunReport

NAMES = ("graph", "guards", "recompiles", "fallback", "executor")

PROGRAM = """
import warnings
import tensorplay as tp

def scaled(x, factor):
    return tp.sum(x * factor)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    f = tp.compile(scaled, backend="triton")
    for n in (2, 3, 3):
        f(tp.ones((n,)), 2.0)
    g = tp.compile(lambda x, k: x * k)
    for k in range(9):
        g(tp.ones((2,)), float(k))
print(f(tp.ones((3,)), 2.0).item())
"""


def logged(value: str | None) -> tuple[str, list[str]]:
    """What the program printed, and its lines on stderr, under that value of TENSORPLAY_LOG."""
    import os

    env = {k: v for k, v in os.environ.items() if k != "TENSORPLAY_LOG"}
    env |= {} if value is None else {"TENSORPLAY_LOG": value}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_each_name_turns_its_logger_on_and_changes_nothing_else() -> None:
    """5.log: one run per name, all together, and none; the program prints the same."""
    plain, silent = logged(None)
    assert silent == []
    starts = {
        "graph": "tensorplay.graph: graph 0 of scaled",
        "guards": "tensorplay.guards: guards of graph 0 of scaled: x.dtype == float32; ",
        "recompiles": "tensorplay.recompiles: scaled is captured again, as graph 1: x.shape[0] == 2, got 3",
        "fallback": "tensorplay.fallback: graph 0 of scaled, forward 0: tp::mul.Scalar on native (BackendUnavailable: ",
        "executor": "tensorplay.executor: the first run of graph 0 of scaled",
    }
    assert set(starts) == set(NAMES)
    for name, start in starts.items():
        printed, lines = logged(name)
        assert printed == plain
        assert any(line.startswith(start) for line in lines), lines
        loggers = {line.partition(":")[0] for line in lines if line.startswith("tensorplay.")}
        assert loggers == {f"tensorplay.{name}"}
    _, lines = logged(" graph, executor,,")
    assert {line.partition(":")[0] for line in lines if line.startswith("tensorplay.")} == {
        "tensorplay.graph",
        "tensorplay.executor",
    }
    table = lines[lines.index(next(line for line in lines if line.startswith(starts["executor"]))) :]
    assert table[1].split() == ["phase", "region", "executor", "ops", "reason"]
    assert table[2].split()[:4] == ["forward", "0", "native", "tp::mul.Scalar"]
    assert any("itself runs: RecompileLimit" in line for line in logged("fallback")[1])


def test_a_name_that_is_none_is_one_warning() -> None:
    """5.log: all of them in one warning, with the nearest; the others are in force."""
    _, lines = logged("graf,guards,nothing")
    (warning,) = [line for line in lines if "RuntimeWarning" in line]
    assert "there is no 'graf' (did you mean 'graph'?), no 'nothing'; known are graph, guards" in warning
    assert any(line.startswith("tensorplay.guards:") for line in lines)


def test_importing_does_not_import_logging() -> None:
    """5.log: nor does a wrong name of a logger keep anybody from importing."""
    script = "import sys, tensorplay; assert 'logging' not in sys.modules and 'tensorplay._observe' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_loggers_are_pythons_own(caplog: pytest.LogCaptureFixture) -> None:
    """5.log: whoever sets their level gets the records, without the variable."""
    with caplog.at_level(logging.INFO, logger="tensorplay"):
        tp.compile(lambda x: x + 1.0)(tp.ones((2,)))
    assert [r.name for r in caplog.records] == [
        "tensorplay.graph",
        "tensorplay.guards",
        "tensorplay.executor",
    ]
    caplog.clear()
    tp.compile(lambda x: x + 1.0)(tp.ones((2,)))
    assert caplog.records == []


def counted(call) -> dict[str, int]:
    """What a call adds to the counters."""
    before = tp.compiler.counters()
    call()
    after = tp.compiler.counters()
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def test_counters_count_captures_and_fallbacks_by_kind() -> None:
    """5.counters: a call that finds an entry adds nothing."""
    f = tp.compile(lambda x: tp.exp(tp.sum(x)), backend="triton", on_fallback="record")
    two = counted(lambda: f(tp.ones((2,))))
    assert two == {"graphs": 1, "fallbacks": 2, "fallback.BackendUnavailable": 2}
    assert counted(lambda: f(tp.ones((2,)))) == {}
    assert counted(lambda: f(tp.ones((3,))))["recompiles"] == 1
    g = tp.compile(lambda x, k: x * k)
    for k in range(8):
        g(tp.ones((2,)), float(k))
    with pytest.warns(UserWarning, match="RecompileLimit"):
        past = counted(lambda: g(tp.ones((2,)), 9.0))
    assert past == {"fallbacks": 1, "eager.RecompileLimit": 1}


def test_events_have_everything(ns: str) -> None:
    """5.trace: op, key, executor, marker, reason, shapes, time, of eager and compiled calls, forward and backward."""
    op = tp.library.custom_op(f"{ns}::twice", lambda x: x * 2.0, mutates_args=())
    op.register_fake(lambda x: tp.empty_like(x))
    op.register_autograd(lambda ctx, g: g * 2.0)
    f = tp.compile(lambda x: tp.sum(op(tp.tanh(x) + 1.0)), backend="triton", on_fallback="record")
    x = tp.tensor([0.5, 1.0], requires_grad=True)
    f(x)
    with tp.trace() as events:
        tp.neg(x)
        f(x).backward()
    eager, compiled, *rest = events
    assert (eager.op, eager.key, eager.phase, eager.marker.executor) == (
        "tp::neg.default",
        "cpu",
        "forward",
        "native",
    )
    assert (eager.shapes, eager.dtypes, eager.rejected) == (((2,),), ("float32",), [])
    assert (compiled.op, compiled.key, compiled.phase) == (
        "tp::tanh.default tp::add.Scalar",
        "cpu",
        "forward",
    )
    assert compiled.marker == f.last_run.forward[0].marker
    ((where, reason),) = compiled.rejected
    assert (where, reason.kind) == ("region", "BackendUnavailable")
    assert reason == f.last_run.forward[0].reason
    assert compiled.shapes == ((2,),)
    assert [e.op for e in rest if e.phase == "forward"] == [
        "tp::mul.Scalar",
        f"{ns}::twice.default",
        "tp::sum.default",
    ]
    assert {e.marker.executor for e in rest if e.op.startswith(ns)} == {"python"}
    backward = [e for e in events if e.phase == "backward"]
    assert any("tp::mul" in e.op for e in backward)
    assert all(e.host_seconds > 0.0 and e.device_seconds is None for e in events)
    assert "BackendUnavailable" in repr(events)


def test_the_last_run_is_a_table() -> None:
    """5.last_run: one row per region, forward and backward, with executor, ops and reason."""
    f = tp.compile(lambda x: tp.sum(tp.exp(x) * 2.0))
    assert f.last_run is None
    x = tp.tensor([0.5, 1.0], requires_grad=True)
    f(x).backward()
    lines = str(f.last_run).splitlines()
    assert lines[0].split() == ["phase", "region", "executor", "ops", "reason"]
    assert lines[1].split() == ["forward", "0", "native", "tp::exp.default,", "tp::mul.Scalar", "-"]
    assert [line.split()[0] for line in lines[1:]] == ["forward"] * 2 + ["backward"] * len(
        f.last_run.backward
    )
    assert len(f.last_run.backward) > 0


def test_the_table_says_each_reason_once_and_counts_equal_ops() -> None:
    """A reason names the place where it stands in full; one of two ops keeps the name of the op it is about."""
    marker = CodegenMarker("native", "k", None, "cpu")

    def region(index, ops, message=None):
        reason = message and FallbackReason("UnsupportedOp", None, message)
        return RegionRun(index, tuple(ops), marker, reason)

    forward = [region(0, ["a"], "a: no form"), region(1, ["b", "b", "a"]), region(2, ["c"], "c: no form")]
    backward = [region(0, ["d"], "d: no form"), region(1, ["a", "d"], "a: no form")]
    lines = str(RunReport(forward, backward, 0)).splitlines()[1:]
    assert [line.split(maxsplit=3)[3].split("  ", 1)[0] for line in lines] == [
        "a",
        "b x2, a",
        "c",
        "d",
        "a, d",
    ]
    assert [line.rsplit("  ", 1)[1].strip() for line in lines] == [
        "UnsupportedOp: no form",
        "-",
        "as forward 0",
        "as forward 0",
        "UnsupportedOp: a: no form",
    ]


@pytest.mark.requires("tvm")
def test_a_strict_fallback_names_node_and_cause() -> None:
    """5.strict: at the first of them, before anything runs."""

    def chain(x):
        y = tp.exp(x) * 2.0
        z = tp.cumsum(y, axis=0)
        return tp.sum(z)

    f = tp.compile(chain, backend="tvm", on_fallback="error")
    x = tp.ones((3,))
    with tp.trace() as events, pytest.raises(FallbackError) as caught:
        f(x)
    assert (list(events), f.graphs) == ([], [])
    error = caught.value
    assert (error.code, error.reason.kind, error.reason.op) == (
        "TP4101",
        "UnsupportedOp",
        "tp::cumsum.default",
    )
    line = chain.__code__.co_firstlineno + 2
    assert error.__notes__[0].startswith("the node: %3: float32[3] = tp::cumsum.default(%2, 0")
    assert error.__notes__[0].endswith(f"test_observability.py:{line}")

    def long(x):
        for _ in range(700):
            x = tp.sinh(x) + 1.5
        return x

    with pytest.raises(FallbackError, match="would compile for seconds") as caught:
        tp.compile(long, backend="tvm", on_fallback="error")(x)
    assert (caught.value.reason.kind, caught.value.reason.details["stage"]) == ("LoweringFailed", "size")
    note = caught.value.__notes__[0]
    assert note.startswith(
        "the region of tp::sinh.default, tp::add.Scalar, tp::sinh.default, tp::add.Scalar and 252 more begins"
    )
    assert "begins at: %1: float32[3] = tp::sinh.default(%0)" in note
