"""VALUES, in a process of its own: results of a first call, before any state can exist, and writes to protected memory.

A forked child runs one call and reports through a pipe. Where there is no `fork`, or a child does not answer, the check
is a skip that says so.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import functools
import mmap
import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay._verify.arrays import NoGrad, Snapshot
from tensorplay._verify.compare import compare
from tensorplay._verify.inputs import Case, TensorRecipe
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Kernel, Subject
from tensorplay._verify.transforms import changed, put_other
from tensorplay._verify.values import Accepted, replay

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_fresh", "check_protected", "in_child"]

PATIENCE = 10.0  # seconds that a child may take
ORDER = "results do not depend on earlier calls"


class NoAnswer(RuntimeError):
    """The child could not be made, died or took too long; `signal` is what killed it."""

    def __init__(self, message: str, killed_by: int = 0) -> None:
        super().__init__(message)
        self.signal = killed_by


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns when it runs in a forked child. Only the answer comes back: no state, no output."""
    if not hasattr(os, "fork"):
        raise NoAnswer("this platform has no fork")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Other packages warn about forking beside their threads; the child calls nothing of theirs.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, work)
    os.close(writer)
    try:
        return _collect(reader, child)
    finally:
        os.close(reader)


def _answer(writer: int, work: Callable[[], Any]) -> None:
    """The child's whole life."""
    status = 1
    try:
        faulthandler.disable()
        for number in (signal.SIGSEGV, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        _no_core_file()
        _native.set_num_threads(1)  # the workers of the parent are not here
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(work(), pipe)
        status = 0
    finally:
        os._exit(status)


def _no_core_file() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _collect(reader: int, child: int) -> Any:
    deadline = time.monotonic() + PATIENCE
    chunks = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise NoAnswer(f"no answer within {PATIENCE:g} s")
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise NoAnswer(f"killed by {signal.Signals(os.WTERMSIG(status)).name}", os.WTERMSIG(status))
    if os.waitstatus_to_exitcode(status):
        raise NoAnswer("it could not pass its answer on")
    return pickle.loads(b"".join(chunks))


# --- the first call -----------------------------------------------------------------------------------


def check_fresh(subject: Subject, cases: list[Case]) -> Callable[[list[Accepted], Tally], None]:
    """Runs two calls of equal shapes and other contents, each first in a process, and returns the check to make later.

    It must come before the subject is called here: a result that was kept from an earlier call then differs.
    """
    first = next((case for case in cases if any(r.values.size for r in case.recipes())), None)
    if not subject.repeatable or first is None:
        return lambda accepted, tally: None
    pair = [
        first,
        first.map(f"{first.label}, other contents", lambda r: changed(r, put_other, "with_other_contents")),
    ]
    try:
        fresh = [in_child(functools.partial(_results, subject, case)) for case in pair]
    except NoAnswer as problem:
        reason = str(problem)
        return lambda accepted, tally: tally.skip(
            ORDER, f"no process of its own for the first call: {reason}"
        )
    return lambda accepted, tally: _compare_orders(subject, pair, fresh, tally)


def _results(subject: Subject, case: Case) -> list[Snapshot] | None:
    run = subject.run(case, subject.reference())
    kept = [dataclasses.replace(s, literal=repr(s.literal)) for s in [*run.outputs, *run.after.values()]]
    return kept if run.error is None else None


def _compare_orders(
    subject: Subject, pair: list[Case], fresh: list[list[Snapshot] | None], tally: Tally
) -> None:
    if not subject.repeatable:  # known only now for a plain function
        return
    for case, wanted in zip(pair, fresh, strict=True):
        found = _results(subject, case)
        if wanted is None or found is None:
            continue
        differing = [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if not a.same_bits(b)]
        if differing:
            at = differing[0]
            detail = compare(found[at], wanted[at], rtol=0.0, atol=0.0).detail.partition(";")[0]
            text = f"state outlives a call: output {at} differs from that of a first call in its process: {detail}"
            fix = 'declare effects="ordered" or deterministic=False, or make it a function of its inputs'
            tally.fail(ORDER, f"{text}; {fix}\n{replay(subject, case)}", subject.location)
        else:
            tally.ok(ORDER, "equal to a first call in a process of its own", location=subject.location)


# --- writes -------------------------------------------------------------------------------------------


def check_protected(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """Kernels in Python run once over memory that cannot be written: even a write that is undone shows."""
    item = next((a for a in accepted if _protectable(a.case)), None)
    if item is None or not subject.is_op:
        return
    for kernel in subject.kernels:
        if kernel.function is not None and kernel.slot in ("default", "cpu") and kernel.executor != "absent":
            _check_kernel(subject, kernel, item.case, tally)


def _protectable(case: Case) -> bool:
    recipes = case.recipes()
    return any(r.values.size for r in recipes) and all(r.dtype != "bfloat16" for r in recipes)


def _check_kernel(subject: Subject, kernel: Kernel, case: Case, tally: Tally) -> None:
    name = "inputs unchanged" if not subject.mutated else "nothing written but what is declared"
    names = [n for n, _, _ in case.build().tensors if not subject.declares(n)]
    try:
        if not names or not in_child(lambda: _call(subject, kernel, case, [])):
            return  # it does not take memory that is not ours: nothing to learn here
        in_child(lambda: _call(subject, kernel, case, names))
    except NoAnswer as problem:
        if problem.signal not in (signal.SIGSEGV, signal.SIGBUS):
            tally.skip(f"{name}, memory protected: {kernel.label}", str(problem), kernel.location)
            return
        guilty = [n for n in names if _dies(subject, kernel, case, n)]
        text = f"{kernel.label} writes to {', '.join(guilty or names)} during the call; undone or not, others see it"
        fix = "declare it in mutates_args or work on a clone"
        tally.fail(name, f"{text}: {fix}\n{replay(subject, case)}", kernel.location)


def _dies(subject: Subject, kernel: Kernel, case: Case, name: str) -> bool:
    try:
        in_child(lambda: _call(subject, kernel, case, [name]))
    except NoAnswer as problem:
        return problem.signal in (signal.SIGSEGV, signal.SIGBUS)
    return False


def _call(subject: Subject, kernel: Kernel, case: Case, protected: list[str]) -> bool:
    """In the child: the call with its tensors in pages of their own, these ones read-only. Whether it returned."""
    tensors: dict[int, Any] = {}
    pages: list[tuple[str, mmap.mmap]] = []

    def place(value: Any, name: str) -> Any:
        if isinstance(value, TensorRecipe):
            if id(value) not in tensors:
                tensors[id(value)], page = _in_pages(value.values)
                pages.append((name, page))
            return tensors[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(place(item, f"{name}[{i}]") for i, item in enumerate(value))
        return value

    names = [*case.names, *(f"args[{i}]" for i in range(len(case.names), len(case.args)))]
    args = [place(value, name) for name, value in zip(names, case.args, strict=False)]
    kwargs = {key: place(value, key) for key, value in case.kwargs.items()}
    for name, page in pages:
        if name in protected:
            _protect(page)
    try:
        with NoGrad(), subject.choice(kernel):
            _native.call_kernel(subject.function, *args, **kwargs)
    except Exception:
        return False
    return True


def _in_pages(values: np.ndarray[Any, Any]) -> tuple[Any, mmap.mmap]:
    import numpy as np

    page = mmap.mmap(-1, max(values.nbytes, 1))
    array = np.frombuffer(page, dtype=values.dtype, count=values.size).reshape(values.shape)
    array[...] = values
    return _native.from_numpy(array), page


def _protect(page: mmap.mmap) -> None:
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    whole = -(-len(page) // mmap.PAGESIZE) * mmap.PAGESIZE
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if mprotect(start, whole, mmap.PROT_READ) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")
