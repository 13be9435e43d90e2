"""Rows of the contract that are about gradients, writes and threads of custom ops, one test each."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, library
from tensorplay.autograd import gradcheck
from tensorplay.errors import AutogradError, CaptureError, DeviceError, SchemaError

TWO = "(Tensor x, Tensor y) -> Tensor"
MANY = "(Tensor[] xs) -> Tensor"


def unary(name: str, body=lambda x: x * 2.0):
    return library.custom_op(name, body, mutates_args=(), schema="(Tensor x) -> Tensor")


def writer(name: str):
    @library.custom_op(name, mutates_args=("x",))
    def f(x: Tensor) -> None:
        x.add_(1.0)

    return f


def test_which_ops_need_a_fake_rule(ns: str) -> None:
    """5.3: one that only writes needs none; a pure one without results does."""
    write = writer(f"{ns}::write")
    nothing = library.custom_op(f"{ns}::nothing", lambda x: None, mutates_args=(), schema="(Tensor x) -> ()")
    graph = tp.graph.capture(lambda x: write(x), tp.ones((2,)))
    assert [n.target for n in graph.nodes] == [f"{ns}::write.default"]
    with pytest.raises(CaptureError, match=f"{ns}::nothing: no fake rule"):
        tp.graph.capture(lambda x: nothing(x), tp.ones((2,)))


def test_a_real_tensor_beside_one_without_data(ns: str) -> None:
    """5.10: refused by name before kernel or fake rule runs, in lists too; a capture lifts its closure's tensors."""
    ran: list[str] = []
    pair = library.custom_op(f"{ns}::pair", lambda x, y: ran.append("kernel"), mutates_args=(), schema=TWO)
    pair.register_fake(lambda x, y: ran.append("fake"))
    many = library.custom_op(f"{ns}::many", lambda xs: ran.append("kernel"), mutates_args=(), schema=MANY)
    many.register_fake(lambda xs: ran.append("fake"))
    real, empty = tp.ones((2,)), tp.empty((2,), device="meta")
    for call, text in (
        (lambda x: pair(x, empty), "argument 'y' is on meta, but argument 'x' is on cpu"),
        (lambda x: pair(empty, x), "argument 'y' is on cpu, but argument 'x' is on meta"),
        (lambda x: many([x, empty]), "tensors of argument 'xs' are on cpu and on meta"),
    ):
        for run in (call, tp.compile(call), lambda x, call=call: tp.graph.capture(call, x)):
            with pytest.raises(DeviceError, match=text) as e:
                run(real)
            assert e.value.code == "TP2104"
    assert ran == []
    pair.register_fake(lambda x, y: tp.empty_like(x))
    graph = tp.graph.capture(lambda x: pair(x, real), tp.ones((2,)))
    assert "lifted" in graph.text()
    assert [n.target for n in graph.nodes] == [f"{ns}::pair.default"]


def test_a_fake_rule_writes_to_no_real_tensor(ns: str) -> None:
    """5.10: a write to a tensor of the closure names op and argument, and leaves the tensor as it was."""
    real, count, x = tp.zeros((2,)), [], tp.ones((2,))
    f = unary(f"{ns}::f")
    for write, op, what in (
        (lambda x: real.copy_(x), "tp::copy_", "'x'"),
        (lambda x: real.add_(1.0), "tp::add_.Scalar", "'x1'"),
        (lambda x: real[0:1].fill_(3.0), "tp::fill_", "'x'"),
        (lambda x: real.__setitem__(0, 5.0), "tp::fill_", "'x'"),
        (lambda x: tp.tensor([0.0, 0.0]).copy_(x), "tp::copy_", "'x'"),
    ):
        f.register_fake(lambda x, write=write: count.append(write(x)) or tp.empty_like(x))
        for run in (
            lambda: tp.graph.capture(f, x),
            lambda: tp.compile(f)(x),
            *([] if op == "tp::copy_" else [lambda: f(tp.ones((2,), device="meta"))]),
        ):
            with pytest.raises(CaptureError, match=f"argument {what} has data") as e:
                run()
            assert e.value.code == "TP4024"
            assert e.value.op == op
    assert count == []
    assert real.tolist() == [0.0, 0.0]
    assert (real + x).tolist() == [1.0, 1.0]


def test_a_fake_rule_makes_tensors_without_data(ns: str) -> None:
    """5.10, 5.1: in a rule factories and ops on real tensors give fakes, so that a body may fill its own buffers."""
    real, x, seen = tp.full((3,), 7.0), tp.ones((3,)), []

    def body(x: Tensor) -> Tensor:
        made = (tp.empty((3,)), tp.zeros_like(real), real + 1.0, tp.arange(3), tp.zeros((3,), device="cpu"))
        seen.append([t.is_fake for t in made])
        buffer = tp.empty((3,))
        buffer.fill_(0.0)
        buffer[1:].copy_(x[1:])
        buffer.add_(made[2])
        return buffer

    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    f.register_fake(library.fake_from_body)
    compiled = tp.compile(f)
    assert compiled(x).tolist() == [8.0, 9.0, 9.0]
    assert seen == [[True] * 5, [False] * 5]
    meta = tp.ones((3,), device="meta")
    pair = library.custom_op(f"{ns}::pair", lambda x: x * 2.0, mutates_args=())
    pair.register_fake(lambda x: tp.zeros_like(x, device="meta"))
    assert pair(meta).device.type == "meta"
    f.register_fake(lambda x: (seen.append((repr(real), real.tolist())), tp.empty_like(x))[1])
    tp.graph.capture(f, x)
    assert seen[-1] == (repr(real), [7.0] * 3)


def test_setup_context_is_called_only_when_needed(ns: str) -> None:
    """6.1: never without a gradient; the output is the one returned; wrong parameter names are refused at once."""
    f, seen = unary(f"{ns}::f"), []

    def setup(ctx, inputs, output):
        seen.append((inputs, output))

    f.register_autograd(lambda ctx, g: g * 2.0, setup_context=setup)
    f(leaf(1.0).detach())
    with tp.no_grad():
        f(leaf(1.0))
    assert not seen
    x = leaf(1.0)
    y = f(x)
    assert seen[0][0][0] is x
    assert seen[0][1] is y
    with pytest.raises(SchemaError, match="missing a required argument: 'context'"):
        f.register_autograd(lambda ctx, g: g, setup_context=lambda context, ins, out: None)


def test_backward_gets_one_gradient_per_output(ns: str) -> None:
    """6.2: None for a number, zeros for an integer tensor and for an output that nobody used."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> tuple[Tensor, float, Tensor, Tensor]:
        return x * 2.0, 7.0, tp.tensor([1, 2]), x * 3.0

    given = []

    @f.register_autograd
    def _(ctx, *grads):
        given.extend(grads)
        return grads[0] * 2.0

    x = leaf(1.0, 2.0)
    first, number, whole, last = f(x)
    assert (number, whole.requires_grad, last.requires_grad) == (7.0, False, True)
    first.sum().backward()
    assert given[1] is None
    assert given[2].tolist() == [0, 0]
    assert given[3].tolist() == [0.0, 0.0]
    assert x.grad.tolist() == [2.0, 2.0]


def test_gradients_are_summed_and_cast_to_their_input(ns: str) -> None:
    """6.4: an expanded gradient is summed to the input's size, another floating dtype is cast."""
    f = unary(f"{ns}::f", lambda x: x + tp.zeros((3, 2)))
    f.register_autograd(lambda ctx, g: g)
    x = leaf(1.0, 2.0)
    f(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    g = unary(f"{ns}::g")
    for dtype in (tp.float64, tp.float16, tp.bfloat16):
        g.register_autograd(lambda ctx, grad, dtype=dtype: (grad * 2.0).astype(dtype))
        y = leaf(1.0, 2.0)
        g(y).sum().backward()
        assert y.grad.dtype is tp.float32
        assert y.grad.tolist() == [2.0, 2.0]


def test_unused_gradients_and_marked_outputs(ns: str) -> None:
    """6.8: None instead of zeros on demand; a marked output does not require a gradient."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2.0, x * 3.0, x + 1.0

    given = []

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])

    def backward(ctx, a, b, c):
        given.append((a is None, b is None, c is None))
        return a * 2.0

    f.register_autograd(backward, setup_context=setup)
    x = leaf(1.0)
    first, second, marked = f(x)
    assert (first.requires_grad, second.requires_grad, marked.requires_grad) == (True, True, False)
    first.sum().backward()
    assert given == [(False, True, True)]


def test_a_mutating_op_refuses_what_is_recorded(ns: str) -> None:
    """6.13, A15: a leaf, a non-leaf, a view of a leaf: an error, and nothing is written; under no_grad it writes."""
    f = writer(f"{ns}::f")
    x = leaf(1.0, 2.0)
    for target in (x, x * 2.0, x[:1]):
        before = target.detach().tolist()
        with pytest.raises(AutogradError, match=f"{ns}::f"):
            f(target)
        assert target.detach().tolist() == before
    with tp.no_grad():
        f(x)
    assert x.detach().tolist() == [2.0, 3.0]


def test_the_last_rule_wins(ns: str) -> None:
    """6.16: by name too; what was recorded keeps the rule of its time."""
    f = unary(f"{ns}::f")
    f.register_autograd(lambda ctx, g: g * 2.0)
    x = leaf(1.0)
    recorded = f(x)
    library.register_autograd(f"{ns}::f", lambda ctx, g: g * 5.0)
    (old,) = tp.autograd.grad(recorded.sum(), x)
    (new,) = tp.autograd.grad(f(x).sum(), x)
    assert (old.item(), new.item()) == (2.0, 5.0)


def test_threads_differentiate_on_their_own(ns: str) -> None:
    """6.18: sixteen graphs at once, each backward on the thread that asked for it."""
    f, threads, wrong = unary(f"{ns}::f", lambda x: x * x), set(), []

    def backward(ctx, g):
        threads.add(threading.get_ident())
        return g * 2.0 * ctx.saved_tensors[0]

    f.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))

    def work(k: float) -> None:
        for _ in range(20):
            x = leaf(k)
            f(x).sum().backward()
            if x.grad.item() != 2.0 * k:
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(float(k),)) for k in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
def test_exceptions_of_rules_pass_unchanged(ns: str, error) -> None:
    """6.19: the object itself, out of setup_context and out of backward; the next try works."""
    f, raised, where = unary(f"{ns}::f"), error("mine"), ["setup"]

    def setup(ctx, inputs, output):
        if where[0] == "setup":
            raise raised

    def backward(ctx, g):
        if where[0] == "backward":
            raise raised
        return g * 2.0

    f.register_autograd(backward, setup_context=setup)
    x = leaf(1.0)
    with pytest.raises(error) as caught:
        f(x)
    assert caught.value is raised
    where[0] = "backward"
    y = f(x).sum()
    with pytest.raises(error) as caught:
        tp.autograd.backward(y, retain_graph=True)
    assert caught.value is raised
    assert tp.is_grad_enabled()
    where[0] = ""
    f(x).sum().backward()
    assert x.grad.item() == 2.0


def test_versions_of_lists_views_and_what_is_left_out(ns: str) -> None:
    """7.1, 7.2: every tensor of a list, None skipped; views and detach() share the counter."""

    @library.custom_op(f"{ns}::f", mutates_args=("xs", "y"))
    def f(xs: list[Tensor], y: Tensor | None = None) -> None:
        for x in xs:
            x.numpy()[...] = 5.0

    a, b, c = tp.zeros((2,)), tp.zeros((2,)), tp.zeros((2,))
    view, alias = a[:1], a.detach()
    f([a, b])
    assert [t._version for t in (a, b, c, view, alias)] == [1, 1, 0, 1, 1]
    f([], y=c)
    assert [t._version for t in (a, c)] == [1, 1]


def test_an_optional_written_argument(ns: str) -> None:
    """A5: left out and given, eager and compiled; the version moves only when it is there."""

    @library.custom_op(f"{ns}::f", mutates_args=("out",))
    def f(x: Tensor, out: Tensor | None = None) -> Tensor:
        if out is not None:
            out.copy_(x * 3.0)
        return x * 2.0

    f.register_fake(lambda x, out=None: tp.empty_like(x))
    x, out = tp.ones((2,)), tp.zeros((2,))
    for call in (f, tp.compile(lambda x, out=None: f(x, out))):
        before = out._version
        assert call(x).tolist() == [2.0, 2.0]
        assert out._version == before
        out.fill_(0.0)
        assert call(x, out).tolist() == [2.0, 2.0]
        assert out.tolist() == [3.0, 3.0]


def test_compiled_writes_through_views_reach_the_caller(ns: str) -> None:
    """A7, A8: transposed, strided, offset and overlapping views of an input, compared with eager."""
    f = writer(f"{ns}::f")

    def overlapping(b):
        f(b[1:])
        f(b[:3])
        return tp.sum(b)

    def later(b):
        v = b[3:]
        f(v)
        return tp.sum(b) + tp.sum(v)

    functions = [lambda b: f(b.T), lambda b: f(b[:, ::2]), lambda b: f(b[1:]), later, overlapping]
    for fn in functions:
        eager, compiled = (tp.tensor(np.arange(16.0).reshape(4, 4)) for _ in range(2))
        wanted, found = fn(eager), tp.compile(fn)(compiled)
        assert compiled.tolist() == eager.tolist()
        assert (found is None) == (wanted is None)
        assert found is None or found.item() == wanted.item()


def test_a_redefinition_that_writes_is_compiled_anew(ns: str) -> None:
    """A10: the second graph shows the write, and the caller's tensor changes."""

    def define(mutates: tuple[str, ...]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the replacement is said, and is not the subject here

            def body(x: Tensor) -> Tensor:
                if mutates:
                    x.add_(1.0)
                return x * 2.0

            made = library.custom_op(f"{ns}::f", body, mutates_args=mutates)
            made.register_fake(lambda x: tp.empty_like(x))
        return made

    define(())
    compiled = tp.compile(lambda x: getattr(tp.ops, ns).f(x))
    x = tp.ones((2,))
    assert compiled(x).tolist() == [2.0, 2.0]
    define(("x",))
    assert compiled(x).tolist() == [4.0, 4.0]
    assert x.tolist() == [2.0, 2.0]
    assert ["mutates" in graph.nodes[0].effects for graph in compiled.graphs] == [False, True]


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, b: x + b, ((2, 1), (1, 3))),
        (lambda x, b: x[0:1] * b, ((2, 3), (2, 3))),
        (lambda x, b: x * b, ((2, 1, 3, 2), (2, 1, 3, 1))),
        (lambda x, b: x / b, ((3,), ())),
    ],
)
def test_gradients_of_broadcast_operands(fn, shapes) -> None:
    """G10: gradients have the operands' shapes and agree with differences."""
    rng = np.random.default_rng(0)
    operands = [tp.tensor(rng.uniform(0.5, 1.5, s), requires_grad=True) for s in shapes]
    assert gradcheck(fn, operands)
    fn(*operands).sum().backward()
    assert [x.grad.shape for x in operands] == [x.shape for x in operands]


@pytest.mark.thread_unsafe(reason="starts seven threads of its own")
def test_callbacks_hold_no_lock(ns: str) -> None:
    """H1: kernels call ops while others register and differentiate; all of it ends."""
    inner = unary(f"{ns}::inner")
    outer = unary(f"{ns}::outer", lambda x: inner(x) + 1.0)
    outer.register_autograd(lambda ctx, g: g * 2.0)
    stop, errors = threading.Event(), []

    def calls() -> None:
        try:
            while not stop.is_set():
                x = leaf(1.0)
                outer(x).sum().backward()
                assert x.grad.item() == 2.0
        except BaseException as error:
            errors.append(error)

    def registers() -> None:
        try:
            for k in range(100):
                unary(f"{ns}::other{k}")
                inner.register_kernel("cpu", lambda x: x * 2.0, name=f"k{k}")
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=calls) for _ in range(6)]
    writer_thread = threading.Thread(target=registers)
    for worker in (*workers, writer_thread):
        worker.start()
    writer_thread.join(30.0)
    stop.set()
    for worker in workers:
        worker.join(30.0)
    assert not any(worker.is_alive() for worker in (*workers, writer_thread))
    assert not errors


def test_a_kernel_that_holds_its_op_is_collected(ns: str) -> None:
    """H7: a closure that refers to the op itself dies with the library that defined it."""

    class Held:
        pass

    dead = []
    for k in range(20):
        held = Held()
        lib = library.Library(f"{ns}_{k}", "DEF")
        lib.define("f(Tensor x) -> Tensor")
        op = getattr(tp.ops, f"{ns}_{k}").f
        lib.impl("f", lambda x, op=op, held=held: x * 2.0, "CPU")
        dead.append(weakref.ref(held))
        lib._destroy()
        del lib, op, held
    gc.collect()
    assert [ref() for ref in dead] == [None] * 20
