"""The Triton backend: kernels written by users, compiled without a GPU, launched only where there is one.

Lives here: the entry points (`probe`, `supports`, `launch`, `compile_kernel`). Not here: how a kernel is specialised and
compiled (`compile`) or interpreted (`interpreter`). Importing this package does not import triton.
"""

from .compile import CompiledKernel, compile_kernel
from .launch import launch, supports
from .probe import probe

__all__ = ["CompiledKernel", "compile_kernel", "launch", "probe", "supports"]
