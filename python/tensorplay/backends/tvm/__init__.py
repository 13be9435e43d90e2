"""The TVM backend: a pointwise scalar program compiled to one native loop for the host CPU.

Lives here: the entry points the executor calls (`probe`, `supports`, `leaves_rows`, `lower`), and those of the command line
(`entries`, `purge`).
Not here: how a program becomes TIR (`emit`, `kernel`) or machine code (`compile`, `host`).
Importing this package imports neither tvm nor numpy.
"""

from .artifact import Artifact, LoweringError
from .compile import lower
from .disk import entries, purge
from .options import OPTIONS
from .probe import probe
from .support import leaves_rows, supports

__all__ = [
    "OPTIONS",
    "Artifact",
    "LoweringError",
    "entries",
    "leaves_rows",
    "lower",
    "probe",
    "purge",
    "supports",
]
