//! From rows to registered ops: parses each schema, builds its kernel, and tells the registry where the row is
//! written.

use crate::cpu::inplace::InPlaceKernel;
use crate::cpu::pointwise::{Elementwise, PointwiseKernel};
use crate::fake;
use crate::ops;
use crate::row::{Cpu, Row, Scalars};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tp_dispatch::bind::{ParamKind, Params};
use tp_dispatch::kernel::KernelObject;
use tp_dispatch::registry::KernelSpec;
use tp_dispatch::select::Slot;
use tp_dispatch::{
    Call, DispatchKey, FakeRule, HostVisitor, Kernel, KernelFn, OpDef, Provenance, Registry, Result, Rets,
    Schema, Short,
};
use tp_expr::ScalarExpr;

pub const NAMESPACE: &str = "tp";

/// Defines every built-in op and the Meta layer, once.
pub fn register_all() -> Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    static LOCK: Mutex<()> = Mutex::new(());
    if DONE.load(Ordering::Acquire) {
        return Ok(());
    }
    let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if DONE.load(Ordering::Acquire) {
        return Ok(());
    }
    Registry::global().install_layer(DispatchKey::Meta, tp_dispatch::fake::meta_kernel);
    for row in ops::rows() {
        register_row(row)?;
    }
    DONE.store(true, Ordering::Release);
    Ok(())
}

fn register_row(row: &'static Row) -> Result<()> {
    row.schemas.iter().try_for_each(|schema| register_op(row, schema).map_err(|e| e.with_op(schema)))
}

fn register_op(row: &'static Row, schema: &str) -> Result<()> {
    let name = format!("{NAMESPACE}::{}", schema.split('(').next().unwrap_or(schema));
    let schema = Schema::parse_definition(&format!("{NAMESPACE}::{schema}"))?;
    let params = Params::compile(&schema)?;
    let provenance = Provenance::native("cpu", row.file, row.line);
    let (kernel, fake, pointwise) = implementation(row, &params)?;
    let def = OpDef {
        schema: Arc::new(schema),
        params,
        effects: row.effects,
        fake,
        grad: row.grad.clone(),
        pointwise,
        custom: false,
        tags: row.tags.iter().map(|&t| t.into()).collect(),
        provenance: provenance.clone(),
    };
    let registry = Registry::global();
    // A repeated attempt after a failure half-way defines the first rows again.
    let registration = registry.define(&name, def, true)?;
    let slot = Slot::Key(DispatchKey::Cpu);
    let spec = KernelSpec { slot, kernel, provenance, when: None, contiguous: Box::default() };
    registry.register_kernel(registration.op(), spec)?.keep();
    registration.keep();
    Ok(())
}

/// A kernel function and its short form.
struct WithShort {
    f: KernelFn,
    short: Short,
}

impl KernelObject for WithShort {
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        (self.f)(call, rets)
    }

    fn short(&self) -> Option<Short> {
        Some(self.short)
    }

    fn trace(&self, _: &mut HostVisitor<'_>) {}
}

type Implementation = (Kernel, FakeRule, Option<Arc<ScalarExpr>>);

fn implementation(row: &Row, params: &Params) -> Result<Implementation> {
    let given = row.fake.map_or(FakeRule::Missing, FakeRule::Fn);
    Ok(match row.cpu {
        Cpu::Fn(f) => (Kernel::Fn(f), given, None),
        Cpu::Short(f, short) => (Kernel::Object(Arc::new(WithShort { f, short })), given, None),
        Cpu::Pointwise(scalars) => {
            let expr = scalar_expr(&scalars, params)?;
            let kernel = PointwiseKernel { function: Elementwise::new(expr.clone()), short: scalars.short };
            (Kernel::Object(Arc::new(kernel)), FakeRule::Fn(fake::pointwise::rule), Some(expr))
        }
        Cpu::InPlace(scalars) => {
            let expr = scalar_expr(&scalars, params)?;
            let kernel = InPlaceKernel { function: Elementwise::new(expr.clone()) };
            let rule = FakeRule::Object(Arc::new(fake::inplace::Rule(expr)));
            (Kernel::Object(Arc::new(kernel)), rule, None)
        }
    })
}

/// The expression over the op's tensors and numbers in schema order.
pub(crate) fn scalar_expr(scalars: &Scalars, params: &Params) -> Result<Arc<ScalarExpr>> {
    let operands = params.all.iter().filter(|p| matches!(p.kind, ParamKind::Tensor | ParamKind::Scalar));
    let declared: Vec<&str> = operands
        .map(|p| {
            let typed = scalars.typed.iter().find(|t| t.split(':').next() == Some(&*p.name));
            typed.copied().unwrap_or(&p.name)
        })
        .collect();
    Ok(Arc::new(ScalarExpr::parse(scalars.expr, &declared)?))
}
