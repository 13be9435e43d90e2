"""The tensor type: operators, scalars, methods, attributes, identity, copies and pickles."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.errors import (
    ArgumentError,
    AutogradError,
    DTypeError,
    InvalidValueError,
    ShapeError,
)


def test_defaults_of_new_tensors() -> None:
    assert tp.tensor([1.0, 2.0]).dtype is tp.float32
    assert tp.tensor([1, 2]).dtype is tp.int64
    assert tp.tensor([True]).dtype is tp.bool
    assert tp.tensor([True, 2]).tolist() == [1, 2]
    assert tp.tensor([1, 2.5]).tolist() == [1.0, 2.5]
    assert tp.tensor([]).dtype is tp.float32
    assert tp.tensor(3).shape == ()
    assert tp.tensor([[], []]).shape == (2, 0)
    assert tp.tensor(range(3)).tolist() == [0, 1, 2]
    assert tp.tensor([tp.tensor(1), 2]).tolist() == [1, 2]
    assert tp.tensor([[1, 2], [3, 4]], dtype=tp.float64).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert tp.tensor([1.0], requires_grad=True).requires_grad


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, 2], [3]], r"data\[1\] has length 1, expected length 2"),
        ([[1, 2], 3], r"data\[1\] is a number, expected a sequence of length 2"),
        ([1, [2]], r"data\[1\] is a sequence, expected a number"),
        ([[[1]], [[1, 2]]], r"data\[1\]\[0\] has length 2, expected length 1"),
    ],
)
def test_ragged_data_names_the_place(data: object, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        tp.tensor(data)
    assert caught.value.code == "TP1120"


def test_data_that_is_no_number() -> None:
    with pytest.raises(ArgumentError, match=r"data\[0\]\[1\] is no number: got str"):
        tp.tensor([[1, "x"]])
    with pytest.raises(ArgumentError, match="got generator"):
        tp.tensor(i for i in range(3))
    with pytest.raises(InvalidValueError, match=r"300 does not fit in uint8 \(0 to 255\)"):
        tp.tensor([300], dtype=tp.uint8)
    with pytest.raises(ArgumentError, match="64 bits"):
        tp.tensor([2**63])
    with pytest.raises(AutogradError, match="int64"):
        tp.tensor([1], requires_grad=True)
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="nested deeper than 64"):
        tp.tensor(loop)


def test_the_type_cannot_be_called_or_subclassed() -> None:
    with pytest.raises(TypeError, match=r"tensorplay\.tensor"):
        tp.Tensor([1.0])
    with pytest.raises(TypeError):
        type("Sub", (tp.Tensor,), {})
    assert tp.Tensor.__module__ == "tensorplay"
    assert tp.Tensor.__qualname__ == "Tensor"


BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_arithmetic_matches_numpy(op) -> None:
    a = np.array([1.5, 2.0, -3.0, 4.0], dtype=np.float32)
    b = np.array([2.0, 2.0, 2.0, 3.0], dtype=np.float32)
    x, y = tp.tensor(a), tp.tensor(b)
    np.testing.assert_allclose(op(x, y).numpy(), op(a, b), rtol=1e-6)
    np.testing.assert_allclose(op(x, 2.0).numpy(), op(a, np.float32(2.0)), rtol=1e-6)
    np.testing.assert_allclose(op(2.0, y).numpy(), op(np.float32(2.0), b), rtol=1e-6)
    assert op(x, 2).dtype is (tp.bool if op in BINARY[7:] else tp.float32)


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_bit_operators(op) -> None:
    a = np.array([1, 6, 12], dtype=np.int32)
    b = np.array([3, 2, 1], dtype=np.int32)
    assert op(tp.tensor(a), tp.tensor(b)).tolist() == op(a, b).tolist()
    assert op(tp.tensor(a), 2).tolist() == op(a, 2).tolist()
    assert op(5, tp.tensor(b)).tolist() == op(5, b).tolist()


def test_unary_operators() -> None:
    x = tp.tensor([1, -2])
    assert (-x).tolist() == [-1, 2]
    assert (+x).tolist() == [1, -2]
    assert abs(x).tolist() == [1, 2]
    assert (~x).tolist() == [-2, 1]
    assert (~tp.tensor([True, False])).tolist() == [False, True]


def test_matmul() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (tp.tensor(a) @ tp.tensor(a.T.copy())).tolist() == (a @ a.T).tolist()
    with pytest.raises(ArgumentError, match="use \\* for numbers"):
        tp.tensor(a) @ 2.0


def test_in_place_operators_return_the_same_object() -> None:
    x = tp.tensor([4.0, 9.0])
    before = x
    x += 1
    x -= tp.tensor([1.0, 1.0])
    x *= 2
    x /= 4
    x **= 2
    assert x is before
    assert x.tolist() == [4.0, 20.25]
    n = tp.tensor([7, 9])
    m = n
    n //= 2
    n %= 3
    n <<= 2
    n |= 1
    n ^= 3
    n &= 6
    n >>= 1
    assert n is m
    assert n.tolist() == [1, 3]
    assert x._version == 5


def test_operators_leave_what_they_do_not_know_to_the_other_side() -> None:
    class Other:
        def __radd__(self, other: object) -> str:
            return "radd"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    x = tp.tensor([1.0])
    assert x + Other() == "radd"
    assert (x == Other()) is True
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert (x == "a") is False
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "a"
    with pytest.raises(TypeError):
        operator.lt(x, None)
    array = np.ones(1, dtype=np.float32)
    with pytest.raises(TypeError):
        x + array
    with pytest.raises(TypeError):
        array + x
    with pytest.raises(ArgumentError, match="64 bits"):
        x + 2**70


def test_numpy_scalars_are_numbers() -> None:
    x = tp.tensor([1.0, 2.0])
    for two in (np.float64(2), np.float32(2), np.int64(2), np.array(2)):
        assert (x * two).tolist() == [2.0, 4.0]
        assert (two * x).tolist() == [2.0, 4.0]
        assert (two * x).dtype is tp.float32


def test_scalars_out() -> None:
    assert bool(tp.tensor(1.5))
    assert not tp.tensor([[0]])
    assert int(tp.tensor(-2.7)) == -2
    assert float(tp.tensor(3)) == 3.0
    assert complex(tp.tensor(1.5)) == 1.5
    assert [10, 20, 30][tp.tensor(1)] == 20
    assert tp.tensor(1.5).item() == 1.5
    assert type(tp.tensor(True).item()) is bool
    assert tp.tensor([[1, 2]]).tolist() == [[1, 2]]
    assert f"{tp.tensor(1.23456):.2f}" == "1.23"
    with pytest.raises(InvalidValueError, match="one element"):
        tp.tensor([1, 2]).item()
    with pytest.raises(InvalidValueError) as caught:
        bool(tp.tensor([1, 2]))
    assert any(".any()" in note for note in caught.value.__notes__)
    with pytest.raises(DTypeError, match="float32"):
        operator.index(tp.tensor(1.0))
    with pytest.raises(TypeError, match="0-d"):
        operator.index(tp.tensor([3]))
    assert bytes(tp.tensor([3], dtype=tp.uint8)) == b"\x03"
    with pytest.raises(ValueError, match="NaN"):
        int(tp.tensor(float("nan")))


def test_hash_is_identity() -> None:
    x, y = tp.tensor([1.0]), tp.tensor([1.0])
    assert hash(x) == hash(x)
    assert {x: 1, y: 2}[x] == 1
    assert len({x, y, x}) == 2


def test_attributes() -> None:
    x = tp.zeros([2, 3, 4])
    assert (x.shape, x.ndim, x.size, x.numel()) == ((2, 3, 4), 3, 24, 24)
    assert x.dtype is tp.float32
    assert str(x.device) == "cpu"
    assert x.mT.shape == (2, 4, 3)
    assert x.stride() == (12, 4, 1)
    assert x.stride(-1) == 1
    assert x.stride(dim=0) == 12
    assert x.element_size() == 4
    assert x.is_contiguous()
    assert not x.mT.is_contiguous()
    assert x.mT.is_view
    assert x[1].storage_offset() == 12
    assert x[1].data_ptr() - x.data_ptr() == 48
    assert tp.tensor([[1, 2]]).T.tolist() == [[1], [2]]
    with pytest.raises(ShapeError, match=r"\.T of a tensor with 3"):
        x.T
    with pytest.raises(AttributeError):
        x.shape = (1,)


def test_size_is_an_int_that_explains_itself() -> None:
    x = tp.zeros([2, 3])
    assert x.size == 6
    assert type(x.size + 0) is int
    with pytest.raises(ArgumentError, match=r"x\.shape\[0\]"):
        x.size(0)
    assert x.size() == (2, 3)


def test_shape_methods_take_both_spellings() -> None:
    x = tp.arange(6)
    assert x.reshape(2, 3).tolist() == x.reshape((2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.reshape(-1, 2).shape == (3, 2)
    m = x.reshape(2, 3)
    assert m.permute(1, 0).shape == m.permute((1, 0)).shape == m.transpose(0, 1).shape == (3, 2)
    assert m.unsqueeze(0).shape == (1, 2, 3)
    assert m.unsqueeze(0).squeeze().shape == (2, 3)
    assert m.unsqueeze(0).squeeze(0).shape == (2, 3)
    assert x.expand(2, 6).shape == x.expand((2, 6)).shape == (2, 6)
    assert m.flip(0, 1).tolist() == [[5, 4, 3], [2, 1, 0]]
    assert m.view(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert m.flatten().shape == (6,)
    assert tp.zeros([2, 3, 4]).flatten(1).shape == (2, 12)
    assert [p.tolist() for p in x.split(4)] == [[0, 1, 2, 3], [4, 5]]
    assert [p.tolist() for p in x.chunk(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ShapeError, match="number of pieces must be positive"):
        x.chunk(0)
    assert [r.tolist() for r in m.unbind()] == [[0, 1, 2], [3, 4, 5]]


def test_reductions_as_methods() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = tp.tensor(a)
    assert x.sum().item() == 15.0
    assert x.sum(0).tolist() == a.sum(0).tolist()
    assert x.sum(axis=1, keepdims=True).tolist() == a.sum(1, keepdims=True).tolist()
    assert x.sum(dtype=tp.float64).dtype is tp.float64
    assert x.mean().item() == 2.5
    assert x.max(1).tolist() == [2.0, 5.0]
    assert x.argmax().item() == 5
    assert x.softmax().shape == (2, 3)
    assert x.clamp(1, 4).tolist() == np.clip(a, 1, 4).tolist()
    assert x.clamp(min=2).tolist() == np.clip(a, 2, None).tolist()
    with pytest.raises(ArgumentError, match="unknown keyword argument 'axs'; did you mean 'axis'"):
        x.sum(axs=0)
    with pytest.raises(ArgumentError, match="missing argument"):
        x.add()


@pytest.mark.thread_unsafe(reason="CPython 3.11 counts the depth of syntax trees for all threads together")
def test_methods_have_text_signatures() -> None:
    assert (
        str(__import__("inspect").signature(tp.Tensor.sum))
        == "(self, /, axis=None, *, dtype=None, keepdims=False)"
    )
    assert "tp::sum" in (tp.Tensor.sum.__doc__ or "")


def test_to_and_casts() -> None:
    x = tp.tensor([1.5, -2.5])
    assert x.to(tp.float32) is x
    assert x.to("cpu") is x
    assert x.cpu() is x
    assert x.float() is x
    assert x.to(tp.int32).tolist() == [1, -2]
    assert x.to(tp.tensor(1)).dtype is tp.int64
    assert x.to("cpu", tp.float64).dtype is tp.float64
    assert x.to(tp.float32, copy=True) is not x
    assert x.double().dtype is tp.float64
    assert x.half().dtype is tp.float16
    assert x.long().tolist() == [1, -2]
    assert x.bool().tolist() == [True, True]
    assert x.astype(tp.float32, copy=False) is x
    assert x.to_device("cpu") is x
    assert x.to("meta").device.type == "meta"
    with pytest.raises(ArgumentError, match="a dtype, a device or a tensor, got int"):
        x.to(3)


def test_length_and_iteration() -> None:
    x = tp.arange(6).reshape(3, 2)
    assert len(x) == 3
    assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    assert [v.item() for v in x[0]] == [0, 1]
    first, *rest = x
    assert first.tolist() == [0, 1]
    assert len(rest) == 2
    with pytest.raises(TypeError, match="0-d"):
        len(tp.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(tp.tensor(1))


def test_membership() -> None:
    x = tp.arange(6).reshape(3, 2)
    assert 5 in x
    assert 6 not in x
    assert tp.tensor(2) in x


def test_objects_come_back_as_themselves_and_die_with_their_last_reference() -> None:
    x = tp.tensor([1.0])
    ref = weakref.ref(x)
    assert ref() is x
    assert x.contiguous() is x
    del x
    assert ref() is None


def test_copies() -> None:
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    assert shallow is not x
    assert shallow.data_ptr() == x.data_ptr()
    assert shallow.requires_grad
    assert deep.data_ptr() != x.data_ptr()
    assert deep.requires_grad
    assert deep.grad.tolist() == [2.0, 4.0]
    pair = copy.deepcopy([x, x])
    assert pair[0] is pair[1]
    with pytest.raises(AutogradError, match="history"):
        copy.deepcopy(x * 2)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64"])
def test_pickle_round_trip(protocol: int, name: str) -> None:
    x = tp.tensor([[0, 1], [2, 3]]).to(getattr(tp, name))
    for source in (x, x.mT, x[:, :0], x[1, 1]):
        back = pickle.loads(pickle.dumps(source, protocol=protocol))
        assert back.dtype is x.dtype
        assert back.shape == source.shape
        assert back.tolist() == source.tolist()
        assert not back.is_readonly


def test_pickle_out_of_band_moves_no_bytes() -> None:
    x = tp.arange(1000)
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    assert len(head) < 300
    back = pickle.loads(head, buffers=buffers)
    assert back.tolist() == x.tolist()
    assert back.data_ptr() == x.data_ptr()


def test_a_pickle_keeps_leaves_and_drops_graphs() -> None:
    x = tp.tensor([1.0], requires_grad=True)
    assert pickle.loads(pickle.dumps(x)).requires_grad
    assert not pickle.loads(pickle.dumps(x * 2)).requires_grad


def test_array_namespace() -> None:
    x = tp.tensor([1.0])
    assert x.__array_namespace__() is tp
    assert x.__array_namespace__(api_version="2024.12") is tp
    with pytest.raises(ValueError, match="1999"):
        x.__array_namespace__(api_version="1999.12")


def test_set_points_a_fresh_tensor_at_a_storage() -> None:
    x = tp.arange(6, dtype=tp.float32).reshape(2, 3)
    row = x[1]
    storage = row.untyped_storage()
    assert storage.data_ptr() == x.data_ptr()
    assert storage.nbytes() == 24
    assert storage.cpu() is storage
    twin = row.new_empty(0, device="cpu")
    twin.set_(storage, row.storage_offset(), row.size(), row.stride())
    assert twin.tolist() == [3.0, 4.0, 5.0]
    assert twin.data_ptr() == row.data_ptr()
    twin += 1
    assert x.tolist() == [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]]
    with pytest.raises(InvalidValueError, match="fresh empty tensor"):
        x.set_(storage, 0, (1,), (1,))
    fresh = x.new_empty(0)
    with pytest.raises(ShapeError, match="outside"):
        fresh.set_(storage, 0, (100,), (1,))
    other = tp.zeros([2, 3])
    other.untyped_storage().copy_(storage)
    assert other.tolist() == x.tolist()


def test_no_tensor_is_leaked() -> None:
    x = tp.tensor([1.0, 2.0])

    def work() -> None:
        for _ in range(200):
            y = x + x
            y *= 2.0
            _ = y[0], y[:1], y == x, list(y), y.sum(), y.reshape(2, 1), memoryview(y)
            with pytest.raises(ShapeError):
                y + tp.zeros([3])

    work()
    gc.collect()
    before = sys.getrefcount(tp.Tensor), sys.getrefcount(x), len(gc.get_objects())
    work()
    gc.collect()
    after = sys.getrefcount(tp.Tensor), sys.getrefcount(x), len(gc.get_objects())
    assert after[1] == before[1]
    assert after[0] - before[0] < 50
    assert after[2] - before[2] < 50


def test_importing_imports_no_numpy() -> None:
    code = (
        "import sys, tensorplay as tp; x = tp.tensor([1.0]) + 1; repr(x); "
        "assert 'numpy' not in sys.modules; x.numpy(); assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
