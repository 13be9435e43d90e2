//! CAPTURE AND COMPILATION: the graph form of a program, its text and its verifier; capture through the dispatcher;
//! passes that respect effects; guards; backends; plans that run in Rust; and reports of what was planned and what
//! ran. This crate names no operator in its decisions and knows no Python.

pub mod args;
pub mod backend;
pub mod builder;
pub mod capture;
mod dot;
pub mod entity;
pub mod guard;
pub mod ir;
mod lower;
mod native;
pub mod passes;
pub mod plan;
pub mod pointwise;
pub mod raw;
pub mod region;
pub mod report;
mod run;
mod stamp;
pub mod text;
pub mod verify;

pub use backend::{Backend, Capability};
pub use capture::{CaptureScope, Captured, capture_graph, install};
pub use entity::{NodeId, PrimaryMap, ValueId};
pub use ir::Graph;
pub use report::{Explanation, FallbackPolicy, RegionRun, RunReport};
