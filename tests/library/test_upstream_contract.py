"""Behaviours that users of the older TensorPlay rely on, with the markers and reasons that it lacked."""

from __future__ import annotations

import gc
import warnings

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, CaptureError, RegistrationError, SchemaError


def executors(events, op: str) -> list[str]:
    return [e.marker.executor for e in events.of(op)]


def test_l01_the_body_is_the_default_kernel(ns: str) -> None:
    """L01."""

    @library.custom_op(f"{ns}::scaled", mutates_args=())
    def scaled(x):
        return tp.mul(x, 2.0)

    assert library.get_op(f"{ns}::scaled") is scaled
    with tp.trace() as events:
        assert scaled(tp.tensor([1.0, 2.5])).tolist() == [2.0, 5.0]
    assert executors(events, f"{ns}::scaled") == ["python"]
    assert executors(events, "tp::mul") == ["native"]


def test_l02_a_device_kernel_overrides_the_body(ns: str) -> None:
    """L02."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())

    @f.register_kernel("cpu", name="special")
    def special(x):
        return x * 100

    with tp.trace() as events:
        assert f(tp.ones([1])).tolist() == [100.0]
    event = events.of(f"{ns}::f")[0]
    assert (event.key, event.marker.kernel, event.phase) == ("cpu", f"{ns}::f/special", "forward")


def test_l03_no_kernel(ns: str) -> None:
    """L03: NotImplementedError that names op, device and what there is."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), device_types="cuda")
    with pytest.raises(NotImplementedError, match=rf"{ns}::f: no kernel for device 'cpu'.*cuda"):
        f(tp.ones([1]))


def test_l07_register_fake_as_a_decorator(ns: str) -> None:
    """L07, and the fake is used."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())

    @f.register_fake
    def fake(x):
        return tp.empty_like(x)

    assert callable(fake)
    graph = tp.graph.capture(f, tp.ones([2, 3]))
    assert graph.nodes[0].spec[0].shape == (2, 3)


def test_l08_setup_context_and_saved_tensors(ns: str) -> None:
    """L08: d(x*x) = 2x."""
    f = library.custom_op(f"{ns}::square", lambda x: x * x, mutates_args=())
    f.register_autograd(
        lambda ctx, g: g * 2.0 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = tp.tensor([3.0, -1.0], requires_grad=True)
    y = f(x)
    assert y.requires_grad
    with tp.trace() as events:
        y.sum().backward()
    assert x.grad.tolist() == [6.0, -2.0]
    assert {e.phase for e in events} >= {"backward"}


def test_l09_a_rule_from_the_gradient_alone(ns: str) -> None:
    """L09."""
    f = library.custom_op(f"{ns}::negate", lambda x: -x, mutates_args=())
    f.register_autograd(lambda ctx, g: -g)
    x = tp.tensor([3.0], requires_grad=True)
    f(x).sum().backward()
    assert x.grad.tolist() == [-1.0]


def test_l10_no_history_under_no_grad(ns: str) -> None:
    """L10."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    f.register_autograd(lambda ctx, g: g * 2)
    x = tp.tensor([3.0], requires_grad=True)
    with tp.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad


def test_l11_libraries(ns: str) -> None:
    """L11: define and impl in every spelling; one DEF per namespace; FRAGMENT extends."""
    lib = library.Library(ns, "DEF")
    lib.define("a(Tensor x) -> Tensor")
    lib.define(f"{ns}::b(Tensor x, float k=2.0) -> Tensor")
    lib.impl("a", lambda x: x * 3)

    @lib.impl(f"{ns}::b", dispatch_key="CPU")
    def b(x, k):
        return x * k

    with pytest.raises(
        RegistrationError, match=f"'{ns}' has a DEF library already, made at .*test_upstream"
    ) as e:
        library.Library(ns, "DEF")
    assert "FRAGMENT" in e.value.__notes__[0]
    more = library.Library(ns, "FRAGMENT")
    more.define("c(Tensor x) -> Tensor")
    more.impl("c", lambda x: x * 5, "CompositeExplicitAutograd")
    ops = getattr(tp.ops, ns)
    x = tp.ones([1])
    assert [op(x).item() for op in (ops.a, ops.b, ops.c)] == [3.0, 2.0, 5.0]
    assert (list(ops.a.kernels), list(ops.b.kernels)) == (["default"], ["cpu"])
    with pytest.raises(RegistrationError, match="allow_override=True"):
        lib.impl("a", lambda x: x)
    with warnings.catch_warnings():  # said once in a process
        warnings.simplefilter("ignore")
        lib.impl("a", lambda x: x * 4, allow_override=True)
    assert ops.a(x).item() == 4.0
    with pytest.raises(RegistrationError, match="IMPL library defines no ops"):
        library.Library(ns, "IMPL").define("d(Tensor x) -> Tensor")
    lib._destroy()
    more._destroy()


def test_l11_lifetime(ns: str) -> None:
    """U1, L11: what was kept of a destroyed library raises, and the namespace is free again."""
    with library.Library(ns, "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * 2)
        kept = getattr(tp.ops, ns).f.default
        assert kept(tp.ones([1])).item() == 2.0
    with pytest.raises(RuntimeError, match=f"{ns}::f.* unregistered"):
        kept(tp.ones([1]))
    assert not library.has_op(f"{ns}::f")
    again = library.Library(ns, "DEF")
    again.define("f(Tensor x) -> Tensor")
    again.impl("f", lambda x: x * 3)
    assert kept(tp.ones([1])).item() == 3.0
    again._destroy()


def test_l11_a_library_ends_with_its_object(ns: str) -> None:
    """What was defined through it goes; kernels that it stood in front of come back."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    lib = library.Library(ns, "FRAGMENT")
    lib.define("g(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2)
    lib.impl("f", lambda x: tp.empty_like(x), "Meta")
    assert f(tp.ones([1])).item() == 2.0
    assert "fake     python" in repr(f)
    del lib
    gc.collect()
    assert f(tp.ones([1])).item() == 1.0
    assert "fake     missing" in repr(f)
    assert not library.has_op(f"{ns}::g")


def test_l11_an_implementation_may_come_first(ns: str) -> None:
    """impl for an op that is not defined yet waits for it."""
    lib = library.Library(ns, "FRAGMENT")
    lib.impl("late", lambda x: x * 2, "CPU")
    assert not library.has_op(f"{ns}::late")
    lib.define("late(Tensor x) -> Tensor")
    assert getattr(tp.ops, ns).late(tp.ones([1])).item() == 2.0
    lib._destroy()


def test_l12_ops_by_attribute(ns: str) -> None:
    """L12."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    assert getattr(tp.ops, ns).f is f
    with pytest.raises(AttributeError):
        tp.ops.no_such_namespace


def test_l14_capture_has_one_node_and_replays(ns: str) -> None:
    """L14, L15."""
    runs = []

    def body(x: Tensor) -> Tensor:
        runs.append(1)
        return x * x + 1.0

    f = library.custom_op(f"{ns}::square_plus", body, mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))

    def barrier(x):
        return f(x + 1.0) * 2.0

    graph = tp.graph.capture(barrier, tp.ones([2]))
    assert [n.target for n in graph.nodes] == [
        "tp::add.Scalar",
        f"{ns}::square_plus.default",
        "tp::mul.Scalar",
    ]
    assert runs == []
    compiled = tp.compile(barrier)
    outputs, report = compiled.run(tp.tensor([2.0, 3.0]))
    assert outputs.tolist() == barrier(tp.tensor([2.0, 3.0])).tolist() == [20.0, 34.0]
    assert "python" in report.executors


def test_l18_triton_ops_are_told_apart(ns: str) -> None:
    """L18."""
    f = library.triton_op(f"{ns}::noop", lambda x: x * 1, mutates_args=())
    assert f.is_triton_op
    assert f"<triton_op {ns}::noop>" in repr(f)
    assert not library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=()).is_triton_op


def test_l19_wrap_triton_takes_kernels_only() -> None:
    """L19: idempotent, and everything else is a TypeError."""

    class JITFunction:
        def __init__(self, fn):
            self.fn = fn

    kernel = JITFunction(lambda: None)
    wrapped = library.wrap_triton(kernel)
    assert wrapped.kernel is kernel
    assert library.wrap_triton(wrapped) is wrapped
    for wrong in (object(), {"a": 1}, "text", lambda: None):
        with pytest.raises(ArgumentError, match=r"takes a kernel made by triton\.jit"):
            library.wrap_triton(wrong)


def test_l19_a_launch_inside_a_capture_is_an_error() -> None:
    """L19, T12: the fix is named."""

    class JITFunction:
        arg_names = ("x",)
        __name__ = "kernel"

    wrapped = library.wrap_triton(JITFunction())
    with pytest.raises(CaptureError, match="the Triton kernel kernel was launched inside a capture") as e:
        tp.graph.capture(lambda x: wrapped[(1,)](x) or x, tp.ones([1]))
    assert "triton_op" in e.value.__notes__[0]


def test_l20_function_in_second_place(ns: str) -> None:
    """L20: the schema is a text in a keyword, never a second positional argument."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert str(f.schema) == f"{ns}::f(Tensor x) -> Tensor"
    g = library.triton_op(f"{ns}::g", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert str(g.schema) == f"{ns}::g(Tensor x) -> Tensor"


def test_l21_keywords_reach_the_kernel(ns: str) -> None:
    """L21, W5, W9: with and without gradients; a keyword tensor chooses the device's kernel."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, alpha: float = 1.0) -> Tensor:
        return x * 0

    f.register_kernel("cpu", lambda x, alpha: x * alpha)
    f.register_autograd(
        lambda ctx, g: (g * ctx.alpha, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "alpha", inputs[1]),
    )
    assert f(x=tp.ones([1]), alpha=3.0).tolist() == [3.0]
    x = tp.tensor([1.0], requires_grad=True)
    f(alpha=4.0, x=x).sum().backward()
    assert x.grad.tolist() == [4.0]


def test_w9_tensors_in_lists_choose_the_kernel(ns: str) -> None:
    """W9, W14."""

    @library.custom_op(f"{ns}::total", mutates_args=())
    def total(xs: list[Tensor]) -> Tensor:
        raise AssertionError("the kernel for the device comes first")

    total.register_kernel("cpu", lambda xs: xs[0] + xs[1])
    total.register_autograd(lambda ctx, g: ([g, g],))
    a, b = tp.tensor([1.0], requires_grad=True), tp.tensor([2.0], requires_grad=True)
    y = total([a, b])
    assert y.tolist() == [3.0]
    y.backward(tp.tensor([5.0]))
    assert (a.grad.tolist(), b.grad.tolist()) == ([5.0], [5.0])


def test_l22_set_kernel_enabled(ns: str) -> None:
    """L22: 10 -> 1 inside -> 10 after; switching twice warns; a state is restored after an exception too."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    f.register_kernel("cpu", lambda x: x * 10)
    x = tp.ones([1])
    assert f(x).item() == 10.0
    with f.set_kernel_enabled("cpu", enabled=False), tp.trace() as events:
        assert f(x).item() == 1.0
    assert [(name, reason.kind) for name, reason in events.of(f"{ns}::f")[0].rejected] == [
        ("default", "Disabled")
    ]
    assert f(x).item() == 10.0
    with f.set_kernel_enabled("cpu", enabled=False):
        with pytest.warns(UserWarning, match="disabled already"), f.set_kernel_enabled("cpu", enabled=False):
            assert f(x).item() == 1.0
        assert f(x).item() == 1.0
    with pytest.raises(ZeroDivisionError), f.set_kernel_enabled("cpu", enabled=False):
        1 / 0
    assert f(x).item() == 10.0


def test_the_default_kernel_cannot_be_switched_off(ns: str) -> None:
    """L22: it is what answers where others are off, so that switching it off would do nothing."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    f.register_kernel("cpu", lambda x: x * 10)
    for device in (None, "default", ["cpu", "default"]):
        with pytest.raises(SchemaError, match="cannot be disabled itself") as raised:
            f.set_kernel_enabled(device, enabled=False)
        assert (raised.value.code, raised.value.op) == ("TP1312", f"{ns}::f")
    assert f(tp.ones([1])).item() == 10.0


def test_l23_get_kernel(ns: str) -> None:
    """L23: exactly that slot."""

    def body(x):
        return x * 2

    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    assert library.get_kernel(f, "default") is body
    assert library.get_kernel(f"{ns}::f", "CompositeExplicitAutograd") is body
    for key in ("cuda", "cpu"):
        with pytest.raises(LookupError, match=f"no kernel is registered for '{key}'"):
            library.get_kernel(f, key)

    def special(x):
        return x * 3

    f.register_kernel("cpu", special)
    assert library.get_kernel(f, "cpu") is special
    assert library.get_kernel("tp::mul", "cpu")(tp.ones([1]), tp.tensor([2.0])).item() == 2.0


def test_l24_register_vmap(ns: str) -> None:
    """L24: kept, and only callables."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())

    @f.register_vmap
    def rule(info, in_dims, x):
        return f(x), in_dims[0]

    assert callable(rule)
    assert library.register_vmap(f"{ns}::f", rule) is rule
    with pytest.raises(TypeError, match="must be callable"):
        f.register_vmap(3)


def test_l28_top_level_define_and_impl(ns: str) -> None:
    """L28."""
    library.define(f"{ns}::a", "(Tensor x) -> Tensor")
    library.define(f"{ns}::b(Tensor x, Tensor y) -> Tensor")
    library.impl(f"{ns}::a", "CPU", lambda x: x * 2)

    @library.impl(f"{ns}::b", ["cpu", "cuda"])
    def b(x, y):
        return x * y

    @library.impl_abstract(f"{ns}::a")
    def fake(x):
        return tp.empty_like(x)

    library.register_autograd(f"{ns}::a", lambda ctx, g: g * 2)
    library.register_kernel(f"{ns}::a", "cuda", lambda x: x)
    x = tp.tensor([3.0], requires_grad=True)
    library.get_op(f"{ns}::a")(x).sum().backward()
    assert x.grad.tolist() == [2.0]
    assert getattr(tp.ops, ns).b(tp.ones([1]), tp.tensor([4.0])).item() == 4.0
    assert sorted(library.get_op(f"{ns}::a").kernels) == ["cpu", "cuda"]
    assert [n.target for n in tp.graph.capture(library.get_op(f"{ns}::a"), tp.ones([1])).nodes] == [
        f"{ns}::a.default"
    ]
    with pytest.raises(ValueError, match="expected"):
        library.define(f"{ns}::garbage", "(@@@ not a schema")


def test_overloads_have_names(ns: str) -> None:
    """C7: every spelling gives the resolved overload as the target; the best match is called, not the first."""
    library.define(f"{ns}::f(Tensor x, float k) -> Tensor")
    library.define(f"{ns}::f.two(Tensor x, Tensor y) -> Tensor")
    library.impl(f"{ns}::f", None, lambda x, k: x * k)
    library.impl(f"{ns}::f.two", None, lambda x, y: x + y)
    for name in ("f", "f.two"):
        library.register_fake(f"{ns}::{name}", lambda x, other: tp.empty_like(x))
    f = getattr(tp.ops, ns).f
    assert f.overloads() == ["default", "two"]
    x = tp.ones([1])
    assert (f(x, 3.0).item(), f(x, x).item(), f.two(x, x).item(), f.default(x, 4.0).item()) == (
        3.0,
        2.0,
        2.0,
        4.0,
    )
    with pytest.raises(TypeError, match="argument 'y' must be Tensor"):
        f.two(x, 3.0)
    graph = tp.graph.capture(lambda x: f(f.default(f(x, 2.0), 3.0), x), x)
    assert [n.target for n in graph.nodes] == [f"{ns}::f.default", f"{ns}::f.default", f"{ns}::f.two"]
    with pytest.raises(TypeError, match=f"no overload of {ns}::f takes these arguments") as e:
        f(x, "text")
    assert len(e.value.__notes__) == 2


def test_l32_a_call_is_one_event_and_its_body_is_its_own(ns: str) -> None:
    """L32 with our names: in a captured graph the op is one node, followed by the next call."""
    f = library.custom_op(f"{ns}::double_sin", lambda x: tp.sin(x) * 2.0, mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))
    graph = tp.graph.capture(lambda x: f(x) + 1.0, tp.ones([3]))
    assert [n.target for n in graph.nodes] == [f"{ns}::double_sin.default", "tp::add.Scalar"]
    compiled = tp.compile(lambda x: f(x) + 1.0)
    for shape in ([3], [2, 2]):
        x = tp.ones(shape)
        assert compiled(x).tolist() == (f(x) + 1.0).tolist()
        assert [r.marker.executor for r in compiled.last_run.forward] == ["python", "native"]
