//! `Schema`, `Argument` and `Return`: a parsed schema and the questions asked about it.
//!
//! All three are immutable. Every `Schema` comes out of the parser, so each one is valid.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::alias::AliasInfo;
use super::default::DefaultValue;
use super::error::{self, SchemaError};
use super::name::OpName;
use super::parse::{Mode, Parser};
use super::text::Text;
use super::types::ArgType;

/// The declaration of one operator overload.
///
/// Equality includes the names of arguments and the alias annotations; alias sets compare as sets
/// and defaults as values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schema {
    pub(super) name: OpName,
    pub(super) signature: Signature,
}

/// All of a schema but its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Signature {
    /// Positional ones first.
    pub arguments: Vec<Argument>,
    pub returns: SmallVec<[Return; 1]>,
    pub is_vararg: bool,
    pub is_varret: bool,
}

/// One declared argument.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Argument {
    pub(super) name: Text,
    pub(super) ty: ArgType,
    pub(super) default: Option<DefaultValue>,
    pub(super) alias: Option<Box<AliasInfo>>,
    pub(super) kwarg_only: bool,
}

/// One declared return value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Return {
    pub(super) name: Option<Text>,
    pub(super) ty: ArgType,
    pub(super) alias: Option<Box<AliasInfo>>,
}

impl Schema {
    /// Reads any declaration: `ns::name.overload(Tensor self, *, float p=0.5) -> Tensor`. It may
    /// use type variables and repeat argument names, as some declarations of script operators do.
    pub fn parse(text: &str) -> error::Result<Schema> {
        Parser::new(text, Mode::Declaration)?.whole_schema()
    }

    /// Reads the schema of an operator to be defined: no type variables, no argument name twice.
    pub fn parse_definition(text: &str) -> error::Result<Schema> {
        Parser::new(text, Mode::Definition)?.whole_schema()
    }

    /// Reads a definition without its name: `(Tensor self) -> Tensor`.
    pub fn parse_signature(name: OpName, text: &str) -> error::Result<Schema> {
        let signature = Parser::new(text, Mode::Definition)?.whole_signature()?;
        Ok(Schema { name, signature })
    }

    /// Whether the schema may be defined as an operator; if not, the error points into its text.
    pub fn check_definition(&self) -> error::Result<()> {
        Schema::parse_definition(&self.to_string()).map(|_| ())
    }

    /// Builds a definition from its parts. They are checked by printing and parsing the result, so
    /// they obey the rules of the text, and an error's offsets are those of the printed text.
    pub fn new(
        name: OpName,
        arguments: Vec<Argument>,
        returns: Vec<Return>,
        is_vararg: bool,
        is_varret: bool,
    ) -> Result<Schema, SchemaError> {
        let signature = Signature { arguments, returns: returns.into(), is_vararg, is_varret };
        let draft = Schema { name, signature };
        let text = draft.to_string();
        let parsed = Schema::parse_definition(&text)?;
        if draft.has_same_outline(&parsed) {
            return Ok(parsed);
        }
        let found = "parts that print as a different schema".to_string();
        Err(SchemaError::build(&text, 0, text.len(), "plain names, and keyword-only arguments last", found))
    }

    /// The same declaration under another name.
    pub fn with_name(self, name: OpName) -> Schema {
        Schema { name, ..self }
    }

    pub fn name(&self) -> &OpName {
        &self.name
    }

    pub fn arguments(&self) -> &[Argument] {
        &self.signature.arguments
    }

    pub fn returns(&self) -> &[Return] {
        &self.signature.returns
    }

    /// Whether the arguments end in `...`.
    pub fn is_vararg(&self) -> bool {
        self.signature.is_vararg
    }

    /// Whether the returns end in `...`.
    pub fn is_varret(&self) -> bool {
        self.signature.is_varret
    }

    /// Whether a call writes to any of its arguments.
    pub fn is_mutable(&self) -> bool {
        self.arguments().iter().any(Argument::is_write)
    }

    /// The arguments that a call writes to, with their indices. A list of mutated tensors counts.
    pub fn mutated_args(&self) -> impl Iterator<Item = (usize, &Argument)> {
        self.arguments().iter().enumerate().filter(|(_, argument)| argument.is_write())
    }

    /// The index of the argument of that name.
    pub fn arg_index(&self, name: &str) -> Option<usize> {
        self.arguments().iter().position(|argument| &*argument.name == name)
    }

    /// How many arguments may be given by position; they are the first ones.
    pub fn positional_count(&self) -> usize {
        self.arguments().iter().take_while(|argument| !argument.kwarg_only).count()
    }

    /// The first argument that shares an alias set with the return value: what an in-place or
    /// view operator gives back.
    pub fn aliased_arg(&self, return_index: usize) -> Option<usize> {
        let alias = self.returns().get(return_index)?.alias()?;
        self.arguments().iter().position(|argument| {
            argument.alias().is_some_and(|argument_alias| alias.shares_set_with(argument_alias))
        })
    }

    /// Whether every call that fits `old` fits this schema with the same meaning: all that was
    /// added are arguments with defaults, positional ones after the old positional ones.
    pub fn is_backward_compatible_with(&self, old: &Schema) -> bool {
        let (new_positional, new_keywords) = self.arguments().split_at(self.positional_count());
        let (old_positional, old_keywords) = old.arguments().split_at(old.positional_count());
        let added = new_positional.iter().skip(old_positional.len());
        let added_keywords = new_keywords.iter().filter(|argument| !old_keywords.contains(argument));
        self.name == old.name
            && self.returns() == old.returns()
            && (self.is_vararg(), self.is_varret()) == (old.is_vararg(), old.is_varret())
            && new_positional.starts_with(old_positional)
            && old_keywords.iter().all(|argument| new_keywords.contains(argument))
            && added.chain(added_keywords).all(|argument| argument.default.is_some())
    }

    /// Whether both have the same names in the same places.
    fn has_same_outline(&self, other: &Schema) -> bool {
        let outline = |argument: &Argument| (argument.name.clone(), argument.kwarg_only);
        self.name == other.name
            && (self.is_vararg(), self.is_varret()) == (other.is_vararg(), other.is_varret())
            && self.arguments().iter().map(outline).eq(other.arguments().iter().map(outline))
            && self.returns().iter().map(Return::name).eq(other.returns().iter().map(Return::name))
    }
}

impl Argument {
    /// A positional argument without default; [`Schema::new`] checks it.
    pub fn new(name: &str, ty: ArgType) -> Argument {
        Argument { name: Text::new(name), ty, default: None, alias: None, kwarg_only: false }
    }

    pub fn with_default(self, default: DefaultValue) -> Argument {
        Argument { default: Some(default), ..self }
    }

    pub fn with_alias(self, alias: AliasInfo) -> Argument {
        Argument { alias: Some(Box::new(alias)), ..self }
    }

    pub fn keyword_only(self) -> Argument {
        Argument { kwarg_only: true, ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ty(&self) -> &ArgType {
        &self.ty
    }

    /// The default as written; see [`Argument::call_default`] for the one that a kernel sees.
    pub fn default(&self) -> Option<&DefaultValue> {
        self.default.as_ref()
    }

    /// The default as a value of the argument's type: `float? x=1` gives `1.0`, `int[3]? x=1`
    /// gives `[1, 1, 1]`.
    pub fn call_default(&self) -> Option<Cow<'_, DefaultValue>> {
        let default = self.default.as_ref()?;
        match &self.ty {
            ArgType::Optional(inner) if !matches!(default, DefaultValue::None) => {
                // It was fitted to the inner type once already, when the schema was parsed.
                Some(default.clone().fit(inner).map_or(Cow::Borrowed(default), Cow::Owned))
            }
            _ => Some(Cow::Borrowed(default)),
        }
    }

    pub fn alias(&self) -> Option<&AliasInfo> {
        self.alias.as_deref()
    }

    pub fn is_kwarg_only(&self) -> bool {
        self.kwarg_only
    }

    pub fn is_required(&self) -> bool {
        self.default.is_none()
    }

    /// Whether a call writes to the argument, or to the elements of it.
    pub fn is_write(&self) -> bool {
        self.alias().is_some_and(AliasInfo::is_write)
    }

    /// Whether the argument is a tensor, an optional one, or a list of such.
    pub fn is_tensor_like(&self) -> bool {
        self.ty.is_tensor_like()
    }
}

impl Return {
    /// An unnamed return value; [`Schema::new`] checks it.
    pub fn new(ty: ArgType) -> Return {
        Return { name: None, ty, alias: None }
    }

    pub fn with_name(self, name: &str) -> Return {
        Return { name: Some(Text::new(name)), ..self }
    }

    pub fn with_alias(self, alias: AliasInfo) -> Return {
        Return { alias: Some(Box::new(alias)), ..self }
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub fn ty(&self) -> &ArgType {
        &self.ty
    }

    pub fn alias(&self) -> Option<&AliasInfo> {
        self.alias.as_deref()
    }
}
