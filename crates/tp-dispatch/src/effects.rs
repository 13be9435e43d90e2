//! What a call does besides computing its outputs. Every pass asks here before it removes, merges or moves a
//! call; the name of an op never decides.

use std::fmt;

/// Declared by the author; mutation comes from the schema's alias annotations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects {
    /// Writes to at least one argument.
    pub mutates: bool,
    /// Draws random numbers: two equal calls give different results, and order matters for reproducibility.
    pub random: bool,
    /// Has an effect outside of its arguments (logging, communication): never removed, merged or reordered.
    pub ordered: bool,
    /// May give other bits when called twice with equal inputs.
    pub nondeterministic: bool,
}

impl Effects {
    pub const PURE: Effects =
        Effects { mutates: false, random: false, ordered: false, nondeterministic: false };

    /// May be removed when its results are unused.
    pub fn removable(self) -> bool {
        !self.mutates && !self.ordered && !self.random
    }

    /// Two calls with equal arguments may become one.
    pub fn mergeable(self) -> bool {
        self.removable() && !self.nondeterministic
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (self.mutates, "mutates"),
            (self.random, "random"),
            (self.ordered, "ordered"),
            (self.nondeterministic, "nondeterministic"),
        ]
        .into_iter()
        .filter_map(|(on, name)| on.then_some(name))
    }
}

impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Effects::PURE {
            return f.write_str("pure");
        }
        for (i, name) in self.names().enumerate() {
            write!(f, "{}{name}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
