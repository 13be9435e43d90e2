"""`verify` on gradients in part: for some inputs, from some outputs, in narrow dtypes, at rank 0. Wrong rules fail, right ones pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.library import opcheck
from tensorplay.testing import make_tensor
from tensorplay.verify import verify
from verifying import failed, verdicts

Tensor = tp.Tensor
SOME = "gradient for some inputs alone"
FROM = "gradient from some outputs alone"
PRODUCT = "(Tensor x, Tensor y) -> Tensor"
THREE = "(Tensor x, Tensor y, Tensor z) -> Tensor"
LIST = "(Tensor[] xs) -> Tensor"
PAIR = "(Tensor x) -> (Tensor, Tensor)"


def op(name: str, schema: str, body: Callable[..., Any], rule: Any, setup: Any = None) -> Any:
    made = library.custom_op(f"vtp::{name}", body, mutates_args=(), schema=schema)
    made.register_fake(library.fake_from_body)
    made.register_autograd(rule, setup_context=setup)
    return made


def save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def save_items(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[0])


def bare(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)


def product(ctx: Any, g: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return g * y if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None


# --- for some inputs ------------------------------------------------------------------------------------


def only_both(ctx: Any, g: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return (g * y, g * x) if all(ctx.needs_input_grad) else (g * 0.0, g * 0.0)


def only_all_three(ctx: Any, g: Tensor) -> Any:
    x, y, z = ctx.saved_tensors
    if sum(ctx.needs_input_grad) == 2:
        return g, g, g
    return g * y * z, g * x * z, g * x * y


def only_both_items(ctx: Any, g: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return ([g * y, g * x] if all(ctx.needs_input_grad[0]) else [g * 0.0, g * 0.0],)


def raises_for_one(ctx: Any, g: Tensor) -> Any:
    x, y = ctx.saved_tensors
    if not ctx.needs_input_grad[1]:
        raise AttributeError("y is not there")
    return g * y, g * x


@pytest.mark.parametrize("inputs", [(make_tensor((3,)), make_tensor((3,), seed=1)), None])
def test_a_rule_that_is_wrong_for_one_input_alone_is_found(inputs: Any) -> None:
    """11: whichever inputs ask for a gradient, each is tried alone; the replay text says which one did."""
    wrong = op(f"both_{inputs is None}", PRODUCT, lambda x, y: x * y, only_both, save)
    detail = failed(verify(wrong, inputs, sweep=False), SOME)
    assert "gradients wanted for 'x' alone: that of 'x' at [0] is" in detail
    assert ".detach().requires_grad_(), " in detail
    assert detail.splitlines()[2].endswith(".detach())")


def test_the_replay_of_a_part_is_python_that_fails_again() -> None:
    """11: eval of the text gives a call whose backward is as wrong as the report says."""
    wrong = op("replayed", PRODUCT, lambda x, y: x * y, only_both, save)
    line = failed(verify(wrong), SOME).split("replay: vtp::replayed")[1].splitlines()[0]
    x, y = eval(f"args{line}", {**vars(tp.testing), "args": lambda *args: args, "tp": tp})
    assert (x.requires_grad, y.requires_grad) == (True, False)
    (found,) = tp.autograd.grad(tp.sum(wrong(x, y)), [x])
    assert tp.sum(tp.abs(found)).item() == 0.0
    assert tp.sum(tp.abs(y)).item() > 0.0


def test_a_rule_that_is_wrong_for_all_inputs_but_one_is_found() -> None:
    """11: of three inputs, every two."""
    wrong = op("two_of_three", THREE, lambda x, y, z: x * y * z, only_all_three, save)
    args = tuple(make_tensor((4,), seed=i) for i in range(3))
    assert "gradients wanted for 'y', 'z' alone" in failed(verify(wrong, args, sweep=False), SOME)


def test_a_rule_that_is_wrong_for_one_item_of_a_list_is_found() -> None:
    """11: items of a list of tensors are inputs like others."""
    wrong = op("items", LIST, lambda xs: xs[0] * xs[1], only_both_items, save_items)
    args = ([make_tensor((3,)), make_tensor((3,), seed=1)],)
    assert "gradients wanted for 'xs[0]' alone" in failed(verify(wrong, args, sweep=False), SOME)


def test_a_rule_that_raises_for_one_input_alone_is_found() -> None:
    """11: an error where the others are not wanted is a failure of that part; opcheck says so too."""
    wrong = op("raises", PRODUCT, lambda x, y: x * y, raises_for_one, save)
    args = (make_tensor((3,)), make_tensor((3,), seed=1))
    assert "'x' alone: AttributeError: y is not there" in failed(verify(wrong, args, sweep=False), SOME)
    assert SOME in opcheck(wrong, args, raise_exception=False)["test_aot_dispatch_dynamic"]


def test_rules_that_do_only_what_is_wanted_pass() -> None:
    """11: None for what is not wanted, also for items; the parts are compared."""

    def items(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        needs = ctx.needs_input_grad[0]
        return ([g * y if needs[0] else None, g * x if needs[1] else None],)

    for name, schema, body, rule, setup, args in [
        ("r_both", PRODUCT, lambda x, y: x * y, product, save, (tp.ones((3,)), make_tensor((3,)))),
        ("r_items", LIST, lambda xs: xs[0] * xs[1], items, save_items, ([tp.ones((3,)), make_tensor((3,))],)),
    ]:
        report = verify(op(name, schema, body, rule, setup), args)
        assert report.passed, report.text()
        assert verdicts(report, SOME) == {"pass"}


def test_a_part_that_a_rule_refuses_is_a_skip() -> None:
    """11: NotImplementedError says that a combination is not offered."""

    def rule(ctx: Any, g: Tensor) -> Any:
        if ctx.needs_input_grad == (False, True):
            raise NotImplementedError("only with x")
        return product(ctx, g)

    report = verify(
        op("refuses", PRODUCT, lambda x, y: x * y, rule, save), (tp.ones((3,)), tp.ones((3,)) * 2)
    )
    assert report.passed, report.text()
    (skip,) = [check for check in report.skips if check.name == SOME]
    assert "'y' alone: refused: NotImplementedError: only with x" in skip.detail


def test_many_inputs_have_a_bounded_number_of_parts() -> None:
    """11: of twelve items eight are taken alone and eight left out, instead of 4096 choices."""
    calls = []

    def rule(ctx: Any, g: Tensor) -> Any:
        calls.append(1)
        return ([g] * 12,)

    def total(xs: list[Tensor]) -> Tensor:
        out = xs[0] * 1.0
        for x in xs[1:]:
            out = out + x
        return out

    report = verify(
        op("many", LIST, total, rule), ([make_tensor((1,), seed=i) for i in range(12)],), sweep=False
    )
    assert report.passed, report.text()
    assert verdicts(report, SOME) == {"pass"}
    assert len(calls) < 150


# --- from some outputs ----------------------------------------------------------------------------------


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2.0, x * 3.0


def crashes(ctx: Any, a: Any, b: Any) -> Any:
    return a * 2.0 + b * 3.0


def drops(ctx: Any, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return (b if a is None else a) * 1.0
    return a * 2.0 + b * 3.0


def looks(ctx: Any, a: Any, b: Any) -> Any:
    return a * 1.0 if not tp.any(b != 0.0).item() else a * 2.0 + b * 3.0


@pytest.mark.parametrize(
    ("rule", "setup", "told"),
    [
        (crashes, bare, "output 0 alone: TypeError"),
        (drops, bare, "output 0 alone: that of 'x'"),
        (looks, None, "output 0 alone: that of 'x'"),
    ],
)
def test_a_rule_that_is_wrong_for_one_output_alone_is_found(rule: Any, setup: Any, told: str) -> None:
    """11: an output without a gradient, as None or as zeros."""
    wrong = op(rule.__name__, PAIR, twice, rule, setup)
    report = verify(wrong, (make_tensor((3,)),), sweep=False)
    assert f"gradients given for {told}" in failed(report, FROM)
    with pytest.raises(tp.errors.OpCheckError):
        opcheck(wrong, (make_tensor((3,)),))


def test_a_rule_that_takes_every_output_alone_passes() -> None:
    """11: with and without materialized gradients, for tuples and lists, and for an output that has no gradient."""

    def rule(ctx: Any, a: Any, b: Any) -> Any:
        parts = [g * k for g, k in ((a, 2.0), (b, 3.0)) if g is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def from_list(ctx: Any, grads: Any) -> Any:
        return grads[0] * 2.0 + grads[1] * 3.0

    def mark(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])

    x = make_tensor((2, 3))
    right = [
        op("r_bare", PAIR, twice, rule, bare),
        op("r_zeros", PAIR, twice, crashes),
        op("r_list", "(Tensor x) -> Tensor[]", lambda x: [x * 2.0, x * 3.0], from_list),
    ]
    for each in right:
        report = verify(each, (x,), sweep=False)
        assert report.passed, report.text()
        assert verdicts(report, FROM) == {"pass"}
    report = verify(op("r_marked", PAIR, twice, lambda ctx, a, b: a * 2.0, mark), (x,), sweep=False)
    assert report.passed, report.text()
    assert not verdicts(report, FROM)


def test_one_input_from_one_output_is_tried() -> None:
    """11: what is wrong only for both at once is found."""

    def rule(ctx: Any, a: Any, b: Any) -> Any:
        x, y = ctx.saved_tensors
        if ctx.needs_input_grad == (True, False) and b is None:
            return a * 0.0, None
        zero = x * 0.0
        a, b = zero if a is None else a, zero if b is None else b
        return a * y + b, a * x

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        save(ctx, inputs, output)
        bare(ctx, inputs, output)

    schema = "(Tensor x, Tensor y) -> (Tensor, Tensor)"
    wrong = op("one_of_each", schema, lambda x, y: (x * y, x * 1.0), rule, setup)
    detail = failed(verify(wrong, (make_tensor((3,)), make_tensor((3,), seed=1)), sweep=False), FROM)
    assert "wanted for 'x' alone, gradients given for output 0 alone" in detail


# --- in narrow dtypes -----------------------------------------------------------------------------------

DOUBLE = "(Tensor x) -> Tensor"
BAD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "nan": (lambda g: g * float("nan"), "got nan"),
    "raises": (lambda g: 1 / 0, "ZeroDivisionError"),
    "sign": (lambda g: g * -2.0, "elements differ"),
    "factor": (lambda g: g * 2.5, "elements differ"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rule_that_is_wrong_in_a_narrow_dtype_is_found(dtype: str, bad: str) -> None:
    """11: from inputs of that dtype alone, and from float32 ones by their neighbours."""

    def rule(ctx: Any, g: Tensor) -> Any:
        return BAD[bad][0](g) if g.dtype.name == dtype else g * 2.0

    wrong = op(f"{bad}_{dtype}", DOUBLE, lambda x: x * 2.0, rule)
    name = f"gradient in {dtype} against a wider one"
    assert BAD[bad][1] in failed(verify(wrong, (make_tensor((3,), dtype),), sweep=False), name)
    if bad == "nan":
        assert BAD[bad][1] in failed(verify(wrong, (tp.ones((3,)),)), name)
        assert BAD[bad][1] in failed(verify(wrong), name)


def softmax(ctx: Any, g: Tensor) -> Any:
    (y,) = ctx.saved_tensors
    return y * (g - tp.sum(g * y, -1, keepdims=True))


def tanh(ctx: Any, g: Tensor) -> Any:
    (y,) = ctx.saved_tensors
    return g * (1.0 - y * y)


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "body", "rule"),
    [
        ("softmax", lambda x: tp.softmax(x, -1), softmax),
        ("tanh", tp.tanh, tanh),
        ("offset", lambda x: x + 100.0, lambda ctx, g: g * 1.0),
        ("exp", tp.exp, lambda ctx, g: g * ctx.saved_tensors[0]),
    ],
)
def test_a_right_rule_may_round_as_its_dtype_does(name: str, body: Any, rule: Any, dtype: str) -> None:
    """11: where terms cancel, where the function is flat or steep, and at any scale of the inputs."""
    right = op(f"r_{name}_{dtype}", DOUBLE, body, rule, keep)
    for scale in (1.0, 6.0):
        x = tp.mul(make_tensor((4, 5), dtype), scale)
        report = verify(right, (x,), sweep=False)
        assert report.passed, report.text()
        assert verdicts(report, f"gradient in {dtype} against a wider one") <= {"pass", "skip"}
        assert verdicts(report, "gradient against differences in float64") == {"pass"}


def test_overflow_of_the_op_and_a_refused_dtype_are_skips() -> None:
    """11: outputs that float16 cannot hold say nothing of the rule; NotImplementedError refuses a dtype."""

    def refuses(ctx: Any, g: Tensor) -> Any:
        if g.dtype == tp.bfloat16:
            raise NotImplementedError("no bfloat16")
        x = ctx.saved_tensors[0]
        return g * 3.0 * x * x

    cube = op("cube", DOUBLE, lambda x: x * x * x, refuses, save)
    report = verify(cube, (tp.tensor([100.0, 2.0]),))
    assert report.passed, report.text()
    details = {check.name: check.detail for check in report.skips if check.name.startswith("gradient in")}
    assert "float16 cannot hold" in details["gradient in float16 against a wider one"]
    assert "no bfloat16" in details["gradient in bfloat16 against a wider one"]


def test_an_op_of_float16_alone_says_that_nothing_was_compared() -> None:
    """11: there is no wider run to compare with, and the report says so."""

    def body(x: Tensor) -> Tensor:
        if x.dtype != tp.float16:
            raise TypeError("float16 only")
        return x * 2.0

    report = verify(op("half_only", DOUBLE, body, lambda ctx, g: g * 2.0), (make_tensor((3,), "float16"),))
    assert report.passed, report.text()
    assert any("neither float64 nor float32" in check.detail for check in report.skips)


def test_random_and_nondeterministic_ops_are_not_held_to_other_numbers() -> None:
    """11: what is drawn in float16 need not be what is drawn in float64; an error there is one all the same."""

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        # Another place in the stream of random numbers for float16.
        mask = tp.uniform((2 if x.dtype == tp.float16 else 1, *x.shape))[-1].astype(x.dtype)
        return x * mask, mask * 1.0

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    def define(name: str, rule: Any, **options: Any) -> Any:
        made = library.custom_op(f"vtp::{name}", body, mutates_args=(), schema=PAIR, **options)
        made.register_fake(lambda x: (tp.empty_like(x), tp.empty_like(x)))
        made.register_autograd(rule, setup_context=setup)
        return made

    x = make_tensor((3, 4), "float16")
    drawn = define("drawn", lambda ctx, a, b: a * ctx.saved_tensors[0], effects="random")
    report = verify(drawn, (x,), sweep=False)
    assert report.passed, report.text()
    name = "gradient in float16 against a wider one"
    assert any("others than in a wider dtype" in check.detail for check in report.skips if check.name == name)
    noisy = define("noisy", lambda ctx, a, b: a * ctx.saved_tensors[0], deterministic=False, effects="random")
    report = verify(noisy, (x,), sweep=False)
    assert report.passed, report.text()
    assert any("only that it runs" in check.detail for check in report.skips if check.name == name)
    wrong = define("noisy_wrong", lambda ctx, a, b: 1 / 0, deterministic=False, effects="random")
    assert "ZeroDivisionError" in failed(verify(wrong, (x,), sweep=False), name)


# --- at rank 0 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
def test_a_rule_that_is_wrong_at_rank_0_alone_is_found(shape: tuple[int, ...]) -> None:
    """11: whatever rank was given, where the op takes none."""
    name = f"rank_{len(shape)}"
    wrong = op(name, DOUBLE, lambda x: x * 2.0, lambda ctx, g: g * 2.0 if g.ndim else g * 1.0)
    assert "rank 0" in failed(verify(wrong, (make_tensor(shape),)), "gradient against differences")


def test_an_op_that_refuses_rank_0_passes() -> None:
    """11: a clean refusal is no failure."""

    def body(x: Tensor) -> Tensor:
        if not x.ndim:
            raise ValueError("at least one dimension")
        return x * 2.0

    def rule(ctx: Any, g: Tensor) -> Any:
        if not g.ndim:
            raise NotImplementedError("no gradient at rank 0")
        return g * 2.0

    for made in (
        op("no_rank_0", DOUBLE, body, lambda ctx, g: g * 2.0),
        op("no_rule_0", DOUBLE, lambda x: x * 2.0, rule),
    ):
        report = verify(made, (make_tensor((2, 3)),))
        assert report.passed, report.text()
        assert any("rank 0" in check.name for check in report.skips)
