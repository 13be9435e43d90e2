//! The arguments of a call as flat values, with their names for guards.

use super::tree::FlatCall;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::{Arg, Value};

pub type FlatArgs<'a> = SmallVec<[Arg<'a>; 8]>;

/// A tensor without data has no compiled code to run: the function's ops say what becomes of it.
pub fn holds_fake(value: &Value) -> bool {
    let mut fake = false;
    value.for_each_tensor(|t| fake |= t.is_fake());
    fake
}

/// Flat values of a call, with the structure as one more where it matters.
pub struct FlatValues {
    pub values: Vec<Value>,
    pub names: Vec<Arc<str>>,
}

pub fn flat_values(call: &FlatCall) -> FlatValues {
    let mut values = call.flat.values.clone();
    let mut names: Vec<Arc<str>> = call.flat.names.iter().map(|n| n.as_str().into()).collect();
    if !call.is_plain() {
        values.push(Value::Str(call.flat.shape.as_str().into()));
        names.push("structure".into());
    }
    FlatValues { values, names }
}

pub fn flat_args(flat: &FlatValues) -> FlatArgs<'_> {
    flat.values.iter().map(Value::as_arg).collect()
}
