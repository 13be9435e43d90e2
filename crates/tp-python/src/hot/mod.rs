//! THE HOT DOOR: the types and functions made by hand, where PyO3's own forms cost two to three times as much.
//! The rest of the crate is plain PyO3, but for `watching`, which reads the interpreter's own structures, and the exchange of
//! memory with other libraries; each unsafe block says what it relies on.
//!
//! # Rationale
//! A builtin bound to its op object, a final tensor type with a free list, exact type checks instead of downcasts,
//! and arguments bound on the stack: an `add` of eight floats costs about twice a no-op call.
//!
//! # Limitations
//! * Everything here runs with the interpreter lock held; a free-threaded build needs locks where `shell` says so.
//! * PyO3's attach count is zero inside of these slots: a `Py<T>` dropped here would wait for ever. Raw references
//!   are given back through `queue` or on the spot.
//! * Every slot catches panics (`ret::guard`): unwinding through C is an abort.

pub mod bind;
pub mod convert;
pub mod ffi;
pub mod heap_type;
pub mod keywords;
pub mod nest;
pub mod nested;
pub mod node_host;
pub mod opobj;
pub mod outputs;
pub mod packet;
pub mod predicate;
pub mod pykernel;
pub mod queue;
pub mod rank;
pub mod refusals;
pub mod results;
pub mod ret;
pub mod shell;
pub mod sizes;
pub mod tensor_type;
