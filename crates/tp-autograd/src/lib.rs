//! DIFFERENTIATION: the tape that records calls, the rules that go back through them, and the engine that runs
//! backward. It plugs into the dispatcher as the kernel of the Autograd key, and into tensors as their `ext`. It
//! knows no graph and no Python: foreign rules come in as `VjpRule` objects, host objects as opaque pointers.

pub mod anomaly;
mod discard;
mod engine;
mod expr;
mod formulas;
pub mod hooks;
mod inplace;
mod kernel;
pub mod meta;
pub mod mode;
mod ops;
mod resolve;
pub mod rule;
mod spin;
pub mod tape;
mod view;

pub use engine::{
    GradOptions, backward, backward_from, depends_on, distinct, grad, grad_up_to, grad_up_to_data, hide_leaf,
    reaches_other_leaf, reaches_outside, same_edge,
};
pub use hooks::{HostHooks, set_host_hooks};
pub use inplace::Rewritten;
pub use kernel::install;
pub use mode::GradMode;
pub use rule::{BackwardCtx, CustomRule, Gradients, VjpRule, custom_spec, trace_spec};
pub use tape::{GradHook, Node, NodeRef, Recording, SavedHooks, SavedTensorsHooks, Saver, record_node};
