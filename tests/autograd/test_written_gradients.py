"""A gradient that a rule or a hook is given is the gradient of others too: nobody writes to it."""

import pytest

import tensorplay as tp
from tensorplay import errors, library


def doubled(ns, backward, **more):
    f = library.custom_op(f"{ns}::doubled", lambda x: x * 2.0, mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))
    f.register_autograd(backward, **more)
    return f


def by_numpy(ctx, grad):
    grad.numpy()[...] *= 2.0
    return grad


def test_a_rule_that_writes_to_its_gradient_is_refused(ns):
    """The other operand would get the changed gradient, and the caller's own tensor would be another one."""
    f = doubled(ns, lambda ctx, grad: grad.mul_(2.0))
    a, b, ct = tp.ones((2,)).requires_grad_(), tp.ones((2,)).requires_grad_(), tp.ones((2,))
    with pytest.raises(errors.ContractError, match="wrote to a gradient") as raised:
        (f(a) + b).backward(ct)
    assert (raised.value.code, raised.value.op) == ("TP3217", f.name)


def test_a_rule_with_saved_tensors_that_writes_to_its_gradient_is_refused(ns):
    """On the longer way of a rule that keeps something, and of one with several outputs, too."""
    f = doubled(
        ns,
        lambda ctx, grad: grad.mul_(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    with pytest.raises(errors.ContractError) as raised:
        f(tp.ones((2,)).requires_grad_()).backward(tp.ones((2,)))
    assert raised.value.code == "TP3217"
    two = library.custom_op(
        f"{ns}::two",
        lambda x: (x * 1.0, x * 2.0),
        mutates_args=(),
        schema="(Tensor x) -> (Tensor, Tensor)",
    )
    two.register_autograd(lambda ctx, g, h: g + h.add_(1.0))
    with pytest.raises(errors.ContractError) as raised:
        two(tp.ones((2,)).requires_grad_())[1].backward(tp.ones((2,)))
    assert raised.value.code == "TP3217"


def test_a_function_that_writes_to_its_gradient_is_refused():
    """A Function is held to the same."""

    class Doubled(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, grad):
            return grad.mul_(2.0)

    with pytest.raises(errors.ContractError) as raised:
        Doubled.apply(tp.ones((2,)).requires_grad_()).backward(tp.ones((2,)))
    assert raised.value.code == "TP3217"


def test_a_hook_that_writes_to_its_gradient_is_refused():
    """A hook returns another gradient; writing to the one it is given changes it for all."""
    a, b = tp.ones((2,)).requires_grad_(), tp.ones((2,)).requires_grad_()
    y = a * 1.0
    y.register_hook(lambda g: g.mul_(3.0))
    with pytest.raises(errors.ContractError, match="a hook wrote to a gradient") as raised:
        (y + b).backward(tp.ones((2,)))
    assert raised.value.code == "TP3217"
    a.grad = None
    z = a * 1.0
    z.register_hook(lambda g: g * 3.0)
    z.backward(tp.ones((2,)))
    assert a.grad.tolist() == [3.0, 3.0]


@pytest.mark.thread_unsafe(reason="verify watches the state of the process")
@pytest.mark.parametrize("backward", [by_numpy, lambda ctx, grad: grad.mul_(2.0)], ids=["numpy", "in place"])
def test_debug_checks_and_verify_find_written_gradients(ns, backward):
    """Past the version counter, through NumPy, it takes a comparison of bits: debug_checks and verify make it."""
    f = doubled(ns, backward)
    with library.debug_checks(), pytest.raises(errors.ContractError) as raised:
        f(tp.ones((2,)).requires_grad_()).backward(tp.ones((2,)))
    assert raised.value.code == "TP3217"
    report = tp.verify(f, (tp.ones((2,)),), sweep=False)
    assert any("wrote to" in check.detail for check in report.failures), report.text()


def test_debug_checks_find_writes_to_saved_tensors(ns):
    """A second backward would read what the first one left there."""

    def backward(ctx, grad):
        ctx.saved_tensors[0].numpy()[...] *= 3.0
        return grad * ctx.saved_tensors[0]

    f = doubled(
        ns, backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0] * 1.0)
    )
    with library.debug_checks(), pytest.raises(errors.ContractError, match="saved for it"):
        f(tp.ones((2,)).requires_grad_()).sum().backward()
    assert not tp.verify(f, (tp.ones((2,)),), sweep=False).passed


# ---- checkpoints ----


@pytest.mark.parametrize(
    "fn",
    [lambda a, w: a * w, lambda a, w: (a + w).tanh(), lambda a, w: (a * 1.0).mul_(w), lambda a, w: a * w[0]],
    ids=["saved", "only read", "read in place", "through a view"],
)
def test_a_checkpoint_refuses_closed_over_tensors_written_in_between(fn):
    """The second run would be that of another function, and its gradient silently the wrong one."""
    x, w = tp.ones((3,)).requires_grad_(), tp.ones((3,))
    y = tp.autograd.checkpoint(lambda a: fn(a, w), x)
    w.fill_(5.0)
    with pytest.raises(errors.AutogradError, match="written to in place") as raised:
        y.sum().backward()
    assert raised.value.code == "TP3003"


def test_a_checkpoint_may_close_over_tensors_that_stay_or_are_written_by_itself():
    """No false alarm: closed-over parameters, a buffer that the function itself updates, writes after backward."""
    x, w = tp.ones((3,)).requires_grad_(), tp.full((3,), 2.0).requires_grad_()
    count = tp.zeros((1,))

    def fn(a):
        with tp.no_grad():
            count.add_(1.0)
        b = a * w
        b.mul_(3.0)
        return b

    y = tp.autograd.checkpoint(fn, x)
    y.sum().backward()
    w.detach().fill_(7.0)
    assert (x.grad.tolist(), w.grad.tolist()) == ([6.0] * 3, [3.0] * 3)
    assert count.tolist() == [2.0]
