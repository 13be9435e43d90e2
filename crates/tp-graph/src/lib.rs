//! CAPTURE AND COMPILATION: the graph form of a program, its text and its verifier; capture through the dispatcher;
//! passes that respect effects; guards; backends; plans that run in Rust; and reports of what was planned and what
//! ran. This crate names no operator in its decisions and knows no Python.

pub mod args;
pub mod builder;
pub mod capture;
mod dot;
pub mod entity;
pub mod ir;
pub mod passes;
pub mod pointwise;
pub mod text;
pub mod verify;

pub use entity::{NodeId, PrimaryMap, ValueId};
pub use ir::Graph;
