"""A backward pass writes only to memory that nobody else can see: gradients are added up in place, and a step may put
its result where its gradient lay."""

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library


def giving(ns, make):
    """An identity whose rule gives the gradient that `make` makes."""
    f = library.custom_op(f"{ns}::given", lambda x: x.clone(), mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))
    f.register_autograd(lambda ctx, grad: make())
    return f


def owned(kept):
    """A tensor of its own whose memory NumPy sees from now on."""
    t = tp.tensor([1.0, 2.0, 3.0])
    kept.append(t.numpy())
    return t


SEEN = {
    "from_numpy": lambda kept: kept.append(np.array([1, 2, 3], np.float32)) or tp.from_numpy(kept[-1]),
    "from_dlpack": lambda kept: kept.append(np.array([1, 2, 3], np.float32)) or tp.from_dlpack(kept[-1]),
    "numpy": owned,
    "to_dlpack": lambda kept: (t := tp.tensor([1.0, 2.0, 3.0]), kept.append(np.from_dlpack(t)))[0],
    "memoryview": lambda kept: (t := tp.tensor([1.0, 2.0, 3.0]), kept.append(memoryview(t)))[0],
}

USES = {
    "added to another": lambda f, x: f(x) + f(x),
    "one step on": lambda f, x: f(x * 2.0),
    "chain": lambda f, x: f((x * 2.0 * 3.0) / 2.0 - 1.0),
    "twice over": lambda f, x: f(x * 2.0) + f(x * 3.0),
    "a leaf": lambda f, x: f(x),
}
FACTORS = {"added to another": 2, "one step on": 2, "chain": 3, "twice over": 5, "a leaf": 1}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("seen", SEEN)
def test_memory_that_others_see_is_not_written(ns, seen, use):
    kept = []
    f = giving(ns, lambda: SEEN[seen](kept))
    x = tp.tensor([0.0, 0.0, 0.0]).requires_grad_()
    want = np.array([1, 2, 3], np.float32)
    for passes in (1, 2, 3):
        USES[use](f, x).sum().backward()
        assert [np.asarray(k).tolist() for k in kept] == [want.tolist()] * len(kept)
        np.testing.assert_array_equal(x.grad.numpy(), passes * FACTORS[use] * want)


def test_one_array_that_a_rule_gives_every_time_stays_as_it_is(ns):
    kept = np.ones(3, np.float32)
    f = giving(ns, lambda: tp.from_numpy(kept))
    x = tp.zeros((3,)).requires_grad_()
    for _ in range(3):
        (f(x) + f(x * 2.0)).sum().backward()
    assert kept.tolist() == [1.0] * 3
    assert x.grad.tolist() == [9.0] * 3


def test_the_gradient_a_caller_gives_stays_as_it_is():
    x, g = tp.zeros((3,)).requires_grad_(), tp.ones((3,))
    (x * 2.0 * 3.0).backward(g)
    (x * 2.0 * 3.0).backward(gradient=tp.from_numpy(a := np.ones(3, np.float32)))
    assert (g.tolist(), a.tolist(), x.grad.tolist()) == ([1.0] * 3, [1.0] * 3, [12.0] * 3)


def test_a_gradient_that_a_hook_keeps_stays_as_it_is():
    x, seen = tp.zeros((3,)).requires_grad_(), []
    y = x * 2.0
    z = y * 3.0
    z.register_hook(lambda g: seen.append(g))
    y.register_hook(lambda g: seen.append(g.numpy()))
    (z * 5.0).sum().backward()
    assert [np.asarray(s).tolist() for s in seen] == [[5.0] * 3, [15.0] * 3]
    assert x.grad.tolist() == [30.0] * 3


def test_a_gradient_that_is_kept_on_the_way_stays_as_it_is():
    x = tp.zeros((3,)).requires_grad_()
    y = x * 2.0
    y.retain_grad()
    (y * 5.0).sum().backward(retain_graph=True)
    assert (y.grad.tolist(), x.grad.tolist()) == ([5.0] * 3, [10.0] * 3)
    z = y * 7.0
    on_the_way, at_the_end = tp.autograd.grad((z * 1.0).sum(), [z, x])
    assert (on_the_way.tolist(), at_the_end.tolist()) == ([1.0] * 3, [14.0] * 3)


@pytest.mark.parametrize("n", [1, 8, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chain_gives_what_a_recorded_pass_gives(n, dtype):
    """While gradients of gradients are recorded nothing is overwritten."""

    def loss(x):
        return (((x * 3.0 - 1.0) / 7.0 + 2.0) * x).sum() + (x * 5.0).sum()

    x = tp.tensor(np.linspace(-1, 1, n).astype(dtype)).requires_grad_()
    loss(x).backward()
    (recorded,) = tp.autograd.grad(loss(x), [x], create_graph=True)
    np.testing.assert_array_equal(x.grad.numpy(), recorded.detach().numpy())
    want = (2 * (3 * x.detach().numpy()) - 1) / 7 + 2 + 5
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5, atol=1e-6)


def test_steps_are_seen_by_a_trace():
    """A trace sees the calls of the pass, so that each of them makes a tensor of its own."""
    x = tp.zeros((3,)).requires_grad_()
    y = (x * 2.0 * 3.0).sum()
    with tp.trace() as seen:
        y.backward()
    ran = [(e.op, e.marker.executor) for e in seen if e.op.startswith("tp::mul")]
    assert ran == [("tp::mul.Scalar", "native")] * 2
    assert x.grad.tolist() == [6.0] * 3
