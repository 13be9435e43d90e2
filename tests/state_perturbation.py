"""The perturbation test of Python state: a function, its eager twin as truth, and every reachable location changed in turn."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import tensorplay as tp
from state_locations import locations, snapshot
from tensorplay import Tensor
from tensorplay.errors import CaptureError

__all__ = ["FILES", "Verdict", "functions", "perturb"]

_FOLDER = pathlib.Path(__file__).parent / "state_functions"

FILES = sorted(path.stem for path in _FOLDER.glob("*.txt"))


def functions(file: str) -> dict[str, str]:
    """Sources by name. A name that ends in ``!`` is of a function that does or reads what no guard can see: it may be
    refused."""
    out: dict[str, str] = {}
    for block in (_FOLDER / f"{file}.txt").read_text().split("#: ")[1:]:
        name, _, source = block.partition("\n")
        assert name not in out, name
        out[name] = source
    return out


def _made(source: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"tp": tp, "__name__": "state_program"}
    sys.modules.setdefault("state_program", types.ModuleType("state_program"))  # dataclasses look for it
    exec(compile(source, "state_program.py", "exec"), scope)
    return scope["f"]  # type: ignore[no-any-return]


@dataclasses.dataclass
class Verdict:
    """What came of one function."""

    refused: str | None = None
    wrong: list[str] = dataclasses.field(default_factory=list)
    effectful: int = 0
    harmless: int = 0
    needless: int = 0


def _outcome(fn: Callable[..., Any]) -> Any:
    """What a call gives; the type of what it raises; the error, where a capture refuses."""
    try:
        out = fn(tp.tensor([1.0, 2.0]))
    except CaptureError as error:
        return error
    except Exception as error:
        return type(error).__name__
    if isinstance(out, Tensor):
        return repr(out.tolist())
    return repr(out) if isinstance(out, int | float | str) else type(out).__name__


def perturb(source: str, **options: Any) -> Verdict:
    """Runs a function compiled beside its eager twin: unchanged, and with each location changed and put back."""
    verdict = Verdict()
    eager, fn = _made(source), _made(source)
    before = snapshot(fn)
    compiled = tp.compile(fn, **options)
    first = _outcome(compiled)
    if isinstance(first, CaptureError):
        verdict.refused = str(first)
        if snapshot(fn) != before:
            verdict.wrong.append("a refused capture left an effect")
        return verdict
    for run in range(3):
        wanted, got = _outcome(eager), first if run == 0 else _outcome(compiled)
        if wanted != got or snapshot(eager) != snapshot(fn):
            verdict.wrong.append(f"call {run}: eager {wanted}, compiled {got}")
            return verdict
    if len(compiled.graphs) != 1:
        verdict.wrong.append(f"unchanged state: {compiled.report.recompiles}")
    here, there = locations(eager), locations(fn)
    assert [one.path for one in here] == [one.path for one in there]
    for mine, its in zip(here, there, strict=True):
        compiled = tp.compile(fn, **options)
        unchanged = _outcome(eager), _outcome(compiled)
        graphs = len(compiled.graphs)
        mine.change(), its.change()  # type: ignore[func-returns-value]
        changed = _outcome(eager), _outcome(compiled)
        mine.restore(), its.restore()  # type: ignore[func-returns-value]
        back = _outcome(eager), _outcome(compiled)
        if changed[0] != unchanged[0]:
            verdict.effectful += 1
        else:
            verdict.harmless += 1
            verdict.needless += len(compiled.graphs) > graphs and not isinstance(changed[1], CaptureError)
        for when, (wanted, got) in (("unchanged", unchanged), ("changed", changed), ("put back", back)):
            if wanted != got and not isinstance(got, CaptureError):
                verdict.wrong.append(f"{mine.path} {when}: eager {wanted}, compiled {got}")
    return verdict
