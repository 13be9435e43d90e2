//! The tape: nodes, the edges between them, what they saved, and how a call is recorded. It knows when a node dies
//! and who may touch its buffers; it does not know formulas, nor in which order nodes run.

mod draft;
mod drop_list;
mod extra;
mod handle;
mod hosted;
mod node;
mod packed;
mod record;
mod saved;
pub(crate) mod single;

pub use extra::{GradHook, HookId, NodeExtra, Spec};
pub use handle::NodeRef;
pub use hosted::Listed;
pub use node::{Edge, Node};
pub use packed::{SavedHooks, SavedHooksOff, SavedTensorsHooks, has_saved_hooks};
pub use record::{Recording, Saver, record_node};
pub use saved::SavedTensor;

pub(crate) use draft::Draft;
pub(crate) use extra::{GradSlot, Leaf};
pub(crate) use handle::Claim;
pub(crate) use node::flag;
pub(crate) use packed::{is_active as hooks_active, tell as tell_hooks, unpack};
pub(crate) use record::{Edges, Recipe, Saved, collect_edges, differentiable, tie};
pub(crate) use saved::Kept;
