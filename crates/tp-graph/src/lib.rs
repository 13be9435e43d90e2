//! CAPTURE AND COMPILATION: the graph form of a program, its text and its verifier; capture through the dispatcher;
//! passes that respect effects; guards; backends; plans that run in Rust; and reports of what was planned and what
//! ran. This crate names no operator in its decisions and knows no Python.

pub mod args;
pub mod backend;
pub mod builder;
pub mod capture;
pub mod compile;
mod dot;
pub mod entity;
pub mod entry;
mod fast;
mod foreign;
pub mod guard;
mod guard_args;
mod guard_facts;
mod guard_ops;
mod guard_sizes;
pub mod host_guards;
mod inputs;
pub mod ir;
mod joint;
mod last;
mod lower;
mod native;
pub mod passes;
pub mod plan;
pub mod pointwise;
pub mod raw;
pub mod region;
pub mod report;
mod rows;
mod run;
pub mod sizing;
mod split;
mod stamp;
mod svg;
pub mod text;
mod training;
pub mod verify;

pub use backend::{Backend, Capability};
pub use capture::{CaptureScope, Captured, capture_graph, install};
pub use compile::{Built, CaptureFn, CompileOptions, CompiledFunction};
pub use entity::{NodeId, PrimaryMap, ValueId};
pub use entry::Entry;
pub use ir::Graph;
pub use report::{Explanation, FallbackPolicy, RegionRun, RunReport};
