//! CALLS: what an operator is and how a call finds its kernel. Schemas, the registry with provenance, computed
//! dispatch tables, keys and per-thread state, boxed values, the checks around foreign kernels, and the one
//! vocabulary for what ran. This crate knows no tape, no graph and no Python: those layers plug in as kernels
//! registered under a key, and as host objects.

mod alias;
pub mod bind;
pub mod check;
pub mod debug;
pub mod dispatcher;
pub mod effects;
mod epoch;
pub mod error;
pub mod fake;
pub mod grad;
pub mod host;
pub mod kernel;
pub mod key;
pub mod marker;
pub mod op;
pub mod outcome;
pub mod registry;
pub mod schema;
pub mod select;
pub mod stack;
pub mod state;
pub mod table;
pub mod value;

pub use dispatcher::{call, call_one, call_one_giving, redispatch};
pub use effects::Effects;
pub use error::{Error, ErrorKind, Result};
pub use grad::{GradRule, GradSpec};
pub use host::{HostObject, HostVisitor};
pub use kernel::{Call, FakeOut, FakeOuts, FakeRule, Kernel, KernelFn, OneFn, Provenance, Short};
pub use key::{DispatchKey, KeySet};
pub use op::{OpDef, OpHandle, OpId};
pub use outcome::{CallEvent, CodegenMarker, FallbackReason, Phase};
pub use registry::{Registration, Registry};
pub use schema::{Schema, SchemaError};
pub use value::{Arg, Rets, Value, pop_only_tensor, push_tensor};
