"""`tp.func.vmap`: results equal the loop over samples, for every built-in rule, nested, and under `grad`."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import CaptureError, ContractError, IndexOutOfRangeError, InvalidValueError, ShapeError
from tensorplay.func import grad, vmap

A = np.random.default_rng(0).uniform(0.2, 1.7, (3, 4, 5))
B = np.random.default_rng(1).uniform(0.2, 1.7, (3, 4, 5))


def t(array, dtype=None) -> Tensor:
    return tp.tensor(np.ascontiguousarray(array), dtype=dtype)


def samples(args, dims, i):
    return [a if d is None else t(np.take(a.numpy(), i, axis=d)) for a, d in zip(args, dims, strict=True)]


def loop(fn, args, dims):
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    return np.stack([np.asarray(fn(*samples(args, dims, i)).numpy()) for i in range(size)])


def agree(fn, args, dims) -> None:
    found = vmap(fn, in_dims=tuple(dims))(*args).numpy()
    wanted = loop(fn, args, dims)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


UNARY = {
    "exp": tp.exp,
    "clone": tp.clone,
    "clamp": lambda x: tp.clamp(x, 0.5, 1.0),
    "mul number": lambda x: 2.0 * x,
    "astype": lambda x: tp.astype(x, tp.float32),
    "contiguous": tp.contiguous,
    "zeros_like": tp.zeros_like,
    "sum": tp.sum,
    "sum axis": lambda x: tp.sum(x, axis=-1),
    "sum axes": lambda x: tp.sum(x, axis=(0, 1), keepdims=True),
    "mean": lambda x: tp.mean(x, axis=0, keepdims=True),
    "std": lambda x: tp.std(x, axis=1, correction=1.0),
    "max": lambda x: tp.max(x, axis=-2),
    "logsumexp": lambda x: tp.logsumexp(x, axis=1),
    "all": lambda x: tp.all(x > 0.4, axis=0),
    "argmax": lambda x: tp.argmax(x, axis=1),
    "argmax of all": lambda x: tp.argmax(x),
    "argmin of all kept": lambda x: tp.argmin(x, keepdims=True),
    "softmax": lambda x: tp.softmax(x, axis=-1),
    "log_softmax": lambda x: tp.log_softmax(x, axis=0),
    "cumsum": lambda x: tp.cumsum(x, 0),
    "argsort": lambda x: tp.argsort(x, axis=-1),
    "reshape": lambda x: tp.reshape(x, (5, -1)),
    "flatten": lambda x: x.reshape(-1),
    "expand": lambda x: tp.expand(x, (2, 4, 5)),
    "permute": lambda x: tp.permute_dims(x, (1, 0)),
    "transpose": lambda x: tp.transpose(x, -1, 0),
    "squeeze": lambda x: tp.squeeze(x[:1]),
    "squeeze axis": lambda x: tp.squeeze(x[:, :1], axis=-1),
    "unsqueeze": lambda x: tp.unsqueeze(x, -1),
    "select": lambda x: x[-1],
    "slice": lambda x: x[1:, ::2],
    "pick": lambda x: x[tp.tensor([2, 0])],
    "new axis": lambda x: x[None, ..., None],
    "flip": lambda x: tp.flip(x),
    "flip axis": lambda x: tp.flip(x, axis=1),
    "roll": lambda x: tp.roll(x, 3),
    "roll axis": lambda x: tp.roll(x, 1, axis=-1),
    "tril": lambda x: tp.tril(x, 1),
    "new_zeros": lambda x: x + tp.new_zeros(x, (4, 5)),
    "take": lambda x: tp.take(x, tp.tensor([1, 0, 1]), axis=1),
    "index_select": lambda x: tp.index_select(x, 0, tp.tensor([3, 1])),
    "var of a number": lambda x: tp.var(x[0, 0]),
    "where": lambda x: tp.where(x > 1.0, x, 0.0),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_one_operand_equals_the_loop(name: str, dim: int) -> None:
    """8.1: every rule, the batch axis in every place; no rule falls back (that would warn)."""
    moved = np.moveaxis(A, 0, dim)
    agree(UNARY[name], [t(moved)], [dim])


BINARY = {
    "add": (lambda x, y: x + y, A, B),
    "maximum": (tp.maximum, A, B),
    "broadcast": (lambda x, y: x * y, A, B[:, 0, :]),
    "matrix product": (tp.matmul, A, np.swapaxes(B, 1, 2)),
    "matrix vector": (tp.matmul, A, B[:, 0, :]),
    "vector matrix": (tp.matmul, A[:, :, 0], B),
    "vectors": (tp.matmul, A[:, 0], B[:, 1]),
    "stack": (lambda x, y: tp.stack([x, y], axis=-1), A, B),
    "concat": (lambda x, y: tp.concat([x, y], axis=1), A, B),
    "concat flat": (lambda x, y: tp.concat([x, y], axis=None), A, B),
    "masked_fill": (lambda x, y: tp.masked_fill(x, y > 1.0, -1.0), A, B),
    "gather": (lambda x, y: tp.gather(x, 0, tp.astype(y, tp.int64)), A, B[:, :2]),
    "take_along_axis": (lambda x, y: tp.take_along_axis(x, tp.astype(y, tp.int64), axis=1), A, B),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)])
def test_two_operands_equal_the_loop(name: str, dims) -> None:
    """8.1: both operands batched, or one shared by all samples."""
    fn, a, b = BINARY[name]
    args = [t(a if dims[0] == 0 else a[0]), t(b if dims[1] == 0 else b[0])]
    agree(fn, args, dims)


def test_axes_are_those_of_a_sample() -> None:
    """8.1: an axis outside of the sample is refused, though the batch has it."""
    with pytest.raises(IndexOutOfRangeError, match="axis -3 is out of range for 2 dimensions"):
        vmap(lambda x: tp.sum(x, axis=-3))(t(A))
    seen = []
    vmap(lambda x: seen.append((x.shape, x.ndim, x.dtype)) or x)(t(A))
    assert seen == [((4, 5), 2, tp.float64)]


def test_nested_levels_do_not_mix() -> None:
    """8.1: an outer product by two vmaps, with in_dims and out_dims."""
    x, y = t(A[0, 0]), t(B[0, :, 0])
    inner = vmap(lambda a, b: a * b + a, in_dims=(None, 0))
    found = vmap(inner, in_dims=(0, None), out_dims=1)(x, y).numpy()
    wanted = np.outer(y.numpy(), x.numpy()) + x.numpy()[None]
    np.testing.assert_allclose(found, wanted)


def test_nests_of_arguments_and_results() -> None:
    """8.1: dicts, lists and tuples in and out, in_dims as a prefix."""
    args = {"w": t(A), "rest": [t(B[0]), 3.0]}
    fn = vmap(
        lambda p, s: {"y": p["w"] * p["rest"][0] + s, "n": (p["w"][0],)},
        ({"w": 0, "rest": None}, None),
        {"y": 1, "n": 0},
    )
    found = fn(args, 2.0)
    np.testing.assert_allclose(found["y"].numpy(), np.moveaxis(A * B[0] + 2.0, 0, 1))
    np.testing.assert_allclose(found["n"][0].numpy(), A[:, 0])


def test_writes_go_to_the_batch() -> None:
    """8.1: in-place operations on a sample change that sample; one on what all share is refused."""

    def fill(x):
        y = tp.clone(x)
        y *= 2.0
        y[0] = 7.0
        return y

    agree(fill, [t(A)], [0])
    shared = tp.zeros((4, 5), dtype=tp.float64)
    with pytest.raises(InvalidValueError, match="all samples share") as caught:
        vmap(lambda x: shared.add_(x))(t(A))
    assert caught.value.code == "TP4023"
    assert not shared.numpy().any()


def test_reading_a_value_is_refused() -> None:
    """8.1: what differs from sample to sample is no Python value."""
    for read in (bool, float, lambda x: x.item(), lambda x: x.tolist(), lambda x: x.numpy()):
        with pytest.raises(CaptureError, match="batched tensor") as caught:
            vmap(lambda x: read(tp.sum(x)))(t(A))
        assert caught.value.code == "TP4021"


def test_a_batched_tensor_does_not_outlive_its_vmap() -> None:
    """8.1: a kept sample is refused, in the same thread and inside of a later vmap."""
    kept = []
    vmap(lambda x: kept.append(x) or x)(t(A))
    with pytest.raises(CaptureError, match="outside of the vmap") as caught:
        kept[0] + 1.0
    assert caught.value.code == "TP4022"
    with pytest.raises(CaptureError, match="outside of the vmap"):
        vmap(lambda x: x + kept[0])(t(A))


@pytest.mark.parametrize(
    ("in_dims", "args", "match"),
    [
        ((0,), (A, B), "length 1 for 2 positional"),
        ("x", (A,), "must be an int or a tuple"),
        (None, (A,), "must be an int or a tuple"),
        ((None,), (A,), "at least one tensor"),
        (3, (A,), "no such axis"),
        ((0, 0), (A, 2.0), "no tensor but float"),
        (({"a": 0},), (A,), "does not fit"),
        ((0.5,), (A,), "ints and None"),
    ],
)
def test_in_dims_are_checked(in_dims, args, match: str) -> None:
    """8.1: ValueErrors that say which argument."""
    given = [t(a) if isinstance(a, np.ndarray) else a for a in args]
    with pytest.raises(ValueError, match=match):
        vmap(lambda *xs: xs[0], in_dims=in_dims)(*given)


def test_sizes_and_results_are_checked() -> None:
    """8.1: batch axes of one size, results that are tensors, out_dims that fit."""
    with pytest.raises(ShapeError, match="differ in size: 3, 4"):
        vmap(lambda x, y: x, in_dims=(0, 1))(t(A), t(A))
    with pytest.raises(InvalidValueError, match="returns tensors, got float"):
        vmap(lambda x: 1.0)(t(A))
    with pytest.raises(InvalidValueError, match="differs from sample to sample"):
        vmap(lambda x: x, out_dims=None)(t(A))
    with pytest.raises(InvalidValueError, match="does not fit a result"):
        vmap(lambda x: x, out_dims=(0, 0))(t(A))
    assert vmap(lambda x: tp.ones((2,)), out_dims=1)(t(A)).shape == (2, 3)


def test_a_registered_rule_is_used(ns: str) -> None:
    """8.1: the rule gets info, in_dims and opened arguments, as a decorator or direct, and replaces the loop."""
    calls = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, k: float, *, s: float = 1.0) -> Tensor:
        calls.append(tuple(x.shape))
        return x * k * s

    @f.register_vmap
    def rule(info, in_dims, x, k, *, s):
        assert (info.batch_size, info.randomness, in_dims, k, s) == (4, "error", (1, None), 2.0, 3.0)
        return f(x, k, s=s), in_dims[0]

    x = t(A[:, :, 0])
    found = vmap(lambda v: f(v, 2.0, s=3.0), in_dims=1)(x)
    np.testing.assert_allclose(found.numpy(), x.numpy().T * 6.0)
    assert calls == [(3, 4)]
    assert library.register_vmap(f, None) is None
    with pytest.warns(UserWarning, match=f"{ns}::f has no batching rule"):
        vmap(lambda v: f(v, 2.0), in_dims=1)(x)
    assert calls[1:] == [(3,)] * 4


def test_several_outputs_and_lists(ns: str) -> None:
    """8.1: nested in_dims for a list, one out_dim per output, None for one that all samples share."""
    dims = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(xs: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        return xs[0] + xs[1], y * 2.0

    def rule(info, in_dims, xs, y):
        dims.append(in_dims)
        return (xs[0] + xs[1], y * 2.0), (0, None)

    f.register_vmap(rule)
    first, second = vmap(lambda a, b, c: f([a, b], c), in_dims=(0, None, None), out_dims=(0, None))(
        t(A), t(B[0]), t(B[1])
    )
    assert dims == [([0, None], None)]
    np.testing.assert_allclose(first.numpy(), A + B[0])
    np.testing.assert_allclose(second.numpy(), B[1] * 2.0)


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (lambda x: x, "must return .output, out_dims."),
        (lambda x: (x, 0, 0), "must return .output, out_dims., got 3 values"),
        (lambda x: (x, 5), "out_dim 5"),
        (lambda x: (x, 1), "the batch has 3 samples"),
        (lambda x: ((x, x), 0), "returned 2 values for output 0, which is one tensor"),
    ],
)
def test_a_rule_that_returns_something_else(ns: str, returned, match: str) -> None:
    """8.1: bad return arity is an error that names the op."""
    f = library.custom_op(f"{ns}::f", lambda x: tp.clone(x), mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_vmap(lambda info, in_dims, x: returned(x))
    with pytest.raises(RuntimeError, match=match) as caught:
        vmap(f)(t(A))
    assert isinstance(caught.value, ContractError)
    assert f"{ns}::f" in str(caught.value)


def test_wrong_count_of_outputs_and_dims(ns: str) -> None:
    """8.1: as many outputs and out_dims as the op has."""
    f = library.custom_op(
        f"{ns}::f", lambda x: (tp.clone(x), x + 1), mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor)"
    )
    f.register_vmap(lambda info, in_dims, x: ((x,), 0))
    with pytest.raises(ContractError, match="returned 1 values, the op has 2 outputs"):
        vmap(f)(t(A))
    f.register_vmap(lambda info, in_dims, x: ((x, x), (0, 0, 0)))
    with pytest.raises(ContractError, match="3 out_dims for 2 outputs"):
        vmap(f)(t(A))


def test_an_op_without_a_rule_runs_per_sample_and_says_so_once(ns: str) -> None:
    """8.1: the announced fallback equals the loop: lists, numbers, keyword-only, nested, no fake rule needed."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(xs: list[Tensor], y: Tensor, *, k: int) -> tuple[Tensor, int]:
        return tp.tensor(np.cumsum(xs[0].numpy() * y.numpy())[::-1].copy() + xs[1].numpy().sum()), k

    def one(a, b, c):
        out, number = f([a, b], c, k=2)
        return out * number

    with pytest.warns(UserWarning, match="runs once per sample") as seen:
        agree(one, [t(A[:, 0]), t(B[0, 0]), t(B[:, 0])], [0, None, 0])
    agree(one, [t(A[:, 0].T), t(B[0, 0]), t(B[:, 0])], [1, None, 0])  # a second warning would be an error
    assert len(seen) == 1
    assert seen[0].filename == __file__


def test_a_mutating_op_writes_to_every_sample(ns: str) -> None:
    """8.1: the fallback of an op that writes; an unbatched target is refused before anything is written."""

    @library.custom_op(f"{ns}::f", mutates_args=("out",))
    def f(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 3.0)

    out, shared = tp.zeros((3, 4, 5), dtype=tp.float64), tp.zeros((4, 5), dtype=tp.float64)
    with pytest.warns(UserWarning, match="once per sample"):
        vmap(lambda x, o: f(x, o) or o)(t(A), out)
    np.testing.assert_allclose(out.numpy(), A * 3.0)
    with pytest.raises(InvalidValueError, match="all samples share"):
        vmap(lambda x: f(x, shared) or x)(t(A))
    assert not shared.numpy().any()


def test_results_that_differ_in_shape_are_refused() -> None:
    """8.1: what a loop could do and one tensor cannot hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs per sample is said once in a process
        with pytest.raises(InvalidValueError, match="differs from"):
            vmap(tp.nonzero)(tp.tensor([[1.0, 0.0], [1.0, 1.0]]))


def test_randomness() -> None:
    """8.1: "error" by default, "same" and "different" on demand; an unbatched random op counts too."""
    noise = lambda x: x + tp.uniform((4,), dtype=tp.float64)  # noqa: E731
    with pytest.raises(InvalidValueError, match="randomness='different'"):
        vmap(noise)(t(A[:, :, 0]))
    tp.manual_seed(3)
    zeros = tp.zeros((3, 4), dtype=tp.float64)
    same = vmap(noise, randomness="same")(zeros).numpy()
    assert (same == same[0]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that uniform runs per sample is said once in a process
        different = vmap(noise, randomness="different")(zeros).numpy()
    assert len(np.unique(different)) == 12
    with pytest.raises(ValueError, match="randomness must be"):
        vmap(noise, randomness="maybe")


def test_per_sample_gradients_and_gradients_of_a_batch(ns: str) -> None:
    """8.1, 6.15: vmap of grad equals the loop of grads; grad of vmap equals the gradient of the loop."""

    @library.custom_op(f"{ns}::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    cube.register_autograd(lambda ctx, g: g * 3.0 * ctx.x * ctx.x, setup_context=_keep)
    cube.register_vmap(lambda info, in_dims, x: (cube(x), in_dims[0]))
    w = t(B[0, 0])
    loss = lambda w, x: tp.sum(cube(x * w))  # noqa: E731
    x = t(A[:, 0])
    agree(lambda x: grad(loss)(w, x), [x], [0])
    agree(lambda x: grad(lambda v: tp.sum(grad(loss, 1)(w, v)))(x), [x], [0])
    total = grad(lambda w: tp.sum(vmap(loss, in_dims=(None, 0))(w, x)))(w).numpy()
    np.testing.assert_allclose(total, sum(3.0 * r**3 * w.numpy() ** 2 for r in x.numpy()))
    leaf = t(B[0, 0]).requires_grad_()
    tp.sum(vmap(loss, in_dims=(None, 0))(leaf, x)).backward()
    np.testing.assert_allclose(leaf.grad.numpy(), total)


def _keep(ctx, inputs, output) -> None:
    ctx.x = inputs[0]


def test_threads_batch_on_their_own() -> None:
    """8.1: levels belong to the thread."""
    barrier, wrong = threading.Barrier(6), []

    def work(k: int) -> None:
        x = t(A * k)
        for _ in range(20):
            barrier.wait()
            found = vmap(vmap(lambda r: tp.sum(r * k)))(x).numpy()
            if not np.allclose(found, (A * k * k).sum(-1)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_levels_end_with_an_exception() -> None:
    """8.1: after an error inside, calls are as before."""
    with pytest.raises(ZeroDivisionError):
        vmap(lambda x: 1 // 0)(t(A))
    np.testing.assert_allclose(tp.sum(t(A)).numpy(), A.sum())
    assert tp.uniform((2,)).shape == (2,)


def test_vmap_and_compile() -> None:
    """C4: compiled vmap of an op with a rule, and vmap of a compiled function, equal vmap in eager."""
    x, w = t(A), t(B[0])
    fn = lambda r: tp.sum(tp.exp(r) * w, axis=0)  # noqa: E731
    wanted = vmap(fn)(x).numpy()
    compiled = tp.compile(vmap(fn))
    np.testing.assert_array_equal(compiled(x).numpy(), wanted)
    assert len(compiled.graphs) == 1
    np.testing.assert_array_equal(vmap(tp.compile(fn))(x).numpy(), wanted)


def test_compiled_vmap_of_an_op_with_a_rule(ns: str) -> None:
    """C4: the batched op is one node of the graph, and the rule is not run again by later calls."""
    asked = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> Tensor:
        return x * 2.0

    @f.register_fake
    def _(x):
        return tp.empty_like(x)

    @f.register_vmap
    def _(info, in_dims, x):
        asked.append(info.batch_size)
        return f(x), in_dims[0]

    compiled = tp.compile(vmap(f))
    for scale in (1.0, 3.0):
        np.testing.assert_array_equal(compiled(t(A * scale)).numpy(), A * scale * 2.0)
    assert asked == [3]
    assert [n.target for n in compiled.graphs[0].nodes] == [f"{ns}::f.default"]


def test_a_function_keeps_one_context_per_sample() -> None:
    """8.1: an autograd.Function under vmap, and the gradient through it, equal the loop."""

    class Scale(tp.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * x * k, x.detach() + 1.0

        @staticmethod
        def backward(ctx, g, h):
            (x,) = ctx.saved_tensors
            return g * 2.0 * x * ctx.k, None

    x = t(A[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs per sample is said once in a process
        agree(lambda r: Scale.apply(r, 3.0)[0] + Scale.apply(r, 3.0)[1], [x], [0])
        agree(grad(lambda r: tp.sum(Scale.apply(r, 3.0)[0])), [x], [0])
        total = grad(lambda v: tp.sum(vmap(lambda r: Scale.apply(r, 3.0)[0])(v)))(x)
    np.testing.assert_allclose(total.numpy(), 6.0 * x.numpy())


def test_what_a_kernel_does_is_its_own(ns: str) -> None:
    """8.1: a kernel may use vmap itself, and random ops in it are those of the op."""

    @library.custom_op(f"{ns}::norms", mutates_args=(), effects="random")
    def norms(x: Tensor) -> Tensor:
        tp.uniform((2,))
        return vmap(lambda r: tp.sum(r * r))(x)

    found = norms(t(A[0]))
    np.testing.assert_allclose(found.numpy(), (A[0] ** 2).sum(-1))
    batched = vmap(norms, randomness="different")(t(A))
    np.testing.assert_allclose(batched.numpy(), (A**2).sum(-1))
    with pytest.raises(InvalidValueError, match="is random"):
        vmap(norms)(t(A))
