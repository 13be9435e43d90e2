"""Registrations over registrations: which one is in force, what comes back, and what a handle stays."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings

import pytest

import tensorplay as tp
from tensorplay import _library, library
from tensorplay.errors import CapabilityError, RegistrationError, UnsupportedError

X = tp.ones([2])


def times(k: float):
    return lambda x: tp.mul(x, k)


def test_kernels_of_a_library_give_way_to_what_was_there(ns: str) -> None:
    """4.6, 9: by register_kernel(lib=), impl and Library.impl, in any order of destruction."""
    op = library.custom_op(f"{ns}::f", times(1.0), mutates_args=())
    op.register_kernel("cpu", times(2.0))
    first, second = library.Library(ns, "FRAGMENT"), library.Library(ns, "FRAGMENT")
    library.register_kernel(op, "cpu", times(3.0), lib=first)
    library.impl(op, "cpu", times(4.0), lib=second)
    assert op(X).tolist() == [4.0, 4.0]
    first._destroy()
    assert op(X).tolist() == [4.0, 4.0]
    second._destroy()
    assert op(X).tolist() == [2.0, 2.0]
    third = library.Library(ns, "FRAGMENT")
    third.impl("f", times(5.0), "CPU")
    op.register_kernel("cpu", times(6.0))
    third._destroy()
    assert op(X).tolist() == [6.0, 6.0]
    assert [k.name for k in op.kernels["cpu"]] == ["default"]


def test_a_fake_kernel_over_a_built_in_one_is_taken_back() -> None:
    """9: the built-in rule is in force again, whichever library ends first."""
    shape = lambda: tuple(tp.exp(tp.empty((2, 3), device="meta")).shape)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = library.Library("tp", "IMPL"), library.Library("tp", "IMPL")
        rule = lambda x: tp.empty((7,), device="meta")  # noqa: E731
        library.register_fake("tp::exp", rule, lib=first, allow_override=True)
        second.impl("exp", lambda x: tp.empty((8,), device="meta"), "Meta")
    assert shape() == (8,)
    first._destroy()
    assert shape() == (8,)
    second._destroy()
    assert shape() == (2, 3)


@pytest.mark.thread_unsafe(reason="registers for a built-in op, which the other threads call")
def test_a_handle_stays_the_kernel_that_it_was() -> None:
    """4.6: wrapping the kernel of a built-in op calls that kernel, not the wrapper again."""
    inner = library.get_kernel("tp::exp", "cpu")
    calls = []

    def wrapper(x):
        calls.append(1)
        return tp.neg(inner(x))

    lib = library.Library("tp", "IMPL")
    lib.impl("exp", wrapper, "CPU")
    assert tp.exp(tp.zeros([2])).tolist() == [-1.0, -1.0]
    assert calls == [1]
    lib._destroy()
    assert tp.exp(tp.zeros([2])).tolist() == [1.0, 1.0]
    assert inner(x=tp.zeros([1])).item() == 1.0
    for wrong in (tp.zeros([1], device="meta"),):
        with pytest.raises(RuntimeError, match="without data"):
            inner(wrong)
    with pytest.raises(TypeError):
        inner(3)


def test_an_override_warns_once(ns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """9: allow_override=True says that something was there, once in the process."""
    monkeypatch.setattr(_library, "_warned", False)
    library.custom_op(f"{ns}::f", times(1.0), mutates_args=())
    with library.Library(ns, "FRAGMENT") as lib:
        lib.impl("f", times(2.0), "CPU", allow_override=True)
        with pytest.warns(UserWarning, match=f"{ns}::f: a kernel for 'cpu' is registered over another"):
            lib.impl("f", times(3.0), "CPU", allow_override=True)
        lib.impl("f", times(4.0), "CPU", allow_override=True)


def test_a_destroyed_op_is_no_attribute_any_more(ns: str) -> None:
    """9: the look-up that was kept goes with the op."""
    lib = library.Library(ns, "DEF")
    lib.define("f(Tensor x) -> Tensor")
    space = getattr(tp.ops, ns)
    assert space.f.name == f"{ns}::f"
    lib._destroy()
    assert not hasattr(space, "f")
    with pytest.raises(RegistrationError, match="was destroyed") as e:
        lib.impl("f", times(1.0), "CPU")
    assert e.value.code == "TP1332"


def test_namespaces_may_begin_with_an_underscore(ns: str) -> None:
    """9."""
    library.custom_op(f"_{ns}::f", times(2.0), mutates_args=())
    assert getattr(tp.ops, f"_{ns}").f(X).tolist() == [2.0, 2.0]
    with pytest.raises(AttributeError):
        tp.ops._nothing_here


def test_a_waiting_kernel_that_does_not_fit_leaves_no_op(ns: str) -> None:
    """9: the definition fails as a whole, and the others wait on."""
    library.impl(f"{ns}::f", "cpu", times(2.0))
    library.impl(f"{ns}::f", "default", lambda: 3)
    with pytest.raises(ValueError, match="does not fit"):
        library.define(f"{ns}::f", "(Tensor x) -> Tensor")
    assert not library.has_op(f"{ns}::f")
    assert library.define(f"{ns}::f", "(Tensor x) -> Tensor")(X).tolist() == [2.0, 2.0]


def test_switches_may_end_in_any_order(ns: str) -> None:
    """4.2, 4.4: each context takes back its own word."""
    op = library.custom_op(f"{ns}::f", times(1.0), mutates_args=())
    op.register_kernel("cpu", times(10.0))
    off, on = op.set_kernel_enabled("cpu", False), op.set_kernel_enabled("cpu", True)
    off.__enter__()
    on.__enter__()
    assert op(X)[0].item() == 10.0
    off.__exit__(None, None, None)
    assert op(X)[0].item() == 10.0
    with pytest.raises(LookupError), op.set_kernel_enabled("cpu", False):
        library.get_kernel(op, "cpu")
    assert library.get_kernel(op, "cpu")(X)[0].item() == 10.0
    on.__exit__(None, None, None)
    assert op(X)[0].item() == 10.0


def test_a_keyword_only_tensor_is_no_input(ns: str) -> None:
    """3.5: its gradient would have no place; outputs that are passed in have the tag."""

    def f(x: tp.Tensor, *, w: tp.Tensor) -> tp.Tensor:
        return x * w

    with pytest.raises(NotImplementedError, match="'w' is a keyword-only Tensor") as e:
        library.custom_op(f"{ns}::f", f, mutates_args=())
    assert (type(e.value), e.value.code) == (UnsupportedError, "TP1328")
    with pytest.raises(NotImplementedError):
        library.custom_op(f"{ns}::f", f, mutates_args=(), schema="(Tensor x, *, Tensor? w) -> Tensor")
    assert not library.has_op(f"{ns}::f")


def test_the_gradient_of_a_keyword_only_tensor_is_never_dropped(ns: str) -> None:
    """3.5: a defined op may have one; asking for its gradient is an error, not None."""
    op = library.define(f"{ns}::g", "(Tensor x, *, Tensor w) -> Tensor")
    library.impl(f"{ns}::g", "cpu", lambda x, w: x * w)
    op.register_autograd(lambda ctx, g: g)
    x = tp.ones([2]).requires_grad_()
    op(x, w=X).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="keyword-only argument 'w' requires a gradient") as e:
        op(X, w=x)
    assert e.value.code == "TP3024"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda op: op.register_kernel(lambda x: x), "needs a device type"),
        (lambda op: op.register_kernel("cpu", times(1.0), when=True), "when= must be callable"),
        (lambda op: op.register_kernel("cpu", times(1.0), name=3), "name of a kernel is a string"),
        (lambda op: op.register_kernel("cpu", times(1.0), layout="contiguous"), "layout maps argument names"),
        (lambda op: op.register_kernel([], times(1.0)), "list of device types is empty"),
        (lambda op: op.register_kernel(3, times(1.0)), "3 is no device type"),
    ],
)
def test_registrations_of_the_wrong_kind(ns: str, change, error: str) -> None:
    """3.13, 4.1: refused where they are made."""
    op = library.custom_op(f"{ns}::f", times(1.0), mutates_args=())
    with pytest.raises((TypeError, ValueError), match=error) as e:
        change(op)
    assert e.value.code.startswith("TP13")
    op.register_kernel(tp.device("cpu"), times(2.0))
    assert op(X)[0].item() == 2.0


def test_an_op_without_tensors_needs_a_device(ns: str) -> None:
    """3.14: for kernels registered later too."""
    op = library.custom_op(f"{ns}::f", lambda n: tp.ones([n]), mutates_args=(), schema="(int n) -> Tensor")
    with pytest.raises(ValueError, match="nothing says which device") as e:
        op.register_kernel("cpu", lambda n: tp.zeros([n]))
    assert e.value.code == "TP1327"


def test_a_call_without_a_kernel_leaves_an_event(ns: str) -> None:
    """Which kernels were asked, and why none ran."""
    op = library.define(f"{ns}::f(Tensor x) -> Tensor")
    op.register_kernel("cpu", times(1.0), when=lambda x: False)
    with pytest.raises(NotImplementedError), tp.trace() as events:
        op(X)
    (event,) = events.of(f"{ns}::f")
    assert event.marker.executor == "none"
    assert [(name, reason.kind) for name, reason in event.rejected] == [("default", "Predicate")]
    assert issubclass(CapabilityError, RuntimeError)


@pytest.mark.parametrize(
    "late",
    [
        lambda ns, lib: lib.define("late(Tensor x) -> Tensor"),
        lambda ns, lib: library.define(f"{ns}::late", "(Tensor x) -> Tensor", lib=lib),
        lambda ns, lib: lib.impl("f", times(9.0), "CPU"),
        lambda ns, lib: library.impl(f"{ns}::f", "cpu", times(9.0), lib=lib),
        lambda ns, lib: library.register_kernel(f"{ns}::f", "cpu", times(9.0), lib=lib),
        lambda ns, lib: library.register_fake(f"{ns}::f", tp.empty_like, lib=lib),
        lambda ns, lib: library.register_autograd(f"{ns}::f", lambda ctx, g: g, lib=lib),
        lambda ns, lib: library.register_vmap(f"{ns}::f", lambda info, dims, x: (x, dims[0]), lib=lib),
    ],
)
def test_a_library_that_ended_registers_nothing(ns: str, late) -> None:
    """9: what it is given afterwards is refused before anything of it is in force."""
    op = library.custom_op(f"{ns}::f", times(2.0), mutates_args=())
    lib = library.Library(ns, "FRAGMENT")
    lib._destroy()
    with pytest.raises(RegistrationError, match="was destroyed") as e:
        late(ns, lib)
    assert e.value.code == "TP1332"
    assert library.list_ops(ns) == [f"{ns}::f"]
    assert op(X).tolist() == [2.0, 2.0]
    assert [op.to_dict()[rule]["kind"] for rule in ("fake", "autograd")] == ["missing", "missing"]


def test_a_library_is_neither_copied_nor_pickled(ns: str) -> None:
    """9: the end of a copy would end the ops of the library."""
    lib = library.Library(ns, "FRAGMENT")
    op = lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", times(2.0), "CPU")
    for twice in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            twice(lib)
    gc.collect()
    assert op(X).tolist() == [2.0, 2.0]
