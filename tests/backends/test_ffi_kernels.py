"""Kernels of tvm_ffi beside ours: a library of theirs takes our tensors as they are, and is the body of a custom op."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void scale(tvm::ffi::TensorView x, tvm::ffi::TensorView y, double by) {
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(x.data_ptr())[i] * by;
}
int64_t address(tvm::ffi::TensorView x) { return reinterpret_cast<int64_t>(x.data_ptr()); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(address, address);
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="tvm_ffi is not installed")
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder: Path = tmp_path_factory.mktemp("ffi")
    (folder / "kernels.cc").write_text(SOURCE)
    includes = ["-I", tvm_ffi.libinfo.find_include_path(), "-I", tvm_ffi.libinfo.find_dlpack_include_path()]
    options = ["-std=c++17", "-fPIC", "-shared", *includes, "-o", str(folder / "kernels.so")]
    made = [compiler, *options, str(folder / "kernels.cc"), tvm_ffi.libinfo.find_libtvm_ffi()]
    subprocess.run(made, check=True, capture_output=True)
    return tvm_ffi.load_module(str(folder / "kernels.so"))


@pytest.mark.requires("tvm")
def test_a_library_of_tvm_ffi_takes_our_tensors_without_a_copy(kernels: Any) -> None:
    """T10: an object file made ahead of time, over DLPack; a view begins where it begins."""
    x, y = tp.tensor([1.0, 2.0, 3.0]), tp.zeros((3,))
    assert kernels.address(x) == x.data_ptr()
    assert kernels.address(x[1:]) == x.data_ptr() + 4
    kernels.scale(x, y, 2.0)
    assert y.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.requires("tvm")
def test_a_kernel_of_tvm_ffi_is_the_body_of_a_custom_op(kernels: Any) -> None:
    """T10: eager, gradients, opcheck, and as a barrier of a compiled function."""

    def body(x, by: float):
        if x.dtype is not tp.float32:
            raise TypeError("float32 only")
        y = tp.empty(x.shape)
        kernels.scale(x.detach().contiguous(), y, by)
        return y

    op = tp.library.custom_op("ffi::scale", body, mutates_args=(), schema="(Tensor x, float by) -> Tensor")
    op.register_fake(lambda x, by: tp.empty(x.shape, dtype=x.dtype))

    def setup(ctx, inputs, output):
        ctx.by = inputs[1]

    op.register_autograd(lambda ctx, g: (g * ctx.by, None), setup_context=setup)
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    op(x, 3.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert set(tp.library.opcheck(op, (tp.tensor([1.0, 2.0]), 3.0)).values()) == {"SUCCESS"}
    f = tp.compile(lambda x: tp.sum(op(x * 2.0, 3.0) + 1.0), backend="tvm", on_fallback="record")
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = f(x)
    y.backward()
    assert (y.item(), x.grad.tolist()) == (20.0, [6.0, 6.0])
    assert [run.marker.executor for run in f.last_run.forward] == ["tvm", "python", "tvm", "native"]
