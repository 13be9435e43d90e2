"""What rows of the contract say beside their first sentence: fake rules that read, second rules, duplicates, threads."""

from __future__ import annotations

import gc
import threading
import warnings
from pathlib import Path

import pytest

import tensorplay as tp
from messages import notes
from tensorplay import library
from tensorplay.errors import CaptureError, DeviceError, InvalidValueError, NoKernelError, RegistrationError

ONE = "(Tensor x) -> Tensor"


def unary(name: str, body=lambda x: x * 2.0, **options):
    return library.custom_op(name, body, mutates_args=(), schema=ONE, **options)


def line_of(mark: str) -> int:
    """The line of this file that ends with that comment."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


READS = {
    "item": lambda x: tp.empty((int(x.sum().item()),)),
    "numpy": lambda x: tp.empty(x.numpy().shape),
    "tolist": lambda x: tp.empty((len(x.tolist()),)),
    "bool": lambda x: tp.empty_like(x) if x.sum() > 0.0 else tp.empty((1,)),
}


@pytest.mark.parametrize("how", READS)
def test_a_fake_rule_that_reads_data_is_an_error(ns: str, how: str) -> None:
    """5.1: in a capture with the line of the read, on meta as a tensor without values; eager calls do not run the rule."""
    f = unary(f"{ns}::f")
    f.register_fake(READS[how])
    with pytest.raises(CaptureError) as captured:
        tp.graph.capture(lambda x: f(x), tp.ones((2,)))
    assert captured.value.code == "TP4003"
    assert f"{how}(" in str(captured.value)
    assert f"read at {__file__}:" in notes(captured.value)
    with pytest.raises((DeviceError, TypeError), match=r"'meta'|without data"):
        f(tp.empty((2,), device="meta"))
    assert f(tp.ones((2,))).tolist() == [2.0, 2.0]


def test_a_missing_fake_rule_is_an_error_where_it_is_needed_alone(ns: str) -> None:
    """5.2: the user's line in a capture, the same words on meta, and eager calls on values need none."""
    f = unary(f"{ns}::f")
    with pytest.raises(CaptureError, match=f"{ns}::f: no fake rule") as captured:
        tp.graph.capture(
            lambda x: f(x),  # the call
            tp.ones((2,)),
        )
    assert f"captured at {__file__}:{line_of('the call')}" in notes(captured.value)
    with pytest.raises(CaptureError, match=f"{ns}::f: no fake rule") as on_meta:
        f(tp.empty((2,), device="meta"))
    assert "register_fake" in notes(on_meta.value)
    assert "captured at" not in notes(on_meta.value)
    assert f(tp.ones((2,))).tolist() == [2.0, 2.0]


def test_a_second_fake_rule_replaces_where_the_op_is_the_authors_own(ns: str) -> None:
    """5.4: an op of custom_op takes the last rule, and on demand none; the error says where the first one was written."""
    f = unary(f"{ns}::f")
    f.register_fake(lambda x: tp.empty((3,)))  # first rule
    f.register_fake(lambda x: tp.empty((4,)))  # second rule
    assert f(tp.empty((2,), device="meta")).shape == (4,)
    with pytest.raises(
        RegistrationError, match=f"{ns}::f has a fake rule already at .*:{line_of('second rule')}"
    ) as e:
        f.register_fake(lambda x: tp.empty((5,)), allow_override=False)
    assert (e.value.code, e.value.op) == ("TP1318", f"{ns}::f")
    assert "allow_override=True" in notes(e.value)
    assert f(tp.empty((2,), device="meta")).shape == (4,)


def test_a_second_fake_rule_of_another_op_is_an_error(ns: str) -> None:
    """5.4: of one that a schema defined, and of a built-in one, unless allow_override=True; the same place replaces."""
    with library.Library(ns, "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
        op = library.get_op(f"{ns}::f")
        for size in (3, 4):  # as a cell that is run again
            library.register_fake(f"{ns}::f", lambda x, size=size: tp.empty((size,)))  # again
        assert op(tp.empty((2,), device="meta")).shape == (4,)
        with pytest.raises(RegistrationError, match=rf"already at .*:{line_of('again')}") as e:
            library.register_fake(f"{ns}::f", lambda x: tp.empty((9,)))
        assert e.value.code == "TP1318"
        library.register_fake(f"{ns}::f", lambda x: tp.empty((9,)), allow_override=True)
        assert op(tp.empty((2,), device="meta")).shape == (9,)
    with pytest.raises(RegistrationError, match=r"tp::mul has a fake rule already at \S+:\d+"):
        library.register_fake("tp::mul", lambda a, b: tp.empty((7,)))
    assert tp.mul(tp.empty((2,), device="meta"), tp.empty((2,), device="meta")).shape == (2,)


def test_an_op_defined_twice_names_both_places(ns: str) -> None:
    """9.1: through a Library and through define, with the first part that differs; the first definition stays."""
    with library.Library(ns, "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")  # define one
        for define in (lib.define, library.define):
            with pytest.raises(RegistrationError) as e:
                define(f"{ns}::f(Tensor x, int n) -> Tensor")  # define two
            assert e.value.code == "TP1302"
            assert f"already defined at {__file__}:{line_of('define one')}" in str(e.value)
            assert f"defined again at {__file__}:{line_of('define two')}" in str(e.value)
            assert "first difference: schema was" in notes(e.value)
        assert str(library.get_op(f"{ns}::f").schema) == f"{ns}::f(Tensor x) -> Tensor"


@pytest.mark.thread_unsafe(reason="catches warnings, which are the process's")
def test_a_library_made_twice_by_one_function_says_whose_the_op_is(ns: str) -> None:
    """9.1: the later one replaces the definition of the earlier, which lives on, and the warning tells what that means."""

    def setup(factor: float) -> library.Library:
        lib = library.Library(ns, "FRAGMENT")
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: x * factor, "CPU")
        return lib

    first = setup(2.0)
    with pytest.warns(UserWarning, match=f"{ns}::f was defined again") as said:
        second = setup(3.0)
    text = str(said[0].message)
    assert "the op ends with Library" in text
    assert "does not come back" in text
    assert library.get_op(f"{ns}::f")(tp.ones((1,))).item() == 3.0
    del second
    gc.collect()
    assert not library.has_op(f"{ns}::f")
    del first
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = setup(4.0)
    assert library.get_op(f"{ns}::f")(tp.ones((1,))).item() == 4.0
    alone._destroy()


def test_a_declared_write_to_an_expanded_tensor_is_refused(ns: str) -> None:
    """7.2: elements that share a place cannot be written to in place, by a custom op or a built-in one."""
    ran = []
    f = library.custom_op(
        f"{ns}::f", lambda x: ran.append(x), mutates_args=("x",), schema="(Tensor(a!) x) -> ()"
    )
    base = tp.ones((1,))
    x = tp.broadcast_to(base, (3,))
    for write in (f, lambda t: t.add_(1.0), lambda t: t.fill_(2.0)):
        with pytest.raises(InvalidValueError, match="several elements share one place") as e:
            write(x)
        assert e.value.code == "TP1602"
    assert not ran
    assert (base.item(), base._version) == (1.0, 0)
    f(x.clone())
    assert len(ran) == 1


def test_every_mode_is_as_before_after_an_exception(ns: str) -> None:
    """3.11: gradients, captures, preferences, traces, debug checks and autocast of the thread go on as if nothing happened."""

    def fails(x):
        raise KeyError("mine")

    bad, good = unary(f"{ns}::bad", fails), unary(f"{ns}::good")
    bad.register_fake(lambda x: tp.empty_like(x))
    good.register_fake(lambda x: tp.empty_like(x))
    good.register_autograd(lambda ctx, g: g * 2.0)
    good.register_kernel("cpu", lambda x: x * 3.0, name="other")

    def fail() -> None:
        with pytest.raises(KeyError, match="mine"):
            bad(tp.ones((2,)))

    x = tp.ones((2,)).requires_grad_()
    fail()
    good(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    graph = tp.graph.capture(lambda t: good(t) + 1.0, tp.ones((2,)))
    assert [n.target for n in graph.nodes] == [f"{ns}::good.default", "tp::add.Scalar"]
    with good.set_kernel_enabled("cpu", enabled=False), tp.trace() as events:
        fail()
        assert good(tp.ones((1,))).item() == 2.0
    assert f"{ns}::good" in [event.op.removesuffix(".default") for event in events]
    assert good(tp.ones((1,))).item() == 3.0
    with tp.autocast("cpu", dtype=tp.bfloat16):
        fail()
        assert tp.matmul(tp.ones((2, 2)), tp.ones((2, 2))).dtype is tp.bfloat16
    assert tp.matmul(tp.ones((2, 2)), tp.ones((2, 2))).dtype is tp.float32
    liar = unary(f"{ns}::liar", lambda x: x * 2.0)
    liar.register_fake(lambda x: tp.empty((9,)))
    with library.debug_checks():
        fail()
        with pytest.raises(RuntimeError, match="TP3205"):
            liar(tp.ones((2,)))
    assert liar(tp.ones((2,))).shape == (2,)


@pytest.mark.thread_unsafe(reason="starts eight threads of its own")
def test_kernels_are_removed_while_others_call(ns: str) -> None:
    """H1: callers meet the kernel or the one behind it, backward and capture go on, and all of it ends."""
    inner = unary(f"{ns}::inner", lambda x: x * 1.0)
    inner.register_fake(lambda x: tp.empty_like(x))
    outer = unary(f"{ns}::outer", lambda x: inner(x) + 1.0)
    outer.register_fake(lambda x: tp.empty_like(x))
    outer.register_autograd(lambda ctx, g: g * 2.0)
    stop, wrong, seen = threading.Event(), [], set()

    def guarded(step) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    step()
            except BaseException as error:
                wrong.append(error)

        return threading.Thread(target=run)

    def calls() -> None:
        x = tp.tensor([1.0], requires_grad=True)
        y = outer(x)
        seen.add(y.item())
        y.sum().backward()
        assert x.grad.item() == 2.0

    def captures() -> None:
        assert len(tp.graph.capture(outer, tp.ones((1,))).nodes) == 1

    threads = [*(guarded(calls) for _ in range(6)), guarded(captures)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        with library.Library(ns, "IMPL") as lib:
            lib.impl("inner", lambda x: x * 9.0, "CPU")
            assert outer(tp.ones((1,))).item() == 10.0
        assert outer(tp.ones((1,))).item() == 2.0
    stop.set()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert seen <= {2.0, 10.0}


@pytest.mark.thread_unsafe(reason="starts four threads of its own")
def test_threads_compile_on_their_own(ns: str) -> None:
    """H4: four threads, fifty rounds: each compiled function has the graphs that it has when one thread compiles it."""
    f = unary(f"{ns}::f", lambda x: x * 2.0)
    f.register_fake(lambda x: tp.empty_like(x))
    f.register_kernel("cpu", lambda x: x * 3.0)
    wrong: list[object] = []

    def rounds(k: int) -> None:
        try:
            for n in range(50):
                body = [
                    lambda x: f(x) + 1.0,
                    lambda x: x * x,
                    lambda x, s=k: tp.exp(x) * s,
                    lambda x: f(f(x)),
                ][k]
                compiled = tp.compile(body)
                for size in (2, 3, 2, 3 + k):
                    compiled(tp.ones((size,)))
                # The second size makes a symbol of it, which serves the third.
                if len(compiled.graphs) != 2:
                    wrong.append((k, n, len(compiled.graphs)))
                if k == 0:
                    with f.set_kernel_enabled("cpu", enabled=False):
                        assert f(tp.ones((1,))).item() == 2.0
                else:
                    assert f(tp.ones((1,))).item() == 3.0
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=rounds, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


@pytest.mark.parametrize("schema", ["(Tensor x) -> int", "(Tensor x) -> (Tensor, int)", "(Tensor x) -> ()"])
def test_a_kernel_that_fills_needs_outputs_to_fill(ns: str, schema: str) -> None:
    """3.7: out=True is refused at registration where an output is no tensor; before, every call failed."""
    f = library.custom_op(f"{ns}::f", lambda x: None, mutates_args=(), schema=schema)
    with pytest.raises(RegistrationError, match=f"{ns}::f returns .*out=True") as e:
        f.register_kernel("cpu", lambda x, out: None, out=True)
    assert e.value.code == "TP1339"
    assert not any(kernel.name == "default" for kernel in f.kernels.get("cpu", []))


def test_a_kernel_that_fills_a_list_of_outputs(ns: str) -> None:
    """3.7: tensors, pairs and lists of them can be filled."""
    f = library.custom_op(
        f"{ns}::f", lambda x: None, mutates_args=(), schema="(Tensor x) -> (Tensor, Tensor[])"
    )
    f.register_fake(lambda x: (tp.empty((1,)), [tp.empty((1,)), tp.empty((1,))]))

    def fill(x, out):
        one, more = out
        for k, t in enumerate((one, *more)):
            t.fill_(float(k))

    f.register_kernel("cpu", fill, out=True)
    one, more = f(tp.ones((1,)))
    assert [one.item(), *(t.item() for t in more)] == [0.0, 1.0, 2.0]


def test_an_op_without_a_kernel_keeps_its_error(ns: str) -> None:
    """9.1: NotImplementedError of ours, however the op was defined."""
    with library.Library(ns, "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
        with pytest.raises(NoKernelError, match=f"{ns}::f"):
            library.get_op(f"{ns}::f")(tp.ones((1,)))
