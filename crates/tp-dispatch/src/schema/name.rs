//! `OpName`: namespace, name and overload of an operator.

use super::error::Result;
use super::parse::{Mode, Parser};
use super::text::Text;

/// The name of one operator overload: `namespace::name.overload`, where the namespace and the
/// overload may be absent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpName {
    pub(super) namespace: Option<Text>,
    pub(super) name: Text,
    pub(super) overload: Option<Text>,
}

impl OpName {
    /// Reads `namespace::name.overload`, `namespace::name`, `name.overload` or `name`.
    pub fn parse(text: &str) -> Result<OpName> {
        Parser::new(text, Mode::Declaration)?.whole_name()
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The overload's name; absent for the default overload.
    pub fn overload(&self) -> Option<&str> {
        self.overload.as_deref()
    }
}
