//! What one row of the op table says, and the words rows are written in. The rows themselves are in `ops`; how a
//! row becomes registered ops is in `register`.

use tp_dispatch::{Call, Effects, FakeOuts, GradSpec, KernelFn, Result, Short};

pub type FakeFn = fn(&Call<'_>) -> Result<FakeOuts>;

/// One scalar function: what a pointwise row computes for each element.
#[derive(Clone, Copy)]
pub struct Scalars {
    pub expr: &'static str,
    /// Arguments that do not join the others' promotion, as `name: dtype`.
    pub typed: &'static [&'static str],
    pub short: Option<Short>,
}

/// How the CPU runs an op.
#[derive(Clone, Copy)]
pub enum Cpu {
    Fn(KernelFn),
    /// A function with a short form.
    Short(KernelFn, Short),
    /// Compiled from the scalar expression; the expression is published on the op for fusing backends.
    Pointwise(Scalars),
    /// The same, written back to the first argument.
    InPlace(Scalars),
}

/// One row: one function in one or more forms (overloads) that share everything but the schema.
pub struct Row {
    pub schemas: &'static [&'static str],
    pub effects: Effects,
    /// None for outputs whose shape depends on data, and where the rule follows from a scalar expression.
    pub fake: Option<FakeFn>,
    pub cpu: Cpu,
    pub grad: GradSpec,
    pub tags: &'static [&'static str],
    /// What it computes, and what shape and dtype come out where the schema does not say. Empty where the scalar
    /// expression says it: see `docs`.
    pub doc: &'static str,
    pub file: &'static str,
    pub line: u32,
}

pub const RANDOM: Effects = Effects { random: true, ..Effects::PURE };
pub const MUTATES: Effects = Effects { mutates: true, ..Effects::PURE };

/// Gradient of steps: zero, of the gradient's dtype, whatever the gradient is.
pub const ZERO_GRAD: &str = "select(false, grad, 0)";

/// `op!(["schema", ...], fake, cpu, grad, doc = "...")`: a row with a kernel function.
macro_rules! op {
    ($schemas:expr, $fake:expr, $cpu:expr, $grad:expr $(, short = $short:expr)? $(, effects = $effects:expr)? $(, tags = $tags:expr)? $(, doc = $doc:expr)?) => {
        $crate::row::Row {
            schemas: &$schemas,
            effects: $crate::row::first([$($effects,)? tp_dispatch::Effects::PURE]),
            fake: $fake,
            cpu: $crate::row::cpu(
                |call, rets| ($cpu as tp_dispatch::KernelFn)(call, rets).map_err(|e| e.with_op(call.op.name())),
                $crate::row::first_short([$(Some($short),)? None]),
            ),
            grad: $grad,
            tags: $crate::row::first_tags([$(&$tags,)? &[]]),
            doc: $crate::row::first_doc([$($doc,)? ""]),
            file: file!(),
            line: line!(),
        }
    };
}

/// `pointwise!(["schema", ...], "expression", grad)`: a row that is one scalar function.
macro_rules! pointwise {
    ($schemas:expr, $expr:expr, $grad:expr $(, typed = $typed:expr)? $(, short = $short:expr)? $(, tags = $tags:expr)? $(, doc = $doc:expr)?) => {
        $crate::row::Row {
            schemas: &$schemas,
            effects: tp_dispatch::Effects::PURE,
            fake: None,
            cpu: $crate::row::Cpu::Pointwise($crate::row::Scalars {
                expr: $expr,
                typed: $crate::row::first_tags([$(&$typed,)? &[]]),
                short: $crate::row::first_short([$(Some($short),)? None]),
            }),
            grad: $grad,
            tags: $crate::row::first_tags([$(&$tags,)? &[]]),
            doc: $crate::row::first_doc([$($doc,)? ""]),
            file: file!(),
            line: line!(),
        }
    };
}

pub(crate) use {op, pointwise};

// The macros' optional parts: the first given wins over the default at the end.

pub const fn first<const N: usize>(given: [Effects; N]) -> Effects {
    given[0]
}

pub const fn cpu(f: KernelFn, short: Option<Short>) -> Cpu {
    match short {
        Some(short) => Cpu::Short(f, short),
        None => Cpu::Fn(f),
    }
}

pub const fn first_tags<const N: usize>(given: [&'static [&'static str]; N]) -> &'static [&'static str] {
    given[0]
}

pub const fn first_doc<const N: usize>(given: [&'static str; N]) -> &'static str {
    given[0]
}

pub const fn first_short<const N: usize>(given: [Option<Short>; N]) -> Option<Short> {
    given[0]
}

impl Row {
    /// The names of its ops, without the namespace: what stands before the parenthesis.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.schemas.iter().map(|s| s.split('(').next().unwrap_or(s))
    }
}
