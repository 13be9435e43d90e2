"""What a library's registrations keep alive: a library that only they refer to is garbage, and they go with it."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest

import tensorplay as tp
from tensorplay import library

X = tp.ones([2])


class Held:
    """Something that closures hold and a test can watch."""


def alive(dead: list[weakref.ref[Held]]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in dead)


def in_cycle(ns: str, part: str, called: bool) -> weakref.ref[Held]:
    """A library that its own kernel, fake rule or another part refers to, dropped."""
    held = Held()
    lib = library.Library(ns, "FRAGMENT")
    op = lib.define("f(Tensor x) -> Tensor")
    box = [lib, held]
    lib.impl("f", lambda x: (box if part == "kernel" else 0, x * 2.0)[1], "CPU")
    if part == "fake":
        library.register_fake(op, lambda x: (box, tp.empty_like(x))[1], lib=lib)
    if part == "backward":
        op.register_autograd(lambda ctx, g: (box, g * 2.0)[1])
    if part == "vmap":
        op.register_vmap(lambda info, dims, x: (box, x * 2.0, dims[0])[1:])
    if part == "kept kernel":
        op.register_kernel("cpu", lambda x: (box, x * 2.0)[1], name="other", when=lambda x: bool(box))
    if part == "waiting":
        lib.impl("never", lambda x: (box, x)[1], "CPU")
    if called:
        x = tp.tensor([1.0, 1.0], requires_grad=True) if part == "backward" else X
        y = op(x)
        assert y.tolist() == [2.0, 2.0]
        if part == "backward":
            y.sum().backward()
        if part == "fake":
            assert tp.compile(lambda x: op(x))(X).tolist() == [2.0, 2.0]
    return weakref.ref(held)


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("part", ["kernel", "fake", "backward", "vmap", "kept kernel", "waiting"])
def test_a_library_that_only_its_own_functions_hold_is_garbage(ns: str, part: str, called: bool) -> None:
    """3.16, H7: under one name each, and again and again under one name."""
    assert alive([in_cycle(f"{ns}_{k}", part, called) for k in range(10)]) == 0
    assert not any(library.has_op(f"{ns}_{k}::f") for k in range(10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert alive([in_cycle(ns, part, called) for _ in range(50)]) == 0
    assert not library.has_op(f"{ns}::f")


def test_a_library_in_use_stays(ns: str) -> None:
    """3.16: a collection takes nothing that a handle, or the user, still reaches."""
    held = Held()
    lib = library.Library(ns, "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    box = [lib, held]
    lib.impl("f", lambda x, box=box: (box, x * 3.0)[1], "CPU")
    ref, op = weakref.ref(held), getattr(tp.ops, ns).f
    del held, box
    gc.collect()
    assert ref() is not None
    assert op(X).tolist() == [3.0, 3.0]
    kernel = library.get_kernel(op, "cpu")
    del lib
    gc.collect()
    assert kernel(X).tolist() == [3.0, 3.0]
    assert ref() is not None
    del kernel
    gc.collect()
    assert ref() is None
    with pytest.raises(tp.errors.RegistrationError, match="was unregistered"):
        op(X)


def test_a_definition_anew_keeps_nothing_of_the_one_before(ns: str) -> None:
    """3.16: kernels, fake rule, backward and batching rule of the last definition alone are alive, called or not."""

    def define() -> weakref.ref[Held]:
        held = Held()
        op = library.custom_op(f"{ns}::f", lambda x: (held, x * 2.0)[1], mutates_args=(), override=True)
        op.register_fake(lambda x: (held, tp.empty_like(x))[1])
        op.register_autograd(lambda ctx, g: (held, g * 2.0)[1])
        op.register_kernel("cpu", lambda x: (held, op, x * 2.0)[2])
        op(tp.tensor([1.0, 1.0], requires_grad=True)).sum().backward()
        return weakref.ref(held)

    dead = [define() for _ in range(20)]
    assert alive(dead) == 1
    assert dead[-1]() is not None


def test_an_op_without_a_library_stays_registered(ns: str) -> None:
    """3.16: as its docstring says; dropping the op object ends nothing."""
    held = Held()
    library.custom_op(
        f"{ns}::f", lambda x, held=held: (held, x * 2.0)[1], mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    ref = weakref.ref(held)
    del held
    assert alive([ref]) == 1
    assert getattr(tp.ops, ns).f(X).tolist() == [2.0, 2.0]
    assert "stays registered" in (library.custom_op.__doc__ or "")


@pytest.mark.parametrize("devices", ["cpu", ["cpu", "cuda"], None])
@pytest.mark.parametrize("name", ["default", "mine"])
def test_the_body_answers_where_the_kernels_of_a_device_are_disabled(ns: str, devices, name: str) -> None:
    """E2, 4.2: the same with the body on named devices as with one for all."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=(), device_types=devices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f.register_kernel("cpu", lambda x: x * 3.0, name=name)
        f.register_kernel("cpu", lambda x: x * 5.0, name=name)
    assert f(X).tolist() == [5.0, 5.0]
    with f.set_kernel_enabled("cpu", False):
        assert f(X).tolist() == [2.0, 2.0]
    assert f(X).tolist() == [5.0, 5.0]


def test_parts_of_a_schema_are_immutable_records() -> None:
    """API: attributes and items; equality, hash, repr and to_dict."""
    s = library.Schema.parse("m::f(Tensor(a!) x, *, float p=0.5) -> Tensor(a!)")
    x, p = s.arguments
    assert (x.name, x.type, x.alias_info, x.mutated) == ("x", "Tensor", "(a!)", True)
    assert (p.name, p["type"], p.default, p.kwarg_only, p.alias_info) == ("p", "float", "0.5", True, None)
    assert s.returns[0].alias == 0
    assert p == s.arguments[1]
    assert hash(p) == hash(s.arguments[1])
    assert p != x
    assert repr(p).startswith("Argument(name='p', type='float'")
    assert dict(p) == p.to_dict()
    with pytest.raises(AttributeError):
        p.name = "q"
    with pytest.raises(AttributeError, match="no attribute 'size'"):
        p.size
    with pytest.raises(KeyError):
        p["size"]


def test_inplace_and_out_do_not_go_together(ns: str) -> None:
    """2.10."""
    for define in (
        lambda tags: library.define(f"{ns}::f(Tensor(a!) x) -> Tensor(a!)", tags=tags),
        lambda tags: library.custom_op(
            f"{ns}::f", lambda x: None, mutates_args="unknown", schema="(Tensor(a!) x) -> ()", tags=tags
        ),
    ):
        with pytest.raises(tp.errors.SchemaError, match="'inplace' and 'out'") as e:
            define(("inplace", "out"))
        assert e.value.code == "TP1329"


def test_an_absent_device_says_why() -> None:
    """E2: CapabilityError carries the capability, and its text the cause."""
    for make in (
        lambda: tp.ones((2,), device="cuda"),
        lambda: tp.tensor([1.0], device="cuda"),
        lambda: X.to("cuda"),
    ):
        with pytest.raises(tp.errors.CapabilityError, match="not available here: ") as e:
            make()
        assert e.value.capability is not None
        assert (e.value.capability.name, e.value.capability.available) == ("cuda", False)
        assert e.value.capability.reason in str(e.value)


def test_contexts_of_one_run_are_equal(ns: str) -> None:
    """5.1: get_ctx() twice in one rule; another run has another one."""
    seen = []
    f = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=())
    f.register_fake(lambda x: (seen.append((library.get_ctx(), library.get_ctx())), tp.empty_like(x))[1])
    tp.graph.capture(lambda x: f(f(x)), X)
    (a, b), (c, _) = seen
    assert a == b
    assert hash(a) == hash(b)
    assert a != c


def test_a_missing_backward_names_the_input(ns: str) -> None:
    """E4, 6.10."""
    f = library.custom_op(f"{ns}::f", lambda x, y: x * y, mutates_args=())
    with pytest.raises(tp.errors.AutogradError, match="and 'y' requires a gradient") as e:
        f(X, tp.tensor([1.0, 1.0], requires_grad=True)).sum().backward()
    assert e.value.code == "TP3001"
