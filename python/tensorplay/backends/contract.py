"""The contract of a plugged-in backend, and what stands between one and the compiler.

Lives here: the base class, what a backend gets (`Region`) and gives (`Artifact`), and the checks of both sides of each
call. Not here: the names of backends and where they come from (`base`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tensorplay._native import Tensor, asarray
from tensorplay.errors import ArgumentError, ContractError
from tensorplay.outcome import Capability, FallbackReason, TensorSpec, how_to_upgrade

__all__ = [
    "CONTRACT_VERSION",
    "TRANSCENDENTALS",
    "Artifact",
    "Backend",
    "Instruction",
    "Plugged",
    "Region",
    "checked",
]

CONTRACT_VERSION = 1
OLDEST_CONTRACT = 1
# Their values are defined to within a relative 1e-12, and only float64 has them: for other dtypes they are written out as
# arithmetic. Of everything else each bit is defined, but for the bits of a NaN.
TRANSCENDENTALS = frozenset(
    (
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sigmoid",
        "tanh",
        "erf",
        "sin",
        "cos",
        "tan",
        "asin",
    )
) | {"acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "hypot", "pow"}
_METHODS = ("lower", "probe", "run", "supports")


class Instruction(NamedTuple):
    """One scalar operation of a region: the value number `i` of the program is instruction `i`.

    `args` are numbers of earlier values. `imm` is the number of the input of an `input`, and the bit pattern of a
    `const` as an unsigned integer (bool: 0 or 1); None otherwise.
    """

    op: str
    dtype: str
    args: tuple[int, ...]
    imm: int | None


@dataclass(frozen=True, slots=True)
class Region:
    """What a backend is asked to run: one scalar program for every element of the outputs.

    `ops` are the operators it was made of, for messages. `instructions` is the program, in order; `results` are the
    numbers of the values that are the outputs. `inputs` and `outputs` are the types of the tensors, with strides in
    elements: the inputs are broadcast to the shape of the outputs, and the outputs are contiguous.
    """

    ops: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """What `lower` makes of a region. `payload` is the backend's own, and is what `run` gets back.

    `kernel` and `proof` go into the marker of every run: the name of what runs, and what tells it from any other
    program, such as a hash of its text.
    """

    kernel: str
    proof: str
    payload: Any = None


class Backend:
    """The base class of backends that are plugged in, under an entry point of the group "tensorplay.backends" or by
    `tensorplay.backends.register`.

    `contract` is the version of this contract that the backend was written for. `requires` maps modules that it imports
    to what pip installs for them (`{"jax": "jax>=0.5"}`): where one is missing, the backend is absent with that command
    as the reason, and `probe` is not asked.
    """

    contract: int
    requires: ClassVar[Mapping[str, str]] = {}

    def probe(self) -> str | None:
        """None where it can be used on this machine, else why not. Asked before every build: it imports nothing heavy."""
        return None

    def supports(self, region: Region) -> FallbackReason | None:
        """None when `lower` takes the region, else why not."""
        raise NotImplementedError

    def lower(self, region: Region) -> Artifact:
        """The artifact for a region that `supports` took. An exception is a refusal with reason `LoweringFailed`."""
        raise NotImplementedError

    def run(self, artifact: Artifact, inputs: Sequence[Tensor]) -> Sequence[Any]:
        """The outputs, one per result: tensors, or what `tensorplay.asarray` takes, in fresh memory.

        They are held to `region.outputs`. The inputs lie in the caller's memory, which is not written to. An exception
        reaches the caller as it is.
        """
        raise NotImplementedError


def checked(backend: Any, what: str) -> Backend:
    """`backend`, or an instance of it where it is a class; ArgumentError (a TypeError) when it is none.

    `what` says where it comes from.
    """
    note = "derive it from tensorplay.backends.Backend; docs/backends.md has one"
    made = backend
    if isinstance(backend, type) and issubclass(backend, Backend):
        made = backend()
    if not isinstance(made, Backend):
        raise ArgumentError(f"{what} is no Backend, but {_described(backend)}", code="TP4108", notes=(note,))
    missing = [
        name for name in _METHODS if name != "probe" and getattr(type(made), name) is getattr(Backend, name)
    ]
    if missing:
        raise ArgumentError(f"{what} does not define {', '.join(missing)}", code="TP4108", notes=(note,))
    contract = getattr(made, "contract", None)
    if type(contract) is not int:
        raise ArgumentError(
            f"{what} does not say which contract it was written for",
            code="TP4108",
            notes=(f"write `contract = {CONTRACT_VERSION}` into its class",),
        )
    return made


def _described(value: Any) -> str:
    return (
        f"the class {value.__qualname__}"
        if isinstance(value, type)
        else f"of type {type(value).__qualname__}"
    )


class Plugged:
    """A plugged-in backend as the compiler talks to it."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name, self.backend = name, backend
        # What `lower` made, while `tensorplay.testing.check_backend` looks at it.
        self.made: list[tuple[Region, Artifact]] | None = None

    def capability(self) -> Capability:
        """Whether it fits this version and this machine: its contract, what it needs, and what it says itself."""
        details: dict[str, Any] = {"contract": self.backend.contract}
        reason = self._unfit() or self._missing() or self.backend.probe()
        if reason is not None and not isinstance(reason, str):
            reason = f"its probe gave {type(reason).__name__}, not None or a reason"
        return Capability(self.name, reason is None, reason, details)

    def _unfit(self) -> str | None:
        contract = self.backend.contract
        if contract > CONTRACT_VERSION:
            return (
                f"it was written for contract {contract} of backends, and this tensorplay has {CONTRACT_VERSION}; "
                f"upgrade TensorPlay: {how_to_upgrade()}"
            )
        if contract < OLDEST_CONTRACT:
            return (
                f"it supports TensorPlay up to contract {contract} of backends, and this one begins at "
                f"{OLDEST_CONTRACT}; upgrade the backend"
            )
        return None

    def _missing(self) -> str | None:
        absent = [
            (module, package) for module, package in self.backend.requires.items() if not _is_there(module)
        ]
        if not absent:
            return None
        modules = " and ".join(module for module, _ in absent)
        packages = " ".join(f'"{p}"' if set(p) & set("<>=[ ;") else p for _, p in absent)
        return f"it needs {modules}, which {'is' if len(absent) == 1 else 'are'} not installed; pip install {packages}"

    def supports(self, region: Region) -> dict[str, Any] | None:
        """None, or the refusal as a dict."""
        answer = self.backend.supports(region)
        if answer is None:
            return None
        if not isinstance(answer, FallbackReason):
            raise TypeError(
                f"supports() of backend {self.name!r} gave {type(answer).__name__}, not None or a FallbackReason"
            )
        return {
            "kind": answer.kind,
            "message": answer.message,
            "details": {"op": answer.op or "", **answer.details},
        }

    def lower(self, region: Region) -> Artifact:
        """The artifact, whose kernel and proof can go into a marker."""
        artifact = self.backend.lower(region)
        if not isinstance(artifact, Artifact):
            raise TypeError(
                f"lower() of backend {self.name!r} gave {type(artifact).__name__}, not an Artifact"
            )
        if not all(isinstance(text, str) and text for text in (artifact.kernel, artifact.proof)):
            raise TypeError(
                f"backend {self.name!r} made an artifact whose kernel or proof is no text, or empty"
            )
        if self.made is not None:
            self.made.append((region, artifact))
        return artifact

    def run(self, artifact: Artifact, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs as tensors without a history."""
        outputs = self.backend.run(artifact, [x.detach() if x.requires_grad else x for x in inputs])
        if not isinstance(outputs, (list, tuple)):
            raise ContractError(
                f"backend {self.name!r}: run() gave {type(outputs).__name__}, not a list of outputs",
                code="TP3206",
            )
        return [self._tensor(i, output) for i, output in enumerate(outputs)]

    def _tensor(self, i: int, output: Any) -> Tensor:
        if isinstance(output, Tensor):
            return output.detach() if output.requires_grad else output
        try:
            return asarray(output)
        except TypeError as error:
            raise ContractError(
                f"backend {self.name!r}: output {i} of its region is no tensor, but {type(output).__name__}",
                code="TP3207",
            ) from error


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def __dir__() -> list[str]:
    return sorted(__all__)
