"""Calls of a `Function`: what the class, its marks and its results may be, and the layers that a call passes."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import weakref
from typing import Any

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import _native
from tensorplay.autograd import Function
from tensorplay.errors import AutogradError, CaptureError, ContractError, InvalidValueError


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2.0 * x


def test_a_class_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put into the class later counts for the next forward, and for the next backward of any call."""

    class Changing(Twice):
        pass

    x = leaf(1.0)
    before = Changing.apply(x)
    monkeypatch.setattr(Changing, "forward", staticmethod(lambda ctx, x: x * 5.0), raising=False)
    monkeypatch.setattr(Changing, "backward", staticmethod(lambda ctx, g: g * 7.0), raising=False)
    after = Changing.apply(x)
    assert (before.tolist(), after.tolist()) == ([2.0], [5.0])
    assert [tp.autograd.grad(y.sum(), x)[0].tolist() for y in (before, after)] == [[7.0], [7.0]]
    monkeypatch.setattr(
        Changing, "setup_context", staticmethod(lambda ctx, inputs, output: seen.append((inputs, output)))
    )
    monkeypatch.setattr(Changing, "forward", staticmethod(lambda x: x * 3.0), raising=False)
    seen: list[Any] = []
    y = Changing.apply(x)
    assert y.tolist() == [3.0]
    assert seen[0][0][0] is x
    assert seen[0][1] is y


def test_functions_of_every_kind_may_be_forward_and_backward() -> None:
    """Plain functions, static methods, class methods, other callables."""

    class Callable_:
        def __call__(self, ctx, x):
            return x * 2.0

    class Plain(Function):
        def forward(ctx, x):
            return x * 2.0

        def backward(ctx, g):
            return g * 2.0

    class Bound(Function):
        @classmethod
        def forward(cls, ctx, x):
            ctx.scale = cls.scale()
            return x * ctx.scale

        @classmethod
        def backward(cls, ctx, g):
            return g * ctx.scale

        @staticmethod
        def scale():
            return 2.0

    class Object(Twice):
        forward = Callable_()  # type: ignore[assignment]

    for function in (Plain, Bound, Object):
        x = leaf(1.0, 2.0)
        y = function.apply(x)
        y.sum().backward()
        assert (y.tolist(), x.grad.tolist()) == ([2.0, 4.0], [2.0, 2.0])


def test_the_type_itself() -> None:
    """Without a forward, with keywords, and as people look at it."""
    with pytest.raises(NotImplementedError, match="static method forward"):
        Function.apply(leaf(1.0))
    with pytest.raises(TypeError, match="keyword"):
        Twice.apply(x=leaf(1.0))  # type: ignore[call-arg]
    assert (Function.__name__, Function.__module__) == ("Function", "tensorplay.autograd")
    assert isinstance(Twice(), Twice)
    assert list(inspect.signature(Twice.apply).parameters) == ["args"]
    assert "subclass it" in (Function.__doc__ or "")
    assert issubclass(Twice, Function)

    class More(Twice):
        @classmethod
        def apply(cls, x):
            return super().apply(x) + 1.0

    call = Twice.apply
    assert More.apply(tp.ones([1])).tolist() == [3.0]
    assert Twice().apply(tp.ones([1])).tolist() == call(tp.ones([1])).tolist() == [2.0]
    assert pickle.loads(pickle.dumps(call)).__self__ is Twice


@pytest.mark.parametrize("kind", ["integer", "number", "tuple", "list", "dict", "generator", "wrong"])
def test_a_wrong_gradient_names_the_class_and_the_argument(kind: str) -> None:
    """6.9: also that of an integer tensor."""

    class Wrong(Function):
        @staticmethod
        def forward(ctx, i, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            return {
                "integer": (g, g),
                "number": (None, 1.0),
                "tuple": (None, None, None),
                "list": [None, g],
                "dict": {"x": g},
                "generator": (one for one in (None, g)),
                "wrong": (None, tp.ones([7])),
            }[kind]

    code, match = {
        "integer": ("TP3212", r"Wrong\.backward returned a gradient for argument 0, which was no floating"),
        "number": ("TP3208", r"Wrong\.backward returned float for argument 1: a Tensor or None is wanted"),
        "tuple": ("TP3208", r"Wrong\.backward must return 2 gradients, got 3"),
        "list": ("TP3208", r"Wrong\.backward must return a tuple, got a list"),
        "dict": ("TP3208", r"Wrong\.backward must return a tuple, got dict"),
        "generator": ("TP3208", r"Wrong\.backward must return a tuple, got generator"),
        "wrong": ("TP3006", r"Wrong: the gradient for argument 1 has shape \[7\], expected \[2\]"),
    }[kind]
    y = Wrong.apply(tp.tensor([1, 2]), leaf(1.0, 2.0))
    with pytest.raises((ContractError, AutogradError), match=match) as e:
        y.sum().backward()
    assert (e.value.code, e.value.op) == (code, "Wrong")
    assert str(e.value).count("Wrong") == 1


def test_a_capture_that_meets_a_function_names_it() -> None:
    """With the line, whether or not a gradient is needed."""
    for x in (tp.ones([2]), leaf(1.0, 2.0)):
        with pytest.raises(CaptureError, match="Twice: ") as e:
            tp.graph.capture(lambda x: Twice.apply(x) + 1.0, x)
        assert (e.value.code, e.value.op) == ("TP4006", "Twice")
        assert [n for n in e.value.__notes__ if __file__ in n]
        with pytest.raises(CaptureError, match="Twice"):
            tp.compile(Twice.apply)(x)


def test_results_without_a_tensor() -> None:
    """Nothing is recorded; whatever the op or Function took is let go."""

    class Count(Function):
        @staticmethod
        def forward(ctx, x):
            return x.shape[0]

    x = leaf(1.0, 2.0)
    alive = weakref.ref(x)
    before = _native.live_nodes()
    assert [Count.apply(x) for _ in range(200)] == [2] * 200
    assert _native.live_nodes() == before
    del x
    gc.collect()
    assert alive() is None


def test_an_op_that_returns_no_tensor_is_not_recorded(ns: str) -> None:
    """6.5: an empty list of tensors has no history to give."""
    f = tp.library.custom_op(f"{ns}::f", lambda x: [], mutates_args=(), schema="(Tensor x) -> Tensor[]")
    f.register_autograd(lambda ctx, grads: None)
    x = leaf(1.0)
    alive = weakref.ref(x)
    for _ in range(200):
        assert f(x) == []
    del x
    gc.collect()
    assert alive() is None


def test_results_keep_their_structure() -> None:
    """One value, a tuple for tuples and lists; None and others pass through."""
    cases: list[Any] = [None, 3, {"a": 1}, (1, None), [4], ()]

    class Give(Function):
        @staticmethod
        def forward(ctx, x, k):
            return cases[k]

    found = [Give.apply(leaf(1.0), k) for k in range(len(cases))]
    assert found == [None, 3, {"a": 1}, (1, None), (4,), ()]

    class Named(tuple):
        __slots__ = ()

    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            return Named((x * 2.0, x))

        @staticmethod
        def backward(ctx, g, h):
            return g * 2.0 + h

    x = leaf(1.0)
    pair = Two.apply(x)
    assert type(pair) is tuple
    (pair[0] + pair[1] * 5.0).sum().backward()
    assert x.grad.tolist() == [7.0]


def test_many_arguments_and_results() -> None:
    """Past what bits hold."""
    n = 70
    seen = []

    class Many(Function):
        @staticmethod
        def forward(ctx, *xs):
            seen.append(ctx.needs_input_grad)
            return tuple(x * 2.0 for x in xs)

        @staticmethod
        def backward(ctx, *gs):
            return tuple(g * (k + 1.0) for k, g in enumerate(gs))

    xs = [leaf(1.0) if k % 2 else tp.ones([1]) for k in range(n)]
    total = sum(Many.apply(*xs), tp.zeros([1]))
    total.sum().backward()
    assert seen == [tuple(bool(k % 2) for k in range(n))]
    assert [x.grad.tolist() for x in xs if x.requires_grad] == [[k + 1.0] for k in range(n) if k % 2]


def test_nested_vmap_of_a_function() -> None:
    """8.1: values and gradients equal the loop, each sample with a context of its own; said once, by name."""

    class Weighed(Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * x * k, 3

        @staticmethod
        def backward(ctx, g, _):
            (x,) = ctx.saved_tensors
            return g * 2.0 * x * ctx.k, None

    x = tp.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]], [[0.5, 1.5], [2.5, 3.5]]])
    one = lambda r: Weighed.apply(r, 3.0)[0]  # noqa: E731
    with pytest.warns(UserWarning, match="Weighed is a Function and runs once per sample") as said:
        found = tp.func.vmap(tp.func.vmap(one))(x)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert found.tolist() == (x * x * 3.0).tolist()
    total = tp.func.grad(lambda v: tp.func.vmap(tp.func.vmap(one))(v).sum())(x)
    assert total.tolist() == (x * 6.0).tolist()
    per_sample = tp.func.vmap(tp.func.vmap(tp.func.grad(lambda r: one(r).sum())))(x)
    assert per_sample.tolist() == (x * 6.0).tolist()


def test_samples_that_disagree_are_refused() -> None:
    """8.1: about how many results there are, or which of them are tensors."""
    runs = []

    class Uneven(Function):
        @staticmethod
        def forward(ctx, x, how):
            runs.append(x)
            if how == "count":
                return (x,) * len(runs)
            return x * 2.0 if len(runs) % 2 else 1

    with (
        pytest.warns(UserWarning, match="Uneven"),
        pytest.raises(InvalidValueError, match="number of outputs"),
    ):
        tp.func.vmap(lambda r: Uneven.apply(r, "count"))(tp.ones([2, 2]))
    runs.clear()
    with pytest.raises(InvalidValueError, match="for some samples only"):
        tp.func.vmap(lambda r: Uneven.apply(r, "kind"))(tp.ones([2, 2]))
    with pytest.raises(InvalidValueError, match="empty batch"):
        tp.func.vmap(lambda r: Uneven.apply(r, "kind"))(tp.ones([0, 2]))


def test_a_write_of_an_unmarked_or_repeated_input() -> None:
    """6.8: an input that is returned twice is itself both times, and the first place has its gradient."""

    class Both(Function):
        @staticmethod
        def forward(ctx, x, k):
            x.mul_(k)
            ctx.mark_dirty(x, x)
            ctx.save_for_backward(x)
            ctx.k = k
            return x, x, x[:1]

        @staticmethod
        def backward(ctx, g, h, part):
            assert ctx.saved_tensors[0].tolist() == [3.0, 6.0]
            return g * ctx.k, None

    x = leaf(1.0, 2.0)
    y = x * 1.0
    a, b, part = Both.apply(y, 3.0)
    assert a is y
    assert b is y
    assert part.tolist() == [3.0]
    part.detach().fill_(0.0)  # a copy: nothing of y
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_write_keeps_no_copy() -> None:
    """6.8: what mark_dirty was told of is given back without a clone."""

    class Write(Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2.0)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2.0

    y = leaf(1.0, 2.0) * 1.0
    with tp.trace() as events:
        Write.apply(y)
    assert [e.op for e in events] == ["tp::mul_.Scalar", "Write"]


def test_a_trace_lists_a_function() -> None:
    """With the operations inside, in order."""
    x = leaf(1.0, 2.0)
    with tp.trace() as events:
        Twice.apply(x).backward(tp.ones([2]))
    assert [(e.op, e.phase) for e in events if e.op != "tp::ones.default"] == [
        ("tp::mul.Scalar", "forward"),
        ("Twice", "forward"),
        ("tp::mul.Scalar", "backward"),
    ]
    (event,) = [e for e in events if e.op == "Twice"]
    assert (event.marker.executor, event.shapes, event.dtypes) == ("python", ((2,),), ("float32",))


def test_a_tensor_that_escaped_its_capture_is_refused() -> None:
    """As any op refuses it."""
    kept: list[tp.Tensor] = []
    tp.graph.capture(lambda x: (kept.append(x), x * 2.0)[1], tp.ones([2]))
    with pytest.raises(CaptureError, match="outside of the capture") as e:
        Twice.apply(kept[0])
    assert e.value.code == "TP4012"
    tp.func.vmap(lambda x: (kept.append(x), x * 2.0)[1])(tp.ones([2, 2]))
    with pytest.raises(CaptureError, match="outside of the vmap") as e:
        Twice.apply(kept[1])
    assert e.value.code == "TP4022"


def test_kernels_and_fake_rules_may_call_a_function(ns: str) -> None:
    """What they do is their own business, also while a capture goes on."""
    f = tp.library.custom_op(f"{ns}::f", Twice.apply, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_fake(lambda x: Twice.apply(x))
    assert f(leaf(1.0)).tolist() == [2.0]
    graph = tp.graph.capture(lambda x: f(x), tp.ones([2]))
    assert [n.target for n in graph.nodes] == [f"{ns}::f.default"]
    assert tp.compile(lambda x: f(x))(tp.ones([2])).tolist() == [2.0, 2.0]


def test_a_function_under_vmap_that_no_sample_reaches() -> None:
    """8.1: it runs once, and what it draws is its own business."""
    runs = []

    class Draws(Twice):
        @staticmethod
        def forward(ctx, x):
            runs.append(tp.uniform((2,)))
            return x * 2.0

    c = tp.ones([2])
    with tp.trace() as events:
        found = tp.func.vmap(lambda v: v + Draws.apply(c))(tp.ones([3, 2]))
    assert found.tolist() == [[3.0, 3.0]] * 3
    assert len(runs) == 1
    assert [e.op for e in events].count("Draws") == 1


def test_autocast_reaches_into_a_function() -> None:
    """9.4: forward runs as it would outside."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x):
            return x @ x

        @staticmethod
        def backward(ctx, g):
            return g

    with tp.autocast("cpu", tp.bfloat16):
        assert Product.apply(tp.ones([2, 2])).dtype == tp.bfloat16


def test_threads_share_a_function() -> None:
    """Forward and backward of one class, and of one graph, from several threads."""
    failures: list[BaseException] = []
    x = leaf(2.0)
    shared = Square.apply(x)

    def work() -> None:
        try:
            for k in range(200):
                mine = leaf(float(k))
                (g,) = tp.autograd.grad(Square.apply(mine).sum(), mine)
                assert g.tolist() == [2.0 * k]
                (g,) = tp.autograd.grad(shared.sum(), x, retain_graph=True)
                assert g.tolist() == [4.0]
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_deep_chain_of_functions_is_freed() -> None:
    """6.7: contexts that hold tensors, without recursion."""

    class Hold(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = [x]
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return g

    before = _native.live_nodes()
    y = x = leaf(1.0)
    for _ in range(50_000):
        y = Hold.apply(y)
    y.sum().backward()
    assert x.grad.tolist() == [1.0]
    del y
    gc.collect()
    assert _native.live_nodes() == before


def test_a_class_in_a_cycle_with_its_graph_is_collected() -> None:
    """6.7: the node holds the class, which holds the tensor that the node made."""
    before = _native.live_nodes()

    def make() -> weakref.ref[type]:
        class Own(Twice):
            kept: Any = None

        x = leaf(1.0)
        Own.kept = Own.apply(x)
        return weakref.ref(Own)

    alive = [make() for _ in range(20)]
    gc.collect()
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
    assert _native.live_nodes() == before
