"""Compiled regions and what people register for built-in ops: kernels, fake rules, before and after the compile."""

from __future__ import annotations

import warnings

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.errors import ContractError


@pytest.fixture
def lib():
    found = library.Library("tp", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield found
    found._destroy()


def ninety_nine(x):
    return tp.full(x.shape, 99.0)


def test_a_kernel_registered_before_the_compile_runs(lib) -> None:
    """4.5: the op is called, not fused; the report says why."""
    lib.impl("exp", ninety_nine, "CPU")
    f = lambda x: tp.exp(x) + 1.0  # noqa: E731
    compiled = tp.compile(f)
    x = tp.zeros([3])
    assert compiled(x).tolist() == f(x).tolist() == [100.0] * 3
    assert next(r.marker.executor for r in compiled.last_run.forward) == "python"
    assert any("a kernel was registered" in b for b in compiled.report.breaks)


@pytest.mark.parametrize("backend", ["native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))])
def test_a_kernel_registered_after_the_compile_is_noticed(lib, backend: str) -> None:
    """4.5: and one that is taken back as well; the backward too."""
    compiled = tp.compile(lambda x: tp.sum(tp.exp(x) * 1.0), backend=backend, on_fallback="record")
    x = tp.zeros([3]).requires_grad_()
    assert compiled(x).item() == 3.0
    lib.impl("exp", ninety_nine, "CPU")
    assert compiled(x).item() == 297.0
    assert any("the kernels of tp::exp" in str(r) for r in compiled.report.recompiles)
    lib._destroy()
    out = compiled(x)
    assert out.item() == 3.0
    out.backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_an_op_that_was_simplified_away_is_guarded_too(lib) -> None:
    """4.5: x * 1 is x only while the kernel says so."""
    compiled = tp.compile(lambda x: (x * 1.0) + 1.0)
    x = tp.zeros([2])
    assert compiled(x).tolist() == [1.0, 1.0]
    lib.impl("mul.Scalar", lambda x, y: ninety_nine(x), "CPU")
    assert compiled(x).tolist() == [100.0, 100.0]


def test_unrelated_registrations_recompile_nothing(ns: str) -> None:
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0)
    compiled(tp.zeros([2]))
    for i in range(3):
        library.custom_op(f"{ns}::f{i}", lambda x: x * 1, mutates_args=())
        compiled(tp.zeros([2]))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("shape", [(100_000,), (1,), (2, 2)])
def test_a_fake_kernel_cannot_resize_a_region(lib, shape: tuple[int, ...]) -> None:
    """5.9: a region is made from what the expression says; where the fake rule says otherwise, the run is checked."""
    lib.impl("exp", lambda x: tp.empty(shape, dtype=x.dtype), "Meta")
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0)
    with pytest.raises(
        ContractError, match=r"tp::exp: output 0 of the kernel has shape .*the fake rule promised"
    ) as e:
        compiled(tp.zeros([2]))
    assert e.value.code == "TP3205"


def test_a_fake_kernel_with_other_strides_or_dtype(lib) -> None:
    """5.9."""
    lib.impl("exp", lambda x: tp.empty(x.shape[::-1], dtype=x.dtype).T, "Meta")
    with pytest.raises(ContractError, match="tp::exp: output 0 of the kernel has strides"):
        tp.compile(lambda x: tp.exp(x) + 1.0)(tp.zeros([2, 3]))
    lib.impl("exp", lambda x: tp.empty(x.shape, dtype=tp.float64), "Meta", allow_override=True)
    with pytest.raises(ContractError, match="tp::exp: output 0 of the kernel has dtype"):
        tp.compile(lambda x: tp.exp(x) + 1.0)(tp.zeros([2, 3]))


def test_a_right_fake_kernel_over_a_built_in_one_changes_nothing(lib) -> None:
    lib.impl("exp", lambda x: tp.empty(x.shape, dtype=x.dtype), "Meta")
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0)
    assert compiled(tp.zeros([2])).tolist() == [2.0, 2.0]
    assert [r.marker.executor for r in compiled.last_run.forward] == ["native"]
    assert len(compiled.last_run.forward) == 1


def test_a_new_fake_kernel_means_a_new_capture(ns: str) -> None:
    """A10, 5.9: the promise of the old one is not kept."""
    op = library.custom_op(f"{ns}::f", lambda x: tp.ones([3]), mutates_args=())
    op.register_fake(lambda x: tp.empty([2]))
    compiled = tp.compile(lambda x: op(x) + 1.0)
    with pytest.raises(ContractError):
        compiled(tp.zeros([2]))
    op.register_fake(lambda x: tp.empty([3]))
    assert compiled(tp.zeros([2])).tolist() == [2.0, 2.0, 2.0]
