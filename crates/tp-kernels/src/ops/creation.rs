//! Creation rows. The dtype defaults to float32, or follows the number or tensor given.

use crate::cpu::create;
use crate::fake::create as fake;
use crate::row::{RANDOM, Row, op};
use smallvec::smallvec;
use tp_dispatch::{FakeOut, GradSpec};

const NONE: GradSpec = GradSpec::NotDifferentiable("its result does not depend on the values of a tensor");

pub static ROWS: &[Row] = &[
    op!(
        ["empty(SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::sized(call)?)),
        create::empty,
        NONE,
        doc = "A new tensor whose elements are whatever the memory holds. dtype: float32 unless given."
    ),
    op!(
        ["zeros(SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::sized(call)?)),
        create::zeros,
        NONE,
        doc = "A new tensor of zeros. dtype: float32 unless given."
    ),
    op!(
        ["ones(SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::sized(call)?)),
        create::ones,
        NONE,
        doc = "A new tensor of ones. dtype: float32 unless given."
    ),
    op!(
        [
            "full(SymInt[1] shape, Scalar fill_value, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::full(call)?)),
        create::full,
        NONE,
        doc =
            "A new tensor filled with one number. dtype: the number's (int64, float32 or bool) unless given."
    ),
    op!(
        [
            "empty_strided(SymInt[] shape, SymInt[] strides, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| Ok(smallvec![FakeOut::Spec(fake::strided(call)?)])),
        create::empty_strided,
        NONE,
        doc = "A new tensor with these strides (in elements), its elements whatever the memory holds."
    ),
    // Like a tensor: contiguous, whatever the strides of that tensor. The tag `like` says that no element of it is read.
    op!(
        ["empty_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::empty_like,
        NONE,
        doc = "A new tensor like `x`, its elements whatever the memory holds. Shape, layout, dtype and device: those of `x` unless given."
    ),
    op!(
        ["zeros_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::zeros_like,
        NONE,
        tags = ["like"],
        doc = "A new tensor of zeros like `x`. Shape, layout, dtype and device: those of `x` unless given."
    ),
    op!(
        ["ones_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::ones_like,
        NONE,
        tags = ["like"],
        doc = "A new tensor of ones like `x`. Shape, layout, dtype and device: those of `x` unless given."
    ),
    op!(
        ["full_like(Tensor x, Scalar fill_value, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::full_like(call)?)),
        create::full_like,
        NONE,
        tags = ["like"],
        doc = "A new tensor like `x` filled with one number. Shape, layout, dtype and device: those of `x` unless given."
    ),
    op!(
        ["new_empty(Tensor x, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::new_sized(call)?)),
        create::new_empty,
        NONE,
        doc = "A new tensor with the dtype and device of `x`, its elements whatever the memory holds."
    ),
    op!(
        ["new_zeros(Tensor x, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::new_sized(call)?)),
        create::new_zeros,
        NONE,
        tags = ["like"],
        doc = "A new tensor of zeros with the dtype and device of `x`."
    ),
    // Sequences.
    op!(
        [
            "arange(Scalar start, Scalar? stop=None, Scalar step=1, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::arange(call)?)),
        create::arange,
        NONE,
        doc = "The numbers from `start` up to, but without, `stop` in steps of `step`; one number alone is `stop`. dtype: int64 for ints, else float32, unless given."
    ),
    op!(
        [
            "linspace(Scalar start, Scalar stop, SymInt num, *, ScalarType? dtype=None, Device? device=None, bool endpoint=True) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::linspace(call)?)),
        create::linspace,
        NONE,
        doc = "`num` evenly spaced numbers from `start` to `stop`, which is the last one unless `endpoint=False`. dtype: float32 unless given."
    ),
    op!(
        [
            "eye(SymInt n_rows, SymInt? n_cols=None, *, int k=0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::eye(call)?)),
        create::eye,
        NONE,
        doc = "A matrix with ones on diagonal `k` (0 the main one, above it positive) and zeros elsewhere. dtype: float32 unless given."
    ),
    op!(
        ["count_backward(SymInt count, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::count(call)?)),
        create::count,
        NONE,
        doc = "A size as a 0-d tensor, for rules that divide by one which only a run knows. dtype: float32 unless given."
    ),
    // Random numbers, from the generator that `random::manual_seed` seeds.
    op!(
        [
            "normal(SymInt[1] shape, *, float mean=0.0, float std=1.0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::normal(call)?)),
        create::normal,
        NONE,
        effects = RANDOM,
        doc =
            "Random numbers of a normal distribution. dtype: float32 unless given. `manual_seed` fixes them."
    ),
    op!(
        [
            "uniform(SymInt[1] shape, *, float low=0.0, float high=1.0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::uniform(call)?)),
        create::uniform,
        NONE,
        effects = RANDOM,
        doc = "Random numbers spread evenly over [low, high). dtype: float32 unless given. `manual_seed` fixes them."
    ),
    op!(
        [
            "randint(SymInt low, SymInt high, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::randint(call)?)),
        create::randint,
        NONE,
        effects = RANDOM,
        doc = "Random whole numbers in [low, high). dtype: int64 unless given. `manual_seed` fixes them."
    ),
];
