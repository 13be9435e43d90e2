//! SCALAR EXPRESSIONS: one scalar function of scalars, its typing, its reference evaluation and its fast execution
//! over arrays. Operators, gradients, graphs and backends are written in terms of these; this crate knows no
//! operator's name.
//!
//! `expr` parses and types a function, `program` is the typed form every executor lowers, `eval` defines what a
//! program computes, `tile` runs it over arrays with `pool`'s threads.

mod error;
pub mod eval;
pub mod expand;
pub mod expr;
pub mod pool;
pub mod prim;
pub mod program;
mod semantics;
pub mod stream;
pub mod tile;

pub use error::ExprError;
pub use expr::{ArgType, ScalarExpr, Stand};
pub use prim::{Class, Prim};
pub use program::{Hazard, Instr, Operand, Program, ProgramBuilder, ValueId};
pub use tile::{DirectStep, Isa, Strided, TileKernel};
