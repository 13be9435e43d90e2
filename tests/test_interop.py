"""Tensors from and to NumPy and other buffers: what is shared, what is copied, what is refused."""

from __future__ import annotations

import array
import ctypes
import gc
import re
import struct
import sys
import threading

import numpy as np
import pytest

import tensorplay as tp
from arrays import NUMPY_DTYPES, VIEWS, sample
from tensorplay.errors import ArgumentError, AutogradError, DTypeError, InvalidValueError

# --- NumPy ---


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_numpy_round_trip_shares_memory(name: str) -> None:
    a = sample(name)
    x = tp.from_numpy(a)
    assert x.dtype is getattr(tp, name)
    assert x.data_ptr() == a.ctypes.data
    b = x.numpy()
    assert b.dtype == a.dtype
    assert b.dtype.char == np.dtype(name).char
    assert np.shares_memory(a, b)
    assert b.tolist() == a.tolist()
    a[0, 0, 0] = 1
    assert x[0, 0, 0].item() == 1
    x[1, 1, 1] = 0
    assert a[1, 1, 1] == 0


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_both_ways(view) -> None:
    a = sample()
    from_array = tp.from_numpy(np.asarray(view(a)))
    assert from_array.tolist() == view(a).tolist()
    lent = view(tp.tensor(a)).numpy()
    assert lent.shape == view(a).shape
    assert lent.tolist() == view(a).tolist()
    assert tp.from_numpy(lent).tolist() == view(a).tolist()


def test_odd_strides() -> None:
    a = sample()
    flipped = a[::-1, :, ::-1]
    assert tp.from_numpy(flipped).tolist() == flipped.tolist()
    assert (tp.from_numpy(flipped) * 2).tolist() == (flipped * 2).tolist()
    assert tp.from_numpy(flipped).stride() == (-12, 4, -1)
    raw = np.zeros(17, dtype=np.uint8)
    unaligned = raw[1:].view(np.float32)
    unaligned[:] = [1, 2, 3, 4]
    assert unaligned.ctypes.data % 4 != 0
    assert (tp.from_numpy(unaligned) + 1).tolist() == [2, 3, 4, 5]
    fields = np.zeros(3, dtype=[("a", "f4"), ("b", "i1")])
    with pytest.raises(InvalidValueError, match="no multiple of 4"):
        tp.from_numpy(fields["a"])


def test_read_only_stays_read_only() -> None:
    a = np.arange(3)
    a.flags.writeable = False
    x = tp.from_numpy(a)
    assert x.is_readonly
    assert x[1:].is_readonly
    assert not x.numpy().flags.writeable
    assert memoryview(x).readonly
    with pytest.raises(InvalidValueError, match="read-only"):
        x += 1
    with pytest.raises(TypeError, match=r"not writable|read-only"):
        ctypes.c_char.from_buffer(x)
    assert (x + 1).tolist() == [1, 2, 3]
    assert not tp.tensor(a).is_readonly


@pytest.mark.parametrize(
    "name", [">f4", ">i8", "complex64", "uint16", "uint64", "U3", "M8[s]", "O", "longdouble"]
)
def test_unknown_elements_are_refused_by_name(name: str) -> None:
    a = np.zeros(2, dtype=name)
    with pytest.raises(DTypeError, match=re.escape(a.dtype.name)) as caught:
        tp.from_numpy(a)
    assert caught.value.code == "TP1230"
    assert ("other order" in str(caught.value)) == name.startswith(">")


@pytest.mark.parametrize("make", [tp.tensor, tp.asarray, tp.from_numpy])
def test_numbers_of_numpy_that_lend_their_bytes_are_no_bytes(make) -> None:
    """A date, a duration and a record export a buffer of unsigned bytes."""
    record = np.zeros(1, dtype=[("a", "f4")])[0]
    for value in (np.datetime64("2024-01-01T00:00:00"), np.timedelta64(3, "s"), record):
        with pytest.raises(DTypeError, match=re.escape(value.dtype.name)) as caught:
            make(value)
        assert caught.value.code == "TP1230"
    assert make(np.uint8(7)).tolist() == 7


def test_from_numpy_takes_arrays_only() -> None:
    with pytest.raises(ArgumentError, match="must be a NumPy array, got"):
        tp.from_numpy([1, 2])
    with pytest.raises(ArgumentError, match="must be a NumPy array, got"):
        tp.from_numpy(tp.tensor([1]))


def test_bfloat16_needs_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = tp.tensor([[1.5, -2.0], [float("inf"), 0.0]]).bfloat16()
    a = x.numpy()
    assert a.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(a, x.T.numpy())
    assert a.astype(np.float32).tolist() == x.tolist()
    assert np.asarray(x).dtype == ml_dtypes.bfloat16
    back = tp.from_numpy(a[:, ::-1])
    assert back.dtype is tp.bfloat16
    assert back.tolist() == x.flip(1).tolist()
    a[0, 0] = 7
    assert x[0, 0].item() == 7
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(x)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        x.numpy()


def test_array_protocol() -> None:
    x = tp.tensor([1.0, 2.0])
    assert np.shares_memory(np.asarray(x), np.asarray(x))
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(x), np.asarray(x))
    assert np.shares_memory(np.asarray(x, copy=False), np.asarray(x))
    assert x.__array__(np.int32).tolist() == [1, 2]
    with pytest.raises(ValueError, match="copy"):
        x.__array__(np.int32, copy=False)
    assert not np.shares_memory(x.__array__(copy=True), np.asarray(x))
    with pytest.raises(TypeError):
        np.sin(x)


def test_what_is_differentiated_is_not_lent() -> None:
    x = tp.tensor([1.0], requires_grad=True)
    with pytest.raises(AutogradError) as caught:
        x.numpy()
    assert "use x.detach().numpy()" in caught.value.__notes__
    with pytest.raises(AutogradError):
        np.asarray(x)
    with pytest.raises(BufferError, match="detach"):
        memoryview(x)
    with pytest.raises(BufferError, match="detach"):
        x.__dlpack__()
    assert x.detach().numpy().tolist() == [1.0]


def test_lifetimes() -> None:
    class Tracked(np.ndarray):
        pass

    dead: list[int] = []
    a = np.arange(4.0).view(Tracked)
    import weakref

    weakref.finalize(a, dead.append, 1)
    x = tp.from_numpy(a)[1:]
    del a
    gc.collect()
    assert not dead
    assert x.tolist() == [1.0, 2.0, 3.0]
    del x
    gc.collect()
    assert dead == [1]

    y = tp.arange(4)
    b = y.numpy()
    ref = weakref.ref(y)
    del y
    assert ref() is not None
    assert b.tolist() == [0, 1, 2, 3]
    del b
    assert ref() is None


def test_memory_borrowed_from_python_may_be_dropped_by_any_thread() -> None:
    dead: list[int] = []
    import weakref

    class Tracked(np.ndarray):
        pass

    a = np.arange(4.0).view(Tracked)
    weakref.finalize(a, dead.append, 1)
    box = [tp.from_numpy(a)]
    del a
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert dead == [1]


def test_nothing_is_leaked_or_freed_twice() -> None:
    a = np.arange(1000.0)

    def work() -> None:
        for _ in range(100):
            x = tp.from_numpy(a)
            np.from_dlpack(x)
            tp.from_dlpack(a)
            x.__dlpack__(max_version=(1, 0))
            x.__dlpack__()
            memoryview(x[::2])
            tp.asarray(x.numpy()[::-1])

    work()
    before = sys.getrefcount(a)
    work()
    gc.collect()
    assert sys.getrefcount(a) == before


# --- buffers ---


def test_other_buffers() -> None:
    assert tp.asarray(array.array("d", [1.0, 2.0])).dtype is tp.float64
    data = bytearray(b"\x01\x02")
    x = tp.asarray(data)
    assert x.dtype is tp.uint8
    x[0] = 7
    assert data[0] == 7
    with pytest.raises(BufferError):
        data.append(1)
    del x
    data.append(1)
    assert tp.asarray(b"ab").is_readonly
    assert tp.tensor(b"ab").tolist() == [97, 98]


def test_memoryviews() -> None:
    x = tp.arange(6, dtype=tp.float32).reshape(2, 3)
    view = memoryview(x)
    assert (view.format, view.shape, view.strides, view.itemsize) == ("f", (2, 3), (12, 4), 4)
    assert view.tolist() == x.tolist()
    assert memoryview(x.T).strides == (4, 12)
    assert memoryview(x.half()).format == "e"
    assert memoryview(x > 1).format == "?"
    assert bytes(x[0]) == struct.pack("3f", 0, 1, 2)
    assert memoryview(tp.tensor(1.0)).shape == ()
    assert memoryview(tp.zeros([0, 3])).tolist() == []
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(x.T, dtype=np.float32)
    with pytest.raises(BufferError, match="is without data"):
        memoryview(x.to("meta"))


# --- asarray and tensor ---


def test_asarray_shares_and_tensor_copies() -> None:
    a = np.arange(3.0)
    assert tp.asarray(a).data_ptr() == a.ctypes.data
    assert tp.tensor(a).data_ptr() != a.ctypes.data
    x = tp.asarray(a)
    assert tp.asarray(x) is x
    assert tp.asarray(x, copy=True).data_ptr() != x.data_ptr()
    assert tp.asarray([1, 2]).tolist() == [1, 2]
    assert tp.asarray(a, dtype=tp.float32).dtype is tp.float32
    with pytest.raises(InvalidValueError, match="copy is False"):
        tp.asarray([1, 2], copy=False)
    with pytest.raises(InvalidValueError, match="copy is False"):
        tp.asarray(a, dtype=tp.float32, copy=False)
    assert tp.tensor(np.float32(2.5)).dtype is tp.float32
    assert tp.tensor(np.int8(2)).dtype is tp.int8
    assert tp.tensor([np.float32(1), np.float32(2)]).tolist() == [1.0, 2.0]


def test_a_foreign_array_as_an_argument_shows_the_way() -> None:
    with pytest.raises(ArgumentError) as caught:
        tp.exp(np.ones(2))
    assert any("tensorplay.from_numpy(x)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("back", ["array", "own", "dlpack", "owned"])
def test_a_write_through_shared_memory_is_seen_by_what_was_saved(back: str) -> None:
    """7.1, A12: tensors over the same bytes count each other's writes, however they came to share them."""
    if back in ("own", "owned"):
        a = tp.zeros([6 if back == "own" else 6000]) + 2.0
        b = tp.from_numpy(a.numpy()[1:])
    elif back == "dlpack":
        array = np.full(6, 2.0, np.float32)
        a, b = tp.from_dlpack(array), tp.from_numpy(array[3:])
    else:
        array = np.full(6, 2.0, np.float32)
        a, b = tp.from_numpy(array), tp.from_numpy(array[3:])
    apart = tp.from_numpy(np.zeros(6, np.float32))
    for saved, written in ((a, b), (b, a), (a[-2:], b)):
        w = tp.ones(saved.shape).requires_grad_()
        y = (w * saved).sum()
        before, untouched = saved._version, apart._version
        written[-1:].add_(1.0)
        assert saved._version > before
        assert apart._version == untouched
        with pytest.raises(AutogradError, match="version") as caught:
            y.backward()
        assert caught.value.code == "TP3003"
    w = tp.ones(a.shape).requires_grad_()
    y = (w * a).sum()
    b.sum()
    y.backward()
    assert w.grad.tolist() == a.tolist()


def test_memory_that_was_shared_and_given_back_is_counted_no_longer() -> None:
    """7.1: storages come and go in any order; a write finds those that are there."""
    base = np.zeros(1 << 12, np.float32)
    kept = tp.from_numpy(base)
    for i in range(200):
        t = tp.ones([64])
        view = tp.from_numpy(t.numpy())
        if i % 2:
            del t
            view.add_(1.0)
        else:
            del view
            t.add_(1.0)
        tp.from_numpy(base[i : i + 3]).add_(1.0)
    assert kept._version == 200
