"""What a caller may ask of this adapter: `options=` of `tensorplay.compile`.

Lives here: the options and what each may be. Not here: what they do to the code (`compile`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .artifact import LoweringError
from .host import Host

OPTIONS: dict[str, type] = {"fast_math": bool, "parallel": bool, "target": str}
"""`fast_math`: a product and the sum it goes into may be rounded once instead of twice. `parallel`: long loops are split
over the pool (True). `target`: the name of a processor that this machine can stand in for, instead of this one."""


def adapted(machine: Host, options: Mapping[str, Any]) -> Host:
    """The machine as the options want it, told apart by its text, which markers and keys of artifacts show."""
    wanted = options.get("target")
    if wanted is not None:
        machine = _for_processor(machine, wanted)
    if options.get("fast_math"):
        machine = dataclasses.replace(machine, has_fma=False, target_text=f"{machine.target_text} -fast-math")
    return machine


def _for_processor(machine: Host, name: str) -> Host:
    """Code for the processor `name`; LoweringError for a name that LLVM does not know, or code this machine cannot run."""
    tvm = machine.tvm
    known = {str(arch) for arch in tvm.get_global_func("target.llvm_get_cpu_archlist")(machine.target)}
    if name not in known:
        message = f"LLVM knows no processor {name!r} of this architecture"
        raise LoweringError("LoweringFailed", "target", message)
    # Not `mattr`: the processor's own features are meant. An unknown name would silently mean the least of all.
    target = tvm.target.Target({"kind": "llvm", "mcpu": name})
    features = {str(feature) for feature in tvm.get_global_func("target.llvm_get_cpu_features")(target)}
    host = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    lacking = sorted(str(feature) for feature, on in host.items() if not on and str(feature) in features)
    if lacking:
        message = f"this machine cannot run code for {name!r}: it has no {', '.join(lacking)}"
        raise LoweringError("LoweringFailed", "target", message)
    return dataclasses.replace(
        machine, target=target, target_text=f"llvm -mcpu={name}", has_fma=bool({"fma", "neon"} & features)
    )
