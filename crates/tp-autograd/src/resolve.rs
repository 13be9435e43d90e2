//! From what an op's description says about its gradient to the rule that nodes keep. Built-in ops resolve once,
//! into a table by op id that lives for ever; rules that users register are counted, so that a new registration
//! never alters a graph that is already recorded.

use crate::expr::ExprRule;
use crate::formulas;
use crate::rule::{CustomRule, MISSING_RULE, Rule, RuleHandle, VjpRule};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_dispatch::{Call, Error, GradSpec, OpDef, Result};

/// The rule for a call; None when the op is not differentiable.
pub(crate) type Found<'c> = Option<&'c Rule>;

pub(crate) struct Resolved {
    /// Kept, so that its address names this definition for ever.
    def: Arc<OpDef>,
    rule: Option<Rule>,
    /// The same rule, where calls of the op can be recorded the short way.
    pub expression: Option<&'static ExprRule>,
}

const SLOTS: usize = 1024;

static BUILT_IN: [AtomicPtr<Resolved>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

/// What was resolved for the definition that a call uses; None also before the op's first recorded call.
#[inline]
pub(crate) fn known(call: &Call<'_>) -> Option<&'static Resolved> {
    let slot = BUILT_IN.get(call.op.id().0 as usize)?;
    // SAFETY: entries are never freed.
    let hit = unsafe { slot.load(Ordering::Acquire).as_ref() }?;
    Arc::ptr_eq(&hit.def, call.def).then_some(hit)
}

#[inline]
pub(crate) fn resolve<'c>(call: &Call<'c>) -> Result<Found<'c>> {
    resolve_with(known(call), call)
}

/// As `resolve`, with what `known` gave.
#[inline]
pub(crate) fn resolve_with<'c>(known: Option<&'static Resolved>, call: &Call<'c>) -> Result<Found<'c>> {
    match known {
        Some(hit) => Ok(hit.rule.as_ref()),
        None => find(call),
    }
}

fn find<'c>(call: &Call<'c>) -> Result<Found<'c>> {
    match &call.def.grad {
        GradSpec::Custom(rule) => {
            Ok(Some(rule.downcast_ref::<CustomRule>().map_or(&MISSING_RULE, |rule| &rule.0)))
        }
        GradSpec::Missing => Ok(Some(&MISSING_RULE)),
        _ => built_in(call),
    }
}

/// A rule of ours. What it is made into is never freed: built-in descriptions are few and stay.
#[cold]
fn built_in<'c>(call: &Call<'c>) -> Result<Found<'c>> {
    let mut expression = None;
    let rule: Option<&'static dyn VjpRule> = match call.def.grad {
        GradSpec::NotDifferentiable(_) => None,
        GradSpec::Rule(name) => Some(formulas::rule(name).ok_or_else(|| {
            Error::internal("TP9005", format!("no gradient rule is named '{name}'")).with_op(call.op.name())
        })?),
        GradSpec::Expr(texts) => {
            let rule: &'static ExprRule =
                Box::leak(Box::new(ExprRule::compile(call.op.name(), call.def, texts)?));
            expression = Some(rule).filter(|r| r.is_pure());
            Some(rule)
        }
        GradSpec::Missing | GradSpec::Custom(_) => return find(call),
    };
    let rule = rule.map(|r| Rule::of(RuleHandle::Static(r)));
    let fresh: &'static Resolved = Box::leak(Box::new(Resolved { def: call.def.clone(), rule, expression }));
    if let Some(slot) = BUILT_IN.get(call.op.id().0 as usize) {
        slot.store(ptr::from_ref(fresh).cast_mut(), Ordering::Release);
    }
    Ok(fresh.rule.as_ref())
}
