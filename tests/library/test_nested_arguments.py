"""Tensors inside of dicts, tuples, unions and `Any`: every layer sees them, as it sees the others."""

import collections
import dataclasses

import pytest

import tensorplay as tp
from tensorplay import errors, library

Pair = collections.namedtuple("Pair", "one two")


@dataclasses.dataclass(frozen=True)
class Box:
    inside: object
    label: str = "box"


def of(wrap, schema):
    """A schema type, how a tensor gets into such an argument, and how a body finds it again."""
    return pytest.param(schema, *wrap, id=schema)


# Schema type, tensor to argument, argument to tensor.
PLACES = [
    of((lambda t: {"k": t}, lambda a: a["k"]), "Dict(str, Tensor)"),
    of((lambda t: (t, 1), lambda a: a[0]), "(Tensor, int)"),
    of((lambda t: t, lambda a: a), "Union(Tensor, int)"),
    of((lambda t: t, lambda a: a), "Any"),
    pytest.param("Any", lambda t: {"k": [t, 1]}, lambda a: a["k"][0], id="Any: dict of list"),
    pytest.param("Any", lambda t: Pair(0, (t,)), lambda a: a.two[0], id="Any: named tuple"),
    pytest.param("Any", lambda t: Box({"k": t}), lambda a: a.inside["k"], id="Any: dataclass"),
    pytest.param("Any", lambda t: {t}, lambda a: next(iter(a)), id="Any: set"),
]
places = pytest.mark.parametrize(("declared", "wrap", "get"), PLACES)


def op(name, declared, body, returns="Tensor"):
    return library.custom_op(
        name, lambda x: body(x), mutates_args=(), schema=f"({declared} x) -> {returns}", override=True
    )


@places
def test_a_gradient_through_a_carried_argument_is_refused(ns, declared, wrap, get):
    """6.1: a tensor that requires a gradient is never carried silently; without grad mode it is a plain value."""
    f = op(f"{ns}::grad", declared, lambda a: get(a) * 2.0)
    x = tp.ones((2,)).requires_grad_()
    with pytest.raises(errors.AutogradError, match="argument 'x'") as raised:
        f(wrap(x))
    assert raised.value.code == "TP3023"
    with tp.no_grad():
        assert f(wrap(x)).tolist() == [2.0, 2.0]
    assert f(wrap(x.detach())).tolist() == [2.0, 2.0]


@places
def test_a_returned_tensor_of_a_carried_argument_is_an_alias(ns, declared, wrap, get):
    """3.6: an output that is a tensor inside of an argument, or a view of one, is refused wherever it lay."""
    x = tp.ones((2, 3))
    for name, body in (("same", get), ("view", lambda a: get(a)[0])):
        with pytest.raises(errors.ContractError, match="argument 'x'") as raised:
            op(f"{ns}::{name}", declared, body)(wrap(x))
        assert raised.value.code == "TP3203"
    assert op(f"{ns}::fresh", declared, lambda a: get(a).clone())(wrap(x)).shape == (2, 3)


@places
def test_debug_checks_see_writes_inside_of_carried_arguments(ns, declared, wrap, get):
    """3.8: an undeclared write is found bit by bit, wherever the tensor lay."""
    f = op(f"{ns}::writes", declared, lambda a: (get(a).numpy().__iadd__(1.0), get(a) * 2.0)[1])
    with library.debug_checks(), pytest.raises(errors.ContractError) as raised:
        f(wrap(tp.ones((2,))))
    assert raised.value.code == "TP3241"


@pytest.mark.thread_unsafe(reason="verify watches the state of the process")
@places
def test_verify_finds_writes_inside_of_carried_arguments(ns, declared, wrap, get):
    """3.8: so does verify."""
    f = op(f"{ns}::verified", declared, lambda a: (get(a).add_(1.0), get(a) * 2.0)[1])
    report = tp.verify(f, (wrap(tp.ones((2,))),), sweep=False)
    looked_into = isinstance(wrap(0), (dict, tuple, int))
    found = "inputs unchanged" if looked_into else "repeated calls agree"
    assert any(check.name == found for check in report.failures), report.text()


@places
@pytest.mark.filterwarnings("ignore:vmap")
def test_vmap_batches_tensors_inside_of_carried_arguments(ns, declared, wrap, get):
    """8.1: each sample is a call of its own, in the same nest; batched at two levels too."""
    f = op(f"{ns}::batched", declared, lambda a: get(a) * 2.0)
    x = tp.reshape(tp.arange(6, dtype=tp.float32), (2, 3))
    assert tp.func.vmap(lambda q: f(wrap(q)))(x).tolist() == (x * 2.0).tolist()
    assert tp.func.vmap(tp.func.vmap(lambda q: f(wrap(q))))(x).tolist() == (x * 2.0).tolist()


def test_a_batching_rule_gets_nests_of_batches_and_of_axes(ns):
    """8.1: the rule of an op sees the whole batch where the sample lay, and its axis in an equal nest."""
    f = op(f"{ns}::ruled", "Any", lambda a: a["k"][0] * a["n"])
    seen = []

    def rule(info, in_dims, a):
        seen.append(in_dims)
        return a["k"][0] * a["n"], 0

    f.register_vmap(rule)
    x = tp.ones((2, 3))
    assert tp.func.vmap(lambda q: f({"k": [q], "n": 3.0}))(x).tolist() == (x * 3.0).tolist()
    assert seen == [({"k": [0], "n": None},)]


@places
def test_a_tensor_on_meta_inside_of_an_argument_runs_no_kernel(ns, declared, wrap, get):
    """4.1: the device of a carried tensor chooses the kernel, as that of any other."""
    ran = []
    f = op(f"{ns}::where", declared, lambda a: (ran.append(1), get(a) * 2.0)[1])
    f.register_fake(lambda a: tp.empty_like(get(a)))
    out = f(wrap(tp.empty((3,), device="meta")))
    assert (out.device.type, out.shape, ran) == ("meta", (3,), [])


@places
def test_autocast_reaches_tensors_inside_of_carried_arguments(ns, declared, wrap, get):
    """G14: what an op with a policy carries is cast too, in a nest of its own; the caller's stays as it was."""
    dtypes = []
    f = op(f"{ns}::cast", declared, lambda a: (dtypes.append(get(a).dtype), get(a) * 2.0)[1])
    f.register_autocast("cpu", tp.bfloat16)
    x = tp.ones((2,))
    given = wrap(x)
    with tp.autocast("cpu", dtype=tp.bfloat16):
        assert f(given).dtype == tp.bfloat16
    assert dtypes == [tp.bfloat16]
    assert get(given) is x


@places
def test_the_fake_kernel_of_debug_checks_gets_fakes_inside_of_carried_arguments(ns, declared, wrap, get):
    """5.1: the fake rule never meets values, wherever they lie."""
    f = op(f"{ns}::faked", declared, lambda a: get(a) * 2.0)
    met = []
    f.register_fake(lambda a: (met.append(get(a)), tp.empty_like(get(a)))[1])
    with library.debug_checks():
        assert f(wrap(tp.ones((2,)))).tolist() == [2.0, 2.0]
    with pytest.raises(errors.CaptureError):
        met[0].tolist()


def test_plain_values_in_unions_and_any_are_captured(ns):
    """C1: a tensor or a number where the schema leaves the type open is an operand like any other."""
    f = op(f"{ns}::open", "Any", lambda a: a + 1.0 if isinstance(a, tp.Tensor) else tp.full((2,), float(a)))
    f.register_fake(lambda a: tp.empty_like(a) if isinstance(a, tp.Tensor) else tp.empty((2,)))
    x = tp.ones((2,))
    assert tp.compile(lambda q: f(q) * 2.0)(x).tolist() == [4.0, 4.0]
    assert tp.compile(lambda q: f(3) + q)(x).tolist() == [4.0, 4.0]
    with pytest.raises(errors.CaptureError) as raised:
        tp.compile(lambda q: f([q]))(x)
    assert raised.value.code == "TP4006"


def test_tensors_inside_of_a_result_are_refused(ns):
    """3.7: a dict of tensors as a result of type Any would hide what they share and their gradients."""
    f = library.custom_op(
        f"{ns}::gives", lambda x: {"a": [x]}, mutates_args=(), schema="(Tensor x) -> Any", override=True
    )
    with pytest.raises(errors.ContractError, match="output 0") as raised:
        f(tp.ones((2,)))
    assert raised.value.code == "TP3202"
    assert any("a result of its own" in note for note in raised.value.__notes__)


def test_an_argument_that_holds_itself_is_walked_once(ns):
    """A list that holds itself ends nowhere, and still is an argument."""
    loop = [tp.ones((2,))]
    loop.append(loop)
    f = op(f"{ns}::loop", "Any", lambda a: a[0] * 2.0)
    assert f(loop).tolist() == [2.0, 2.0]
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert op(f"{ns}::deep", "Any", lambda a: tp.ones((1,)))(deep).tolist() == [1.0]
    while deep:
        deep = deep[0]


# ---- results without data ----


@pytest.fixture
def leaked():
    kept = []
    tp.graph.capture(lambda a: (kept.append(a), a + 1.0)[1], tp.ones((3,)))
    return {"meta": lambda: tp.empty((3,), device="meta"), "fake": lambda: kept[0]}


@pytest.mark.parametrize("which", ["meta", "fake"])
def test_a_kernel_that_ran_on_values_returns_values(ns, leaked, which):
    """3.7: a tensor without data out of a kernel is an error that names op and output, whatever the schema."""
    make, x = leaked[which], tp.ones((3,))
    one = library.custom_op(f"{ns}::one", lambda x: make(), mutates_args=())
    two = library.custom_op(
        f"{ns}::two", lambda x: (x * 1.0, make()), mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor)"
    )
    many = library.custom_op(
        f"{ns}::many", lambda x: [x * 1.0, make()], mutates_args=(), schema="(Tensor x) -> Tensor[]"
    )
    keyed = library.custom_op(
        f"{ns}::keyed", lambda x, n=1: make(), mutates_args=(), schema="(Tensor x, int n=1) -> Tensor"
    )
    for f, i in ((one, 0), (two, 1), (many, 0), (keyed, 0)):
        for call in (f, library.get_kernel(f, "default")):
            if call is not f and not isinstance(call, type(library.get_kernel("tp::add", "cpu"))):
                continue
            with pytest.raises(errors.ContractError, match=f"output {i} is a tensor without data") as raised:
                call(x)
            assert (raised.value.code, raised.value.op) == ("TP3216", f.name)


@pytest.mark.thread_unsafe(reason="registers kernels for built-in ops, which the other threads call")
def test_a_kernel_for_a_built_in_op_returns_values(ns, leaked):
    """3.7: the same for a kernel that stands in front of a built-in one."""
    with library.Library("tp", "IMPL") as lib:
        lib.impl("expm1", lambda x: tp.empty((3,), device="meta"), "CPU")
        with pytest.raises(errors.ContractError) as raised:
            tp.expm1(tp.ones((3,)))
        assert (raised.value.code, raised.value.op) == ("TP3216", "tp::expm1")
    assert tp.expm1(tp.zeros((1,))).tolist() == [0.0]


def test_a_fake_rule_on_another_device_makes_no_outputs_without_data(ns):
    """3.7: a kernel that fills its outputs is held to the same, whatever the fake rule promised."""
    f = library.define(f"{ns}::fills", "(Tensor x) -> Tensor")
    f.register_fake(lambda x: tp.empty((3,), device="meta"))
    f.register_kernel("cpu", lambda x, out: None, out=True)
    with pytest.raises(errors.ContractError) as raised:
        f(tp.ones((3,)))
    assert raised.value.code == "TP3216"


def test_a_call_on_meta_may_return_meta(ns):
    """4.1: without values there are none to return."""
    f = library.custom_op(f"{ns}::meta", lambda x: x * 2.0, mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))
    assert f(tp.empty((3,), device="meta")).device.type == "meta"
