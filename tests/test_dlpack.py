"""DLPack both ways: layouts, flags, versions, lifetimes, and the C exchange table."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import tensorplay as tp
from arrays import NUMPY_DTYPES, VIEWS, sample
from tensorplay.errors import ArgumentError


@pytest.mark.parametrize("name", NUMPY_DTYPES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_dlpack_both_ways(name: str, view) -> None:
    a = sample(name)
    x = view(tp.tensor(a))
    lent = np.from_dlpack(x)
    assert lent.dtype == a.dtype
    assert lent.tolist() == view(a).tolist()
    taken = tp.from_dlpack(np.asarray(view(a)))
    assert taken.dtype is x.dtype
    assert taken.tolist() == view(a).tolist()
    assert tp.from_dlpack(x).tolist() == x.tolist()


class DLDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def look(x: tp.Tensor, **options: object) -> tuple[object, Versioned]:
    capsule = x.__dlpack__(max_version=(1, 3), **options)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return capsule, Versioned.from_address(get(capsule, b"dltensor_versioned"))


def test_the_exported_structure() -> None:
    x = tp.arange(154, dtype=tp.float32).reshape(2, 77)[1:]
    assert tp.from_dlpack(x).stride() == (77, 1)
    capsule, m = look(x)
    assert "dltensor_versioned" in repr(capsule)
    assert (m.major, m.minor, m.flags) == (1, 3, 0)
    t = m.tensor
    assert (t.data, t.byte_offset) == (x.data_ptr(), 0)
    assert (t.device.kind, t.device.index, t.ndim) == (1, 0, 2)
    assert (t.code, t.bits, t.lanes) == (2, 32, 1)
    assert (t.shape[:2], t.strides[:2]) == ([1, 77], [77, 1])
    assert look(tp.zeros([0, 3]))[1].tensor.data is None
    assert look(tp.zeros([0, 3]))[1].tensor.strides[:2] == [3, 1]
    assert look(x.bfloat16())[1].tensor.code == 4
    assert look(x > 0)[1].tensor.code == 6
    copied_capsule, copied = look(x, copy=True)
    assert copied.flags == 2
    assert copied.tensor.data != x.data_ptr()
    assert copied_capsule is not None


def test_dlpack_options() -> None:
    x = tp.tensor([1.0, 2.0])
    assert x.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))
    assert "versioned" in repr(x.__dlpack__(max_version=(2, 0), dl_device=(1, 0), copy=False))
    with pytest.raises(BufferError, match="stream"):
        x.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy is False"):
        x.__dlpack__(dl_device=(2, 0), copy=False)
    with pytest.raises(ArgumentError, match="no argument 'what'"):
        x.__dlpack__(what=1)
    with pytest.raises(BufferError, match="meta"):
        x.to("meta").__dlpack__()


def test_dlpack_keeps_read_only() -> None:
    a = np.arange(3.0)
    a.flags.writeable = False
    x = tp.from_dlpack(a)
    assert x.is_readonly
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()
    assert not tp.from_dlpack(a, copy=True).is_readonly


def test_elements_that_share_a_place_are_lent_read_only() -> None:
    """As through the buffer protocol: a write to one would be a write to all."""
    x = tp.tensor([1.0, 2.0, 3.0])
    rows = np.from_dlpack(x.expand((2, 3)))
    assert not rows.flags.writeable
    assert rows.tolist() == [[1.0, 2.0, 3.0]] * 2
    assert not np.from_dlpack(x[:1].expand((3,))).flags.writeable
    for apart in (x, x[::2], x.reshape((3, 1)), x[:1].expand((1, 1))):
        assert np.from_dlpack(apart).flags.writeable


@pytest.mark.parametrize("flag", [3, 0, "yes", 1.0, [True]])
def test_the_copy_flag_of_dlpack_is_a_bool(flag: object) -> None:
    x = tp.tensor([1.0])
    with pytest.raises(ArgumentError, match="argument 'copy' must be True, False or None") as caught:
        x.__dlpack__(copy=flag)
    assert caught.value.code == "TP1002"


def test_a_numpy_bool_asks_for_a_copy() -> None:
    x = tp.tensor([1.0])
    capsule = x.__dlpack__(copy=np.True_)
    assert tp.from_dlpack(capsule).data_ptr() != x.data_ptr()
    assert tp.from_dlpack(x.__dlpack__(copy=np.False_)).data_ptr() == x.data_ptr()


def test_dlpack_bfloat16_and_copies() -> None:
    x = tp.tensor([1.5]).bfloat16()
    y = tp.from_dlpack(x)
    assert y.dtype is tp.bfloat16
    assert y.data_ptr() == x.data_ptr()
    assert tp.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert tp.from_dlpack(x, device="cpu").data_ptr() == x.data_ptr()


def test_capsules_are_taken_once() -> None:
    x = tp.tensor([1.0, 2.0])
    capsule = x.__dlpack__()
    assert tp.from_dlpack(capsule).tolist() == [1.0, 2.0]
    with pytest.raises(BufferError, match="only once"):
        tp.from_dlpack(capsule)
    with pytest.raises(TypeError, match="__dlpack__"):
        tp.from_dlpack([1])


def test_dlpack_refuses_elements_by_code() -> None:
    with pytest.raises(BufferError, match="type code 5 with 64 bits"):
        tp.from_dlpack(np.zeros(2, dtype=np.complex64))
    with pytest.raises(BufferError, match="unsigned integer"):
        tp.from_dlpack(np.zeros(2, dtype=np.uint16))


def test_old_producers() -> None:
    class Old:
        def __init__(self, inner: np.ndarray) -> None:
            self.inner = inner

        def __dlpack__(self) -> object:
            return self.inner.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    a = np.arange(3.0)
    assert tp.from_dlpack(Old(a)).data_ptr() == a.ctypes.data
    assert tp.tensor(Old(a)).tolist() == [0.0, 1.0, 2.0]


def test_memory_outlives_the_capsule_on_both_sides() -> None:
    x = tp.arange(5)
    b = np.from_dlpack(x[2:])
    del x
    gc.collect()
    assert b.tolist() == [2, 3, 4]
    a = np.arange(5)
    y = tp.from_dlpack(a[2:])
    del a
    gc.collect()
    assert y.tolist() == [2, 3, 4]


def test_the_c_exchange_table() -> None:
    ffi = pytest.importorskip("tvm_ffi")
    capsule = tp.Tensor.__dlpack_c_exchange_api__
    assert "dlpack_exchange_api" in repr(capsule)
    echo = ffi.get_global_func("testing.echo")
    x = tp.arange(6, dtype=tp.float32).reshape(2, 3).T
    back = echo(x)
    assert np.from_dlpack(back).tolist() == x.tolist()
    with pytest.raises(BufferError, match="detach"):
        echo(tp.tensor([1.0], requires_grad=True))


def test_our_own_tensor_keeps_its_storage() -> None:
    """A write through the alias is a write to the tensor: backward sees it, and so does the version."""
    x, w = tp.tensor([1.0, 2.0], requires_grad=True), tp.tensor([3.0, 4.0])
    alias = tp.from_dlpack(w)
    y = x * w
    alias.add_(1.0)
    assert w.tolist() == [4.0, 5.0]
    assert w._version == alias._version == 1
    with pytest.raises(tp.errors.AutogradError) as caught:
        y.sum().backward()
    assert caught.value.code == "TP3003"
