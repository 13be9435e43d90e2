"""Every public callable, with arguments that it does not take: whatever it raises is ours, with a code."""

import inspect
import itertools
import re
import warnings

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
    except ValueError as e:
        # An unknown backend or policy is a plain ValueError by the rulings of the contract.
        return None if name == "tensorplay.compile" else e
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
def test_a_wrong_argument_is_an_error_with_a_code(name):
    """8.1: every public function, class and method, every position and keyword: ours and coded, or Python's count."""
    value = PUBLIC[name]

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
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(call, said):
    """8.1: the function, the argument, what it takes and what it got."""
    with pytest.raises(errors.TensorPlayError) as raised:
        call()
    assert said in str(raised.value)


def test_what_a_library_is_refused_for_is_the_namespace():
    """2.9: the text speaks of the namespace that was given, not of an op that nobody named."""
    for ns, text in (("tp", "the namespace 'tp' is reserved"), ("q::z", "'q::z' is no namespace")):
        with pytest.raises(errors.TensorPlayError, match=text):
            library.Library(ns, "DEF")


def test_a_kernel_that_is_not_there_is_a_lookup_error_of_ours():
    """4.9: LookupError for whoever expects one, with code and op."""
    with pytest.raises(LookupError) as raised:
        library.get_kernel("tp::add", "cuda")
    assert isinstance(raised.value, errors.RegistrationError)
    assert (raised.value.code, raised.value.op) == ("TP1321", "tp::add")


def test_an_exception_of_the_arguments_own_passes_unchanged():
    """8.4: what an object's `__index__` raises is its author's."""

    class Angry:
        def __index__(self):
            raise ZeroDivisionError("mine")

    for call in (tp.manual_seed, tp.set_num_threads, lambda n: tp.ones((4,)).chunk(n)):
        with pytest.raises(ZeroDivisionError, match="mine") as raised:
            call(Angry())
        assert not hasattr(raised.value, "code")
