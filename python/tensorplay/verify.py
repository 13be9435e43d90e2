"""``tensorplay.verify``: one report on an operator, with columns for values, graph and executor.

This module is the face; the checks live in ``_verify``. ``opcheck`` gives the same facts under the names that PyTorch
users expect. The module itself can be called, so that ``tensorplay.verify(op)`` works whichever way it was imported.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

from tensorplay import _arguments, _native
from tensorplay._verify.batches import check_batches
from tensorplay._verify.compiled import check_compiled
from tensorplay._verify.executor_checks import check_executors, check_required
from tensorplay._verify.generate import CannotGenerate, from_schema, neighbours
from tensorplay._verify.gradients import check_gradients
from tensorplay._verify.graph_checks import check_graphs
from tensorplay._verify.inputs import Case, capture_args
from tensorplay._verify.isolate import check_fresh, check_protected
from tensorplay._verify.report import Check, Tally, VerifyReport
from tensorplay._verify.subject import Subject, subjects
from tensorplay._verify.values import (
    REFUSED,
    Accepted,
    Options,
    check_case,
    check_effects_seen,
    check_kernels,
    check_over_declared,
    refusal,
)
from tensorplay.backends import base
from tensorplay.errors import ArgumentError, InvalidValueError, OpCheckError, RegistrationError

__all__ = ["Check", "VerifyReport", "opcheck", "verify"]


# State of the process is watched (random numbers, containers, free memory): one thread at a time looks.
_turn = threading.RLock()


def _fresh_turn() -> None:
    """In a forked child nobody is at it."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_fresh_turn)


@_arguments.keywords
def verify(
    op_or_fn: Any,
    inputs: tuple[Any, ...] | list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    sweep: bool = True,
    require: Sequence[str] = (),
    seed: int = 0,
) -> VerifyReport:
    """Check an operator (or a function) against its own contract.

    Parameters
    ----------
    op_or_fn
        An op, its name ``"ns::op"``, a built-in function such as ``tensorplay.mul``, or a plain function.
    inputs
        A tuple holds one call's arguments, a list several such tuples; None generates inputs from the schema.
    kwargs
        Keyword arguments of every given call.
    rtol, atol
        Tolerance of comparisons; None takes the one of the dtype (see ``tensorplay.testing``).
    sweep
        Also try neighbours of given inputs: layouts, sizes, ranks, dtypes, special values, other numbers and bools,
        optional arguments left out.
    require
        Names of backends or devices whose absence is a failure instead of a skip.
    seed
        Of generated contents; printed in the report.

    Returns
    -------
    VerifyReport
        With ``.passed``, ``.values``, ``.graph``, ``.executor``, ``.failures``, ``.skips`` and several printed forms.
    """
    base.require_package("numpy", "tensorplay.verify")
    options = _options(rtol, atol, sweep, require, seed)
    if kwargs is not None:
        _arguments.instance("verify", "kwargs", kwargs, dict, "a dict of keyword arguments")
    found = subjects(op_or_fn)
    if not found:
        raise _unregistered(op_or_fn)
    with _turn:
        columns = _verify_all(found, inputs, kwargs or {}, options)
    name = found[0].name if len(found) == 1 else str(found[0].full).partition(".")[0]
    return VerifyReport(name, seed, *columns)


def _verify_all(
    found: list[Subject], inputs: Any, kwargs: dict[str, Any], options: Options
) -> tuple[list[Check], list[Check], list[Check]]:
    columns: tuple[list[Check], list[Check], list[Check]] = ([], [], [])
    for subject in found:
        if len(found) > 1 and inputs is not None and not _binds(subject, inputs, kwargs):
            continue
        prefix = f"{subject.full}: " if len(found) > 1 else ""
        for column, checks in zip(columns, _verify_one(subject, inputs, kwargs, options), strict=True):
            column.extend(Check(prefix + c.name, c.verdict, c.detail, c.location) for c in checks)
    if not any(columns):
        columns[0].append(_unbound(found, inputs, kwargs))
    return columns


def _options(
    rtol: float | None, atol: float | None, sweep: bool, require: str | Sequence[str], seed: int
) -> Options:
    """The options of a call, held to what they may be."""
    names = [require] if isinstance(require, str) else _arguments.items("verify", "require", require)
    for name in names:
        _arguments.string("verify", "require", name, "names of backends or devices")
    number = _arguments.integer("verify", "seed", seed)
    if number < 0:
        raise InvalidValueError(f"verify: argument 'seed' must be 0 or more, got {number}", code="TP1048")
    return Options(
        None if rtol is None else _arguments.tolerance("verify", "rtol", rtol),
        None if atol is None else _arguments.tolerance("verify", "atol", atol),
        _arguments.boolean("verify", "sweep", sweep),
        tuple(names),
        number,
    )


def _binds(subject: Subject, inputs: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the given calls reach this overload."""
    for case in _given(subject, inputs, kwargs):
        run = subject.run(case)
        if any(event.op == subject.target for event in run.events):
            return True
    return False


def _unbound(
    found: list[Subject], inputs: tuple[Any, ...] | list[Any] | None, kwargs: dict[str, Any]
) -> Check:
    """The failure of calls that no overload takes."""
    names = ", ".join(str(subject.full) for subject in found)
    errors = [found[0].run(case).error for case in _given(found[0], inputs, kwargs)]
    told = "; ".join(refusal(error) for error in errors if error is not None)
    return Check(
        "inputs", "fail", f"none of {names} takes them: {told or 'no call was given'}", found[0].location
    )


def _given(
    subject: Subject, inputs: tuple[Any, ...] | list[Any] | None, kwargs: dict[str, Any]
) -> list[Case]:
    calls = inputs if isinstance(inputs, list) else [inputs]
    cases = []
    for index, args in enumerate(calls):
        if not isinstance(args, tuple):
            wanted = "a tuple of one call's arguments, or a list of such tuples"
            raise ArgumentError(f"inputs must be {wanted}, got {type(args).__name__}", code="TP3903")
        label = "given inputs" if len(calls) == 1 else f"given inputs {index}"
        cases.append(capture_args(args, kwargs, subject.names, label))
    return cases


def _cases(subject: Subject, inputs: Any, kwargs: dict[str, Any], options: Options) -> list[Case]:
    if inputs is None:
        if not subject.is_op:
            raise ArgumentError(
                "a plain function has no schema to make inputs from: pass inputs=", code="TP3902"
            )
        return list(from_schema(subject.arguments, options.seed))
    given = _given(subject, inputs, kwargs)
    if not options.sweep:
        return given
    return [*given, *(near for case in given for near in neighbours(case, subject.arguments))]


def _verify_one(
    subject: Subject, inputs: Any, kwargs: dict[str, Any], options: Options
) -> tuple[list[Check], list[Check], list[Check]]:
    values, graph, executor = Tally(), Tally(), Tally()
    values.declare("inputs")
    check_required(options, executor)
    try:
        cases = _cases(subject, inputs, kwargs, options)
    except CannotGenerate as error:
        values.fail("inputs", f"none can be made from the schema: {error}", subject.location)
        return values.checks(), graph.checks(), executor.checks()
    fresh = check_fresh(subject, cases)
    accepted = [item for case in cases if (item := check_case(subject, case, options, values)) is not None]
    if _tell_inputs(accepted, cases, values, subject):
        fresh(accepted, values)
        check_protected(subject, accepted, values)
        _run_checks(subject, accepted, options, values, graph, executor)
    return values.checks(), graph.checks(), executor.checks()


def _tell_inputs(accepted: list[Accepted], cases: list[Case], values: Tally, subject: Subject) -> bool:
    if accepted or values.failed("outputs fit the schema"):
        given = sum(item.case.given for item in accepted)
        values.ok(
            "inputs",
            f"{len(accepted)} of {_arguments.counted(len(cases), 'case')} accepted, {given} of them given",
        )
        return bool(accepted)
    told = next((c.detail for c in values.checks() if c.verdict == "skip"), "").removeprefix(REFUSED)
    what = (
        f"the default kernel refuses all of {_arguments.counted(len(cases), 'case')} ({told})"
        if cases
        else "no call was given"
    )
    values.fail("inputs", f"{what}: pass inputs it takes", subject.location)
    return False


def _run_checks(
    subject: Subject, accepted: list[Accepted], options: Options, values: Tally, graph: Tally, executor: Tally
) -> None:
    check_over_declared(subject, accepted, values)
    check_effects_seen(subject, accepted, values)
    check_kernels(subject, accepted, options, values)
    check_graphs(subject, accepted, graph)  # first, for it says which cases the fake rule takes
    check_gradients(subject, accepted, options.seed, values)
    check_batches(subject, accepted, options, values)
    check_executors(subject, accepted, executor)
    check_compiled(subject, accepted, options, values, executor)


# The tests of PyTorch's opcheck, by the checks of ours that answer each.
_TESTS = {
    "test_schema": ("outputs fit", "inputs unchanged", "nothing written", "aliases", "is written to"),
    "test_autograd_registration": (
        "gradient has",
        "gradient fits",
        "backward leaves",
        "gradient is not recorded",
    ),
    "test_faketensor": ("fake rule", "one node", "effects", "graph is", "no kernel body"),
    "test_aot_dispatch_dynamic": (
        "compiled",
        "gradient compiled",
        "repeated",
        "no memory",
        "gradient against",
        "gradient in",
        "gradient for some",
        "gradient from some",
        "gradient is registered",
        "gradient of its own",
        "second gradient",
    ),
}
_DEFAULT = tuple(_TESTS)
# What is compared is the same: sizes are fixed in every compiled run here.
_TESTS["test_aot_dispatch_static"] = _TESTS["test_aot_dispatch_dynamic"]


@_arguments.keywords
def opcheck(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] | None = None,
    raise_exception: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> dict[str, str]:
    """Check one call of an op as ``torch.library.opcheck`` does; ``verify`` runs underneath, and finds more.

    Returns a dict from test name to ``"SUCCESS"`` or the message; with ``raise_exception`` the first failure raises
    ``OpCheckError`` instead. ``test_utils`` picks tests by name; ``rtol`` and ``atol`` go together.
    """
    subject = _one_op(op)
    if not isinstance(args, (tuple, list)):
        raise ArgumentError(
            f"opcheck takes the arguments of the call as a tuple, got {type(args).__name__}",
            code="TP3907",
            notes=("write opcheck(op, (x,)) for an op of one argument",),
        )
    if kwargs is not None:
        _arguments.instance("opcheck", "kwargs", kwargs, dict, "a dict of keyword arguments")
    _arguments.boolean("opcheck", "raise_exception", raise_exception)
    if (rtol is None) != (atol is None):
        given = "rtol" if atol is None else "atol"
        raise InvalidValueError(f"opcheck got {given} alone: give rtol and atol, or neither", code="TP3905")
    one = isinstance(test_utils, str)
    tests = (test_utils,) if one else _DEFAULT if test_utils is None else test_utils
    wanted = _arguments.items("opcheck", "test_utils", tests, "the name of a test or several")
    if unknown := [name for name in wanted if name not in _TESTS]:
        raise InvalidValueError(f"no test named {unknown[0]!r}; known are {', '.join(_TESTS)}", code="TP3904")
    report = verify(subject, tuple(args), kwargs, rtol=rtol, atol=atol, sweep=False)
    results: dict[str, str] = {}
    for name in wanted:
        failures = [check for check in [*report.failures, *_missing(report, name)] if _belongs(check, name)]
        results[name] = str(failures[0]) if failures else "SUCCESS"
        if failures and raise_exception:
            raise OpCheckError(f"{name}: {failures[0]}", code="TP3901", op=report.subject)
    return results


def _unregistered(op: Any) -> RegistrationError:
    name = getattr(op, "name", repr(op))
    return RegistrationError(f"{name} was unregistered", code="TP1305", op=name)


def _one_op(op: Any) -> Any:
    """`op` where it stands for one overload that is defined; an error that says what it is instead."""
    target = op if isinstance(op, str) else getattr(op, "name", None)
    if isinstance(op, str) and not _native.get_op(op.removesuffix(".default")):
        raise InvalidValueError(f"opcheck needs an op; none is named {target!r}", code="TP3902")
    found = subjects(op) if callable(op) or isinstance(op, str) else []
    if not found and isinstance(op, _native.CustomOpDef):
        raise _unregistered(op)
    if not found or not found[0].is_op:
        raise InvalidValueError(
            f"opcheck needs an op, got {type(op).__name__}",
            code="TP3902",
            notes=("use verify for functions",),
        )
    if len(found) > 1:
        names = ", ".join(str(subject.full) for subject in found)
        raise InvalidValueError(
            f"opcheck checks one overload, {target} has several: name one of {names}", code="TP3906"
        )
    return op


def _belongs(check: Check, test: str) -> bool:
    return _TESTS[_test_of(check)] == _TESTS[test]


def _test_of(check: Check) -> str:
    if "[TP3211]" in check.detail:  # the output of a kernel came with a history of its own
        return "test_autograd_registration"
    for name, starts in _TESTS.items():
        if any(
            check.name.startswith(start) or (start == "is written to" and start in check.name)
            for start in starts
        ):
            return name
    return "test_schema"


def _missing(report: VerifyReport, test: str) -> list[Check]:
    """What `verify` lists as a skip and PyTorch's test calls a failure: an op without a fake rule."""
    return [
        c for c in report.graph if test == "test_faketensor" and c.name == "fake rule" and c.verdict == "skip"
    ]


class _CallableModule(types.ModuleType):
    """Lets ``import tensorplay.verify`` and ``tensorplay.verify(op)`` mean the same object."""

    def __call__(self, *args: Any, **kwargs: Any) -> VerifyReport:
        return verify(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule


def __dir__() -> list[str]:
    return sorted(__all__)


if __name__ == "__main__":
    # `python -m tensorplay.verify ...` is `python -m tensorplay verify ...`, which is no import of what lies above.
    import runpy

    sys.argv.insert(1, "verify")
    runpy.run_module("tensorplay", run_name="__main__", alter_sys=True)
