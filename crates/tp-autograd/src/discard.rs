//! Dropping short lists that are empty by then. Lists on the hot path live on the stack and have been emptied when
//! they go; their destructor would still be called for each.

use smallvec::{Array, SmallVec};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// Nothing in it, and no memory behind it.
#[inline(always)]
pub(crate) fn is_spent<A: Array>(list: &SmallVec<A>) -> bool {
    list.is_empty() && !list.spilled()
}

/// A list that goes without a call where nothing is in it.
pub(crate) struct Brief<A: Array>(ManuallyDrop<SmallVec<A>>);

impl<A: Array> Brief<A> {
    #[inline(always)]
    pub fn new(list: SmallVec<A>) -> Brief<A> {
        Brief(ManuallyDrop::new(list))
    }
}

impl<A: Array> Deref for Brief<A> {
    type Target = SmallVec<A>;

    #[inline(always)]
    fn deref(&self) -> &SmallVec<A> {
        &self.0
    }
}

impl<A: Array> DerefMut for Brief<A> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut SmallVec<A> {
        &mut self.0
    }
}

impl<A: Array> Drop for Brief<A> {
    #[inline(always)]
    fn drop(&mut self) {
        if !is_spent(&self.0) {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
