//! Guards on the definitions and kernels of the ops that were captured.

use tp_dispatch::OpHandle;

/// One captured op. A user's op is called in a run, so that only its contract matters; a built-in one may have become
/// part of a region, which its kernels must not have changed for.
#[derive(Debug)]
pub(crate) struct OpGuard {
    pub op: OpHandle,
    pub custom: bool,
    seen: u64,
}

impl OpGuard {
    pub fn of(op: OpHandle) -> OpGuard {
        let custom = op.def().is_none_or(|d| d.custom);
        OpGuard { op, custom, seen: if custom { op.contract() } else { op.revision() } }
    }

    pub fn holds(&self) -> bool {
        self.seen == if self.custom { self.op.contract() } else { self.op.revision() }
    }
}
