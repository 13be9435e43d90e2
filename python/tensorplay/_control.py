"""`cond` and `while_loop`: a branch and a loop that depend on data, and that a capture records.

Eagerly they are `if` and `while`. Under capture both branches run once over tensors without data, and the graph gets
one node that holds them (the extension's `capture_cond`, `capture_while_loop`).
"""

from __future__ import annotations

from tensorplay import _arguments, _native, functions
from tensorplay._native import Tensor
from tensorplay._tree import flatten, map_named, unflatten
from tensorplay.errors import ArgumentError, InvalidValueError, UnsupportedError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tensorplay._tree import Structure
else:
    from tensorplay._later import hints

    (Callable,), (Any,) = hints("collections.abc", "Callable"), hints("typing", "Any")

__all__ = ["cond", "while_loop"]


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """`true_fn(*operands)` where `pred` is true, else `false_fn(*operands)`.

    Parameters
    ----------
    pred
        A bool tensor of one element, or a Python bool, which is decided at once, in a capture too.
    true_fn, false_fn
        Functions of the operands; they may also use tensors from outside of them. Each returns tensors, or a nest of
        tuples, lists and dicts of them.
    operands
        A tuple or list of what the functions take.

    Returns
    -------
    What the branch returned. Eagerly the other one does not run, and nothing is known of what it would return. Under
    capture both are captured, and a run runs one: they have to return the same structure, shapes and dtypes
    (CaptureError TP4302), and may not write to tensors from outside (TP4304); results are contiguous, in memory of their
    own. Gradients go through the branch that ran.

    Raises
    ------
    ArgumentError
        For a `pred` that is no bool of one element (TP4301), and results that are no tensors (TP4305).

    In `vmap`, where samples say different things, both branches run for all samples and each sample takes its own result;
    so they do in a captured `vmap`.
    """
    for name, fn in (("true_fn", true_fn), ("false_fn", false_fn)):
        _arguments.function("cond", name, fn)
    given = _operands("cond", "operands", operands)
    if isinstance(pred, Tensor) and _is_told_by_samples("cond", pred):
        return _selected(pred, true_fn, false_fn, given)
    if _is_recorded("cond", pred):
        leaves, structure = _native.capture_cond(
            pred,
            lambda _: _result(true_fn(*given), "true_fn of cond"),
            lambda _: _result(false_fn(*given), "false_fn of cond"),
        )
        return unflatten(structure, leaves)
    chosen, name = (true_fn, "true_fn") if pred else (false_fn, "false_fn")
    result = chosen(*given)
    _result(result, f"{name} of cond")
    return result


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """`body_fn` over and over for as long as `cond_fn` gives true; both take what is carried.

    Parameters
    ----------
    cond_fn
        A function of what is carried that returns a bool tensor of one element.
    body_fn
        A function of what is carried that returns the next of it: as many tensors, in the same structure, of the same
        shapes, dtypes and devices.
    carried_inputs
        A tuple or list of tensors, and nests of them, to begin with.

    Returns
    -------
    What is carried in the end, as a tuple; `carried_inputs` where no trip was made. Under capture the loop is one node, for
    any number of trips. Eagerly gradients go through every trip; through a captured loop they are refused (TP3026).

    Raises
    ------
    InvalidValueError
        For a `body_fn` that returns another structure, shape, dtype or device than it took (TP4303).
    ArgumentError
        For a `cond_fn` that returns something else than a bool of one element (TP4301), and for what is carried that is
        no tensor (TP4305).
    """
    for name, fn in (("cond_fn", cond_fn), ("body_fn", body_fn)):
        _arguments.function("while_loop", name, fn)
    carried = _operands("while_loop", "carried_inputs", carried_inputs)
    leaves, structure, names = _result(carried, "carried_inputs of while_loop", "carried_inputs")

    def ask(given: list[Tensor]) -> Any:
        return cond_fn(*unflatten(structure, given))

    def step(given: list[Tensor]) -> tuple[list[Tensor], Structure, list[str]]:
        returned = body_fn(*unflatten(structure, given))
        if isinstance(returned, list):
            returned = tuple(returned)
        elif not isinstance(returned, tuple):
            returned = (returned,)
        new, found, _ = _result(returned, "body_fn of while_loop", "carried_inputs")
        _check_carried(structure, found, zip(names, given, new, strict=False))
        return new, found, names

    if _native.is_capturing():
        if _levels():
            raise _in_vmap("while_loop in a vmap that is captured")

        def asked(given: list[Tensor]) -> tuple[list[Tensor], Structure, list[str]]:
            answer = ask(given)
            if not isinstance(answer, Tensor):
                _no_bool("while_loop", "cond_fn returns", answer)
            return _result(answer, "cond_fn of while_loop")

        return unflatten(structure, _native.capture_while_loop(leaves, asked, step))
    while _truth(ask(leaves)):
        leaves, _, _ = step(leaves)
    return unflatten(structure, leaves)


def _operands(function: str, name: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)):
        raise ArgumentError(
            f"{function}: {name} is a tuple or list, got {type(given).__name__}",
            code="TP1002",
            notes=(f"write {name}=(x,)",),
        )
    return tuple(given)


def _is_recorded(function: str, pred: Any) -> bool:
    """Whether a choice is one for runs: a tensor says it, in a capture."""
    if isinstance(pred, (bool, _native.SymBool)):
        return False
    if not isinstance(pred, Tensor) or pred.dtype.name != "bool" or pred.numel() != 1:
        _no_bool(function, "pred is", pred)
    return _native.is_capturing()


def _truth(answer: Any) -> bool:
    if isinstance(answer, bool):
        return answer
    if isinstance(answer, Tensor) and _native.vmap_peel(answer) is not None:
        raise _in_vmap("cond_fn of while_loop says something else for each sample of a vmap")
    if not isinstance(answer, Tensor) or answer.dtype.name != "bool" or answer.numel() != 1:
        _no_bool("while_loop", "cond_fn returns", answer)
    return bool(answer)


def _levels() -> tuple[Any, ...]:
    """The levels of vmap that this thread is in."""
    from tensorplay import _batching

    return _batching.active()


def _in_vmap(what: str) -> UnsupportedError:
    note = "run the loop outside of vmap, with the samples in one tensor, for as long as any of them goes on"
    return UnsupportedError(f"{what}, which is not supported", code="TP4307", notes=(note,))


def _is_told_by_samples(function: str, pred: Tensor) -> bool:
    """Whether both branches are to run, because samples of a vmap choose; a captured vmap is not looked into."""
    if _native.vmap_peel(pred) is None and not (_native.is_capturing() and _levels()):
        return False
    if pred.dtype.name != "bool" or pred.numel() != 1:
        _no_bool(function, "pred is", pred)
    return True


def _version(t: Tensor) -> int:
    """The version of the memory of `t`, or of the batch behind it."""
    while (behind := _native.vmap_peel(t)) is not None:
        t = behind[0]
    return t._version


def _selected(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], given: tuple[Any, ...]
) -> Any:
    """Both branches, and for each sample the result that is its own."""
    # A capture sees every write; eagerly those to operands are seen.
    tensors = [t for t in flatten(given)[0] if isinstance(t, Tensor) and not _native.is_capturing()]
    versions = [_version(t) for t in tensors]
    before = _native.begin_selection()
    try:
        yes, structure, names = _result(true_fn(*given), "true_fn of cond")
        no, other, _ = _result(false_fn(*given), "false_fn of cond")
    finally:
        _native.end_selection(before)
    if [_version(t) for t in tensors] != versions:
        message = "a branch of cond in vmap writes to an operand: both branches run for every sample"
        raise InvalidValueError(message, code="TP4304", notes=("write to a clone() and return that",))
    texts = [f"{structure!r}", f"{other!r}"], "what cond returns"
    for name, a, b in zip(names, yes, no, strict=False):
        if structure == other and (a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape)):
            texts = [f"{t.dtype.name}{list(t.shape)}" for t in (a, b)], name
            break
    else:
        if structure == other:
            whole = pred.reshape(())
            results = [functions.where(whole, a, b) for a, b in zip(yes, no, strict=True)]
            return unflatten(structure, results)
    (first, second), name = texts
    raise InvalidValueError(
        f"{name} is {first} in true_fn of cond, {second} in false_fn",
        code="TP4302",
        notes=("both branches return tensors in the same nest, of the same shapes and dtypes",),
    )


def _no_bool(function: str, what: str, got: Any) -> None:
    text = f"{got.dtype.name}{list(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
    raise ArgumentError(
        f"{function}: {what} {text}, not a bool of one element",
        code="TP4301",
        notes=("compare: x.sum() > 0",),
    )


def _result(result: Any, whose: str, name: str = "result") -> tuple[list[Tensor], Structure, list[str]]:
    """Leaves, structure and names of leaves of what a function returned."""
    names: list[str] = []

    def check(leaf: Any, name: str) -> None:
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"{name} of {whose} is a {type(leaf).__name__}, not a tensor",
                code="TP4305",
                notes=("make it one: tp.tensor(value)",),
            )
        names.append(name)

    map_named(check, result, name)
    leaves, structure = flatten(result)
    return leaves, structure, names


def _check_carried(before: Structure, after: Structure, pairs: Any) -> None:
    note = "what is carried keeps structure, shape, dtype and device: astype(), reshape() or expand() it"
    if before != after:
        message = f"body_fn of while_loop takes {before!r} and returns {after!r}"
        raise InvalidValueError(message, code="TP4303", notes=(note,))
    for name, old, new in pairs:
        if (
            old.dtype != new.dtype
            or old.device != new.device
            or old.ndim != new.ndim
            or any(a != b for a, b in zip(old.shape, new.shape, strict=True))
        ):
            texts = [f"{t.dtype.name}{list(t.shape)} on {t.device}" for t in (old, new)]
            message = f"{name} of while_loop is {texts[0]}, and body_fn returns {texts[1]}"
            raise InvalidValueError(message, code="TP4303", notes=(note,))
