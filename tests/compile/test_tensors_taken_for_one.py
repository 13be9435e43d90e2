"""A capture may take two tensors for one, an argument and one that the function reaches on its own, or for independent of
each other: its entries are for calls in which they are."""

import pytest

import tensorplay as tp
from tensorplay import errors


def vector(*values):
    return tp.tensor(list(values), dtype=tp.float64)


def leaf(*values):
    return vector(*values).requires_grad_()


def compiled(f):
    return tp.compile(f, backend="native")


def values(run):
    w, u = vector(1.0, 2.0), vector(3.0, 5.0)
    f = run(lambda x: x - w * 2.0)
    return [f(w), f(u), f(w), f(u)]


def gradients(run):
    w, u = leaf(1.0, 2.0), leaf(3.0, 5.0)
    f = run(lambda x: tp.sum(x * w * w))
    for x in (w, u, w, u):
        f(x).backward()
    return [w.grad, u.grad]


def a_step_from_its_own_weight(run):
    w = leaf(0.5, 0.25)
    f = run(lambda h, x: h * w + x)
    h = w
    for k in range(4):
        h = f(h, vector(1.0, 2.0) * k)
    tp.sum(h).backward()
    return [h, w.grad]


def in_containers(run):
    w, u = leaf(1.0, 2.0), leaf(3.0, 5.0)
    f = run(lambda xs, d: tp.sum(xs[0] * d["k"] * d["k"] * w))
    for a in (w, u):
        for b in (w, u):
            f([a], {"k": b}).backward()
    return [w.grad, u.grad]


def what_is_written(run):
    w, u = vector(1.0, 2.0), vector(3.0, 5.0)

    def write(x):
        x.mul_(2.0)
        return w * x

    f = run(write)
    return [f(w), f(u), f(w), w, u]


def what_is_asked(run):
    w, u = leaf(1.0, 2.0), leaf(3.0, 5.0) * 1.0
    f = run(lambda x: x * 2.0 if w.is_leaf else x * 3.0)
    return [f(w), f(u), f(w)]


def what_is_returned(run):
    w, u = vector(1.0, 2.0), vector(3.0, 5.0)
    f = run(lambda x: (w, x * 1.0))
    return [t for x in (w, u, w) for t in f(x)]


def handed_to_a_rule(run):
    w, u = leaf(1.0, 2.0), leaf(3.0, 5.0)
    f = run(lambda x: tp.sum(tp.autograd.checkpoint(lambda v: v * w * v, x)))
    for x in (w, u):
        f(x).backward()
    return [w.grad, u.grad]


CASES = [
    values,
    gradients,
    a_step_from_its_own_weight,
    in_containers,
    what_is_written,
    what_is_asked,
    what_is_returned,
    handed_to_a_rule,
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_an_argument_that_the_function_reaches_on_its_own_is_another_in_the_next_call(case):
    assert [t.tolist() for t in case(compiled)] == [t.tolist() for t in case(lambda f: f)]


def test_the_guard_says_which_tensor_was_taken_for_the_argument():
    w, u = vector(1.0), vector(2.0)
    f = compiled(lambda x: x * w)
    assert [f(t).tolist() for t in (w, u, w, u)] == [[1.0], [2.0], [1.0], [2.0]]
    (miss,) = f.report.recompiles
    assert "x is the tensor that the function reaches on its own, got another" in str(miss)


def by_itself(w, b):
    return w, lambda x: tp.sum(x * x * w), [w]


def by_what_the_argument_comes_from(w, b):
    return b, lambda x: tp.sum(x * w), [w]


def by_an_argument_of_which_it_holds_a_product(w, b):
    return w, lambda x: tp.sum(x * b), None


DEPENDENT = [by_itself, by_what_the_argument_comes_from, by_an_argument_of_which_it_holds_a_product]


@pytest.mark.parametrize("case", DEPENDENT, ids=lambda c: c.__name__)
def test_a_gradient_inside_past_what_was_computed_outside_is_refused(case):
    """Eager code goes on through the history outside, which the capture has no part of."""
    w = leaf(1.0, 2.0)
    x, loss, by = case(w, w * 3.0)
    f = compiled(lambda x: tp.autograd.grad(loss(x), by or [x], retain_graph=True)[0])
    with pytest.raises(errors.CaptureError, match="was computed from") as raised:
        f(x)
    assert raised.value.code == "TP4035"


def test_arguments_that_are_independent_in_one_call_are_not_so_in_the_next():
    def outer(x, y):
        return tp.autograd.grad(tp.sum(x * x * y), [x], retain_graph=True)[0]

    w, u = leaf(1.0, 2.0), leaf(3.0, 5.0)
    f = compiled(outer)
    for x, y in ((w, u), (u, w), (w, u * 2.0), (u * 2.0, w), (w, w)):
        assert f(x, y).tolist() == outer(x, y).tolist()
    for y in (w * 2.0, w[:2]):
        with pytest.raises(errors.CaptureError) as raised:
            f(w, y)
        assert raised.value.code == "TP4035"
    assert f(w, (w * 2.0).detach()).tolist() == outer(w, (w * 2.0).detach()).tolist()


def test_what_takes_no_part_in_a_gradient_inside_may_depend_on_its_input():
    w = leaf(1.0, 2.0)
    f = compiled(lambda x, y: tp.autograd.grad(tp.sum(x * x), [x])[0] * y.detach())
    assert f(w, w * 3.0).tolist() == [6.0, 24.0]


def test_tensors_from_outside_keep_their_history_in_a_gradient_inside():
    """Both are on the tape of the capture, and the way between them."""
    w = leaf(1.0, 2.0)
    b = w * 3.0
    f = compiled(lambda x: tp.autograd.grad(tp.sum(x * b * w), [w], retain_graph=True)[0])
    assert f(vector(1.0, 1.0)).tolist() == [6.0, 12.0]
