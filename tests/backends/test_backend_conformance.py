"""`tp.testing.check_backend` notices each kind of fault, planted in a backend that is right otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from backends.numpy_backend import NumPy
from tensorplay._verify import backend_programs
from tensorplay.backends import Artifact, FallbackReason
from tensorplay.errors import ContractError, InvalidValueError
from tensorplay.verify import VerifyReport

OPS = ["tp::add", "tp::maximum", "tp::neg", "tp::exp", "tp::where"]
DTYPES = ["float32", "int32", "bool"]
_numbers = itertools.count()


def checked(backend: NumPy) -> VerifyReport:
    name = f"planted_{next(_numbers)}"
    tp.backends.register(name, backend)
    return tp.testing.check_backend(name, ops=OPS, dtypes=DTYPES)


def test_a_backend_that_is_right_passes() -> None:
    """5.backends: the backend that the faults are planted in has none."""
    report = checked(NumPy())
    report.raise_if_failed()
    assert not any(check.detail.startswith("BackendUnavailable") for check in report.skips)
    assert len([check for check in report.values if check.verdict == "pass"]) > 40
    assert {check.name for check in report.executor} == {
        "takes programs",
        "inputs are left alone",
        "outputs are fresh",
        "marker: who ran",
        "marker: proof",
        "supports: the same answer",
    }


class Wrong(NumPy):
    """Changes outputs, given the region and the inputs."""

    def __init__(self, change: Callable) -> None:
        self.change = change

    def run(self, artifact, inputs):
        return self.change(super().run(artifact, inputs), artifact.payload, inputs)


def _off_by_one(outs, region, xs):
    return [o + 1 if o.dtype == np.int32 and o.ndim else o for o in outs]


def _nan_lost(outs, region, xs):
    return [
        np.nan_to_num(o, nan=0.0, posinf=np.inf, neginf=-np.inf) if o.dtype == np.float32 else o for o in outs
    ]


def _zero_lost(outs, region, xs):
    return [np.where(o == 0, np.abs(o), o).astype(o.dtype) if o.dtype.kind == "f" else o for o in outs]


def _infinity_lost(outs, region, xs):
    large = np.finfo(np.float32).max
    return [np.clip(o, -large, large) if o.dtype == np.float32 else o for o in outs]


def _last_bit(outs, region, xs):
    return [np.nextafter(o, np.float32(0)) if o.dtype == np.float32 else o for o in outs]


def _order(outs, region, xs):
    return outs[::-1] if len(outs) > 1 and outs[0].dtype == outs[-1].dtype else outs


def _empty(outs, region, xs):
    return [np.zeros(1, o.dtype) if not o.size else o for o in outs]


def _no_shape(outs, region, xs):
    return [o.reshape(1) if o.ndim == 0 else o for o in outs]


def _length(outs, region, xs):
    return [np.where(np.arange(o.size) < 32768, o, 0).astype(o.dtype) if o.ndim == 1 else o for o in outs]


class Contiguous(NumPy):
    """Reads the memory of an input in order, whatever its strides."""

    def run(self, artifact, inputs):
        taken = []
        for x in inputs:
            memory = x.numpy()
            if min(x.stride(), default=1) >= 0:
                memory = np.lib.stride_tricks.as_strided(memory, (x.size,), (memory.itemsize,))
            taken.append(tp.asarray(np.array(memory).reshape(x.shape)))
        return super().run(artifact, taken)


class Claims(NumPy):
    """Takes float64, and has only what float32 has."""

    def supports(self, region):
        return None

    def run(self, artifact, inputs):
        raise TypeError(f"no float64 for {len(inputs)} inputs")


@pytest.mark.parametrize(
    ("fault", "program"),
    [
        (_off_by_one, "tp::add int32"),
        (_nan_lost, "tp::maximum float32"),
        (_zero_lost, "tp::neg float32"),
        (_infinity_lost, "tp::exp float32"),
        (_last_bit, "tp::add float32"),
        (_order, "several outputs"),
        (_empty, "empty"),
        (_no_shape, "0-d"),
        (_length, "long"),
    ],
)
def test_wrong_values_are_failures(fault: Callable, program: str) -> None:
    """5.backends: one wrong kind of element, size or order of outputs is a failure of the program that has it."""
    report = checked(Wrong(fault))
    assert any(check.name.startswith(program) for check in report.failures), report
    with pytest.raises(ContractError):
        report.raise_if_failed()


def test_strides_that_are_not_looked_at_are_failures() -> None:
    """5.backends: transposed, sliced, expanded inputs, and broadcasting."""
    failed = {check.name for check in checked(Contiguous()).failures}
    assert {"transposed float32", "sliced int32"} <= failed
    assert "tp::add float32" not in failed


def test_what_is_taken_and_not_done_is_a_failure() -> None:
    """5.backends: a backend that claims more than it has fails where it claims; what it refuses is a skip."""
    name = "claims"
    tp.backends.register(name, Claims())
    report = tp.testing.check_backend(name, ops=["tp::add"], dtypes=["float64"])
    assert [c.detail for c in report.failures if c.name == "tp::add float64"] == [
        "TypeError: no float64 for 2 inputs"
    ]

    class Late(NumPy):
        def lower(self, region):
            raise RuntimeError("no room")

    (found,) = {check.detail for check in checked(Late()).failures if check.name == "tp::neg int32"}
    assert found.startswith("supports() took it, and then: LoweringFailed")
    assert "no room" in found

    class Nothing(NumPy):
        def supports(self, region):
            return FallbackReason("UnsupportedOp", None, "not today")

    report = checked(Nothing())
    assert [check.name for check in report.failures] == ["takes programs"]
    assert "UnsupportedOp" in report.skips[0].detail


class Writes(NumPy):
    def run(self, artifact, inputs):
        outs = super().run(artifact, inputs)
        if inputs[0].size and inputs[0].dtype is tp.float32:
            inputs[0].numpy()[...] = 7
        return outs


class Keeps(NumPy):
    """Gives the same memory at each run."""

    def __init__(self) -> None:
        self.kept: dict = {}

    def run(self, artifact, inputs):
        outs = super().run(artifact, inputs)
        kept = self.kept.setdefault(artifact.proof, outs)
        for old, new in zip(kept, outs, strict=True):
            old[...] = new
        return kept


class Ages(NumPy):
    """Right at the first run of an artifact only."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def run(self, artifact, inputs):
        outs = super().run(artifact, inputs)
        late = artifact.proof in self.seen
        self.seen.add(artifact.proof)
        return [o + np.ones_like(o) if late and o.dtype == np.float32 else o for o in outs]


class Borrows(NumPy):
    """Lets tensorplay do the work, and says that it was its own."""

    def run(self, artifact, inputs):
        if artifact.payload.ops == ("tp::exp.default",):
            return [tp.exp(inputs[0])]
        return super().run(artifact, inputs)


class Compiles(NumPy):
    """The same by way of a compiled function."""

    def run(self, artifact, inputs):
        if artifact.payload.ops == ("tp::exp.default",):
            return [tp.compile(lambda x: tp.exp(x))(inputs[0])]
        return super().run(artifact, inputs)


class OneProof(NumPy):
    def lower(self, region):
        return Artifact("reference", "the proof", region)


class NewProofs(NumPy):
    def lower(self, region):
        return Artifact("reference", f"proof {next(_numbers)}", region)


class Flips(NumPy):
    def __init__(self) -> None:
        self.asked = itertools.count()

    def supports(self, region):
        return (
            FallbackReason("Hazard", None, "not again") if next(self.asked) % 2 else super().supports(region)
        )


@pytest.mark.parametrize(
    ("backend", "check", "words"),
    [
        (Writes, "inputs are left alone", "it wrote to an input"),
        (Keeps, "outputs are fresh", "over the same memory"),
        (Ages, "outputs are fresh", "its second run gave"),
        (Borrows, "marker: who ran", "called tp::exp.default, which ran on native"),
        (Compiles, "marker: who ran", "called tp::exp.default, which ran on native"),
        (OneProof, "marker: proof", "are different programs, both 'the proof'"),
        (NewProofs, "marker: proof", "when lowered again"),
        (Flips, "supports: the same answer", "refused it when it was asked again"),
    ],
)
def test_conduct_that_breaks_the_contract_is_a_failure(backend: type[NumPy], check: str, words: str) -> None:
    """5.backends: written inputs, memory given twice, lying markers and proofs, whatever the values are."""
    found = {c.name: c.detail for c in checked(backend()).failures}
    assert words in found[check]


def test_names_that_are_not_known_are_refused() -> None:
    """5.backends: of backends, ops and dtypes."""
    for given in ({"ops": ["tp::sum"]}, {"dtypes": ["float8"]}):
        with pytest.raises(InvalidValueError, match="no pointwise"):
            tp.testing.check_backend("native", **given)
    with pytest.raises(ValueError, match="no backend named"):
        tp.testing.check_backend("nosuch")


def test_the_native_backend_passes() -> None:
    """5.backends: the programs hold for the executor that is always there."""
    tp.testing.check_backend("native", ops=OPS, dtypes=["float32", "bfloat16", "int8"]).raise_if_failed()


@pytest.mark.requires("tvm")
@pytest.mark.parametrize("dtype", backend_programs.DTYPES)
def test_tvm_passes_every_row_of_a_dtype(dtype: str) -> None:
    """5.4, 5.backends: with the test of casts this is `check_backend("tvm")` in full, in parts that CI's processes share."""
    report = tp.testing.check_backend("tvm", dtypes=[dtype])
    report.raise_if_failed()
    assert not report.skips
    assert sum(check.verdict == "pass" for check in report.values) > 115


@pytest.mark.requires("tvm")
def test_tvm_passes_every_cast() -> None:
    """5.4, 5.backends: each dtype to each."""
    report = tp.testing.check_backend("tvm", ops=[])
    report.raise_if_failed()
    passed = {check.name for check in report.values if check.verdict == "pass"}
    dtypes = backend_programs.DTYPES
    assert passed >= {f"cast {source} to {target}" for source in dtypes for target in dtypes}


def test_the_parts_are_the_whole() -> None:
    """5.backends: no program of the full run is missing from the parts that the tests above run."""
    every, rows = backend_programs.DTYPES, backend_programs.rows()
    names = lambda ops, dtypes: {p.name for p in backend_programs.programs(ops, dtypes)}  # noqa: E731
    parts = set().union(*(names(rows, [dtype]) for dtype in every), names([], every))
    assert parts == names(rows, every)
