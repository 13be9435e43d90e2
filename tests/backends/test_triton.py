"""Triton ops without a GPU: defining, refusing, compiling to a cubin, and the interpreter in a process of its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import _jit, library
from tensorplay.errors import ArgumentError, CapabilityError

HERE = Path(__file__).parent

AUTOTUNED = """
import tensorplay as tp
from tensorplay import library, Tensor
import triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"B": 64}), triton.Config({"B": 128})], key=["n"])
@triton.jit
def kernel(x, n, B: tl.constexpr):
    pass

@library.triton_op("m::f", mutates_args=("x",))
def f(x: Tensor) -> None:
    library.wrap_triton(kernel)[(1,)](x, x.size)

try:
    f(tp.ones([4]))
except tp.errors.CapabilityError as e:
    assert "m::f has no kernel for device 'cpu'" in str(e) and "needs CUDA" in str(e), e
    assert e.capability.name == "cuda" and not e.capability.available
    assert e.op == "m::f"
else:
    raise AssertionError("nothing was raised")
def fill(x):
    x.fill_(7.0)

f.register_kernel("cpu", fill)
x = tp.zeros([2])
with tp.trace() as events:
    f(x)
assert x.tolist() == [7.0, 7.0] and events.of("m::f")[0].marker.executor == "python", events
"""


@pytest.mark.requires("triton")
def test_importing_and_calling_without_a_gpu() -> None:
    """T1: an autotuned kernel imports; a call says op, device and what is missing; a CPU kernel answers if there is one."""
    if tp.cuda.is_available():
        pytest.skip("there is a GPU")
    program = HERE / "no_such_file.py"
    done = subprocess.run(
        [sys.executable, "-c", write_and_run(AUTOTUNED, program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def write_and_run(source: str, name: Path) -> str:
    """A program whose source Triton can read although it is in no file."""
    return (
        "import linecache\n"
        f"source, name = {source!r}, {str(name)!r}\n"
        "linecache.cache[name] = (len(source), None, source.splitlines(True), name)\n"
        "exec(compile(source, name, 'exec'), {'__name__': 'program'})\n"
    )


def test_defining_needs_no_triton() -> None:
    """T1, W12: without the package: definition, capability error, capture as one opaque node."""

    @library.triton_op("tritontest::plain", mutates_args=())
    def plain(x: tp.Tensor) -> tp.Tensor:
        return tp.empty_like(x)

    with pytest.raises(
        CapabilityError, match=r"tritontest::plain has no kernel for device 'cpu'.*needs CUDA"
    ) as e:
        plain(tp.ones([2]))
    assert e.value.capability is not None
    assert list(plain.kernels) == ["cuda"]
    assert plain.kernels["cuda"][0].executor == "triton"
    graph = tp.graph.capture(lambda x: plain(x) + 1.0, tp.ones([2]))
    assert [n.target for n in graph.nodes] == ["tritontest::plain.default", "tp::add.Scalar"]
    plain.register_kernel(None, lambda x: x * 3)
    with tp.trace() as events:
        assert plain(tp.ones([1])).tolist() == [3.0]
    assert events.of("tritontest::plain")[0].marker.executor == "python"


def test_a_launch_without_a_gpu_says_what_is_missing() -> None:
    """W12: a bare launch of a wrapped kernel."""

    class JITFunction:
        arg_names = ("x",)
        params = ()
        __name__ = "kernel"

    if tp.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(
        CapabilityError, match=r"the Triton kernel kernel needs a CUDA device: .*nothing was launched"
    ):
        library.wrap_triton(JITFunction())[(1,)](tp.ones([1]))


@pytest.mark.requires("triton")
def test_compiling_to_a_cubin() -> None:
    """A kernel becomes sm_90 code with no GPU; the marker's proof is the hash of that code."""
    from backends import triton_ops
    from tensorplay.backends.triton import compile_kernel

    x = tp.zeros([1000])
    built = compile_kernel(triton_ops.add_kernel, (x, x, x, 1000), {"BLOCK": 256})
    assert built.cubin[:4] == b"\x7fELF"
    assert (built.name, built.arch) == ("add_kernel", "sm_90")
    assert built.signature == {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    assert built.metadata["num_warps"] == 4
    assert ".target sm_90" in built.asm["ptx"]
    marker = built.marker("cuda:0")
    assert (marker.executor, marker.kernel, marker.proof) == ("triton", "add_kernel", f"{built.hash} sm_90")
    other = compile_kernel(triton_ops.add_kernel, (x, x, x, 1000), {"BLOCK": 512})
    assert other.hash != built.hash
    assert compile_kernel(triton_ops.add_kernel, (x, x, x, 1000), {"BLOCK": 256}) == built
    folded = compile_kernel(triton_ops.add_kernel, (x, x, x, 1), {"BLOCK": 256})
    assert folded.signature["n"] == "constexpr"
    assert folded.constants == {"n": 1, "BLOCK": 256}


@pytest.mark.requires("triton")
def test_specialisation_equals_triton() -> None:
    """Our table gives what Triton's own specialisation gives, over random arguments."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from backends import triton_ops
    from tensorplay.backends.triton.compile import specialize

    backend = make_backend(GPUTarget("cuda", 90, 32))
    parameter = triton_ops.add_kernel.params[3]
    chance = random.Random(0)
    numbers = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, True, False, 0.5, None]
    numbers += [chance.randrange(-(2**40), 2**40) for _ in range(200)] + [16 * n for n in range(-20, 20)]
    base = tp.zeros([64])
    tensors = [base[i:] for i in range(9)] + [
        tp.zeros([4], dtype=d) for d in (tp.float16, tp.bfloat16, tp.int64, tp.bool)
    ]
    for value in [*numbers, *tensors]:
        kind, key = native_specialize_impl(type(backend), value, False, True, True)
        ours = specialize(value, parameter)
        assert ours == (kind, (key or "") if kind != "constexpr" else ""), value
    with pytest.raises(ArgumentError, match="must be a tensor, a number or None, got str"):
        specialize("text", parameter)


@pytest.mark.requires("triton")
def test_the_interpreter_agrees_with_the_default_kernel() -> None:
    """A pure op, on a view with an offset, in a process where Triton interprets; the executor that ran is named."""
    from backends import triton_ops
    from tensorplay.backends.triton import interpreter

    x, y = tp.arange(5000, dtype=tp.float32)[3:], tp.full([4997], 0.5)
    (out,), executor = interpreter.run_op(triton_ops.add, (x, y))
    assert executor == "triton-interpreter"
    assert out.tolist() == (x + y).tolist()


FIRST_LAUNCH = """
import threading
import tensorplay as tp
from tensorplay import Tensor, library
import triton, triton.language as tl

@triton.jit
def twice(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, 2.0 * tl.load(x + at, at < n), at < n)

@library.triton_op("h5::twice", mutates_args=())
def double(x: Tensor) -> Tensor:
    out = tp.empty_like(x)
    library.wrap_triton(twice)[(1,)](x, out, x.size, B=16)
    return out

double.register_kernel("cpu", tp._native.kernel_function("h5::twice", "cuda"), name="interpreted")
threads = []

@library.custom_op("h5::f", mutates_args=())
def f(x: Tensor) -> Tensor:
    return x * 2.0

@f.register_autograd
def backward(ctx, grad):
    threads.append(threading.get_ident())
    return double(grad)

x = tp.ones((5,)).requires_grad_()
y = f(x)
def run():
    with tp.trace() as events:
        y.backward(tp.arange(5, dtype=tp.float32))
    (event,) = events.of("h5::twice")
    assert event.marker.kernel == "interpreted", event

thread = threading.Thread(target=run)
thread.start()
thread.join()
assert x.grad.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
assert threads == [thread.ident], "a gradient is computed by the thread that asked for it"
"""


@pytest.mark.requires("triton")
def test_the_first_launch_of_a_process_may_be_a_gradient() -> None:
    """H5: a Triton kernel that backward launches first, on a thread that has launched nothing: interpreted, no GPU."""
    program = write_and_run(FIRST_LAUNCH, HERE / "no_such_file.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.requires("triton")
def test_the_interpreter_on_an_autotuned_kernel_that_writes() -> None:
    """An op that mutates: what it wrote comes back, and this process is left as it was."""
    from backends import triton_ops
    from tensorplay.backends.triton import interpreter

    x = tp.arange(100, dtype=tp.float32)
    (written,), executor = interpreter.run_op(triton_ops.scale_, (x, 3.0))
    assert executor == "triton-interpreter"
    assert written.tolist() == [3.0 * i for i in range(100)]
    assert x.tolist() == [float(i) for i in range(100)]
    assert not _jit.is_interpreted(triton_ops.scale_kernel)
    with pytest.raises(tp.errors.ContractError, match="failed in Triton's interpreter") as e:
        interpreter.run_op(triton_ops.scale_, (tp.zeros([4], dtype=tp.bfloat16), 3.0))
    assert "bfloat16 on bit patterns" in e.value.__notes__[0]


@pytest.mark.requires("triton")
def test_a_launch_past_wrap_triton_is_refused_in_a_capture() -> None:
    """T12: with wrap_triton and the caller's line in the message, captured or compiled."""
    from backends import triton_ops

    def raw(x):
        triton_ops.scale_kernel[(1,)](x, 4, 2.0)
        return x * 2.0

    for run in (lambda: tp.graph.capture(raw, tp.ones([4])), lambda: tp.compile(raw)(tp.ones([4]))):
        with pytest.raises(
            tp.errors.CaptureError, match=r"scale_kernel .*unwrapped, at .*test_triton.py:"
        ) as e:
            run()
        assert e.value.code == "TP4015"
        assert "wrap_triton" in e.value.__notes__[0]
