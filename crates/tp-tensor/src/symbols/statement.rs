//! Statements about sizes: what functions check, and what entries are guarded by.

use super::Poly;
use std::fmt;
use std::sync::Arc;

/// How two sizes compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Relation {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A statement about sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    pub left: Poly,
    pub relation: Relation,
    pub right: Poly,
}

/// A statement that the function made with `check`, for every run to confirm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    pub statement: Statement,
    pub message: Option<Arc<str>>,
    /// File and line of the user's call.
    pub at: Option<(Arc<str>, u32)>,
}

impl Relation {
    pub const ALL: [Relation; 6] =
        [Relation::Eq, Relation::Ne, Relation::Le, Relation::Lt, Relation::Ge, Relation::Gt];

    pub fn text(self) -> &'static str {
        match self {
            Relation::Eq => "==",
            Relation::Ne => "!=",
            Relation::Lt => "<",
            Relation::Le => "<=",
            Relation::Gt => ">",
            Relation::Ge => ">=",
        }
    }

    /// What holds where this does not.
    #[must_use]
    pub fn negated(self) -> Relation {
        match self {
            Relation::Eq => Relation::Ne,
            Relation::Ne => Relation::Eq,
            Relation::Lt => Relation::Ge,
            Relation::Le => Relation::Gt,
            Relation::Gt => Relation::Le,
            Relation::Ge => Relation::Lt,
        }
    }

    /// How the right side compares with the left.
    #[must_use]
    pub fn mirrored(self) -> Relation {
        match self {
            Relation::Eq | Relation::Ne => self,
            Relation::Lt => Relation::Gt,
            Relation::Le => Relation::Ge,
            Relation::Gt => Relation::Lt,
            Relation::Ge => Relation::Le,
        }
    }

    pub fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Eq => left == right,
            Relation::Ne => left != right,
            Relation::Lt => left < right,
            Relation::Le => left <= right,
            Relation::Gt => left > right,
            Relation::Ge => left >= right,
        }
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.relation.text(), self.right)
    }
}
