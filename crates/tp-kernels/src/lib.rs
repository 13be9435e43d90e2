//! BUILT-IN OPS: the op table (`ops`), its fake rules (`fake`) and CPU kernels (`cpu`), all registered in the
//! namespace `tp` by [`register_all`]. This crate knows no tape, no graph and no Python; an op is added by writing
//! one row.

mod aliases;
pub mod cpu;
mod docs;
pub mod draws;
pub mod fake;
pub mod ops;
pub mod random;
pub mod register;
pub mod row;

pub use aliases::ALIASES;
pub use docs::describe;
pub use register::{NAMESPACE, register_all};
