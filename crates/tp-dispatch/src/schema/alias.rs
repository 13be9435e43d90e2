//! Alias annotations: which sets a value belongs to, before and after the call, and whether the
//! call writes to it.

use smallvec::{SmallVec, smallvec};

use super::text::Text;

/// One alias set. Values that share a set may share memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AliasSet {
    Named(Text),
    /// `*`: the value may alias anything.
    Wildcard,
    /// The set of `Tensor!`: this value's own, shared with no other.
    Fresh,
}

pub(super) type AliasSets = SmallVec<[AliasSet; 1]>;

/// The annotation of one value: `(a)`, `(a!)`, `(a! -> a|b)`, `(*)`, `!`, or for a list also the
/// annotation of its elements: `Tensor(a!)[](b)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AliasInfo {
    /// Sorted, without duplicates. Empty only for a list of which the elements alone are annotated.
    before: AliasSets,
    /// `None` means that the sets stay as they were.
    after: Option<AliasSets>,
    write: bool,
    element: Option<Box<AliasInfo>>,
}

impl AliasInfo {
    /// A value in the sets `before` that is in the sets `after` once the call has returned.
    pub fn new(
        before: impl IntoIterator<Item = AliasSet>,
        write: bool,
        after: Option<Vec<AliasSet>>,
    ) -> AliasInfo {
        let before = sorted(before.into_iter().collect());
        let after = after.map(|sets| sorted(sets.into())).filter(|sets| *sets != before);
        AliasInfo { before, after, write, element: None }
    }

    /// `(name)` or `(name!)`.
    pub fn named(name: &str, write: bool) -> AliasInfo {
        AliasInfo::one(AliasSet::Named(Text::new(name)), write)
    }

    /// `!`: written to, in a set of its own.
    pub fn fresh() -> AliasInfo {
        AliasInfo::one(AliasSet::Fresh, true)
    }

    pub(super) fn one(set: AliasSet, write: bool) -> AliasInfo {
        AliasInfo { before: smallvec![set], after: None, write, element: None }
    }

    pub(super) fn sets(before: AliasSets, write: bool, after: Option<AliasSets>) -> AliasInfo {
        let before = sorted(before);
        let after = after.map(sorted).filter(|sets| *sets != before);
        AliasInfo { before, after, write, element: None }
    }

    /// The annotation of a list of values annotated `self`. A list whose elements are written to
    /// counts as written to.
    pub fn into_list(self, container: Option<AliasInfo>) -> AliasInfo {
        let write = self.write;
        let empty = AliasInfo { before: SmallVec::new(), after: None, write, element: None };
        AliasInfo { element: Some(Box::new(self)), ..container.unwrap_or(empty) }
    }

    /// The value's sets before the call.
    pub fn before(&self) -> &[AliasSet] {
        &self.before
    }

    /// The value's sets after the call.
    pub fn after(&self) -> &[AliasSet] {
        self.after.as_ref().unwrap_or(&self.before)
    }

    /// The annotation of a list's elements.
    pub fn element(&self) -> Option<&AliasInfo> {
        self.element.as_deref()
    }

    /// Whether the call writes to the value, or to the elements of it.
    pub fn is_write(&self) -> bool {
        let mut level = Some(self);
        while let Some(info) = level {
            if info.write {
                return true;
            }
            level = info.element();
        }
        false
    }

    /// Whether the value's own annotation, elements aside, says that it is written to.
    pub(super) fn writes_own(&self) -> bool {
        self.write
    }

    /// Whether a value annotated `self` after the call can be one annotated `before` on entry:
    /// they, or their elements, have a named set in common.
    pub fn shares_set_with(&self, argument: &AliasInfo) -> bool {
        self.levels().any(|mine| {
            mine.after().iter().any(|set| {
                matches!(set, AliasSet::Named(_))
                    && argument.levels().any(|theirs| theirs.before.contains(set))
            })
        })
    }

    fn levels(&self) -> impl Iterator<Item = &AliasInfo> {
        std::iter::successors(Some(self), |info| info.element())
    }
}

/// Sets have no order; sorting makes equal ones print and compare equal.
fn sorted(mut sets: AliasSets) -> AliasSets {
    if sets.len() > 1 {
        sets.sort_unstable();
        sets.dedup();
    }
    sets
}
