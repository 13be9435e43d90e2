"""What a captured function asks of tensors and does beside ops: right in every run, or refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from captures import refused
from tensorplay import Tensor, library
from tensorplay.errors import CaptureError


def _readonly() -> Tensor:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return tp.from_numpy(array)


def _kept() -> Tensor:
    y = tp.ones((3,)).requires_grad_() * 1.0
    y.retain_grad()
    return y


_FACTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "storage_offset()": (lambda a: a.storage_offset(), lambda: tp.ones((6,))[3:], lambda: tp.ones((6,))[1:4]),
    "is_view": (lambda a: a.is_view, lambda: tp.ones((6,))[3:], lambda: tp.ones((3,))),
    "is_readonly": (lambda a: a.is_readonly, _readonly, lambda: tp.ones((3,))),
    "is_leaf": (
        lambda a: a.is_leaf,
        lambda: tp.ones((3,)).requires_grad_() * 1.0,
        lambda: tp.ones((3,)).requires_grad_(),
    ),
    "grad_fn": (
        lambda a: a.grad_fn is None,
        lambda: tp.ones((3,)).requires_grad_() * 1.0,
        lambda: tp.ones((3,)).requires_grad_(),
    ),
    "retains_grad": (lambda a: a.retains_grad, _kept, lambda: tp.ones((3,)).requires_grad_() * 1.0),
    "stride()": (
        lambda a: a.stride(0),
        lambda: tp.empty_strided((1, 3), (7, 1)).fill_(1.0),
        lambda: tp.ones((1, 3)),
    ),
}


@pytest.mark.parametrize("name", _FACTS)
def test_a_fact_of_an_argument_is_its_own_and_guarded(name: str) -> None:
    """What a compiled function asks of a tensor is what eager code is told, at every call."""
    ask, one, other = _FACTS[name]

    def fn(a: Tensor) -> Tensor:
        return a * float(ask(a))

    compiled = tp.compile(fn)
    for make in (one, other, one):
        assert compiled(make()).tolist() == fn(make()).tolist()
    assert len(compiled.graphs) == 2
    wanted = "is_leaf" if name == "grad_fn" else name
    assert any(guard.startswith(f"a.{wanted} == ") for guard in compiled.report.guards)


@pytest.mark.parametrize("name", _FACTS)
def test_a_fact_of_a_tensor_reached_through_a_closure_is_guarded_too(name: str) -> None:
    """A tensor that is no argument is asked as well; a change of its own state is noticed."""
    ask, one, _ = _FACTS[name]
    held = one()
    fn = lambda x: x * float(ask(held))  # noqa: E731  as people write it
    assert tp.compile(fn)(tp.ones((3,))).tolist() == fn(tp.ones((3,))).tolist()


def test_entries_that_ask_for_no_fact_guard_none() -> None:
    """Only an entry that asked for it is captured anew for another offset."""
    compiled = tp.compile(lambda a: a * 2.0)
    compiled(tp.ones((6,))[3:]), compiled(tp.ones((6,))[1:4])
    assert len(compiled.graphs) == 1


def test_no_gradient_yet_is_guarded_and_a_gradient_isrefused() -> None:
    """`a.grad is None` is the argument's own answer; the gradient itself has to be passed in."""

    def fn(a: Tensor) -> Tensor:
        return a * 1.0 if a.grad is None else a.grad * 1.0

    compiled = tp.compile(fn)
    a = tp.full((3,), 2.0).requires_grad_()
    assert compiled(a).tolist() == [2.0] * 3
    a.grad = tp.full((3,), 7.0)
    with pytest.raises(CaptureError, match="grad of a tensor from outside") as caught:
        compiled(a)
    assert caught.value.code == "TP4030"
    a.grad = None
    assert compiled(a).tolist() == [2.0] * 3
    assert len(compiled.graphs) == 1


def test_requires_grad_of_a_tensor_from_outside_is_guarded() -> None:
    """A closed-over tensor that is only asked for requires_grad, and used by no op."""
    w = tp.ones((2,))
    compiled = tp.compile(lambda x: x * 2.0 if w.requires_grad else x)
    assert compiled(tp.ones((2,))).tolist() == [1.0, 1.0]
    w.requires_grad_()
    assert compiled(tp.ones((2,))).tolist() == [2.0, 2.0]


def test_grad_mode_is_guarded_where_it_was_asked_for() -> None:
    """Also where no tensor requires a gradient."""
    compiled = tp.compile(lambda x: x * 2.0 if tp.is_grad_enabled() else x)
    assert compiled(tp.ones(())).item() == 2.0
    with tp.no_grad():
        assert compiled(tp.ones(())).item() == 1.0


@pytest.mark.parametrize(
    ("code", "fn"),
    [
        ("TP4030", lambda a: a * a._version),
        ("TP4030", lambda a: a * (a * 2.0).storage_offset()),
        ("TP4030", lambda a: a * (a * 2.0).is_view),
        ("TP4030", lambda a: a * (a * 2.0).is_readonly),
        ("TP4030", lambda a: (a, (a * 2.0).grad_fn.name())),
        ("TP4005", lambda a: a + a.data_ptr()),
        ("TP4005", lambda a: a + a.untyped_storage().nbytes()),
        ("TP4013", lambda a: tp.from_dlpack(a)),
        ("TP4003", lambda a: (a, str(a + 1.0))),
        ("TP4003", lambda a: (a, f"{a}")),
        ("TP4003", lambda a: (a, repr([a]))),
    ],
)
def test_what_only_a_run_knows_isrefused(code: str, fn: Callable[..., Any]) -> None:
    """No value of a fake gets into a program."""
    refused(code, fn, tp.ones((3,)).requires_grad_())


def test_values_of_tensors_from_outside_arerefused() -> None:
    """A tensor reached through a closure is an input: its values may be others in the next run."""
    w = tp.full((1,), 3.0)
    refused("TP4003", lambda x: x * w.item(), tp.ones((2,)))
    refused("TP4003", lambda x: x * float(w), tp.ones((2,)))
    refused("TP4003", lambda x: x * w.tolist()[0], tp.ones((2,)))
    refused("TP4003", lambda x: x * float(w.numpy()[0]), tp.ones((2,)))
    refused("TP4003", lambda x: (x, str(w)), tp.ones((2,)))
    refused("TP4005", lambda x: x + w.data_ptr(), tp.ones((2,)))


def test_a_refusal_that_the_function_catches_holds() -> None:
    """An except clause does not turn a refused read into a constant."""

    def fn(x: Tensor) -> Tensor:
        try:
            return x * x.sum().item()
        except RuntimeError:
            return x * 0.0

    refused("TP4003", fn, tp.ones((2,)))

    def counted(x: Tensor) -> Tensor:
        try:
            return x * x._version
        except Exception:
            return x * 0.0

    refused("TP4030", counted, tp.ones((2,)))


def test_writing_to_a_computed_argument_is_refused_for_what_it_is() -> None:
    """Eager code may; compiled code says that the history is somebody else's, at the line."""
    w = tp.ones((3,)).requires_grad_()
    for write in (lambda y: y.add_(1.0), lambda y: y[0].add_(1.0)):
        e = refused("TP4034", write, w * 2.0)
        assert "computed outside of the captured function" in str(e)
    with pytest.raises(tp.errors.AutogradError, match="a leaf that requires grad") as caught:
        tp.compile(lambda a: a.add_(1.0))(w)
    assert caught.value.code == "TP3010"


def _set_grad(a: Tensor) -> Tensor:
    a.grad = a * 2.0
    return a + 1.0


def _prefer(a: Tensor) -> Tensor:
    with _two_kernels().prefer("a"):
        return a * 1.0


def _disable(a: Tensor) -> Tensor:
    with _two_kernels().set_kernel_enabled("cpu", False):
        return a * 1.0


def _debug(a: Tensor) -> Tensor:
    with library.debug_checks():
        return a * 1.0


def _trace(a: Tensor) -> Tensor:
    with tp.trace():
        return a * 1.0


def _anomaly(a: Tensor) -> Tensor:
    with tp.autograd.detect_anomaly():
        return a * 1.0


@functools.cache
def _two_kernels() -> Any:
    op = library.custom_op("state::two", lambda x: x * 0.0, mutates_args=())
    op.register_fake(lambda x: tp.empty_like(x))
    op.register_kernel("cpu", lambda x: x * 0.0 + 1.0, name="a")
    op.register_kernel("cpu", lambda x: x * 0.0 + 2.0, name="b")
    return op


@pytest.mark.thread_unsafe(reason="its ops have fixed names, and some effects are of the process")
@pytest.mark.parametrize(
    "fn",
    [
        lambda a: ((a * a).sum().backward(), a * 1.0)[1],
        lambda a: ((a * a).sum().backward(inputs=[a]), a * 1.0)[1],
        lambda a: (tp.autograd.backward([(a * a).sum()]), a * 1.0)[1],
        _set_grad,
        lambda a: a.requires_grad_(False) * 1.0,
        lambda a: (a.register_hook(lambda g: g), a * 1.0)[1],
        lambda a: (tp.manual_seed(7), a + tp.uniform((3,)))[1],
        lambda a: (tp._native.rng_state(), a)[1],
        lambda a: (tp.set_num_threads(1), a)[1],
        lambda a: (tp.load("absent.safetensors"), a)[1],
        _prefer,
        _disable,
        _debug,
        _trace,
        _anomaly,
    ],
)
def test_an_effect_that_no_run_would_have_is_refused(fn: Callable[..., Any]) -> None:
    """Gradients left behind, flags, seeds and contexts would take effect in the capture alone."""
    a = tp.ones((3,)).requires_grad_()
    refused("TP4031", fn, a, match="in the capture alone")
    assert a.grad is None
    assert a.requires_grad


def test_backward_leaves_nothing_with_a_closed_over_leaf() -> None:
    """The refusal comes before a tensor without data becomes somebody's gradient."""
    w = tp.ones((3,)).requires_grad_()
    refused("TP4031", lambda x: ((w * x).sum().backward(), x * 1.0)[1], tp.ones((3,)))
    assert w.grad is None
    assert tp.compile(lambda x: w.requires_grad_() * x)(tp.ones((3,))).tolist() == [1.0] * 3


def test_backward_among_tensors_of_the_function_is_captured() -> None:
    """What stays inside of the function is ops like any other."""

    def slope(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        tp.sum(y * y * y).backward()
        assert y.is_leaf
        assert y.grad_fn is None
        return y.grad

    compiled = tp.compile(slope)
    assert compiled(tp.tensor([1.0, 2.0])).tolist() == [3.0, 12.0]
    assert compiled(tp.tensor([2.0, 3.0])).tolist() == [12.0, 27.0]


def test_grad_mode_left_changed_is_refused_and_put_back() -> None:
    """A mode set for good would be set by the capture alone."""

    def fn(x: Tensor) -> Tensor:
        tp.set_grad_enabled(False)
        return x * 2.0

    refused("TP4031", fn, tp.ones((2,)), match="left grad mode changed")
    assert tp.is_grad_enabled()


def test_autocast_inside_takes_effect_in_every_run() -> None:
    """Casts are ops, so the context is in the graph."""

    def fn(x: Tensor) -> Tensor:
        with tp.autocast(dtype=tp.bfloat16):
            return x @ x

    compiled = tp.compile(fn)
    for _ in range(2):
        out = compiled(tp.ones((2, 2)))
        assert (out.dtype, out.tolist()) == (tp.bfloat16, [[2.0, 2.0], [2.0, 2.0]])


def test_an_output_with_a_flag_that_no_run_sets_isrefused() -> None:
    """Requires_grad_() on what is returned would be lost."""
    with pytest.raises(CaptureError, match="output 0 is returned with requires_grad set") as caught:
        tp.compile(lambda x: (x * 2.0).requires_grad_())(tp.ones((2,)))
    assert caught.value.code == "TP4031"


def test_hooks_around_a_call_do_not_see_the_capture() -> None:
    """Saved_tensors_hooks get the tensors of a run, not fakes."""
    seen: list[np.ndarray[Any, Any]] = []

    def pack(t: Tensor) -> Any:
        seen.append(t.numpy())
        return seen[-1]

    x = tp.tensor([0.5, 1.0]).requires_grad_()
    with tp.autograd.saved_tensors_hooks(pack, lambda a: tp.from_numpy(a)):
        tp.compile(lambda x: tp.sum(tp.exp(x)))(x).backward()
    assert seen
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, 1.0]), rtol=1e-6)


def test_a_checkpoint_inside_draws_once() -> None:
    """The gradient goes with the numbers that the forward drew."""

    def fn(x: Tensor) -> Tensor:
        return tp.autograd.checkpoint(lambda y: y * tp.uniform(y.shape), x)

    x = tp.ones((16,)).requires_grad_()
    out = tp.compile(fn)(x)
    out.sum().backward()
    assert x.grad.tolist() == out.tolist()
