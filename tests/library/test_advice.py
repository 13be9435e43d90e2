"""What an error advises is possible, and about the call that was made."""

import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay as tp
from tensorplay import errors, library


def refusal(call):
    with pytest.raises(errors.TensorPlayError) as raised:
        call()
    return raised.value


def test_a_value_that_does_not_fit_speaks_of_no_write_in_place():
    """The forms that return a new tensor write nothing in place."""
    ints, at, halves = tp.zeros((3,), dtype=tp.int64), tp.tensor([0]), tp.tensor([1.5])
    for call in (
        lambda: tp.scatter_add(ints, 0, at, halves),
        lambda: tp.index_add(ints, 0, at, halves),
        lambda: tp.index_put(ints, [at], halves),
    ):
        error = refusal(call)
        assert error.code == "TP1221"
        assert "in place" not in str(error)
        assert "float32" in str(error)
        assert "int64" in str(error)


def test_a_tensor_on_meta_is_not_advised_to_move():
    """Its .cpu() is refused, so that no error may propose it."""
    x = tp.empty((1,), device="meta")
    for call in (x.item, x.tolist, x.numpy, lambda: float(x)):
        error = refusal(call)
        assert "cpu()" not in f"{error} {getattr(error, '__notes__', ())}"


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda x: x + 2**63, "tp::add"),
        (lambda x: 2**63 - x, "tp::sub"),
        (lambda x: x > 2**64, "tp::gt"),
        (lambda x: x.__imul__(2**63), "tp::mul_.Scalar"),
    ],
)
def test_a_number_too_large_for_an_operator_names_op_and_operand(call, op):
    """As for a call of the op, the error says whose argument it is and what to do."""
    error = refusal(lambda: call(tp.ones((2,))))
    assert (error.code, error.op) == ("TP1007", op)
    assert "operand" in str(error)
    assert "float(n)" in error.__notes__[0]


# ---- types of which there are no objects ----


@pytest.mark.parametrize(
    ("declared", "default"),
    [
        ("Layout", "strided"),
        ("MemoryFormat", "contiguous_format"),
        ("MemoryFormat", "1"),
        ("Layout?", "None"),
    ],
)
def test_a_default_of_a_type_without_objects_passes_its_own_check(ns, declared, default):
    """A schema of torch's is called, batched and bound by its kernel handle with the defaults that it writes."""
    f = library.define(f"{ns}::f{default}", f"(Tensor x, *, {declared} kind={default}) -> Tensor")
    f.register_kernel(None, lambda x, *, kind: x * 2.0)
    x = tp.ones((2, 3))
    assert f(x).shape == (2, 3)
    assert library.get_kernel(f, None)(x).shape == (2, 3)
    with pytest.warns(UserWarning, match="no batching rule"):
        assert tp.func.vmap(f)(x).shape == (2, 3)
    assert f(x, kind=None if "?" in declared else 0).shape == (2, 3)


@pytest.mark.parametrize(
    ("declared", "way"),
    [
        ("Generator", "has to be optional"),
        ("Generator?", "is None"),
        ("Stream?", "is None"),
        ("Storage", "has to be optional"),
        ("MemoryFormat", "an int, its code"),
    ],
)
def test_a_type_without_objects_says_what_can_be_passed(ns, declared, way):
    """One text at the call: that there are no such objects here, and what goes instead."""
    f = library.define(
        f"{ns}::{declared.strip('?').lower()}{len(declared)}", f"(Tensor x, {declared} g) -> Tensor"
    )
    f.register_kernel(None, lambda x, g: x * 2.0)
    error = refusal(lambda: f(tp.ones((2,)), "mine"))
    assert error.code == "TP1002"
    assert any("there are no objects of type" in note and way in note for note in error.__notes__)


# ---- kernels taken by themselves ----


def test_a_kernel_of_python_is_bound_as_its_op_is(ns):
    """Defaults of the schema are filled in, keywords are known, and a wrong argument is our error."""
    f = library.define(f"{ns}::f", "(Tensor x, float scale=3.0, *, int shift=1) -> Tensor")
    f.register_kernel("cpu", lambda x, scale, *, shift: x * scale + shift)
    kernel = library.get_kernel(f, "cpu")
    x = tp.ones((2,))
    assert kernel(x).tolist() == f(x).tolist() == [4.0, 4.0]
    assert kernel(x, 2.0, shift=2).tolist() == kernel(x=x, scale=2.0, shift=2).tolist() == [4.0, 4.0]
    for wrong in (lambda: kernel(), lambda: kernel(x, shft=1), lambda: kernel(x, "s")):
        assert refusal(wrong).code in ("TP1003", "TP1006", "TP1002")


def test_a_kernel_that_binds_as_its_op_is_the_authors_function(ns):
    """Where nothing has to be filled in it is the function itself."""

    def body(x, n=1):
        return x * float(n)

    f = library.custom_op(f"{ns}::same", body, mutates_args=(), schema="(Tensor x, int n=1) -> Tensor")
    assert library.get_kernel(f, None) is body


# ---- names ----


@pytest.mark.parametrize("name", ["name", "schema", "kernels", "prefer", "register_fake"])
def test_an_overload_is_not_called_as_an_attribute(ns, name):
    """`op.name` would be the attribute: the overload could be defined and never reached."""
    error = refusal(lambda: library.define(f"{ns}::f.{name}(Tensor x) -> Tensor"))
    assert error.code == "TP1338"
    library.define(f"{ns}::f.{name}_(Tensor x) -> Tensor")
    assert library.list_ops(ns) == [f"{ns}::f.{name}_"]


def test_an_op_that_is_gone_is_unregistered_wherever_it_is_used(ns):
    """Calls, properties and registrations say the same of it."""
    lib = library.Library(ns, "DEF")
    f = lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2.0, "CPU")
    lib._destroy()
    for use in (
        lambda: f(tp.ones((2,))),
        lambda: f.schema,
        lambda: f.kernels,
        lambda: f.effects,
        lambda: f.register_fake(lambda x: x),
        lambda: f.register_kernel("cpu", lambda x: x),
        lambda: f.register_autograd(lambda ctx, g: g),
        lambda: library.get_kernel(f, "cpu"),
    ):
        assert refusal(use).code == "TP1305"
    assert refusal(lambda: library.get_op(f"{ns}::never")).code == "TP1301"
    assert not library.has_op(f"{ns}::f")


# ---- elsewhere ----


@pytest.mark.parametrize("command", [["explain"], ["explain", "TP4001"], ["ops"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(command):
    """A full device ends the command with status 1 and one line."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tensorplay", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write the output")
    assert len(done.stderr.splitlines()) == 1


def test_memory_that_ops_refuse_to_write_is_lent_read_only():
    """Elements of an expanded tensor share a place: NumPy gets it as `broadcast_to` gives it."""
    x = tp.ones((1, 3))
    wide = x.expand((4, 3))
    array = wide.numpy()
    assert not array.flags.writeable
    assert memoryview(wide).readonly
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 5.0
    assert x.numpy().flags.writeable
    assert wide[0].numpy().flags.writeable
    assert x.expand((1, 3)).numpy().flags.writeable


def test_a_coroutine_is_told_where_a_mode_can_be_entered():
    """Entering it inside, around an await, would leak just the same."""

    async def step():
        return None

    error = refusal(lambda: tp.no_grad(step))
    assert error.code == "TP3301"
    assert "do not await" in error.__notes__[0]


def test_a_keyword_is_near_another_by_what_they_share():
    """One letter for another letter is no near match; half a surrogate pair is shown as its escape."""
    for keyword, says in (
        ("AXIS", "'AXIS'; did you mean 'axis'?"),
        ("axs", "'axs'; did you mean 'axis'?"),
        ("X", "'X'; did you mean 'x'?"),
        ("q", "'q'"),
        (chr(0xD800), r"'\ud800'"),
    ):
        e = refusal(lambda keyword=keyword: tp.sum(tp.ones((2,)), **{keyword: 0}))
        assert str(e) == f"[TP1006] tp::sum: unknown keyword argument {says}"


def test_a_shape_that_does_not_stretch_says_why():
    x = tp.ones((2, 3))
    for call, why in (
        (lambda: tp.broadcast_to(x, (2,)), "[2, 3] to [2]: it has 2 dimensions, which do not become 1"),
        (lambda: x.expand(-1, 2, 3), "[2, 3] to [-1, 2, 3]: axis 0 is a new one, whose size -1 does not say"),
        (lambda: x.expand(4, 3), "[2, 3] to [4, 3]: axis 0 is 2, wanted 4"),
    ):
        e = refusal(call)
        assert isinstance(e, errors.ShapeError)
        assert str(e).endswith(why)
