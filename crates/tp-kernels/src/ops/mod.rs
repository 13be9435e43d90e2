//! THE OP TABLE. One row per function: schema (with its overloads), effects, fake rule, CPU kernel, gradient; a
//! pointwise row is its scalar expression, from which kernel, fake rule and fusion follow. To add an op, write a
//! row in the file of its group. Nothing here runs; `register` reads it.

pub mod binary;
pub mod creation;
pub mod indexing;
pub mod inplace;
pub mod matmul;
pub mod movement;
pub mod reduce;
pub mod sort;
pub mod ternary;
pub mod unary;

use crate::row::Row;

/// Every row, group by group.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    let groups = [
        creation::ROWS,
        unary::ROWS,
        binary::ROWS,
        ternary::ROWS,
        reduce::ROWS,
        matmul::ROWS,
        movement::ROWS,
        indexing::ROWS,
        sort::ROWS,
        inplace::ROWS,
    ];
    groups.into_iter().flatten()
}
