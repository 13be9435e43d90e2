"""Reading the data of a tensor during capture: each is refused with the call, the user's line, and what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay.errors import CaptureError

KEEP = "keep the value a tensor (where() instead of if), or pass the number in as an argument"
OWN_OP = (
    "compute with tensorplay's ops, or put this code into an op of its own with tensorplay.library.custom_op"
)
RESULT = "return the tensor from the captured function, and do this with the result"

# (what reads, code, the call that the message names, what to do instead)
READS: dict[str, tuple[Callable[[Any], Any], str, str, str]] = {
    "if": (lambda x: 1 if x.sum() else 0, "TP4003", "bool(x)", KEEP),
    "int": (lambda x: int(x.sum()), "TP4003", "int(x)", KEEP),
    "float": (lambda x: float(x.sum()), "TP4003", "float(x)", KEEP),
    "complex": (lambda x: complex(x.sum()), "TP4003", "complex(x)", KEEP),
    "index": (lambda x: [1, 2][tp.argmax(x)], "TP4003", "its use as an index", KEEP),
    "item": (lambda x: x.sum().item(), "TP4003", "x.item()", KEEP),
    "tolist": (lambda x: x.tolist(), "TP4003", "x.tolist()", KEEP),
    "format": (lambda x: f"{x.sum():.2f}", "TP4003", "format(x, spec)", KEEP),
    "number": (lambda x: tp.full((2,), x.sum()), "TP4003", "its use as a number", KEEP),
    "numpy": (lambda x: x.numpy(), "TP4003", "x.numpy()", OWN_OP),
    "asarray": (lambda x: np.asarray(x), "TP4003", "numpy.asarray(x)", OWN_OP),
    "array": (lambda x: np.array(x, dtype="f8"), "TP4003", "numpy.asarray(x)", OWN_OP),
    "np.from_dlpack": (lambda x: np.from_dlpack(x), "TP4013", "x.__dlpack__()", OWN_OP),
    "tp.from_dlpack": (lambda x: tp.from_dlpack(x), "TP4013", "x.__dlpack__()", OWN_OP),
    "memoryview": (lambda x: memoryview(x), "TP4013", "memoryview(x)", OWN_OP),
    "bytes": (lambda x: bytes(x), "TP4013", "memoryview(x)", OWN_OP),
    "frombuffer": (lambda x: np.frombuffer(x), "TP4013", "memoryview(x)", OWN_OP),
    "data_ptr": (lambda x: x.data_ptr(), "TP4005", "x.data_ptr()", OWN_OP),
    "storage": (lambda x: x.untyped_storage().data_ptr(), "TP4005", "x.untyped_storage()", OWN_OP),
    "storage size": (lambda x: x.untyped_storage().nbytes(), "TP4005", "x.untyped_storage()", OWN_OP),
    "storage copy": (
        lambda x: x.untyped_storage().copy_(tp.ones((3,)).untyped_storage()),
        "TP4003",
        "storage.copy_()",
        OWN_OP,
    ),
    "text": (lambda x: str(x), "TP4003", "repr(x) or str(x)", KEEP),
    "pickle": (lambda x: pickle.dumps(x), "TP4003", "pickling or copying it", RESULT),
    "save": (lambda x: tp.save(Path("never.safetensors"), {"x": x}), "TP4003", "tensorplay.save", RESULT),
    "move": (lambda x: x.to("meta"), "TP4003", "x.to('meta')", RESULT),
}


@pytest.mark.parametrize("way", ["capture", "compile"])
@pytest.mark.parametrize("name", sorted(READS))
def test_a_refused_read_names_the_call_the_line_and_the_way_out(name: str, way: str) -> None:
    """B1: one kind of error for every read, in `tp.graph.capture` and in `tp.compile`."""
    read, code, by, instead = READS[name]
    # The user's line is that of the read itself.
    at = f"read at {__file__}:{read.__code__.co_firstlineno}"
    with pytest.raises(CaptureError) as caught:
        tp.graph.capture(read, tp.ones((3,))) if way == "capture" else tp.compile(read)(tp.ones((3,)))
    assert caught.value.code == code
    assert f"read during capture, by {by}" in str(caught.value)
    assert caught.value.__notes__ == [at, instead]


def test_what_needs_no_data_is_not_refused() -> None:
    """B1: a copy and what a shape tells are no reads."""

    def program(x: Any) -> Any:
        assert x.shape == (3,)
        return copy.deepcopy(x) + x.numel() + x.stride()[0]

    graph = tp.graph.capture(program, tp.ones((3,)))
    assert graph.nodes


def test_a_tensor_on_meta_has_no_data_and_that_is_no_matter_of_capture() -> None:
    with pytest.raises(BufferError, match="a tensor on 'meta' is without data, and cannot be exported"):
        memoryview(tp.ones((3,)).to("meta"))


# Reads of one element or of a shape that READS has for another sample.
LATER = {name: case for name, case in READS.items() if name not in ("text", "pickle", "move")}


@pytest.mark.parametrize("name", sorted(LATER))
def test_a_read_of_a_tensor_that_was_kept_after_its_capture_says_so(name: str, ns: str) -> None:
    """C1: not "during capture", for there is none any more."""
    kept: list[Any] = []

    def rule(x: Any) -> Any:
        kept.append(x)
        return tp.empty_like(x)

    # A fake rule may keep what it is given: what it does is its own.
    keep = tp.library.custom_op(f"{ns}::keep", lambda x: x * 1, mutates_args=())
    keep.register_fake(rule)

    @tp.compile
    def program(x: Any) -> Any:
        keep(x * 2.0)
        keep(tp.argmax(x))
        return x + 1.0

    program(tp.ones((3,)))
    read, _, by, _ = LATER[name]
    fake, place = kept[:2]

    class Whole:
        """The kept tensor, and as its sum the one that has one element."""

        def sum(self) -> Any:
            return place

    uses_sum = "sum" in read.__code__.co_names
    if name == "index":
        with pytest.raises(CaptureError) as caught:
            [1, 2][place]
    else:
        with pytest.raises(CaptureError) as caught:
            read(Whole() if uses_sum else fake)
    assert caught.value.code == "TP4012"
    assert f"was read outside of the capture that made it, by {by}" in str(caught.value)
    assert "return them" in caught.value.__notes__[0]


@pytest.mark.thread_unsafe(reason="its op has a fixed name")
def test_a_fake_rule_that_reads_is_told_of_a_capture() -> None:
    """5.1: a rule runs inside of one, and on tensors of 'meta' there is none."""
    op = tp.library.custom_op("refused_reads::rule", lambda x: x * 1.0, mutates_args=())
    op.register_fake(lambda x: tp.empty((int(x.sum().item()),)), allow_override=True)
    with pytest.raises(CaptureError, match="read during capture") as caught:
        tp.graph.capture(op, tp.ones((3,)))
    assert caught.value.code == "TP4003"
    with tp.library.debug_checks(), pytest.raises(CaptureError) as caught:
        op(tp.ones((3,)))
    assert caught.value.code == "TP4003"
