"""One TVM kernel over every way its operands can lie: sizes, ranges, views, strides, scalars."""

import numpy as np
import pytest

from backends.kernel_call import run_flat, run_strided
from backends.scalar_program import HELD, Builder, evaluate, mismatch, samples

pytestmark = pytest.mark.requires("tvm")


def muladd(dtype="float32"):
    b = Builder(dtype, dtype)
    return b.program(b.add(b.mul(0, 1), 0), b.lt(0, 1))


def agree(program, got, arrays):
    want = evaluate(program, [np.ascontiguousarray(a).reshape(-1) for a in arrays])
    for out, g, w in zip(program["outputs"], got, want, strict=True):
        assert mismatch(program["instrs"][out][1], g.reshape(-1), w).size == 0


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 1000, 1001])
def test_every_size_writes_its_elements_and_no_other(size, dtype):
    program = muladd(dtype)
    arrays = [samples(dtype, size + 64, seed)[:size] for seed in (1, 2)]
    guarded = [np.full(size + 16, 77, held) for held in (HELD[dtype], np.uint8)]
    run_flat(program, arrays, outputs=[g[8:] if not size else g[8 : 8 + size] for g in guarded])
    agree(program, [g[8 : 8 + size] for g in guarded], arrays)
    for g in guarded:
        assert (g[:8] == 77).all()
        assert (g[8 + size :] == 77).all()


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_a_range_split_in_pieces_gives_the_whole(pieces):
    program = muladd()
    arrays = [samples("float32", 1003, seed) for seed in (1, 2)]
    agree(program, run_flat(program, arrays, pieces=pieces), arrays)


@pytest.mark.parametrize("offset", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_views_that_start_anywhere(offset, dtype):
    program = muladd(dtype)
    arrays = [samples(dtype, 1000, seed)[offset:] for seed in (1, 2)]
    agree(program, run_flat(program, arrays), arrays)


def test_an_element_may_start_on_an_odd_byte():
    raw = np.zeros(4 * 500 + 1, np.uint8)
    view = raw[1:].view(np.float32)
    view[:] = samples("float32", 500)
    program = muladd()
    agree(program, run_flat(program, [view, view]), [view.copy(), view.copy()])


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scalar", [0, 1])
def test_a_scalar_is_read_at_element_zero(scalar, dtype):
    b = Builder(dtype, dtype)
    program = b.program(b.select(b.cast("bool", 0), 1, 0), b.cast("float32", 1))
    arrays = [samples(dtype, 300, seed) for seed in (1, 2)]
    arrays[scalar] = arrays[scalar][4:5]
    flags = [k == scalar for k in range(2)]
    spread = [np.broadcast_to(a, (300,)) for a in arrays]
    agree(program, run_flat(program, arrays, scalars=flags), spread)


def test_a_program_without_inputs_fills():
    b = Builder()
    program = b.program(b.const("float32", 2.5))
    out = np.zeros(77, np.float32)
    run_flat(program, [], outputs=[out[:1]])
    assert out.tolist() == [2.5] + [0.0] * 76


@pytest.mark.parametrize("position", [0, 1])
def test_an_output_may_replace_an_input(position):
    b = Builder("float32", "float32")
    program = b.program(b.sub(b.mul(0, 1), 0))
    arrays = [samples("float32", 1001, seed) for seed in (1, 2)]
    before = [a.copy() for a in arrays]
    run_flat(program, arrays, outputs=[arrays[position]])
    agree(program, [arrays[position]], before)


def test_any_byte_but_zero_is_true_and_outputs_are_zero_or_one():
    b = Builder("bool")
    program = b.program(0, b.op("not", 0), b.cast("float32", 0))
    every = np.arange(256, dtype=np.uint8)
    same, negated, number = run_flat(program, [every])
    assert same.tolist() == [0] + [1] * 255
    assert negated.tolist() == [1] + [0] * 255
    assert number.tolist() == [0.0] + [1.0] * 255


def views():
    base = samples("float32", 6 * 7 * 8 * 2, seed=1).reshape(6, 7, 16)
    other = samples("float32", 6 * 7 * 8, seed=2).reshape(6, 7, 8)
    square = samples("float32", 81, seed=3).reshape(9, 9)
    return {
        "contiguous": ([other, other], [1, 1]),
        "sliced": ([base[:, :, :8], other], [1, 1]),
        "stepped": ([base[:, :, ::2], other], [None, 1]),
        "transposed": ([square.T, square], [None, 1]),
        "reversed": ([other[::-1, :, ::-1], other], [None, 1]),
        "row broadcast": ([np.broadcast_to(other[:1, :1], (6, 7, 8)), other], [1, 1]),
        "column broadcast": ([np.broadcast_to(other[:, :, :1], (6, 7, 8)), other], [0, 1]),
        "all broadcast": ([np.broadcast_to(other[:1, :1, :1], (6, 7, 8)), other], [0, 1]),
        "both broadcast": (
            [np.broadcast_to(other[0], (6, 7, 8)), np.broadcast_to(other[:, :, :1], (6, 7, 8))],
            [1, 0],
        ),
        "permuted": ([other.transpose(2, 0, 1), base[:, :, :8].transpose(2, 0, 1)], [None, None]),
        "one dimension": ([base.reshape(-1)[::3], base.reshape(-1)[: base.size // 3]], [None, 1]),
        "inner of one": ([other[:, :, :1], base[:, :, 3:4]], [0, 1]),
        "five dimensions": (
            [other.reshape(2, 3, 7, 2, 4)[:, ::-1], base[:, :, ::2].reshape(2, 3, 7, 2, 4)],
            [1, None],
        ),
        "outer of zero": ([other[:0], other[:0]], [1, 1]),
        "inner of zero": ([other[:, :, :0], other[:, :, :0]], [1, 1]),
    }


@pytest.mark.parametrize("specialised", [True, False])
@pytest.mark.parametrize("name", list(views()))
def test_strided(name, specialised):
    arrays, inner = views()[name]
    program = muladd()
    agree(program, run_strided(program, arrays, inner if specialised else None), arrays)


@pytest.mark.parametrize("pieces", [2, 5])
def test_strided_range_split_over_the_outermost_dimension(pieces):
    arrays, inner = views()["transposed"]
    program = muladd()
    agree(program, run_strided(program, arrays, inner, pieces), arrays)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float16", "float64"])
def test_strided_other_dtypes(dtype):
    b = Builder(dtype, dtype)
    program = b.program(b.select(b.cast("bool", 0), 1, 0), b.cast("float32", 1))
    arrays = [samples(dtype, 600, seed).reshape(20, 30) for seed in (1, 2)]
    arrays[0] = arrays[0].reshape(30, 20).T
    agree(program, run_strided(program, arrays, [None, 1]), arrays)
    wide = np.broadcast_to(arrays[1][:, :1], (20, 30))
    agree(program, run_strided(program, [arrays[0], wide], [None, 0]), [arrays[0], wide])


def test_an_empty_inner_dimension_reads_nothing():
    program = muladd()
    empty = np.zeros((5, 0), np.float32)
    got = run_strided(program, [empty] * 2, [0, 0])
    assert [g.size for g in got] == [0, 0]


def test_an_index_beyond_two_to_the_31():
    size = (1 << 31) + 9
    b = Builder("uint8")
    program = b.program(b.add(0, b.const("uint8", 1)))
    source = np.zeros(size, np.uint8)  # pages that nobody touches cost nothing
    source[-3:] = 7
    target = np.zeros(size, np.uint8)
    from backends.kernel_call import address, invoke, pack
    from tensorplay.backends import tvm

    artifact = tvm.lower(program, {"kind": "flat", "scalar_inputs": [False]})
    invoke(artifact, pack(artifact, [address(source), address(target)], [size - 5, size]))
    assert target[-6:].tolist() == [0, 1, 1, 8, 8, 8]
