"""`cond` and `while_loop` without a capture: the branch that is meant runs, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp


def test_only_the_chosen_branch_runs() -> None:
    """5.6: a bool tensor of one element or a Python bool says which; operands are handed on as they are."""
    ran: list[str] = []

    def yes(a: Any, nest: Any) -> Any:
        ran.append("yes")
        return {"sum": a + nest["b"][0]}

    def no(a: Any, nest: Any) -> Any:
        ran.append("no")
        return {"sum": a - nest["b"][0]}

    a, b = tp.tensor([1.0, 2.0]), tp.tensor([10.0, 20.0])
    for pred, want in (
        (True, [11.0, 22.0]),
        (False, [-9.0, -18.0]),
        (tp.tensor(True), [11.0, 22.0]),
        (tp.tensor([[False]]), [-9.0, -18.0]),
    ):
        assert tp.cond(pred, yes, no, (a, {"b": [b]}))["sum"].tolist() == want
    assert ran == ["yes", "no", "yes", "no"]
    assert tp.cond(tp.tensor(True), lambda: a, lambda: b) is a


def test_a_pred_that_is_no_bool_of_one_element_is_refused() -> None:
    """5.6: TP4301, for a number, another dtype, more elements."""
    for pred in (1, tp.tensor(1.0), tp.ones((2,)) > 0, None, "yes"):
        with pytest.raises(tp.errors.ArgumentError, match="not a bool of one element") as caught:
            tp.cond(pred, lambda: tp.zeros(()), lambda: tp.ones(()))
        assert caught.value.code == "TP4301"
    with pytest.raises(tp.errors.ArgumentError) as caught:
        tp.while_loop(lambda x: x.sum(), lambda x: x, (tp.ones((2,)),))
    assert caught.value.code == "TP4301"


def test_results_are_tensors() -> None:
    """5.6: TP4305 names the one that is not, in a branch, in a body, among what is carried."""
    x = tp.ones((2,))
    calls = (
        lambda: tp.cond(True, lambda: {"a": [x, 1]}, lambda: x),
        lambda: tp.while_loop(lambda x: x.sum() < 9.0, lambda x: None, (x,)),
        lambda: tp.while_loop(lambda x, i: i < 3, lambda x, i: (x, i + 1), (x, 0)),
    )
    places = (r"result\['a'\]\[1\]", r"carried_inputs\[0\]", r"carried_inputs\[1\]")
    for call, place in zip(calls, places, strict=True):
        with pytest.raises(tp.errors.ArgumentError, match=place) as caught:
            call()
        assert caught.value.code == "TP4305"


def test_functions_and_operands_are_what_they_have_to_be() -> None:
    """5.6: a function that cannot be called, operands that are no tuple or list."""
    with pytest.raises(tp.errors.ArgumentError, match="true_fn"):
        tp.cond(True, 1, lambda: 2)  # type: ignore[arg-type]
    with pytest.raises(tp.errors.ArgumentError, match="operands is a tuple or list, got Tensor"):
        tp.cond(True, lambda x: x, lambda x: x, tp.ones((2,)))
    with pytest.raises(tp.errors.ArgumentError, match="carried_inputs is a tuple or list"):
        tp.while_loop(lambda x: x.sum() < 1.0, lambda x: x, tp.ones((2,)))


def test_a_loop_goes_on_for_as_long_as_it_is_told() -> None:
    """5.6: zero trips give what was put in; nests keep their form."""

    def run(n: int) -> Any:
        return tp.while_loop(
            lambda s: s["i"] < n,
            lambda s: {"i": s["i"] + 1, "y": s["y"] * 2.0},
            ({"i": tp.tensor(0), "y": x},),
        )

    x = tp.tensor([1.0, -2.0])
    (done,) = run(5)
    assert done["i"].item() == 5
    assert done["y"].tolist() == [32.0, -64.0]
    assert run(0)[0]["y"] is x


def test_what_a_loop_carries_keeps_its_form() -> None:
    """5.6: TP4303 names the value and both types, or both structures."""
    x, i = tp.ones((2,)), tp.tensor(0)
    bodies = (
        (
            lambda i, x: (i + 1, x.sum()),
            r"carried_inputs\[1\] of while_loop is float32\[2\] on cpu, .* float32\[\]",
        ),
        (lambda i, x: (i + 1.0, x), r"carried_inputs\[0\] of while_loop is int64\[\] on cpu, .* float32\[\]"),
        (lambda i, x: (i + 1, [x]), r"takes tuple\(\*, \*\) and returns tuple\(\*, list\(\*\)\)"),
        (lambda i, x: i + 1, r"takes tuple\(\*, \*\) and returns tuple\(\*\)"),
    )
    for body, message in bodies:
        with pytest.raises(tp.errors.InvalidValueError, match=message) as caught:
            tp.while_loop(lambda i, x: i < 3, body, (i, x))
        assert caught.value.code == "TP4303"


def test_gradients_are_those_of_what_ran() -> None:
    """5.6: through the branch taken and through every trip, by operands and by what functions close over."""
    x, w = tp.tensor([1.0, 2.0]).requires_grad_(), tp.tensor([3.0, 4.0]).requires_grad_()
    tp.cond(tp.tensor(True), lambda a: a * w, lambda a: a * 100.0, (x,)).sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    x.grad = w.grad = None
    done = tp.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * w), (tp.tensor(0), x))[1]
    done.sum().backward()
    assert x.grad.tolist() == [27.0, 64.0]
    assert w.grad.tolist() == [27.0, 96.0]


def test_exceptions_of_the_functions_pass_as_they_are() -> None:
    """5.6: nothing is added to what a branch raises."""

    def fail(*_: Any) -> Any:
        raise KeyError("mine")

    for call in (
        lambda: tp.cond(True, fail, fail),
        lambda: tp.while_loop(fail, fail, (tp.ones(()),)),
        lambda: tp.compile(lambda p: tp.cond(p, fail, fail))(tp.tensor(True)),
    ):
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value.args == ("mine",)
        assert not getattr(caught.value, "__notes__", [])


def test_samples_of_a_vmap_choose_each_for_itself() -> None:
    """5.6: as a loop over samples does, with its gradients; also where the bool is the same for all."""

    def f(x: Any) -> Any:
        return tp.cond(
            x.sum() > 0, lambda a: {"y": (a * 2.0, a.sum())}, lambda a: {"y": (a - 1.0, -a.sum())}, (x,)
        )

    batch = tp.tensor(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))
    got = tp.func.vmap(f)(batch)
    for i in range(6):
        want = f(batch[i])
        assert got["y"][0][i].tolist() == want["y"][0].tolist()
        assert got["y"][1][i].tolist() == want["y"][1].tolist()
    gradient = tp.func.vmap(tp.func.grad(lambda x: f(x)["y"][0].sum()))(batch)
    single = [tp.func.grad(lambda x: f(x)["y"][0].sum())(batch[i]).tolist() for i in range(6)]
    assert gradient.tolist() == single
    same = tp.func.vmap(lambda x: tp.cond(tp.tensor(False), lambda: x, lambda: x * 3.0))(batch)
    assert same.tolist() == (batch * 3.0).tolist()


def test_a_choice_of_samples_needs_like_results_and_no_writes() -> None:
    """5.6: both branches run, so that what differs and what is written is refused."""
    batch = tp.ones((2, 3))
    with pytest.raises(
        tp.errors.InvalidValueError, match=r"result is float32\[3\] in true_fn of cond, float32\[\]"
    ) as caught:
        tp.func.vmap(lambda x: tp.cond(x.sum() > 0, lambda: x, lambda: x.sum()))(batch)
    assert caught.value.code == "TP4302"
    with pytest.raises(tp.errors.InvalidValueError, match="writes to an operand") as caught:
        tp.func.vmap(lambda x: tp.cond(x.sum() > 0, lambda a: a.add_(1.0), lambda a: a * 1.0, (x,)))(batch)
    assert caught.value.code == "TP4304"


def test_a_loop_whose_trips_differ_from_sample_to_sample_is_refused() -> None:
    """5.6: TP4307; a loop of as many trips for all goes."""
    batch = tp.tensor([1.0, 5.0])
    with pytest.raises(tp.errors.UnsupportedError) as caught:
        tp.func.vmap(lambda x: tp.while_loop(lambda y: y < 9.0, lambda y: y * 2.0, (x,))[0])(batch)
    assert caught.value.code == "TP4307"
    loop = lambda x: tp.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), (tp.tensor(0), x))[1]  # noqa: E731
    assert tp.func.vmap(loop)(batch).tolist() == [8.0, 40.0]
