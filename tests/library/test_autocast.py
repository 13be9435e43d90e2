"""`tp.autocast` and `register_autocast`: what is cast, what is not, and that gradients come back as they were."""

from __future__ import annotations

import threading

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import DTypeError, InvalidValueError

F32, F64, BF16, I64 = tp.float32, tp.float64, tp.bfloat16, tp.int64


def seen_op(name: str, seen: list):
    @library.custom_op(name, mutates_args=())
    def f(xs: list[Tensor], y: Tensor, n: int, z: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        state = tp.matmul(tp.ones((2, 2)), tp.ones((2, 2))).dtype
        seen.append(([x.dtype for x in xs], y.dtype, n, scale, z is None, state))
        return xs[0] * scale

    return f


def arguments():
    xs = [tp.ones((2,)), tp.ones((2,), dtype=F64), tp.ones((2,), dtype=I64), tp.ones((2,), dtype=tp.float16)]
    return xs, tp.ones((2,))


def test_every_floating_tensor_is_cast_and_nothing_else(ns: str) -> None:
    """G14, 8.2: lists and keywords too; float64, ints and numbers stay; the op runs with autocast off."""
    seen: list = []
    f = seen_op(f"{ns}::f", seen)
    f.register_autocast("cpu", BF16)
    xs, y = arguments()
    with tp.autocast("cpu", dtype=BF16):
        out = f(xs, y, 3, scale=2.5)
        assert tp.matmul(tp.ones((2, 2)), tp.ones((2, 2))).dtype is BF16
    f(xs, y, 3)
    assert seen[0] == ([BF16, F64, I64, BF16], BF16, 3, 2.5, True, F32)
    assert seen[1] == ([F32, F64, I64, tp.float16], F32, 3, 1.0, True, F32)
    assert out.dtype is BF16


def test_keyword_tensors_are_cast(ns: str) -> None:
    """8.2: a tensor passed by keyword, whatever its place in the schema."""
    seen = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, y: Tensor | None = None) -> Tensor:
        seen.append((x.dtype, None if y is None else y.dtype))
        return tp.clone(x)

    library.register_autocast(f"{ns}::f", "cpu", tp.float16)
    with tp.autocast():
        f(y=tp.ones((2,)), x=tp.ones((2,)))
        f(tp.ones((2,)))
    assert seen == [(tp.float16, tp.float16), (tp.float16, None)]


def test_gradients_come_back_in_the_original_dtype(ns: str) -> None:
    """8.2: the cast is on the tape; the rule sees the cast dtype, the leaf's gradient has its own."""
    inside = []

    @library.custom_op(f"{ns}::double", mutates_args=())
    def double(xs: list[Tensor]) -> Tensor:
        return xs[0] * 2.0

    def backward(ctx, g):
        inside.append(g.dtype)
        return [g * 2.0, None]

    double.register_autograd(backward)
    double.register_autocast("cpu", BF16)
    x = tp.tensor([1.0, 3.0], requires_grad=True)
    with tp.autocast():
        y = double([x, tp.ones((2,))])
    assert y.dtype is BF16
    y.astype(F32).sum().backward()
    assert x.grad.dtype is F32
    assert x.grad.tolist() == [2.0, 2.0]
    assert inside == [BF16]


def test_contexts_nest_and_end(ns: str) -> None:
    """8.2: enabled=False inside, another dtype inside, the state before comes back, also after an exception."""
    a = tp.ones((2, 2))
    dtype = lambda: tp.matmul(a, a).dtype  # noqa: E731
    outer = tp.autocast("cpu", dtype=BF16)
    with outer:
        with tp.autocast(enabled=False):
            assert dtype() is F32
            with outer:
                assert dtype() is BF16
        with tp.autocast("cpu", tp.float16):
            assert dtype() is tp.float16
        with tp.autocast("cuda"):
            assert dtype() is BF16
        assert dtype() is BF16
    with pytest.raises(ZeroDivisionError), outer:
        1 // 0
    assert dtype() is F32
    with tp.autocast("cuda"):
        assert dtype() is F32


def test_as_a_decorator_and_per_thread() -> None:
    """8.2: a decorator, and no other thread sees it."""
    a = tp.ones((2, 2))
    found = {}

    @tp.autocast("cpu", dtype=BF16)
    def product(x: Tensor) -> Tensor:
        """The author's text."""
        thread = threading.Thread(target=lambda: found.update(other=tp.matmul(a, a).dtype))
        thread.start()
        thread.join()
        return tp.matmul(x, a)

    assert product(a).dtype is BF16
    assert product.__doc__ == "The author's text."
    assert found["other"] is F32
    assert tp.matmul(a, a).dtype is F32


def test_what_cannot_be(ns: str) -> None:
    """8.2: an unsupported device is a ValueError; dtypes that nothing is cast to."""
    f = seen_op(f"{ns}::f", [])
    for call in (lambda: tp.autocast("tpu"), lambda: f.register_autocast("meta", BF16)):
        with pytest.raises(ValueError, match="no autocast for device") as caught:
            call()
        assert isinstance(caught.value, InvalidValueError)
    for call in (lambda: tp.autocast("cpu", dtype=I64), lambda: f.register_autocast("cpu", I64)):
        with pytest.raises(DTypeError):
            call()


def test_a_library_takes_its_policy_along(ns: str) -> None:
    """8.2, 9: tied to a library, and gone when the op is defined anew."""
    seen: list = []
    f = seen_op(f"{ns}::f", seen)
    lib = library.Library(ns, "FRAGMENT")
    f.register_autocast("cpu", tp.float16)
    library.register_autocast(f, "cpu", BF16, lib=lib)
    xs, y = arguments()
    with tp.autocast():
        f(xs, y, 1)
        lib._destroy()
        f(xs, y, 1)
    assert [s[1] for s in seen] == [BF16, tp.float16]


def test_capture_records_the_casts(ns: str) -> None:
    """8.2, G14: the graph has the casts; a compiled function keeps one entry with and one without autocast."""

    @library.custom_op(f"{ns}::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2.0

    twice.register_fake(lambda x: tp.empty_like(x))
    twice.register_autocast("cpu", BF16)
    x = tp.ones((3,))
    with tp.autocast():
        graph = tp.graph.capture(twice, x)
    assert [n.target for n in graph.nodes] == ["tp::astype.default", f"{ns}::twice.default"]
    compiled = tp.compile(lambda x: twice(x))
    assert compiled(x).dtype is F32
    with tp.autocast():
        assert compiled(x).dtype is BF16
    assert compiled(x).dtype is F32
    assert len(compiled.graphs) == 2
    assert any("autocast" in str(r) for r in compiled.report.recompiles)


def test_under_vmap_and_grad(ns: str) -> None:
    """8.1, 8.2: batched calls are cast below the batch, and per-sample gradients keep the input's dtype."""

    @library.custom_op(f"{ns}::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2.0

    twice.register_autograd(lambda ctx, g: g * 2.0)
    twice.register_vmap(lambda info, in_dims, x: (twice(x), in_dims[0]))
    twice.register_autocast("cpu", BF16)
    x = tp.ones((3, 2))
    with tp.autocast():
        assert tp.func.vmap(twice)(x).dtype is BF16
        found = tp.func.vmap(tp.func.grad(lambda r: twice(r).sum()))(x)
    assert found.dtype is F32
    assert found.tolist() == [[2.0, 2.0]] * 3
