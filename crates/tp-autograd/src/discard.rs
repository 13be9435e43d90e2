//! Dropping short lists that are empty by then. Lists on the hot path live on the stack and have been emptied when
//! they go; their destructor would still be called for each.

use smallvec::{Array, SmallVec};

/// Nothing in it, and no memory behind it.
#[inline(always)]
pub(crate) fn is_spent<A: Array>(list: &SmallVec<A>) -> bool {
    list.is_empty() && !list.spilled()
}

/// As `drop`, without a call where there is nothing to drop.
#[inline(always)]
pub(crate) fn discard<A: Array>(list: SmallVec<A>) {
    if is_spent(&list) {
        std::mem::forget(list);
    }
}
