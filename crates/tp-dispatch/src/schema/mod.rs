//! The schema language: `ns::name.overload(Tensor(a!) self, *, float p=0.5) -> Tensor(a!)`.
//!
//! Text becomes an immutable [`Schema`] and a schema prints as the text it came from. `lex` cuts
//! the text into tokens; `parse`, `parse_type`, `parse_alias` and `parse_default` build
//! the model; `model`, `types`, `alias`, `default`, `word` and `name` are that model;
//! `print` turns it into text, `annotation` into Python's words; `error` says what is wrong and where. Nothing here knows values,
//! kernels or the dispatcher.

mod alias;
mod annotation;
mod default;
mod error;
mod lex;
mod model;
mod name;
mod parse;
mod parse_alias;
mod parse_default;
mod parse_type;
mod print;
mod text;
mod types;
mod word;

pub use alias::{AliasInfo, AliasSet};
pub use default::DefaultValue;
pub use error::SchemaError;
pub use model::{Argument, Return, Schema};
pub use name::OpName;
pub use parse_type::MAX_NESTING;
pub use text::Text;
pub use types::ArgType;
pub use word::EnumWord;
