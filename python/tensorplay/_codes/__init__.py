"""What goes with the table of codes: parts of it, one minimal program per code or why there is none, internal codes.

Data alone. `docs/errors.md` shows the programs and the tests run them: each knows ``tp`` and raises exactly its code.
"""

from __future__ import annotations

from tensorplay._codes import (
    arguments,
    capture,
    control,
    differentiation,
    graphs,
    registration,
    shapes,
    transforms,
)
from tensorplay._codes.internal import INTERNAL

__all__ = ["EXAMPLES", "INTERNAL", "WITHOUT"]

EXAMPLES: dict[str, str] = {
    code: program.strip()
    for table in (
        arguments.EXAMPLES,
        shapes.EXAMPLES,
        registration.EXAMPLES,
        differentiation.EXAMPLES,
        transforms.EXAMPLES,
        capture.EXAMPLES,
        control.EXAMPLES,
        graphs.EXAMPLES,
    )
    for code, program in table.items()
}

_FOREIGN = "it takes a backend or kernel library that breaks its protocol"
_TRITON = "it needs Triton"
_CUDA = "it needs a CUDA device"

# Why a code has no example.
WITHOUT: dict[str, str] = {
    "TP0000": "errors made without a code have it; none of tensorplay's own is",
    "TP1010": "it takes a schema of 256 arguments",
    "TP1011": "the text of a schema is checked before (TP1001); it takes a schema made by hand in Rust",
    "TP1201": "every operation of today promotes, or says more (TP1202 and after)",
    "TP1155": "it takes a buffer with suboffsets, which the standard library does not make",
    "TP2003": "it takes an environment without NumPy",
    "TP1206": "it takes a file of a foreign element type",
    "TP1207": "it takes an environment without ml_dtypes",
    "TP2010": _TRITON,
    "TP2012": _CUDA,
    "TP2013": _CUDA,
    "TP2014": _TRITON,
    "TP2015": _TRITON,
    "TP2031": _CUDA,
    "TP2032": _TRITON,
    "TP3017": "every built-in that writes to floating tensors has a gradient; for other ops see TP3018",
    "TP3204": "what a rule or a hook gives is checked before (TP3006 to TP3008)",
    "TP3206": _FOREIGN,
    "TP3207": _FOREIGN,
    "TP3210": _TRITON,
    "TP4014": "from Python such objects go through a capture by identity; it takes a capture made in Rust",
    "TP5002": "`Graph.verify()` lists what is wrong instead of raising",
    "TP5003": "a graph that was read from text is not run from Python",
    "TP5004": "a graph that was read from text is not run from Python",
    "TP4041": "it is a reason in a report (compiled.report.breaks), and never raised",
    "TP4042": "ops that write wait for the segment; it takes a write that is counted and made by no op",
    "TP4015": _TRITON,
    "TP9001": "it marks an exception of the caller's own, which Python shows as it is",
} | dict.fromkeys(INTERNAL, "a broken invariant of tensorplay's own: no program is known that reaches it")
