//! `ExprError`: everything that can go wrong between an expression's text and its result.

use tp_tensor::DType;
use tp_tensor::scalar::Misfit;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// The text is no expression. `at` is a byte offset into it.
    #[error("cannot parse {text:?} at byte {at}: {message}")]
    Parse { text: String, at: usize, message: String },

    /// An operation got operands it has no meaning for.
    #[error("{op} is not defined for {dtype}")]
    Type { op: &'static str, dtype: DType },

    /// The number of arguments is not the number of parameters.
    #[error("{what} takes {want} arguments, got {got}")]
    Arity { what: String, want: usize, got: usize },

    /// An integer was divided by zero, or its remainder by zero taken.
    #[error("integer division by zero")]
    DivisionByZero,

    /// A number among the arguments does not fit the dtype that it joins.
    #[error(transparent)]
    Number(Misfit),

    /// No executor here runs this primitive on this dtype.
    #[error("no kernel for {prim} on {dtype}")]
    UnsupportedDType { prim: &'static str, dtype: DType },

    /// A program that breaks a rule of its form.
    #[error("invalid program: {0}")]
    Invalid(String),
}
