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
        NONE
    ),
    op!(
        ["zeros(SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::sized(call)?)),
        create::zeros,
        NONE
    ),
    op!(
        ["ones(SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::sized(call)?)),
        create::ones,
        NONE
    ),
    op!(
        [
            "full(SymInt[1] shape, Scalar fill_value, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::full(call)?)),
        create::full,
        NONE
    ),
    op!(
        [
            "empty_strided(SymInt[] shape, SymInt[] strides, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| Ok(smallvec![FakeOut::Spec(fake::strided(call)?)])),
        create::empty_strided,
        NONE
    ),
    // Like a tensor: contiguous, whatever the strides of that tensor.
    op!(
        ["empty_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::empty_like,
        NONE
    ),
    op!(
        ["zeros_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::zeros_like,
        NONE
    ),
    op!(
        ["ones_like(Tensor x, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::like(call)?)),
        create::ones_like,
        NONE
    ),
    op!(
        ["full_like(Tensor x, Scalar fill_value, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::full_like(call)?)),
        create::full_like,
        NONE
    ),
    op!(
        ["new_empty(Tensor x, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::new_sized(call)?)),
        create::new_empty,
        NONE
    ),
    op!(
        ["new_zeros(Tensor x, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"],
        Some(|call| fake::fresh(fake::new_sized(call)?)),
        create::new_zeros,
        NONE
    ),
    // Sequences.
    op!(
        [
            "arange(Scalar start, Scalar? stop=None, Scalar step=1, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::arange(call)?)),
        create::arange,
        NONE
    ),
    op!(
        [
            "linspace(Scalar start, Scalar stop, SymInt num, *, ScalarType? dtype=None, Device? device=None, bool endpoint=True) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::linspace(call)?)),
        create::linspace,
        NONE
    ),
    op!(
        [
            "eye(SymInt n_rows, SymInt? n_cols=None, *, int k=0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::eye(call)?)),
        create::eye,
        NONE
    ),
    // Random numbers, from the generator that `random::manual_seed` seeds.
    op!(
        [
            "normal(SymInt[1] shape, *, float mean=0.0, float std=1.0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::normal(call)?)),
        create::normal,
        NONE,
        effects = RANDOM
    ),
    op!(
        [
            "uniform(SymInt[1] shape, *, float low=0.0, float high=1.0, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::uniform(call)?)),
        create::uniform,
        NONE,
        effects = RANDOM
    ),
    op!(
        [
            "randint(SymInt low, SymInt high, SymInt[1] shape, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
        ],
        Some(|call| fake::fresh(fake::randint(call)?)),
        create::randint,
        NONE,
        effects = RANDOM
    ),
];
