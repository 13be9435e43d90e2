//! The error every layer returns: a kind (one Python class each), a stable code, the op, one line of what went
//! wrong, and notes with the way out. Boxed, so that a `Result` stays one word.

use crate::outcome::FallbackReason;
use crate::schema::SchemaError;
use std::any::Any;
use std::fmt;
use tp_expr::ExprError;
use tp_tensor::TensorError;

pub type Result<T> = std::result::Result<T, Error>;

/// What kind of thing went wrong; the door maps each to one class of `tensorplay.errors`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    Schema,
    Registration,
    Argument,
    Shape,
    DType,
    Device,
    DivisionByZero,
    NoKernel,
    Capability,
    Contract,
    Autograd,
    Capture,
    Fallback,
    Graph,
    /// An index outside of a dimension (IndexError).
    Index,
    /// Memory could not be had (MemoryError).
    Memory,
    /// A read-only tensor was written to or a bad value given (ValueError).
    Value,
    /// An exception of the host language on its way out; `payload` holds it.
    Host,
    /// A broken invariant of ours.
    Internal,
}

pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    code: &'static str,
    op: Option<String>,
    message: String,
    notes: Vec<String>,
    payload: Option<Box<dyn Any + Send>>,
    reason: Option<FallbackReason>,
}

impl Error {
    #[cold]
    pub fn new(kind: ErrorKind, code: &'static str, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            code,
            op: None,
            message: message.into(),
            notes: Vec::new(),
            payload: None,
            reason: None,
        }))
    }

    /// An exception of the host language, carried through unchanged.
    #[cold]
    pub fn host(payload: Box<dyn Any + Send>) -> Error {
        let mut e = Error::new(ErrorKind::Host, "TP9001", "an exception of the host language");
        e.0.payload = Some(payload);
        e
    }

    /// Names the op unless an inner call named one already; the name goes in front of the message.
    #[must_use]
    pub fn with_op(mut self, op: &str) -> Error {
        if self.0.op.is_none() && self.0.kind != ErrorKind::Host {
            self.0.op = Some(op.to_string());
        }
        self
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Error {
        self.0.notes.push(note.into());
        self
    }

    #[must_use]
    pub fn with_reason(mut self, reason: FallbackReason) -> Error {
        self.0.reason = Some(reason);
        self
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    pub fn code(&self) -> &'static str {
        self.0.code
    }
    pub fn op(&self) -> Option<&str> {
        self.0.op.as_deref()
    }
    pub fn message(&self) -> &str {
        &self.0.message
    }
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }
    pub fn reason(&self) -> Option<&FallbackReason> {
        self.0.reason.as_ref()
    }
    fn begins_with(&self, op: &str) -> bool {
        self.0.message.strip_prefix(op).is_some_and(|rest| rest.starts_with(['.', ' ']))
    }
    pub fn take_payload(&mut self) -> Option<Box<dyn Any + Send>> {
        self.0.payload.take()
    }
}

/// `mul: shapes ... do not broadcast`; the name comes once where the message begins with a part of it (`Double.backward must`).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(op) = self.0.op.as_ref().filter(|op| !self.begins_with(op)) {
            write!(f, "{op}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.0.code)?;
        self.0.notes.iter().try_for_each(|n| write!(f, "\n  {n}"))
    }
}

impl std::error::Error for Error {}

impl From<TensorError> for Error {
    #[cold]
    fn from(e: TensorError) -> Error {
        use TensorError as T;
        let (kind, code) = match &e {
            T::Broadcast { .. } => (ErrorKind::Shape, "TP1101"),
            T::Expand { .. } => (ErrorKind::Shape, "TP1102"),
            T::Reshape { .. } => (ErrorKind::Shape, "TP1103"),
            T::Axis { .. } => (ErrorKind::Index, "TP1104"),
            T::Permutation { .. } => (ErrorKind::Shape, "TP1105"),
            T::Index { .. } => (ErrorKind::Index, "TP1106"),
            T::Step(_) => (ErrorKind::Value, "TP1107"),
            T::TooManyIndices { .. } => (ErrorKind::Index, "TP1108"),
            T::NegativeSize(_) | T::TooLarge(_) | T::TooManyDims(_) => (ErrorKind::Shape, "TP1109"),
            T::OutOfStorage { .. } => (ErrorKind::Shape, "TP1110"),
            T::OutOfMemory { .. } => (ErrorKind::Memory, "TP1111"),
            T::DType { .. } => (ErrorKind::DType, "TP1201"),
            T::NoDevice(_) => (ErrorKind::Capability, "TP2001"),
            T::Number(_) => (ErrorKind::Value, "TP1154"),
            T::Symbolic(_) | T::Unknown(_) | T::Undecided(_) => return unknown_size(&e),
        };
        let way = match &e {
            T::Broadcast { .. } => {
                "axes are compared from the last one, and only those of size 1 stretch: reshape or expand one operand"
            }
            T::NoDevice(_) => "python -m tensorplay doctor lists what is missing; the CPU works",
            _ => return Error::new(kind, code, e.to_string()),
        };
        Error::new(kind, code, e.to_string()).note(way)
    }
}

#[cold]
fn unknown_size(e: &TensorError) -> Error {
    if let Some(table) = tp_tensor::symbols::current() {
        table.give_up();
    }
    let error = Error::capture("TP4002", e.to_string());
    let error = match crate::host::location() {
        Some(at) => error.note(format!("needed at {at}")),
        None => error,
    };
    error
        .note("say what is known of the size with tensorplay.check, or give new_dynamic_size a min and a max")
}

impl From<SchemaError> for Error {
    #[cold]
    fn from(e: SchemaError) -> Error {
        Error::new(ErrorKind::Schema, "TP1001", e.to_string())
    }
}

impl From<ExprError> for Error {
    #[cold]
    fn from(e: ExprError) -> Error {
        let (kind, code) = match &e {
            ExprError::DivisionByZero => (ErrorKind::DivisionByZero, "TP1501"),
            ExprError::Number(_) => (ErrorKind::Value, "TP1154"),
            ExprError::Type { .. } | ExprError::UnsupportedDType { .. } => (ErrorKind::DType, "TP1202"),
            _ => (ErrorKind::Internal, "TP9002"),
        };
        match &e {
            // The op says what was done: a primitive's name would mean nothing to its caller.
            ExprError::Type { dtype, .. } | ExprError::UnsupportedDType { dtype, .. } => {
                let other = if dtype.is_int() { "float32" } else { "int64" };
                Error::new(kind, code, format!("not defined for {dtype}")).note(format!(
                    "convert the operands first, for example with x.astype(tensorplay.{other})"
                ))
            }
            _ => Error::new(kind, code, e.to_string()),
        }
    }
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        impl Error { $($(#[$doc])* #[cold] pub fn $name(code: &'static str, message: impl Into<String>) -> Error {
            Error::new(ErrorKind::$kind, code, message)
        })* }
    };
}

constructors! {
    registration => Registration,
    argument => Argument,
    shape => Shape,
    dtype => DType,
    device => Device,
    no_kernel => NoKernel,
    capability => Capability,
    contract => Contract,
    autograd => Autograd,
    capture => Capture,
    fallback => Fallback,
    graph => Graph,
    value => Value,
    internal => Internal,
}
