"""`verify` on what a call chooses: bools, optional arguments, how a batch lies, and writes that nobody named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.errors import InvalidValueError, RegistrationError
from tensorplay.testing import make_tensor
from tensorplay.verify import opcheck, verify
from verifying import failed

Tensor = tp.Tensor
BATCH = "batching rule against a loop"
FLAG = "(Tensor x, bool b) -> Tensor"
OPTIONAL = "(Tensor x, Tensor? y=None) -> Tensor"


def op(name: str, schema: str, body: Callable[..., Any], fake: Any = library.fake_from_body) -> Any:
    made = library.custom_op(f"vtc::{name}", body, mutates_args=(), schema=schema)
    made.register_fake(fake)
    return made


# --- bools and optional arguments ------------------------------------------------------------------------


def flagged(x: Tensor, b: bool) -> Tensor:
    return x * 2.0 if b else x * 3.0


@pytest.mark.parametrize("b", [True, False])
def test_a_fake_rule_wrong_for_the_other_bool_is_found(b: bool) -> None:
    """11: beside given inputs both bools are tried, and a fake rule must hold for both."""
    wrong = op(f"fake_{b}", FLAG, flagged, lambda x, c: tp.empty_like(x) if c is b else tp.empty((77,)))
    x = make_tensor((3, 4))
    assert f"b={not b}" in failed(verify(wrong, (x, b)), "fake rule: shape")
    assert verify(wrong, (x, b), sweep=False).passed


@pytest.mark.parametrize("how", ["positional", "keyword", "left out"])
def test_a_kernel_and_a_gradient_wrong_for_the_other_bool_are_found(how: str) -> None:
    """11: given by position, by keyword, or left at a default."""
    schema, name = "(Tensor x, bool b=True) -> Tensor", how.replace(" ", "_")
    fast, steep = op(f"kernel_{name}", schema, flagged), op(f"gradient_{name}", schema, flagged)
    fast.register_kernel("cpu", lambda x, b=True: x * 2.0, name="fast")
    steep.register_autograd(lambda ctx, g: (g * 2.0, None))
    x = make_tensor((3, 4))
    args, kwargs = {"positional": ((x, True), {}), "keyword": ((x,), {"b": True}), "left out": ((x,), {})}[
        how
    ]
    assert "b=False" in failed(verify(fast, args, kwargs), "kernel cpu/fast")
    assert "b=False" in failed(verify(steep, args, kwargs), "gradient against differences")


def test_a_write_under_the_other_bool_is_found() -> None:
    """11: an argument written to for b=False alone."""

    def body(x: Tensor, b: bool) -> Tensor:
        return x * 2.0 if b else x.add_(1.0) * 2.0

    assert "x was written to" in failed(
        verify(op("write", FLAG, body), (make_tensor((3,)), True)), "inputs unchanged"
    )


def test_every_bool_of_a_list_is_flipped() -> None:
    """11: bool[] as one bool."""
    schema = "(Tensor x, bool[] bs) -> Tensor"
    wrong = op("list", schema, lambda x, bs: x * 2.0 if bs[0] else x * 3.0)
    wrong.register_kernel("cpu", lambda x, bs: x * 2.0, name="fast")
    assert "bs=[False, True]" in failed(verify(wrong, (make_tensor((3,)), [True, False])), "kernel cpu/fast")


def optional(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x * 2.0 if y is None else x * y


@pytest.mark.parametrize("given", [True, False])
def test_an_optional_tensor_is_tried_given_and_left_out(given: bool) -> None:
    """11: a kernel, a gradient and a fake rule wrong for the form that was not given."""
    wrong = op(f"optional_{given}", OPTIONAL, optional)
    wrong.register_kernel("cpu", (lambda x, y=None: x * y if y is not None else x) if given else
                          (lambda x, y=None: x * 2.0), name="fast")  # fmt: skip
    x = make_tensor((3, 4))
    report = verify(wrong, (x, make_tensor((3, 4), seed=1)) if given else (x,))
    assert ("y=None" if given else "y=a tensor") in failed(report, "kernel cpu/fast")


def test_an_optional_number_is_left_out_too() -> None:
    """11: float? given, and wrong for None."""
    schema = "(Tensor x, float? k) -> Tensor"
    wrong = op("number", schema, lambda x, k: x * 2.0 if k is None else x * k)
    wrong.register_autograd(
        lambda ctx, g: (g * (ctx.k or 1.0), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
    )
    assert "k=None" in failed(verify(wrong, (make_tensor((3,)), 3.0)), "gradient against differences")


def test_right_ops_with_choices_pass_and_what_they_refuse_is_a_skip() -> None:
    """11: both bools, an optional tensor, and a choice that the op refuses."""

    def body(x: Tensor, y: Tensor | None = None, b: bool = True) -> Tensor:
        if not b:
            raise ValueError("b must be True")
        return optional(x, y)

    right = op("right", "(Tensor x, Tensor? y=None, bool b=True) -> Tensor", body)

    def rule(ctx: Any, g: Tensor) -> Any:
        if not ctx.two:
            return g * 2.0, None, None
        x, y = ctx.saved_tensors
        return g * y, g * x, None

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.two = inputs[1] is not None
        ctx.save_for_backward(*(inputs[:2] if ctx.two else inputs[:1]))

    right.register_autograd(rule, setup_context=setup)
    report = verify(right, (make_tensor((3, 4)), make_tensor((3, 4), seed=1), True))
    assert report.passed, report.text()
    assert any("b=False" in check.name and "b must be True" in check.detail for check in report.skips)
    honest = op("honest", FLAG, flagged)
    assert verify(honest, (make_tensor((3,)), True)).passed


def test_a_plain_function_is_tried_with_the_other_bool() -> None:
    """11: what it refuses then is no failure, for no schema allows it."""

    def scale(x: Tensor, up: bool) -> Tensor:
        if not up and tp.any(x > 0.0).item():
            return x
        return x * 2.0

    report = verify(scale, (make_tensor((3,)), True))
    assert report.passed, report.text()


def test_the_same_seed_gives_the_same_cases() -> None:
    """11: reports are reproducible, choices included."""
    right = op(
        "again", "(Tensor x, Tensor? y=None, bool b=True) -> Tensor", lambda x, y=None, b=True: optional(x, y)
    )
    first, second = (verify(right, (make_tensor((3, 4)),), seed=3) for _ in range(2))
    assert first.to_dict() == second.to_dict()


# --- batching rules --------------------------------------------------------------------------------------


def pair(name: str, rule: Callable[..., Any]) -> Any:
    made = op(name, "(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)
    made.register_vmap(lambda info, in_dims, x, y: rule(info, in_dims, x, y))
    return made


def moved(x: Tensor, dim: int | None, size: int) -> Tensor:
    if dim is None:
        return tp.expand(tp.unsqueeze(x, 0), (size, *x.shape))
    return tp.permute_dims(x, (dim, *(i for i in range(x.ndim) if i != dim)))


def right_pair(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
    return moved(x, in_dims[0], info.batch_size) * moved(y, in_dims[1], info.batch_size), 0


WRONG_PAIRS: dict[str, Callable[[Any], bool]] = {
    "y_alone": lambda dims: dims[0] is None,
    "x_alone_last": lambda dims: dims[1] is None and dims[0] not in (0, None),
    "different": lambda dims: None not in dims and dims[0] != dims[1],
    "middle": lambda dims: dims == (1, 1),
}


@pytest.mark.parametrize("case", WRONG_PAIRS)
@pytest.mark.parametrize("same", [True, False])
def test_a_batching_rule_wrong_for_some_axes_alone_is_found(case: str, same: bool) -> None:
    """11: each argument alone and all, along equal and different axes; the same tensor twice is two arguments."""

    def rule(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        out, dim = right_pair(info, in_dims, x, y)
        return (out * 0.0 if WRONG_PAIRS[case](in_dims) else out), dim

    x = make_tensor((2, 3, 4))
    wrong = pair(f"vmap_{case}_{same}", rule)
    args = (x, x) if same else (x, make_tensor((2, 3, 4), seed=1))
    assert "in_dims=(" in failed(verify(wrong, args, sweep=False), BATCH)


def test_a_batching_rule_for_every_axis_passes() -> None:
    """11: pairs, lists, integers beside floats, and a tensor of no dimension."""
    x = make_tensor((2, 3))
    report = verify(pair("vmap_right", right_pair), (x, x))
    assert report.passed, report.text()
    assert BATCH in {check.name for check in report.values if check.verdict == "pass"}

    def items(info: Any, in_dims: Any, xs: list[Tensor]) -> Any:
        a, b = (moved(t, d, info.batch_size) for t, d in zip(xs, in_dims[0], strict=True))
        return a * b, 0

    listed = op("vmap_list", "(Tensor[] xs) -> Tensor", lambda xs: xs[0] * xs[1])
    listed.register_vmap(items)
    report = verify(listed, ([x, x * 2.0],), sweep=False)
    assert report.passed, report.text()
    assert BATCH in {check.name for check in report.values if check.verdict == "pass"}


@pytest.mark.parametrize("wrong", [True, False])
def test_a_batching_rule_of_integers_and_lists_is_compared(wrong: bool) -> None:
    """11: every sample has integers of its own; one item of a list batched alone."""

    def rule(info: Any, in_dims: Any, xs: list[Tensor], n: Tensor) -> Any:
        first, second = in_dims[0]
        a, b = moved(xs[0], first, info.batch_size), moved(xs[1], second, info.batch_size)
        shift = moved(n, in_dims[1], info.batch_size)
        return a * b + (shift[:1] if wrong else shift), 0

    made = op(f"vmap_int_{wrong}", "(Tensor[] xs, Tensor n) -> Tensor", lambda xs, n: xs[0] * xs[1] + n)
    made.register_vmap(rule)
    x = make_tensor((2, 3))
    report = verify(made, ([x, x * 2.0], tp.tensor([[1, 2, 3], [4, 5, 6]])), sweep=False)
    if wrong:
        assert "in_dims=([" in failed(report, BATCH)
    else:
        assert report.passed, report.text()


# --- writes that nobody named ---------------------------------------------------------------------------


def test_unknown_writes_need_not_be_seen_and_named_ones_must() -> None:
    """11: mutates_args="unknown" stands for every Tensor: one that is never written is a skip, not "declared but not seen"."""

    def body(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    x, y = make_tensor((3,)), make_tensor((3,), seed=1)
    guessed = library.custom_op("vtc::unknown", body, mutates_args="unknown")
    guessed.register_fake(lambda x, y: None)
    report = verify(guessed, (x, y))
    assert report.passed, report.text()
    (skip,) = [check for check in report.skips if check.name == "'y' is written to"]
    assert "mutates_args='unknown'" in skip.detail
    assert "'x' is written to" in {check.name for check in report.values if check.verdict == "pass"}
    assert set(opcheck(guessed, (x, y)).values()) == {"SUCCESS"}
    named = library.custom_op("vtc::named", body, mutates_args=("x", "y"))
    named.register_fake(lambda x, y: None)
    assert "declared but not seen" in failed(verify(named, (x, y)), "'y' is written to")


# --- classes of errors ----------------------------------------------------------------------------------


def test_an_unregistered_op_and_an_unknown_test_have_the_class_of_their_neighbours() -> None:
    """11, U1: TP1305 is a RegistrationError from verify too, TP3904 a ValueError like the others of opcheck."""
    lib = library.Library("vtc_gone", "DEF")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2.0, "CPU")
    kept = tp.ops.vtc_gone.f
    lib._destroy()
    for call in (lambda: verify(kept, (tp.ones((2,)),)), lambda: opcheck(kept, (tp.ones((2,)),))):
        with pytest.raises(RegistrationError, match="vtc_gone::f was unregistered") as caught:
            call()
        assert caught.value.code == "TP1305"
    with pytest.raises(InvalidValueError, match="no test named 'nope'") as refused:
        opcheck("tp::sqrt", (tp.ones((2,)),), test_utils="nope")
    assert refused.value.code == "TP3904"
