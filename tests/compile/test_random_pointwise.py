"""Random pointwise programs on three executors: eager, native and TVM give the same bits, and say who ran.

The bound between executors is none: they share one expression per op, every product and sum is rounded, and the
transcendentals are written once. Only the sign and the payload of a NaN are free. What an expression is worth beside
the exact value is held by `test_accuracy.py` and by the tests of tp-expr.

`TENSORPLAY_TEST_PROGRAMS=20000` (`make fuzz-pointwise`) runs that many programs instead of the few of a normal run,
other ones in each run with `TENSORPLAY_TEST_SEED`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import random_pointwise as programs
import tensorplay as tp
from tensorplay.outcome import RunReport

COUNT = int(os.environ.get("TENSORPLAY_TEST_PROGRAMS", "0"))
SEED = int(os.environ.get("TENSORPLAY_TEST_SEED", "0"))
CODE = st.integers(0, 2**20)
# What TVM may decline in such a program, by kind and words.
DECLINED = (("LoweringFailed", "would compile for seconds"),)


def profile(few: int, phases: Collection[Phase] = tuple(Phase)) -> settings:
    return settings(
        max_examples=COUNT or few,
        phases=phases,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )


@st.composite
def drawn(draw: st.DrawFn) -> tuple[programs.Program, list[tp.Tensor]]:
    base = draw(st.sampled_from(programs.BASES))
    inputs = programs.operands(
        draw(st.lists(CODE, min_size=1, max_size=4)), base, draw(st.integers(0, 2**16))
    )
    codes = draw(st.lists(st.tuples(CODE, CODE, CODE, CODE), min_size=8, max_size=36))
    return programs.build(codes, inputs), inputs


def run(
    program: Callable, backend: str, inputs: Sequence[tp.Tensor]
) -> tuple[tuple[tp.Tensor, ...], RunReport]:
    return tp.compile(program, backend=backend, on_fallback="record").run(*inputs)


def assert_fused(report: RunReport, executor: str) -> None:
    """Every region ran as one kernel of the executor, or says why not."""
    for region in report.forward:
        if region.reason is not None:
            kind, text = region.reason.kind, str(region.reason)
            assert any(kind == k and words in text for k, words in DECLINED), text
            continue
        assert region.marker.executor == executor, region
        if executor == "native":
            assert region.marker.proof.startswith("tile:"), region
        else:
            assert len(region.marker.proof) == 64, region


def check(
    program: programs.Program, inputs: list[tp.Tensor], backend: str, compiled: Callable | None = None
) -> None:
    want = program(*inputs)
    got, report = run(compiled or program, backend, inputs)
    assert_fused(report, backend)
    programs.assert_same(got, want, backend, program)


@seed(SEED)
@profile(250)
@given(case=drawn())
def test_native_gives_the_bits_of_eager(case: tuple[programs.Program, list[tp.Tensor]]) -> None:
    """5.3: fused regions of random programs are eager's bits, by tile kernels."""
    check(*case, "native")


@pytest.mark.requires("tvm")
@seed(SEED)
@profile(30)
@given(case=drawn())
def test_tvm_gives_the_bits_of_eager(case: tuple[programs.Program, list[tp.Tensor]]) -> None:
    """5.4: what TVM compiles of random programs is eager's bits, by TVM's code."""
    check(*case, "tvm")


def found_in(few: int, check_one: Callable) -> None:
    """Runs the short profile, which has to fail, and does not look for the smallest case."""

    @seed(0)
    @profile(few, (Phase.generate,))
    @given(case=drawn())
    def hunt(case: tuple[programs.Program, list[tp.Tensor]]) -> None:
        check_one(*case)

    with pytest.raises(AssertionError, match="output"):
        hunt()


def test_a_rewrite_that_rounds_otherwise_is_found() -> None:
    """5.3: a quotient computed as product with the reciprocal, off by one unit in the last place, is noticed."""

    def rewritten(program: programs.Program, inputs: list[tp.Tensor]) -> None:
        wrong = lambda x, y: tp.mul(x, tp.reciprocal(y)) if isinstance(y, tp.Tensor) else tp.div(x, y)  # noqa: E731
        steps = tuple((wrong if op is tp.div else op, args) for op, args in program.steps)
        check(program, inputs, "native", programs.Program(steps, program.outputs))

    found_in(250, rewritten)


@pytest.mark.requires("tvm")
@pytest.mark.thread_unsafe(reason="changes how TVM programs are made")
def test_a_wrong_lowering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.4: an extreme that drops a NaN, as TVM's own does, is noticed."""
    from tensorplay.backends.tvm import compile as compiling
    from tensorplay.backends.tvm.emit import Emitter

    right = Emitter._float

    def wrong(self: Emitter, op: str, dtype: str, args: list) -> object:
        own = {"max": self.t.Max, "min": self.t.Min}.get(op)
        return own(*args) if own else right(self, op, dtype, args)

    monkeypatch.setattr(Emitter, "_float", wrong)
    compiling._cache.reset()
    try:
        found_in(100, lambda program, inputs: check(program, inputs, "tvm"))
    finally:
        compiling._cache.reset()
