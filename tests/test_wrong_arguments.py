"""Every public callable, with arguments that it does not take: whatever it raises is ours, with a code."""

import inspect
import itertools
import re
import warnings

import numpy as np
import pytest

import tensorplay as tp
import tensorplay.testing
from tensorplay import errors, library

WRONG = {
    "None": None,
    "int": 3,
    "text": "s",
    "object": object(),
    "surrogate": "\ud800",
    "list": [],
    "dict": {},
}
MODULES = {
    "tensorplay": tp,
    "library": library,
    "autograd": tp.autograd,
    "func": tp.func,
    "graph": tp.graph,
    "testing": tensorplay.testing,
}
# An op that registrations may spoil: some wrong argument has a meaning (None takes a rule away).
VICTIM = library.custom_op("wrong::victim", lambda x: x * 2.0, mutates_args=(), override=True)
ONE = (tp.ones((2,)),)
NAN = float("nan")


def CHECK(**options):
    x = tp.ones((2,), dtype=tp.float64).requires_grad_()
    return tp.autograd.gradcheck(lambda x: x * 2.0, (x,), **options)


# Python's own way to say that a call has too many or too few arguments, or that a type has no constructor.
COUNTS = re.compile(
    r"positional argument|takes (no|exactly|at most|from) |required|unexpected keyword|keyword argument|expected at "
    r"|cannot create '.*' instances|missing \d|multiple values for argument"
)
# What a comparison says of values that differ.
VERDICTS = ("testing.assert_close", "testing.assert_equal", "library.opcheck")


def public() -> dict[str, object]:
    found = {}
    for prefix, module in MODULES.items():
        for name in module.__all__:
            value = getattr(module, name)
            raised = isinstance(value, type) and issubclass(value, BaseException)
            if callable(value) and not inspect.ismodule(value) and not raised:
                found[f"{prefix}.{name}"] = value
    for name in dir(tp.Tensor):
        if not name.startswith("_") and callable(getattr(tp.ones((2, 3)), name)):
            found[f"Tensor.{name}"] = name
    return found


PUBLIC = public()


def check(name, call, args, kwargs):
    """Runs one call; what it raises, if it is not as it should be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(*args, **kwargs)
    except errors.TensorPlayError as e:
        return None if re.fullmatch(r"TP\d{4}", e.code) and e.code not in ("TP0000", "TP9000") else e
    except OSError:
        return None  # a file that is not there
    except AssertionError as e:
        return None if name in VERDICTS else e
    except TypeError as e:
        return None if COUNTS.search(str(e)) else e
    except BaseException as e:  # a PanicException is no Exception
        return e
    return None


def positional(name):
    """Lists of arguments: all wrong, and wrong ones behind a right first argument."""
    for n, wrong in itertools.product(range(1, 5), WRONG.values()):
        yield (wrong,) * n
        for right in (tp.ones((2, 3)), VICTIM.name):
            yield (right, *(wrong,) * n)


def keywords(value):
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_wrong_argument_is_an_error_with_a_code(name, tmp_path, monkeypatch):
    """Every public function, class and method, every position and keyword: ours and coded, or Python's count."""
    value = PUBLIC[name]
    monkeypatch.chdir(tmp_path)  # some text is the name of a file that `save` may write

    def calls():
        tensor = tp.ones((2, 3))
        call = getattr(tensor, value) if isinstance(value, str) else value
        for args in positional(name):
            yield call, args, {}
        for key, wrong in itertools.product(keywords(call), WRONG.values()):
            for args in ((), (tp.ones((2, 3)),), (VICTIM.name,), ("wrong::f", lambda x: x * 2.0)):
                more = {"mutates_args": ()} if name.startswith("library.") and key != "mutates_args" else {}
                yield call, args, {key: wrong}
                if more:
                    yield call, args, more | {key: wrong}

    threads = tp.get_num_threads()
    modes = tp.is_grad_enabled()
    try:
        for call, args, kwargs in calls():
            found = check(name, call, args, kwargs)
            assert found is None, f"{name}{args!r} {kwargs!r}: {type(found).__name__}: {found}"
    finally:
        tp.set_num_threads(threads)
        tp.autograd.set_grad_enabled(modes)
        tp.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: library.Schema.parse(None), "Schema.parse: argument 'text' must be str, got NoneType"),
        (lambda: library.has_op(3), "has_op: argument 'name' must be str, got int"),
        (lambda: library.list_ops(3), "list_ops: argument 'namespace' must be str, got int"),
        (lambda: library.get_op("\ud800"), "half a surrogate pair"),
        (lambda: tp.manual_seed(-1), "argument 'seed' must be an int from 0 to 2**64 - 1, got -1"),
        (lambda: tp.manual_seed(2**64), "argument 'seed' must be an int from 0 to 2**64 - 1"),
        (lambda: tp.set_num_threads("a"), "set_num_threads: argument 'n' must be an int"),
        (lambda: library.get_kernel("tp::add", 3), "argument 'key' must be the name of a device, got int"),
        (lambda: library.impl("tp::neg", 3, lambda x: x), "impl: argument 'types'"),
        (lambda: library.custom_op("w::a", lambda x: x, mutates_args=(), schema=3), "argument 'schema'"),
        (lambda: library.register_kernel("tp::neg", "cpu", lambda x: x, lib=5), "argument 'lib' must be a Library"),
        (lambda: library.Library(None, "DEF"), "Library: argument 'ns'"),
        (lambda: tp.ones((2,)).view_as(3), "view_as: argument 'other' must be Tensor, got int"),
        (lambda: tp.ones((2,)).unbind("s"), "unbind: argument 'dim' must be int, got str"),
        (lambda: tp.ones((2,)).chunk(None), "chunk: argument 'chunks' must be int, got NoneType"),
        (lambda: tp.autograd.grad(3, tp.ones((2,))), "grad: argument 'outputs' must be a Tensor or a list"),
        (lambda: tp.autograd.backward(None), "backward: argument 'tensors'"),
        (lambda: tp.func.jvp(lambda x: x, 3, 3), "jvp: argument 'primals'"),
        (lambda: tp.graph.capture(3), "capture: argument 'fn' must be a function, got int"),
        (lambda: tp.graph.parse(None), "parse: argument 'text' must be str, got NoneType"),
        (lambda: tp.load(3), "load: argument 'path'"),
        (lambda: tp.save("unused", {1: tp.ones((2,))}), "save takes text as names of tensors"),
        (lambda: tp.save("unused", {}, metadata=3), "save: argument 'metadata'"),
        (lambda: tp.verify(VICTIM, ONE, kwargs=5), "verify: argument 'kwargs' must be a dict of keyword arguments, got int"),
        (lambda: tp.verify(VICTIM, ONE, rtol="a"), "verify: argument 'rtol' must be a number, got str"),
        (lambda: tp.verify(VICTIM, ONE, atol=-1.0), "verify: argument 'atol' must be 0 or more, got -1.0"),
        (lambda: tp.verify(VICTIM, ONE, rtol=NAN), "verify: argument 'rtol' must be 0 or more, got nan"),
        (lambda: tp.verify(VICTIM, ONE, seed="a"), "verify: argument 'seed' must be int, got str"),
        (lambda: tp.verify(VICTIM, ONE, seed=-1), "verify: argument 'seed' must be 0 or more, got -1"),
        (lambda: tp.verify(VICTIM, ONE, sweep="no"), "verify: argument 'sweep' must be True or False, got str"),
        (lambda: tp.verify(VICTIM, ONE, require=3), "verify: argument 'require'"),
        (lambda: library.opcheck(VICTIM, ONE, 5), "opcheck: argument 'kwargs' must be a dict"),
        (lambda: library.opcheck(VICTIM, ONE, test_utils=5), "opcheck: argument 'test_utils'"),
        (lambda: library.opcheck(VICTIM, ONE, rtol=NAN, atol=0.0), "argument 'rtol' must be 0 or more, got nan"),
        (lambda: VICTIM.register_kernel("cpu", lambda x: x, executor=5), "register_kernel: argument 'executor'"),
        (lambda: VICTIM.register_kernel("cpu", lambda x: x, out="yes"), "argument 'out' must be True or False"),
        (lambda: VICTIM.register_fake(lambda x: x, allow_override=5), "argument 'allow_override' must be True or False"),
        (lambda: VICTIM.set_kernel_enabled("cpu", enabled="x"), "argument 'enabled' must be True or False, got str"),
        (lambda: tp.autograd.set_grad_enabled("x"), "argument 'mode' must be True or False, got str"),
        (lambda: tp.autograd.set_detect_anomaly("x"), "argument 'mode' must be True or False, got str"),
        (lambda: library.custom_op("w::b", lambda x: x, mutates_args=(), deterministic=5), "argument 'deterministic'"),
        (lambda: library.custom_op("w::b", lambda x: x, mutates_args=(), override=5), "argument 'override'"),
        (lambda: tp.compile(lambda x: x, backend="nope"), "no backend named 'nope'; known are 'native'"),
        (lambda: tp.compile(lambda x: x, on_fallback="x"), "on_fallback must be one of 'record', 'warn', 'error' or None"),
        (lambda: tp.compile(lambda x: x, on_fallback=3), "compile: argument 'on_fallback' must be str, got int"),
        *(
            (lambda k=k, v=v: CHECK(**{k: v}), f"gradcheck: argument '{k}' must be")
            for k in ("eps", "atol", "rtol", "nondet_tol")
            for v in ("a", None, NAN, -1.0, tp.ones((1,)))
        ),
        (lambda: CHECK(eps=0.0), "gradcheck: argument 'eps' must be above 0, got 0.0"),
        *(
            (lambda k=k: CHECK(**{k: "yes"}), f"gradcheck: argument '{k}' must be True or False, got str")
            for k in ("raise_exception", "check_undefined_grad", "check_grad_dtypes", "fast_mode", "masked")
        ),
        (lambda: tensorplay.testing.assert_close(ONE[0], ONE[0], rtol=-1.0), "argument 'rtol' must be 0 or more"),
        (lambda: tensorplay.testing.assert_close(ONE[0], ONE[0], equal_nan=3), "argument 'equal_nan' must be True or"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(call, said):
    """The function, the argument, what it takes and what it got."""
    with pytest.raises(errors.TensorPlayError) as raised:
        call()
    assert said in str(raised.value)


def test_an_unknown_backend_or_policy_is_a_value_error_with_a_code():
    """ValueError for whoever expects one; the code is ours."""
    for option, code in (({"backend": "nope"}, "TP4107"), ({"on_fallback": "x"}, "TP1041")):
        with pytest.raises(ValueError) as raised:
            tp.compile(lambda x: x, **option)
        assert (type(raised.value), raised.value.code) == (errors.InvalidValueError, code)


def test_values_that_are_right_are_taken():
    """NumPy's numbers and flags, ints for floats, zero and infinity as tolerances."""
    assert CHECK(eps=np.float64(1e-6), atol=1, rtol=0, nondet_tol=1, fast_mode=np.bool_(True))
    assert (
        tp.verify(VICTIM, ONE, rtol=0, atol=np.float32(0.0), sweep=np.bool_(False), seed=np.int64(3)).seed
        == 3
    )
    with tp.autograd.set_grad_enabled(np.bool_(False)):
        assert not tp.is_grad_enabled()


def test_a_tensor_beside_something_else_is_shown_as_what_it_is():
    """No text of an empty value stands for the tensor."""
    for call in (tensorplay.testing.assert_close, tensorplay.testing.assert_equal):
        with pytest.raises(AssertionError, match=r"got a Tensor of shape \(2,\) and float32, expected 5"):
            call(ONE[0], 5)
        with pytest.raises(AssertionError, match=r"got None, expected a Tensor of shape \(2,\) and float32"):
            call(None, ONE[0])


def test_what_a_library_is_refused_for_is_the_namespace():
    """The text speaks of the namespace that was given, not of an op that nobody named."""
    for ns, text in (("tp", "the namespace 'tp' is reserved"), ("q::z", "'q::z' is no namespace")):
        with pytest.raises(errors.TensorPlayError, match=text):
            library.Library(ns, "DEF")


def test_a_kernel_that_is_not_there_is_a_lookup_error_of_ours():
    """LookupError for whoever expects one, with code and op."""
    with pytest.raises(LookupError) as raised:
        library.get_kernel("tp::add", "cuda")
    assert isinstance(raised.value, errors.RegistrationError)
    assert (raised.value.code, raised.value.op) == ("TP1321", "tp::add")


def test_an_exception_of_the_arguments_own_passes_unchanged():
    """What an object's `__index__` raises is its author's."""

    class Angry:
        def __index__(self):
            raise ZeroDivisionError("mine")

    for call in (tp.manual_seed, tp.set_num_threads, lambda n: tp.ones((4,)).chunk(n)):
        with pytest.raises(ZeroDivisionError, match="mine") as raised:
            call(Angry())
        assert not hasattr(raised.value, "code")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: tp.compile(lambda x: x, mode="fast"), "compile: unknown keyword argument 'mode'\n"),
        (
            lambda: tp.library.custom_op("kw::f", lambda x: x, mutates_arg=()),
            "custom_op: unknown keyword argument 'mutates_arg'; did you mean 'mutates_args'",
        ),
        (
            lambda: VICTIM.register_kernel("cpu", lambda x: x, wen=None),
            "register_kernel: .*did you mean 'when'",
        ),
        (lambda: tp.library.define("kw::g", "(Tensor x) -> Tensor", tag=()), "define: .*did you mean 'tags'"),
        (lambda: tp.verify(VICTIM, sed=1), "verify: .*did you mean 'seed'"),
        (lambda: tp.func.vmap(tp.sin, in_dim=0), "vmap: .*did you mean 'in_dims'"),
        (lambda: tp.autograd.grad(ONE[0], ONE[0], retain=True), "grad: unknown keyword argument 'retain'"),
    ],
)
def test_an_unknown_keyword_has_a_code_and_names_the_close_match(call, told) -> None:
    """As keywords of ops; what a function raises itself passes as it is."""
    with pytest.raises(errors.ArgumentError, match=told) as caught:
        call()
    assert caught.value.code == "TP1006"
    assert caught.value.__notes__[0].startswith("the keywords are ")
    assert caught.value.__context__ is None


def test_a_refusal_of_a_keyword_by_code_of_the_user_is_the_users() -> None:
    def bind():
        return (lambda: None)(mutates_arg=1)

    class Names:
        def __iter__(self):
            return bind()

    with pytest.raises(TypeError, match="unexpected keyword argument 'mutates_arg'") as caught:
        library.custom_op("kw::h", lambda x: x, mutates_args=Names())
    assert not isinstance(caught.value, errors.TensorPlayError)
