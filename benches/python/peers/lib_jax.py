"""JAX's form of each case that it has one for. Dispatch is asynchronous: a loop waits for its last result."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from worker import (
    BATCHES,
    CAPTURED,
    CHAIN,
    GELU_SIZE,
    RATE,
    SOFTMAX_SIZE,
    Builder,
    Case,
    chain,
    gelu,
    parameters,
    pointwise8,
)

WAIT = "r.block_until_ready()"


def version() -> str:
    return jax.__version__


def loss(p, x, y):
    w1, b1, w2, b2 = p
    hidden = jax.nn.relu(x @ w1 + b1)
    logs = jax.nn.log_softmax(hidden @ w2 + b2)
    return -jnp.mean(jnp.take_along_axis(logs, y, axis=1))


def train(p, x, y):
    """The weights after one step of gradient descent, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(p, x, y)
    return [weight - RATE * gradient for weight, gradient in zip(p, gradients, strict=True)], value


def digits(settings: dict, batch: int) -> Case:
    p = parameters(jnp.array)
    x = jnp.array(settings["digits"]["x"][:batch])
    y = jnp.array([[label] for label in settings["digits"]["y"][:batch]])
    names = {"f": jax.jit(train, donate_argnums=0), "p": p, "x": x, "y": y}
    # The weights that a block ends with are lost with it: they are given away, so each block starts from copies.
    names["copy"] = lambda p: [jnp.array(weight) for weight in p]
    return Case("q, r = f(q, x, y)", names, before="q = copy(p)", after=WAIT)


def builders(settings: dict) -> dict[str, Builder]:
    x, y = jnp.ones(8), jnp.ones(8)
    step = jax.grad(lambda x: (x * 2).sum())

    def tape() -> Case:
        def run(x):
            return jax.vjp(lambda x: chain(x, CHAIN), x)[1](y)[0]

        return Case("r = f(x)", {"f": run, "x": x}, per=CHAIN, after=WAIT)

    def big() -> Case:
        f = jax.jit(lambda x: gelu(x, jnp.tanh))
        return Case(
            "f(x).block_until_ready()", {"f": f, "x": jax.random.normal(jax.random.key(0), (GELU_SIZE,))}
        )

    def capture() -> Case:
        # A new function each time: a known one would come from JAX's trace cache.
        names = {"t": jax.make_jaxpr, "f": chain, "x": x}
        return Case(f"t(lambda x: f(x, {CAPTURED}))(x)", names, per=CAPTURED)

    return {
        "add": lambda: Case("r = f(x, y)", {"f": jnp.add, "x": x, "y": y}, after=WAIT),
        "native_step": lambda: Case("r = f(x)", {"f": step, "x": x}, after=WAIT),
        "chain": tape,
        "capture": capture,
        "compiled8": lambda: Case("r = f(x)", {"f": jax.jit(pointwise8), "x": x}, after=WAIT),
        "gelu": big,
        "double": lambda: Case(
            "f(x).block_until_ready()", {"f": jax.jit(lambda x: x * 2.0), "x": jnp.ones(GELU_SIZE)}
        ),
        "softmax": lambda: Case(
            "f(x).block_until_ready()",
            {"f": jax.jit(jax.nn.softmax), "x": jnp.ones((SOFTMAX_SIZE, SOFTMAX_SIZE))},
        ),
        **{f"digits{batch}": partial(digits, settings, batch) for batch in BATCHES},
    }
