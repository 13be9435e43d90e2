//! Type promotion: the array-API table, extended to float16/bfloat16 and to mixed kinds, and weak Python scalars.
//! Promotion is a join over a semilattice, so the order of the operands never matters.

use crate::dtype::{Category, DType};
use crate::scalar::Scalar;

/// A Python float without a tensor of a float dtype gives this.
pub const DEFAULT_FLOAT: DType = DType::F32;
/// A Python int without a tensor of a numeric dtype gives this.
pub const DEFAULT_INT: DType = DType::I64;

const fn join(a: DType, b: DType) -> DType {
    if a as u8 == b as u8 {
        return a;
    }
    // Discriminants ascend by rank; `hi` absorbs `lo` save for the two incomparable pairs.
    let (lo, hi) = if (a as u8) < (b as u8) { (a, b) } else { (b, a) };
    match (lo, hi) {
        (DType::U8, DType::I8) => DType::I16,
        (DType::F16, DType::BF16) => DType::F32,
        _ => hi,
    }
}

const fn build_table() -> [[DType; DType::COUNT]; DType::COUNT] {
    let mut table = [[DType::Bool; DType::COUNT]; DType::COUNT];
    let mut i = 0;
    while i < DType::COUNT {
        let mut j = 0;
        while j < DType::COUNT {
            table[i][j] = join(DType::ALL[i], DType::ALL[j]);
            j += 1;
        }
        i += 1;
    }
    table
}

/// `PROMOTION[a as usize][b as usize]` is the promoted dtype.
pub static PROMOTION: [[DType; DType::COUNT]; DType::COUNT] = build_table();

/// The dtype of an operation between tensors of dtypes `a` and `b`.
#[inline]
pub fn promote_types(a: DType, b: DType) -> DType {
    PROMOTION[a as usize][b as usize]
}

/// The dtype of an operation between a tensor of dtype `dtype` and a weak Python scalar of kind `kind`.
#[inline]
pub const fn promote_weak(dtype: DType, kind: Category) -> DType {
    match (dtype.category(), kind) {
        (Category::Bool | Category::Int, Category::Float) => DEFAULT_FLOAT,
        (Category::Bool, Category::Int) => DEFAULT_INT,
        _ => dtype,
    }
}

/// The dtype a Python scalar has when no tensor takes part.
#[inline]
pub const fn default_dtype(kind: Category) -> DType {
    promote_weak(DType::Bool, kind)
}

/// The dtype of an operation over tensors and weak scalars; `None` if there is no operand at all.
pub fn result_type(dtypes: &[DType], scalars: &[Scalar]) -> Option<DType> {
    let tensors = dtypes.iter().copied().reduce(promote_types);
    let weak = scalars.iter().map(|s| s.category()).max();
    match (tensors, weak) {
        (Some(dtype), Some(kind)) => Some(promote_weak(dtype, kind)),
        (Some(dtype), None) => Some(dtype),
        (None, Some(kind)) => Some(default_dtype(kind)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    #[test]
    fn table_matches_the_array_api_and_its_extension() {
        #[rustfmt::skip]
        let want: [[DType; 10]; 10] = [
            // Bool  U8    I8    I16   I32   I64   F16   BF16  F32   F64
            [Bool, U8,   I8,   I16,  I32,  I64,  F16,  BF16, F32,  F64],
            [U8,   U8,   I16,  I16,  I32,  I64,  F16,  BF16, F32,  F64],
            [I8,   I16,  I8,   I16,  I32,  I64,  F16,  BF16, F32,  F64],
            [I16,  I16,  I16,  I16,  I32,  I64,  F16,  BF16, F32,  F64],
            [I32,  I32,  I32,  I32,  I32,  I64,  F16,  BF16, F32,  F64],
            [I64,  I64,  I64,  I64,  I64,  I64,  F16,  BF16, F32,  F64],
            [F16,  F16,  F16,  F16,  F16,  F16,  F16,  F32,  F32,  F64],
            [BF16, BF16, BF16, BF16, BF16, BF16, F32,  BF16, F32,  F64],
            [F32,  F32,  F32,  F32,  F32,  F32,  F32,  F32,  F32,  F64],
            [F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64],
        ];
        assert_eq!(PROMOTION, want);
    }

    #[test]
    fn promotion_is_associative_and_commutative() {
        for a in DType::ALL {
            for b in DType::ALL {
                assert_eq!(promote_types(a, b), promote_types(b, a));
                for c in DType::ALL {
                    assert_eq!(
                        promote_types(promote_types(a, b), c),
                        promote_types(a, promote_types(b, c)),
                        "{a} {b} {c}"
                    );
                }
            }
        }
    }

    #[test]
    fn weak_scalars_never_widen_their_own_kind() {
        let rt = |d: &[DType], s: &[Scalar]| result_type(d, s).unwrap();
        assert_eq!(rt(&[I8], &[Scalar::Int(1000)]), I8);
        assert_eq!(rt(&[Bool], &[Scalar::Int(1)]), I64);
        assert_eq!(rt(&[Bool], &[Scalar::Bool(true)]), Bool);
        assert_eq!(rt(&[I64], &[Scalar::Float(0.5)]), F32);
        assert_eq!(rt(&[Bool], &[Scalar::Float(0.5)]), F32);
        assert_eq!(rt(&[F16], &[Scalar::Float(1e300)]), F16);
        assert_eq!(rt(&[BF16], &[Scalar::Int(3)]), BF16);
        assert_eq!(rt(&[F64, F32], &[Scalar::Float(0.5)]), F64);
        assert_eq!(rt(&[], &[Scalar::Bool(true), Scalar::Int(3)]), I64);
        assert_eq!(rt(&[], &[Scalar::Int(3), Scalar::Float(1.0)]), F32);
        assert_eq!(rt(&[], &[Scalar::Bool(false)]), Bool);
        assert_eq!(result_type(&[], &[]), None);
    }
}
