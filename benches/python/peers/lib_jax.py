"""JAX's form of each case that it has one for. Dispatch is asynchronous: a loop waits for its last result."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from worker import CAPTURED, CHAIN, GELU_SIZE, Builder, Case, chain, gelu, pointwise8

WAIT = "r.block_until_ready()"


def version() -> str:
    return jax.__version__


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
    }
