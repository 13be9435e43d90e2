"""Options of `compile`: they reach the adapter, and say so in the markers."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.errors import ArgumentError, FallbackError, InvalidValueError


def fused(x):
    return x * 1.1 + 0.3


def marker(compiled):
    (region,) = compiled.last_run.forward
    assert region.reason is None
    assert region.marker.executor == "tvm"
    return region.marker


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"taget": "haswell"},
            "no option 'taget' for 'tvm': known are 'fast_math', 'parallel', 'target'; did you mean 'target'",
        ),
        ({"parallel": 1}, "option 'parallel' is a bool, got 1"),
        ({"target": None}, "option 'target' is a str, got None"),
        ({3: True}, "no option 3 for 'tvm'"),
    ],
)
def test_an_unknown_option_is_named(options, words) -> None:
    """T09."""
    with pytest.raises(InvalidValueError, match=words) as caught:
        tp.compile(fused, backend="tvm", options=options)
    assert caught.value.code == "TP4109"


def test_options_are_a_dict_for_a_backend_that_has_them() -> None:
    """T09."""
    with pytest.raises(ArgumentError, match="options"):
        tp.compile(fused, backend="tvm", options=["parallel"])
    with pytest.raises(InvalidValueError, match="no option 'parallel' for 'native': known are none"):
        tp.compile(fused, options={"parallel": False})
    decorated = tp.compile(backend=["tvm", "native"], options={})(fused)
    assert decorated(tp.zeros((2,))).tolist() == pytest.approx([0.3, 0.3])


@pytest.mark.requires("tvm")
def test_fast_math_rounds_once_and_is_named() -> None:
    """T09: fast-math is off by default; on, a product and its sum may be one operation, to within its rounding."""
    x = tp.tensor(np.random.default_rng(3).standard_normal(4096, dtype=np.float32))
    exact, fast = (
        tp.compile(fused, backend="tvm"),
        tp.compile(fused, backend="tvm", options={"fast_math": True}),
    )
    want = fused(x).numpy()
    np.testing.assert_array_equal(exact(x).numpy(), want)
    np.testing.assert_allclose(fast(x).numpy(), want, rtol=3e-7, atol=1e-7)
    assert "-fast-math" not in str(marker(exact))
    assert "-fast-math" in marker(fast).kernel
    assert marker(exact).proof != marker(fast).proof
    chain = tp.compile(
        lambda x: tp.tanh(tp.exp(x)) * tp.sin(x) + 1.0, backend="tvm", options={"fast_math": True}
    )
    eager = (tp.tanh(tp.exp(x)) * tp.sin(x) + 1.0).numpy()
    np.testing.assert_allclose(chain(x).numpy(), eager, rtol=1e-6, atol=1e-6)


@pytest.mark.requires("tvm")
def test_a_target_is_a_processor_that_this_machine_can_stand_in_for() -> None:
    """T09."""
    from tensorplay.backends.tvm import host

    x = tp.tensor([1.0, -2.0, 0.5])
    tp.compile(fused, backend="tvm")(x)
    machine = host.loaded()
    if machine is None or "x86" not in str(
        machine.tvm.get_global_func("tvm.codegen.llvm.GetDefaultTargetTriple")()
    ):
        pytest.skip("names of x86 processors, on a machine of another kind")
    least = tp.compile(fused, backend="tvm", options={"target": "x86-64"})
    assert least(x).tolist() == fused(x).tolist()
    assert marker(least).kernel == "llvm -mcpu=x86-64"
    for name, words in (("pentium9", "knows no processor 'pentium9'"), ("diamondrapids", "it has no")):
        f = tp.compile(fused, backend="tvm", on_fallback="error", options={"target": name})
        with pytest.raises(FallbackError, match=words) as caught:
            f(x)
        assert (caught.value.reason.kind, caught.value.reason.details["stage"]) == (
            "LoweringFailed",
            "target",
        )


@pytest.mark.requires("tvm")
def test_parallel_says_who_runs_long_loops() -> None:
    """T09: with False the loop stays on the thread that calls, whatever the pool; the kernel is the same one."""
    x = tp.tensor(np.random.default_rng(3).standard_normal(1 << 18, dtype=np.float32))
    alone = tp.compile(fused, backend="tvm", options={"parallel": False})
    split = tp.compile(fused, backend="tvm", options={"parallel": True})
    assert alone(x).numpy().tobytes() == split(x).numpy().tobytes() == fused(x).numpy().tobytes()
    assert marker(alone).proof == marker(split).proof


@pytest.mark.requires("tvm")
def test_options_go_with_code_made_in_the_background() -> None:
    """T09."""
    import time

    f = tp.compile(fused, backend="tvm", background=True, options={"fast_math": True}, on_fallback="record")
    x = tp.ones((5,))
    until = time.monotonic() + 60.0
    while f(x) is not None and f.last_run.forward[0].reason is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert "-fast-math" in marker(f).kernel
