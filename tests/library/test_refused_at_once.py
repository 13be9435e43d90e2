"""What is wrong is refused where it is written, and a package that is missing is named with what needs it."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import library
from tensorplay.errors import ArgumentError, RegistrationError, SchemaError


def op_of(ns: str, schema: str = "(Tensor x) -> Tensor") -> Any:
    return library.custom_op(f"{ns}::f", lambda x, **k: x.clone(), mutates_args=(), schema=schema)


@pytest.mark.parametrize(
    ("setup", "missing"),
    [
        (lambda ctx, inputs: None, "output"),
        (lambda context, inputs, output: None, "context"),
        (lambda ctx, inputs, output, more: None, "more"),
    ],
)
def test_a_setup_function_that_cannot_be_called_is_refused_at_registration(
    ns: str, setup: Callable[..., None], missing: str
) -> None:
    """6.1: the same error as for a backward, and what was registered before stays."""
    op = op_of(ns)
    with pytest.raises(SchemaError, match="setup_context '<lambda>' does not fit") as caught:
        op.register_autograd(lambda ctx, grad: grad, setup_context=setup)
    assert caught.value.code == "TP1315"
    assert missing in str(caught.value)
    assert caught.value.__notes__ == ["it is called with (ctx=..., inputs=..., output=...)"]
    assert "autograd missing" in repr(op)


def test_a_setup_function_gets_keyword_only_inputs_where_there_are_some(ns: str) -> None:
    """6.1: what a call will hand over is what is checked."""
    op = op_of(ns, "(Tensor x, *, int k=1) -> Tensor")
    with pytest.raises(SchemaError, match="keyword_only_inputs"):
        op.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)
    seen: list[Any] = []

    def setup(ctx: Any, inputs: Any, output: Any, **more: Any) -> None:
        seen.append(more)

    op.register_autograd(lambda ctx, grad: grad, setup_context=setup)
    op(tp.ones((1,)).requires_grad_(), k=3).sum().backward()
    assert seen == [{"keyword_only_inputs": {"k": 3}}]


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (lambda: None, "too many positional arguments"),
        (lambda info, in_dims, x: None, "too many positional arguments"),
        (lambda info, in_dims, x, k, more: None, "more"),
        (lambda info, in_dims, x, k: None, "s"),
    ],
)
def test_a_batching_rule_that_cannot_be_called_is_refused_at_registration(
    ns: str, rule: Callable[..., Any], missing: str
) -> None:
    """8.1: as a fake rule or a backward is; what was registered before stays."""
    schema = "(Tensor x, int k=2, *, float s=1.) -> Tensor"
    op = library.custom_op(f"{ns}::f", lambda x, k=2, *, s=1.0: x * k * s, mutates_args=(), schema=schema)
    with pytest.raises(SchemaError, match="the batching rule '<lambda>' does not fit") as caught:
        op.register_vmap(rule)
    assert caught.value.code == "TP1315"
    assert missing in str(caught.value)
    assert caught.value.__notes__ == ["it is called with (info, in_dims, x, k, s=...)"]
    assert op.register_vmap(lambda info, in_dims, x, k, *, s: (x * k * s, in_dims[0])) is not None
    assert op.register_vmap(lambda *args, **options: (args[2], 0)) is not None


@pytest.mark.parametrize("wrong", ["no", 1, None])
def test_an_option_is_true_or_false(ns: str, wrong: Any) -> None:
    """B1: `copy="no"` is no yes."""
    x = tp.ones((2,)).requires_grad_()
    with pytest.raises(ArgumentError, match="argument 'copy' must be True or False") as caught:
        x.astype(tp.float32, copy=wrong)
    assert caught.value.code == "TP1002"
    lib = library.Library(ns, "FRAGMENT")
    lib.define("g(Tensor x) -> Tensor")
    with pytest.raises(ArgumentError, match="argument 'allow_override' must be True or False"):
        lib.impl("g", lambda x: x * 1.0, "cpu", allow_override=wrong)
    op = op_of(ns)
    op.register_autograd(
        lambda ctx, grad: grad,
        setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(wrong),
    )
    with pytest.raises(ArgumentError, match="set_materialize_grads: argument 'value' must be True or False"):
        op(x)
    assert x.astype(tp.float32, copy=False) is x


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (tp.compile, "compile"),
        (tp.compile(backend="native"), "compile"),
        (tp.graph.capture, "capture"),
        (tp.func.grad, "grad"),
        (tp.func.value_and_grad, "value_and_grad"),
        (tp.func.jacobian, "jacobian"),
    ],
)
@pytest.mark.parametrize("wrong", [3, "f", (1, 2)])
def test_what_makes_something_of_a_function_refuses_anything_else_at_once(
    make: Callable[[Any], Any], name: str, wrong: Any
) -> None:
    """B1: a TypeError where it is written, not at the first call."""
    with pytest.raises(
        ArgumentError, match=f"{name}: argument '(fn|func)' must be a function, got"
    ) as caught:
        make(wrong)
    assert isinstance(caught.value, TypeError)
    assert caught.value.code == "TP4106"


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import tensorplay as tp
from tensorplay import library

op = library.custom_op("np::f", lambda x: x.clone(), mutates_args=())
op.register_fake(lambda x: tp.empty_like(x))
x = tp.ones((2,))
d = tp.ones((2,), dtype=tp.float64).requires_grad_()
programs = {
    "x.numpy()": lambda: x.numpy(),
    "tensorplay.verify": lambda: tp.verify(op, (x,)),
    "tensorplay.verify ": lambda: library.opcheck(op, (x,)),
    "gradcheck": lambda: tp.autograd.gradcheck(tp.exp, (d,)),
    "gradgradcheck": lambda: tp.autograd.gradgradcheck(tp.exp, (d,)),
    "comparing tensors": lambda: tp.testing.assert_close(x, x),
}
for what, program in programs.items():
    try:
        program()
    except tp.errors.CapabilityError as e:
        says = f"{what.strip()} needs numpy, which is not there: numpy is not installed; pip install numpy"
        assert str(e) == f"[TP2003] {says}", e
        assert e.code == "TP2003" and e.capability.name == "numpy" and not e.capability.available
    else:
        raise AssertionError(what)
assert op(x).tolist() == [1.0, 1.0]
"""


def test_without_numpy_what_needs_it_says_so() -> None:
    """K2: our error with a code, in place of a bare "No module named 'numpy'"."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def coroutine(x, k=1):
    return x


def generator(x, k=1):
    yield x


async def both(x, k=1):
    yield x


class Callable_:
    async def __call__(self, x, k=1):
        return x


@pytest.mark.parametrize("fn", [coroutine, generator, both, Callable_(), functools.partial(coroutine, k=2)])
def test_a_function_whose_call_runs_nothing_is_refused(ns: str, fn: Any) -> None:
    """3.7, 4.1: a coroutine as a predicate would be true for every call."""
    op = library.custom_op(f"{ns}::g", lambda x: x * 2, mutates_args=())
    for register in (
        lambda: library.custom_op(f"{ns}::f", fn, mutates_args=(), schema="(Tensor x) -> Tensor"),
        lambda: op.register_kernel("cpu", fn),
        lambda: op.register_kernel("cpu", lambda x: x * 3, name="k", when=fn),
        lambda: op.register_fake(fn),
        lambda: op.register_autograd(fn),
    ):
        with pytest.raises(SchemaError, match="runs nothing") as e:
            register()
        assert e.value.code == "TP1315"
    assert op(tp.ones((1,))).tolist() == [2.0]


@pytest.mark.parametrize(
    ("schema", "what"),
    [("(Tensor x) -> int", "returns a value of type int"), ("(Tensor(a!) x) -> ()", "returns nothing")],
)
def test_a_kernel_that_has_nothing_to_fill_is_refused(ns: str, schema: str, what: str) -> None:
    """Issue: out=True is for ops whose outputs are tensors."""
    op = library.define(f"{ns}::f", schema)
    with pytest.raises(RegistrationError, match=f"{what}: a kernel with out=True fills tensors") as e:
        op.register_kernel("cpu", lambda x, out: None, out=True)
    assert (e.value.code, e.value.op) == ("TP1339", f"{ns}::f")
    assert not op.kernels


@pytest.mark.parametrize(
    ("key", "error", "code"),
    [
        ("nope", SchemaError, "TP1312"),
        ("cpu:0", SchemaError, "TP1312"),
        (5, ArgumentError, "TP1002"),
        (["CPU"], ArgumentError, "TP1002"),
        (chr(0xD800), ArgumentError, "TP1002"),
    ],
    ids=ascii,
)
def test_the_device_of_a_library_is_checked_where_it_is_named(ns: str, key: object, error, code: str) -> None:
    """4.1: by the library, before it takes the namespace, and by `impl`, with a code of ours."""
    with pytest.raises(error) as e:
        library.Library(ns, "DEF", key)
    assert e.value.code == code
    lib = library.Library(ns, "DEF")
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(error) as e:
        lib.impl("f", lambda x: x.clone(), key)
    assert e.value.code == code
    lib.impl("f", lambda x: x * 2, "CPU")
    assert lib.define("g(Tensor x) -> Tensor") is not None
    for device in ("", "CPU", "cuda", tp.device("cpu"), "CompositeExplicitAutograd"):
        assert library.Library(ns, "IMPL", device).alive
