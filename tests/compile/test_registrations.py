"""Compiled regions and what people register for built-in ops: kernels, fake rules, before and after the compile."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from typing import Any

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


class Registering(logging.Handler):
    """Code of the user's that runs between a capture and its first run: it registers a kernel, `times` times."""

    def __init__(self, lib: Any, times: int) -> None:
        super().__init__(logging.INFO)
        self.lib, self.times = lib, times

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("graph ") and self.times > 0:
            self.times -= 1
            self.lib.impl("exp", ninety_nine, "CPU", allow_override=True)


@pytest.fixture
def registering(lib) -> Any:
    logger = logging.getLogger("tensorplay.graph")
    level = logger.level
    logger.setLevel(logging.INFO)
    made: list[logging.Handler] = []

    def add(times: int) -> Registering:
        made.append(Registering(lib, times))
        logger.addHandler(made[-1])
        return made[-1]

    yield add
    logger.setLevel(level)
    for handler in made:
        logger.removeHandler(handler)


@pytest.mark.thread_unsafe(reason="kernels of built-in ops and loggers are the process's")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_kernel_registered_between_the_capture_and_its_run(registering, fullgraph: bool) -> None:
    """A: the run does not begin; the function is captured again, with the kernel."""
    registering(1)
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0, fullgraph=fullgraph)
    for _ in range(2):
        assert compiled(tp.zeros([3])).tolist() == [100.0] * 3
    assert len(compiled.graphs) == 2
    assert any("the kernels of tp::exp" in str(r) for r in compiled.report.recompiles)
    assert next(r.marker.executor for r in compiled.last_run.forward) == "python"


@pytest.mark.thread_unsafe(reason="kernels of built-in ops and loggers are the process's")
def test_a_kernel_registered_after_every_capture(registering) -> None:
    """A: there is a limit to captures, past which the function itself runs, and says so."""
    handler = registering(1000)
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0)
    with pytest.warns(UserWarning, match="RecompileLimit"):
        assert compiled(tp.zeros([3])).tolist() == [100.0] * 3
    assert handler.times == 1000 - 8 == 992
    assert len(compiled.graphs) == 8
    (region,) = compiled.last_run.forward
    assert (region.marker.executor, region.reason.kind) == ("eager", "RecompileLimit")


@pytest.mark.thread_unsafe(reason="kernels of built-in ops are the process's")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_another_thread_that_registers_and_takes_back(fullgraph: bool) -> None:
    """A: each call runs with the kernels of some moment of it, and none fails."""
    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            lib = library.Library("tp", "IMPL")
            lib.impl("exp", ninety_nine, "CPU")
            lib._destroy()

    other = threading.Thread(target=toggle)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other.start()
    seen = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(30):
                compiled = tp.compile(lambda x: tp.exp(x) + 1.0, fullgraph=fullgraph)
                for _ in range(10):
                    seen.add(tuple(compiled(tp.zeros([2])).tolist()))
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)
    assert seen <= {(2.0, 2.0), (100.0, 100.0)}


@pytest.mark.thread_unsafe(reason="kernels of built-in ops are the process's")
def test_a_kernel_registered_by_a_kernel_of_the_same_call(lib, ns: str) -> None:
    """D: what is called by itself finds it at once; a region of built-in ops is what it was until the next call."""
    wanted = [False]

    def body(x):
        if wanted[0]:
            wanted[0] = False
            lib.impl("exp", ninety_nine, "CPU")
            lib.impl("argmax", lambda x, axis=None, *, keepdims=False: tp.tensor(7), "CPU")
        return x * 1.0

    op = library.custom_op(f"{ns}::registering", body, mutates_args=())
    op.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda x: (lambda y: (tp.exp(y) + 1.0, tp.argmax(y)))(op(x)))
    x = tp.zeros([2])

    def run() -> tuple[Any, int, list[str]]:
        region, single = compiled(x)
        return region.tolist(), single.item(), [r.marker.executor for r in compiled.last_run.forward]

    assert run() == ([2.0, 2.0], 0, ["python", "native", "native"])
    wanted[0] = True
    assert run() == ([2.0, 2.0], 7, ["python", "native", "python"])
    assert run()[:2] == ([100.0, 100.0], 7)
    assert len(compiled.graphs) == 2
