"""A program as a user writes it. `tests/test_typing.py` runs mypy over it: lines marked `refused` must be errors, others none."""

from typing import Any, assert_type

import tensorplay as tp
from tensorplay import func, library
from tensorplay.autograd import Function, FunctionContext

x = tp.tensor([1.0, 2.0], requires_grad=True)
assert_type(tp.add(x, 1), tp.Tensor)
assert_type(tp.add(2.0, x), tp.Tensor)
assert_type(tp.sum(x, axis=0, keepdims=True), tp.Tensor)
assert_type(tp.where(x > 0, x, 0.0), tp.Tensor)
assert_type(tp.multiply(x, x), tp.Tensor)
assert_type(tp.gelu(x, approximate="tanh"), tp.Tensor)
assert_type(tp.zeros((2, 3), dtype=tp.float64), tp.Tensor)
assert_type(x.shape, tuple[int, ...])


@library.custom_op("user::scaled", mutates_args=())
def scaled(x: tp.Tensor, k: float = 2.0) -> tp.Tensor:
    return tp.mul(x, k)


@scaled.register_fake
def fake(x: tp.Tensor, k: float) -> tp.Tensor:
    return tp.empty_like(x)


@scaled.register_autograd
def backward(ctx: FunctionContext, grad: tp.Tensor) -> tuple[tp.Tensor, None]:
    return tp.mul(grad, 2.0), None


assert_type(scaled(x, k=3.0), tp.Tensor)


class Double(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: tp.Tensor, k: int) -> tp.Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: FunctionContext, grad: tp.Tensor) -> tuple[tp.Tensor, None]:
        return grad * 2.0, None


class Pair(Function):
    @staticmethod
    def forward(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        return x * 2.0, x

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: FunctionContext, first: tp.Tensor, second: tp.Tensor) -> tp.Tensor:
        return first * 2.0 + second


assert_type(Double.apply(x, 3), tp.Tensor)
assert_type(Pair.apply(x), tuple[tp.Tensor, tp.Tensor])


def loss(x: tp.Tensor, k: float) -> tp.Tensor:
    return tp.sum(x * k)


assert_type(func.grad(loss)(x, 2.0), tp.Tensor)
assert_type(tp.func.value_and_grad(loss)(x, 2.0), tuple[tp.Tensor, tp.Tensor])
assert_type(func.vmap(loss, in_dims=(0, None))(x, 2.0), tp.Tensor)
compiled = tp.compile(loss, backend="tvm")
assert_type(compiled(x, 2.0), tp.Tensor)


@scaled.register_kernel("cpu", name="other", when=lambda x, k=1.0: k > 3)
def other(x: tp.Tensor, k: float = 1.0) -> tp.Tensor:
    return x * k


@scaled.register_fake()
def shape(x: tp.Tensor, k: float = 1.0) -> tp.Tensor:
    return tp.empty_like(x)


@library.Library("user_more", "DEF").impl("later", device_type="cpu")
def later(x: tp.Tensor) -> tp.Tensor:
    return x * 1


assert_type(other(x, 2.0), tp.Tensor)
assert_type(shape(x), tp.Tensor)
assert_type(later(x), tp.Tensor)
op: library.CustomOpDef = library.get_op("user::scaled")
with tp.no_grad(), tp.trace() as events:
    names = [event.op for event in events], op.name
assert_type(tp.verify(scaled, (x,)).passed, bool)

tp.sum(x, dim=1)  # refused: call-arg
tp.add(x, "x")  # refused: call-overload
tp.add(1, 2)  # refused: call-overload
tp.autograd.NoSuchName  # refused: attr-defined
tp.NoSuchName  # refused: attr-defined
library.NoSuchName  # refused: attr-defined
scaled("x")  # refused: arg-type
scaled(x, j=1)  # refused: call-arg
Double.apply(x)  # refused: call-arg
Double.apply("x", 1)  # refused: arg-type
Pair.apply(x, x)  # refused: call-arg
func.grad(loss)(x)  # refused: call-arg
compiled("x", 2.0)  # refused: arg-type
tp.zeros("2")  # refused: arg-type
tp.sum(x).nosuch  # refused: attr-defined
