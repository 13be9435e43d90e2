"""A captured function reaches tensors that were computed, are watched, or are computed from each other outside of it:
its gradients are those of the eager call, and hooks run once, in the pass that the caller asked for."""

import pytest

import tensorplay as tp
from tensorplay import errors

BACKENDS = ["native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))]


def ones(n=2):
    return tp.ones((n,))


def leaf(n=2):
    return ones(n).requires_grad_()


def product(run):
    """The gradient of `w` has a part that goes by way of `b`, which the compiled part is no part of."""
    w = leaf()
    b = w * 2.0
    run(lambda x: tp.sum(b * w * x))(ones()).backward()
    return w.grad


def product_by_grad(run):
    w = leaf()
    b = w * 2.0
    return tp.autograd.grad(run(lambda x: tp.sum(b * w * x))(ones()), [w])[0]


def argument_and_product(run):
    w = leaf()
    b = w * 2.0
    run(lambda w: tp.sum(b * w))(w).backward()
    return w.grad


def views_of_one_base(run):
    w = leaf()
    b = tp.cat([w * 2.0, w * 3.0])
    p, q = b[:2], b[2:]
    run(lambda x: tp.sum(p * q * b[0:2] * w * x))(ones()).backward()
    return w.grad


def view_of_what_was_written(run):
    w = leaf(4)
    b = w * 2.0
    v = b[:2]
    b.mul_(3.0)
    run(lambda x: tp.sum(tp.sum(b) * v * w[:2] * x))(ones()).backward()
    return w.grad


def results_of_another(run):
    w = leaf()
    b = w * 2.0
    y = run(lambda x: b * x)(ones())
    tp.sum(run(lambda x: y * b * x)(ones())).backward()
    return w.grad


def handed_through(run):
    w = leaf()
    b = w * 2.0
    p, q = run(lambda x: (b, b * x))(ones())
    tp.sum(p * q).backward()
    return w.grad


def hook_of_a_leaf(run):
    w = leaf()
    w.register_hook(lambda g: g * 10.0)
    f = run(lambda x: tp.sum(w * x))
    f(ones()).backward()
    f(ones()).backward()
    return w.grad


def hook_that_is_removed(run):
    w = leaf()
    handle = w.register_hook(lambda g: g * 10.0)
    f = run(lambda x: tp.sum(w * x))
    f(ones()).backward()
    handle.remove()
    f(ones()).backward()
    return w.grad


def hook_of_a_result(run):
    w = leaf()
    b = w * 2.0
    b.register_hook(lambda g: g * 10.0)
    run(lambda x: tp.sum(b * x))(ones()).backward()
    return w.grad


def hook_of_an_argument_reached_twice(run):
    w = leaf()
    w.register_hook(lambda g: g * 10.0)
    run(lambda x: tp.sum(w * x))(w).backward()
    return w.grad


def hook_and_checkpoint(run):
    w = leaf()
    w.register_hook(lambda g: g * 10.0)
    run(lambda x: tp.sum(tp.autograd.checkpoint(lambda v: w * v * v, x)))(ones()).backward()
    tp.sum(tp.autograd.checkpoint(run(lambda x: w * x), ones())).backward()
    return w.grad


def hook_inside(run):
    w = leaf()
    b = w * 2.0

    def f(x):
        y = b * x
        y.register_hook(lambda g: g * 10.0)
        return tp.sum(y)

    run(f)(ones()).backward()
    return w.grad


def kept_gradient(run):
    w = leaf()
    b = w * 2.0
    b.retain_grad()
    y = run(lambda x: tp.sum(b * x))(ones())
    assert b.grad is None
    y.backward()
    return tp.cat([b.grad, w.grad])


def gradient_taken_inside(run):
    w = leaf()
    b = w * 2.0

    def f(x):
        (g,) = tp.autograd.grad(tp.sum(b * w * x), [w], retain_graph=True)
        return g * 2.0

    return run(f)(ones())


CASES = [
    (product, [4.0] * 2),
    (product_by_grad, [4.0] * 2),
    (argument_and_product, [4.0] * 2),
    (views_of_one_base, [48.0] * 2),
    (view_of_what_was_written, [360.0, 360.0, 72.0, 72.0]),
    (results_of_another, [8.0] * 2),
    (handed_through, [8.0] * 2),
    (hook_of_a_leaf, [20.0] * 2),
    (hook_that_is_removed, [11.0] * 2),
    (hook_of_a_result, [20.0] * 2),
    (hook_of_an_argument_reached_twice, [20.0] * 2),
    (hook_and_checkpoint, [20.0] * 2),
    (hook_inside, [20.0] * 2),
    (kept_gradient, [1.0, 1.0, 2.0, 2.0]),
    (gradient_taken_inside, [8.0] * 2),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("case", "want"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_gradients_are_those_of_the_eager_call(case, want, backend):
    assert case(lambda f: f).tolist() == want
    made = []

    def compiled(f):
        made.append(tp.compile(f, backend=backend, on_fallback="record"))
        return made[-1]

    assert case(compiled).tolist() == want
    assert all(backend in f.last_run.executors for f in made)


def test_a_hook_sees_one_gradient_per_pass():
    """It may read values, for it is no part of the capture."""
    w, seen = leaf(), []
    w.register_hook(lambda g: seen.append((g.is_fake, tp.sum(g).item())))
    f = tp.compile(lambda x: tp.sum(w * x), backend="native")
    for _ in range(3):
        f(ones()).backward()
    assert seen == [(False, 2.0)] * 3
    assert w.grad.tolist() == [3.0] * 2


def test_a_gradient_taken_inside_past_a_hook_from_outside_is_refused():
    """The hook may be another one, or none, in the next call."""
    w, b = leaf(), leaf() * 2.0
    w.register_hook(lambda g: g * 10.0)
    b.retain_grad()
    for t in (w, b):
        f = tp.compile(lambda x, t=t: tp.autograd.grad(tp.sum(t * x * x), [t])[0], backend="native")
        with pytest.raises(errors.CaptureError, match="from outside of it") as raised:
            f(ones())
        assert raised.value.code == "TP4031"
    assert b.grad is None
