"""Names, redefinition, kernels and the op object: what people inspect and rely on."""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import json
import os
import pickle
import threading
import warnings
from pathlib import Path

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import NoKernelError, RegistrationError, SchemaError

THIS = os.path.abspath(__file__)  # noqa: PTH100


@pytest.mark.parametrize(
    "name", ["noscope", "ns::1bad", "", "a::b::c", "ns::", "::f", "ns::a.b", "n s::f", "ns::é"]
)
def test_bad_names(name: str) -> None:
    """L04."""
    with pytest.raises(ValueError, match="is no op name"):
        library.custom_op(name, lambda x: x, mutates_args=())


@pytest.mark.parametrize("name", ["tp::mul", "tp::brand_new", "tensorplay::add", "prim::f"])
def test_reserved_namespaces(name: str) -> None:
    """W17."""
    with pytest.raises(RegistrationError, match="reserved"):
        library.custom_op(name, lambda x: x, mutates_args=())
    with pytest.raises(RegistrationError, match="reserved"):
        library.define(name, "(Tensor x) -> Tensor")


def module(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


SOURCE = """
import tensorplay as tp
from tensorplay import Tensor, library

@library.custom_op("{ns}::f", mutates_args=())
def f(x: Tensor{extra}) -> Tensor:
    return x * {k}
"""


def test_the_same_place_replaces_with_one_warning(ns: str, tmp_path: Path) -> None:
    """A module loaded twice, under another name, and edited: the op is the same object with the new body."""
    path = tmp_path / "ops.py"
    path.write_text(SOURCE.format(ns=ns, k=2, extra=""))
    first = module(path, "one").f
    with pytest.warns(
        UserWarning, match=f"{ns}::f was defined again at .*ops.py:5 .*nothing in its contract changed"
    ):
        assert module(path, "two").f is first
    path.write_text("# a new first line\n" + SOURCE.format(ns=ns, k=3, extra=", n: int = 1"))
    os.utime(path, ns=(1, 1))
    with pytest.warns(
        UserWarning, match=rf"schema was {ns}::f\(Tensor x\) -> Tensor, is .*SymInt n=1.*the body changed"
    ) as w:
        module(path, "three")
    assert len(w) == 1
    assert first(tp.ones([1])).tolist() == [3.0]
    assert str(first.schema) == f"{ns}::f(Tensor x, SymInt n=1) -> Tensor"


def test_replacing_drops_what_was_registered(ns: str) -> None:
    def define():
        @library.custom_op(f"{ns}::f", mutates_args=())
        def f(x: Tensor) -> Tensor:
            return x * 2

        return f

    f = define()
    f.register_kernel("cpu", lambda x: x * 10)
    f.register_fake(lambda x: tp.empty_like(x))
    f.register_autograd(lambda ctx, g: g)
    assert f(tp.ones([1])).tolist() == [10.0]
    with pytest.warns(UserWarning, match="was defined again"):
        assert define() is f
    assert f(tp.ones([1])).tolist() == [2.0]
    assert list(f.kernels) == ["default"]
    assert "fake     missing" in repr(f)
    assert "autograd missing" in repr(f)


def test_a_notebook_cell_replaces(ns: str) -> None:
    """Cells have no file: an edited cell has another file name, and still is the same place."""
    text = f"def f(x):\n    return x * {{k}}\nop = library.custom_op('{ns}::f', f, mutates_args=())\n"
    for k, file in ((2, "/tmp/ipykernel_77/123.py"), (3, "/tmp/ipykernel_77/456.py")):
        namespace = {"library": library, "__name__": "__main__"}
        code = compile(text.format(k=k), file, "exec")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(code, namespace)
        assert len(caught) == (k == 3)
    assert namespace["op"](tp.ones([1])).tolist() == [3.0]
    assert "<notebook cell>:1" in repr(namespace["op"])


def test_another_place_is_an_error(ns: str) -> None:
    """L05: both places and the first part that differs; override=True replaces."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> Tensor:
        return x * 2

    def other(x: Tensor, k: int) -> Tensor:
        return x * k

    with pytest.raises(RegistrationError, match="already defined") as e:
        library.custom_op(f"{ns}::f", other, mutates_args=())
    lines = [inspect.unwrap(g).__code__.co_firstlineno for g in (f, other)]
    assert all(f"{THIS}:{line}" in str(e.value) for line in lines)
    assert e.value.__notes__[0].startswith(f"first difference: schema was {ns}::f(Tensor x) -> Tensor, is")
    assert e.value.code == "TP1302"
    assert f(tp.ones([1])).tolist() == [2.0]
    assert library.custom_op(f"{ns}::f", other, mutates_args=(), override=True)(tp.ones([1]), 5).tolist() == [
        5.0
    ]


def test_two_definitions_in_one_file_are_two_places(ns: str, tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    once = SOURCE.format(ns=ns, k=2, extra="")
    path.write_text(once + once.split("\n\n", 1)[1])
    with pytest.raises(RegistrationError, match=r"twice\.py:5, and defined again at .*twice\.py:\d+"):
        module(path, "twice")


def test_the_op_object(ns: str) -> None:
    """W17: signature, docstring, pickling, copying and the printed form."""

    @library.custom_op(f"{ns}::f", mutates_args=("out",), effects="random", deterministic=False, tags="mine")
    def f(x: Tensor, out: Tensor, k: float = 2.0) -> None:
        """Writes."""
        out.copy_(x * k)

    assert (f.__name__, f.__qualname__.split(".")[-1], f.__doc__, f.__module__) == (
        "f",
        "f",
        "Writes.",
        __name__,
    )
    assert str(inspect.signature(f)) == "(x: 'Tensor', out: 'Tensor', k: 'float' = 2.0) -> 'None'"
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.copy(f) is f
    assert copy.deepcopy({"op": f})["op"] is f
    assert f.name == f"{ns}::f"
    assert f.effects == ("mutates", "random", "nondeterministic")
    assert f.mutates_args == frozenset({"out"})
    assert f.tags == ("mine",)
    assert f.overloads() == ["default"]
    assert (f.kernels["default"][0].name, f.kernels["default"][0].executor) == ("default", "python")
    line = inspect.unwrap(f).__code__.co_firstlineno
    text = repr(f)
    assert text.splitlines()[0] == f"<custom_op {ns}::f>"
    assert f"{ns}::f(Tensor x, Tensor(a1!) out, float k=2.) -> ()" in text
    assert f"default: default (python, {THIS}:{line})" in text
    assert "fake     not needed (returns nothing)" in text
    assert str(f) == f"<custom_op {ns}::f>"
    assert {f: 1}[f] == 1


def test_ops_are_found_by_name(ns: str) -> None:
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    assert getattr(tp.ops, ns).f is f
    assert getattr(tp.ops, ns).f.default is f
    assert library.get_op(f"{ns}::f") is f
    assert library.has_op(f"{ns}::f")
    assert not library.has_op(f"{ns}::g")
    assert library.list_ops(ns) == [f"{ns}::f"]
    assert "tp::mul" in library.list_ops()
    assert tp.ops.tp.mul(tp.ones([1]), 3.0).tolist() == [3.0]
    assert tp.ops.tp.mul is library.get_op("tp::mul")
    assert set(tp.ops.tp.mul.overloads()) >= {"default", "Scalar", "ScalarLeft"}
    assert repr(tp.ops.tp.mul).startswith("<op tp::mul>")
    with pytest.raises(RegistrationError, match=f"no operator named '{ns}::g'"):
        library.get_op(f"{ns}::g")
    with pytest.raises(AttributeError, match=f"no operator '{ns}::g'"):
        getattr(tp.ops, ns).g
    with pytest.raises(AttributeError, match="no operator is defined in a namespace 'nowhere'"):
        tp.ops.nowhere
    with pytest.raises(AttributeError, match="no attribute or overload 'nope'"):
        f.nope


def test_a_given_schema_is_checked_against_the_function(ns: str) -> None:
    def f(x, k, *, s=1.0):
        return x * k * s

    op = library.custom_op(
        f"{ns}::f", f, mutates_args=(), schema="(Tensor x, float k=2.0, *, float s=1.0) -> Tensor"
    )
    assert op(tp.ones([1]), s=4.0).tolist() == [8.0]
    for text, why in [
        ("(Tensor x) -> Tensor", "it needs 'k', which the schema lacks"),
        ("(Tensor x, float k, float q) -> Tensor", "takes 2 positional arguments, the schema has 3"),
        ("(Tensor x, float q) -> Tensor", "its parameter 'k' stands where the schema has 'q'"),
        ("(Tensor x, float k, *, float t=1.0) -> Tensor", "does not take the keyword-only argument 't'"),
        ("(Tensor(a!) x, float k) -> Tensor", r"mutates_args has \[\], the schema writes to \['x'\]"),
        ("other::f(Tensor x, float k) -> Tensor", "the schema is of 'other::f'"),
        ("(Tensor x, @@@) -> Tensor", "expected"),
    ]:
        with pytest.raises(SchemaError, match=why):
            library.custom_op(f"{ns}::bad", f, mutates_args=(), schema=text)
    assert not library.has_op(f"{ns}::bad")


def test_devices_and_ops_without_tensors(ns: str) -> None:
    def make(n: int, device: tp.device) -> Tensor:
        return tp.zeros([n])

    only_cpu = library.custom_op(f"{ns}::make", make, mutates_args=(), device_types="cpu")
    assert only_cpu(3, "cpu").shape == (3,)
    with pytest.raises(NoKernelError, match="no kernel for device 'cuda'"):
        only_cpu(3, "cuda")
    with pytest.raises(ValueError, match="nothing says which device"):
        library.custom_op(f"{ns}::bad", lambda: tp.zeros([1]), mutates_args=(), device_types=["cpu"])
    with pytest.raises(ValueError, match="'gpu' is no device type"):
        library.custom_op(f"{ns}::bad", lambda x: x * 1, mutates_args=(), device_types="gpu")


def test_a_later_kernel_for_one_of_several_devices(ns: str) -> None:
    """E2: the later kernel is used, and disabling it falls back to the default body."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    f.register_kernel(["cpu", "cuda"], lambda x: x * 2)
    f.register_kernel("cpu", lambda x: x * 3)
    x = tp.ones([1])
    assert f(x).tolist() == [3.0]
    with f.set_kernel_enabled("cpu", enabled=False):
        assert f(x).tolist() == [1.0]
    assert f(x).tolist() == [3.0]


def test_several_kernels_for_one_device(ns: str) -> None:
    """Newest first; predicates and layouts decide; every kernel passed over is listed with its reason."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())

    def large(x):
        return x.shape[0] > 2

    f.register_kernel("cpu", lambda x: x * 2, name="plain")
    f.register_kernel("cpu", lambda x: x * 3, name="flat", layout={"x": "contiguous"})
    f.register_kernel("cpu", lambda x: x * 4, name="large", when=large)
    assert [k.name for k in f.kernels["cpu"]] == ["large", "flat", "plain"]
    with tp.trace() as events:
        assert f(tp.ones([3])).tolist() == [4.0] * 3
        assert f(tp.ones([2])).tolist() == [3.0] * 2
        assert f(tp.ones([2, 2]).T).tolist() == [[2.0, 2.0]] * 2
    mine = events.of(f"{ns}::f")
    assert [e.marker.kernel.split("/")[-1] for e in mine] == ["large", "flat", "plain"]
    assert [[(name, r.kind) for name, r in e.rejected] for e in mine] == [
        [],
        [("large", "Predicate")],
        [("large", "Predicate"), ("flat", "Layout")],
    ]
    with f.prefer("plain"), tp.trace() as events:
        assert f(tp.ones([3])).tolist() == [2.0] * 3
    assert events.of(f"{ns}::f")[0].marker.kernel.endswith("plain")
    with pytest.raises(
        RegistrationError, match="no kernel named 'fast'; its kernels are large, flat, plain, default"
    ):
        f.prefer("fast")


def test_switches_belong_to_the_thread(ns: str) -> None:
    """H4."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    f.register_kernel("cpu", lambda x: x * 2)
    found = []
    with f.set_kernel_enabled("cpu", enabled=False):
        thread = threading.Thread(target=lambda: found.append(f(tp.ones([1])).item()))
        thread.start()
        thread.join()
        found.append(f(tp.ones([1])).item())
    assert found == [2.0, 1.0]


def test_disabled_before_it_is_registered(ns: str) -> None:
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=())
    switch = f.set_kernel_enabled("cpu", enabled=False)
    with pytest.warns(UserWarning, match="has no kernel for 'cpu' to disable"):
        switch.__enter__()
    try:
        f.register_kernel("cpu", lambda x: x * 2)
        assert f(tp.ones([1])).item() == 1.0
    finally:
        switch.__exit__()
    assert f(tp.ones([1])).item() == 2.0


def test_a_kernel_must_take_the_arguments(ns: str) -> None:
    f = library.custom_op(f"{ns}::f", lambda x, y: x * y, mutates_args=())
    with pytest.raises(SchemaError, match="takes 1 positional argument, the schema has 2"):
        f.register_kernel("cpu", lambda x: x)
    with pytest.raises(SchemaError, match="takes 1 positional"):
        f.register_fake(lambda x: x)
    with pytest.raises(TypeError, match="must be callable"):
        f.register_kernel("cpu", 3)
    with pytest.raises(ValueError, match="'gpu' is no device type"):
        f.register_kernel("gpu", lambda x, y: x)
    f.register_kernel("cpu", functools.partial(lambda x, y, k: x * y * k, k=5.0))
    assert f(tp.ones([1]), tp.ones([1])).item() == 5.0


@pytest.mark.thread_unsafe(reason="registers for a built-in op, which the other threads call")
def test_kernels_for_built_in_ops() -> None:
    """W17: built-ins are ops like any other."""
    from tensorplay import _native

    before = [k.name for k in tp.ops.tp.hypot.kernels["cpu"]]
    lib = library.Library("tp", "IMPL")
    lib.impl("hypot", lambda x1, x2: x1 * 0 + 42.0, "CPU")
    with tp.trace() as events:
        assert tp.hypot(tp.ones([1]), tp.ones([1])).item() == 42.0
    assert events[-1].marker.executor == "python"
    lib._destroy()
    assert [k.name for k in tp.ops.tp.hypot.kernels["cpu"]] == before
    x, y = tp.tensor([3.0]), tp.tensor([4.0])
    with tp.trace() as events:
        z = tp.hypot(x, y)
    assert z.item() == 5.0
    assert events.executors == ("native",)
    assert _native.op_info("tp::hypot")["custom"] is False


def test_what_is_registered_as_plain_data(ns: str) -> None:
    """W17: `to_dict` of schemas and ops goes through JSON and back."""
    schema = library.Schema.parse("a::f.out(Tensor(a!) x, int[2] k=1, *, str s='y') -> (Tensor(a!) y, int)")
    facts = schema.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["name"], facts["overload"], facts["mutated"]) == ("a::f", "out", ["x"])
    assert [
        (a["name"], a["type"], a["default"], a["alias"], a["kwarg_only"]) for a in facts["arguments"]
    ] == [
        ("x", "Tensor", None, "(a!)", False),
        ("k", "int[2]", "[1, 1]", None, False),
        ("s", "str", '"y"', None, True),
    ]
    assert [(r["name"], r["alias"], r["alias_of"]) for r in facts["returns"]] == [
        ("y", "(a!)", 0),
        (None, None, None),
    ]
    f = library.custom_op(f"{ns}::f", lambda x: x * 1, mutates_args=(), effects="random", tags=("mine",))
    f.register_kernel("cpu", lambda x: x * 2, name="fast", when=lambda x: True)

    def fake(x: Tensor) -> Tensor:
        return tp.empty_like(x)

    f.register_fake(fake)
    facts = f.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["name"], facts["overload"], facts["kind"]) == (f"{ns}::f", "", "custom_op")
    assert (facts["effects"], facts["tags"]) == (["random"], ["mine"])
    assert [k["name"] for k in facts["kernels"]["cpu"]] == ["fast"]
    assert facts["kernels"]["default"][0]["line"] == int(facts["location"].rpartition(":")[2])
    line = inspect.unwrap(fake).__code__.co_firstlineno
    assert facts["fake"] == {"kind": "python", "location": f"{THIS}:{line}"}
    assert facts["autograd"] == {"kind": "missing", "location": None}
    f.register_autograd(lambda ctx, g: g)
    assert f.to_dict()["autograd"]["location"].startswith(THIS)
    assert {k: v for k, v in f.to_dict().items() if k in schema.to_dict()} == f.schema.to_dict()
    assert json.dumps(tp.ops.tp.mul.to_dict())
    assert [o["overload"] for o in tp.ops.tp.mul.to_dict()["overloads"]] == ["", "Scalar", "ScalarLeft"]
