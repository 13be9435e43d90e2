"""What the dispatcher holds an author's function to: arguments in, results out, fake rules."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, CaptureError, ContractError


def op(name: str, fn, **options):
    return library.custom_op(name, fn, **{"mutates_args": (), **options})


def test_a_returned_input_is_refused(ns: str) -> None:
    """A1: op, output and argument are named, and the fix; honest ops chain."""

    def same(x: Tensor) -> Tensor:
        return x

    f = op(f"{ns}::same", same)
    with pytest.raises(ContractError, match=rf"{ns}::same: output 0 is argument 'x'") as e:
        f(tp.tensor([1.0]))
    assert "clone()" in e.value.__notes__[0]
    g = op(f"{ns}::g", lambda x: x + 1)
    h = op(f"{ns}::h", lambda x: x * 2)
    with tp.trace() as events:
        assert h(g(tp.tensor([1.0]))).tolist() == [4.0]
    custom = [e for e in events if e.op.startswith(ns)]
    assert [(e.op, e.marker.executor) for e in custom] == [
        (f"{ns}::g.default", "python"),
        (f"{ns}::h.default", "python"),
    ]


@pytest.mark.parametrize("body", [lambda x: x[1:], lambda x: x.detach(), lambda x: x.reshape(2, 2)])
@pytest.mark.parametrize("grad", [True, False])
def test_views_of_an_input_are_refused_under_no_grad_too(ns: str, body, grad: bool) -> None:
    """A1, A2."""
    f = op(f"{ns}::f", body)
    with (
        tp.set_grad_enabled(grad),
        pytest.raises(ContractError, match="output 0 shares memory with argument 'x'"),
    ):
        f(tp.ones([4]))


def test_one_tensor_returned_twice(ns: str) -> None:
    """A4: outputs 1 and 2 are one empty tensor."""

    def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        e = tp.empty([0])
        return x * 1, e, e

    def separate(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 1, tp.empty([0]), tp.empty([0])

    with pytest.raises(ContractError, match=r"output 2 .*output 1"):
        op(f"{ns}::twice", twice)(tp.ones([2]))
    y, a, b = op(f"{ns}::separate", separate)(tp.ones([2]))
    assert (y.tolist(), a.shape, b.shape) == ([1.0, 1.0], (0,), (0,))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda x: (x * 1, x * 2, x * 3), "returned 3 values, the schema declares 2"),
        (lambda x: (x * 1,), "returned 1 value.*, the schema declares 2"),
        (lambda x: (x * 1, None), "output 1 must be Tensor, the kernel returned None"),
        (lambda x: None, "returned no tuple"),
        (lambda x: (x * 1, 2.0), "output 1 must be Tensor, the kernel returned float"),
    ],
)
def test_results_that_do_not_fit_a_pair(ns: str, result, text: str) -> None:
    """U2."""

    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return result(x)

    with pytest.raises(ContractError, match=f"{ns}::pair: .*{text}"):
        op(f"{ns}::pair", pair)(tp.ones([2]))


def test_results_that_do_not_fit_other_schemas(ns: str) -> None:
    """U2: two values for a declared triple, None for a Tensor, a value for nothing."""

    def triple(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 1, x * 2

    def one(x: Tensor) -> Tensor:
        return None

    def nothing(x: Tensor) -> None:
        return x * 1

    x = tp.ones([2])
    with pytest.raises(ContractError, match="returned 2 values, the schema declares 3"):
        op(f"{ns}::triple", triple)(x)
    with pytest.raises(ContractError, match="output 0 must be Tensor, the kernel returned None"):
        op(f"{ns}::one", one)(x)
    with pytest.raises(ContractError, match="the schema declares nothing"):
        op(f"{ns}::nothing", nothing)(x)


def test_argument_names_of_python_and_misspelt_keywords(ns: str) -> None:
    """U3."""

    def f(self: Tensor, input: float, out: int = 1) -> Tensor:
        return self * input + out

    call = op(f"{ns}::f", f)
    x = tp.tensor([2.0])
    assert call(self=x, input=3.0, out=4).tolist() == [10.0]
    with pytest.raises(TypeError, match=r"unknown keyword argument 'inptu'; did you mean 'input'") as e:
        call(x, inptu=3.0)
    assert isinstance(e.value, ArgumentError)
    with pytest.raises(TypeError, match="missing argument 'input'"):
        call(x)
    with pytest.raises(TypeError, match="takes at most 3 positional arguments, got 4"):
        call(x, 1.0, 2, 3)
    with pytest.raises(TypeError, match="argument 'input' was given twice"):
        call(x, 1.0, input=2.0)


def test_none_and_generators_are_no_tensors_and_lists(ns: str) -> None:
    """U4."""

    def f(x: Tensor, sizes: list[int]) -> Tensor:
        return x * float(sum(sizes))

    call = op(f"{ns}::f", f)
    with pytest.raises(TypeError, match="argument 'x' must be Tensor, got None"):
        call(None, [1])
    with pytest.raises(TypeError, match=r"argument 'sizes' must be .*, got generator"):
        call(tp.ones([1]), (n for n in (1, 2)))
    assert call(tp.ones([1]), (1, 2)).tolist() == [3.0]


def test_what_a_kernel_sees(ns: str) -> None:
    """Devices and dtypes as objects, numbers as they were given, omitted defaults filled in."""
    seen = []

    def f(x: Tensor, n: int | float, d: tp.dtype, where: tp.device, k: int = 7, *, s: float = 0.5) -> Tensor:
        seen.append((n, d, str(where), k, s))
        return x * 1

    call = op(f"{ns}::f", f)
    call(tp.ones([1]), 3, tp.float64, "cpu")
    call(tp.ones([1]), 2.5, tp.int8, tp.device("cpu"), k=1, s=2)
    assert seen == [(3, tp.float64, "cpu", 7, 0.5), (2.5, tp.int8, "cpu", 1, 2)]
    assert type(seen[0][0]) is int


@pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), SystemExit(3), StopIteration()])
def test_exceptions_pass_through_and_modes_are_restored(ns: str, error: BaseException) -> None:
    def f(x: Tensor) -> Tensor:
        assert not tp.is_grad_enabled()
        raise error

    with pytest.raises(type(error)) as e:
        op(f"{ns}::f", f)(tp.ones([1]))
    assert e.value is error
    assert tp.is_grad_enabled()


def test_recursion_ends_as_an_error(ns: str) -> None:
    def f(x: Tensor, n: int) -> Tensor:
        return x * 1 if n == 0 else call(x, n - 1) * 2

    call = op(f"{ns}::f", f)
    assert call(tp.ones([1]), 5).tolist() == [32.0]
    with pytest.raises(RecursionError):
        call(tp.ones([1]), 10**6)


DEEP = """
import sys, threading
import tensorplay as tp
from tensorplay import library
sys.setrecursionlimit(10**6)
x = tp.ones([2])

f = library.custom_op("deep::f", lambda x: tp.ops.deep.f(x), mutates_args=())
g = library.custom_op("deep::g", lambda x: x * 1, mutates_args=())
g.register_kernel("cpu", lambda x: x * 2, when=lambda x: tp.ops.deep.g(x) is not None)
h = library.custom_op("deep::h", lambda x: x * 1, mutates_args=())
class F(tp.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 1)
    backward = staticmethod(lambda ctx, grad: again(F.apply, grad))
def again(fn, grad):
    with tp.autograd.enable_grad():
        fn(grad.detach().clone().requires_grad_()).sum().backward()
h.register_autograd(lambda ctx, grad: again(tp.ops.deep.h, grad))

def ends(fn, *args):
    try:
        fn(*args)
    except RecursionError as e:
        return "the stack of this thread" in str(e)

def all_end():
    leaf = x.clone().requires_grad_()
    found.append([ends(f, x), ends(g, x), ends(h(leaf).sum().backward), ends(F.apply(leaf).sum().backward)])
    found.append((f.name, tp.is_grad_enabled(), (x * 2).tolist()))

found = []
all_end()
threading.stack_size(1 << 20)
thread = threading.Thread(target=all_end)
thread.start()
thread.join()
assert found == [[True] * 4, ("deep::f", True, [2.0, 2.0])] * 2, found
"""


def test_a_stack_that_runs_out_ends_as_an_error() -> None:
    """3.12: also where the limit of the interpreter is higher than the stack is deep."""
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


def test_declared_mutation_moves_the_version(ns: str) -> None:
    def fill(x: Tensor, others: list[Tensor]) -> None:
        x.numpy()[...] = 5.0

    call = op(f"{ns}::fill", fill, mutates_args=("x", "others"))
    x, a, b = tp.zeros([2]), tp.zeros([1]), tp.zeros([1])
    versions = [t._version for t in (x, a, b)]
    assert call(x, [a, b]) is None
    assert x.tolist() == [5.0, 5.0]
    assert all(t._version > v for t, v in zip((x, a, b), versions, strict=True))


def test_a_missing_fake_rule_is_said_with_the_fix(ns: str) -> None:
    """F: capturing an op without a fake rule shows the one-line fix."""
    f = op(f"{ns}::f", lambda x: x * 2)
    with pytest.raises(CaptureError, match=f"{ns}::f") as e:
        tp.graph.capture(lambda x: f(x), tp.ones([2]))
    assert any("register_fake" in note for note in [str(e.value), *e.value.__notes__])


def test_a_fake_rule_is_used_and_the_body_is_not_run(ns: str) -> None:
    """W11: capture runs the body 0 times and the node knows its shape."""
    runs = []

    def body(x: Tensor) -> Tensor:
        runs.append(1)
        return tp.concat([x, x])

    f = op(f"{ns}::f", body)

    @f.register_fake
    def fake(x):
        return tp.empty([2 * x.shape[0]], dtype=x.dtype)

    graph = tp.graph.capture(lambda x: f(x) + 1.0, tp.ones([3]))
    assert runs == []
    assert [n.target for n in graph.nodes] == [f"{ns}::f.default", "tp::add.Scalar"]
    assert graph.nodes[0].spec[0].shape == (6,)
    assert fake.__name__ == "fake"


def test_fake_from_body(ns: str) -> None:
    f = op(f"{ns}::f", lambda x: tp.concat([x, x]))
    assert f.register_fake(library.fake_from_body) is library.fake_from_body
    graph = tp.graph.capture(f, tp.ones([3]))
    assert [n.target for n in graph.nodes] == [f"{ns}::f.default"]
    assert graph.nodes[0].spec[0].shape == (6,)


def test_a_captured_run_holds_the_kernel_to_its_fake_rule(ns: str) -> None:
    """F4: strides other than promised; the message names op, both sides and "fake rule"."""
    f = op(f"{ns}::f", lambda x: tp.permute_dims(tp.permute_dims(x, [1, 0]).clone(), [1, 0]) * 1)
    f.register_fake(lambda x: tp.empty_strided(x.shape, [x.shape[1] + 5, 1], dtype=x.dtype))
    compiled = tp.compile(lambda x: f(x))
    with pytest.raises(ContractError, match=rf"{ns}::f.*fake") as e:
        compiled(tp.ones([3, 4]))
    text = "\n".join([str(e.value), *e.value.__notes__])
    assert "(9, 1)" in text or "[9, 1]" in text
    assert "(4, 1)" in text or "[4, 1]" in text


def test_a_fake_rule_that_returns_its_input(ns: str) -> None:
    """F5: caught where the rule runs, for the schema declares a new tensor."""

    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 2

    f = op(f"{ns}::pair", pair)
    f.register_fake(lambda x: (x, tp.empty_like(x)))
    with pytest.raises(ContractError, match="output 0 is argument 'x'") as e:
        tp.graph.capture(lambda x: f(x)[0], tp.ones([2]))
    assert "the fake rule" in " ".join(e.value.__notes__)


def test_layout_contiguous_is_provided_or_refused(ns: str) -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.is_contiguous())
        return x * 2

    def backward(ctx, g):
        seen.append(g.is_contiguous())
        return g * 2

    call = op(f"{ns}::f", f, layout={"x": "contiguous"})
    call.register_autograd(backward)
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert call(x.T).tolist() == [[2.0, 6.0], [4.0, 8.0]]
    call(x.T).T.backward(tp.ones([2, 2]).T)
    assert seen == [True, True, True]
    assert x.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]

    def write(x: Tensor) -> None:
        x.fill_(1.0)

    into = op(f"{ns}::write", write, mutates_args=("x",), layout={"x": "contiguous"})
    with pytest.raises(ArgumentError, match=rf"{ns}::\w+: argument 'x' must be contiguous, got strides"):
        into(tp.zeros([2, 3]).T)
    with pytest.raises(ValueError, match="layout names 'y'"):
        op(f"{ns}::bad", f, layout={"y": "contiguous"})


def test_effects_are_kept_by_dead_code_removal(ns: str) -> None:
    """C1: without an effect the unused call is removed and listed; with it it runs, in order."""
    log: list[int] = []

    def write(x: Tensor, n: int) -> Tensor:
        log.append(n)
        return x * 1

    pure = op(f"{ns}::pure", write)
    ordered = op(f"{ns}::ordered", write, effects="ordered")
    for f in (pure, ordered):
        f.register_fake(lambda x, n: tp.empty_like(x))

    def logs(f):
        def run(x):
            f(x, 1)
            f(x, 2)
            return x + 1.0

        return tp.compile(run)

    kept = logs(ordered)
    assert kept(tp.ones([1])).tolist() == [2.0]
    assert log == [1, 2]
    assert [r.marker.executor for r in kept.last_run.forward] == ["python", "python", "native"]
    log.clear()
    compiled = logs(pure)
    assert compiled(tp.ones([1])).tolist() == [2.0]
    assert log == []
    assert compiled.report.removed == [f"{ns}::pure.default", f"{ns}::pure.default"]
    with pytest.raises(ValueError, match="effect 'sometimes' is not known: use 'random' or 'ordered'"):
        op(f"{ns}::bad", write, effects="sometimes")
