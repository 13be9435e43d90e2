//! Views and writes in place. A view knows the tensor at the root of its storage's views (`Tensor::base`), and where it
//! lies in it (`Place`).
//!
//! A write through a view is a new history of the base as well:
//!
//! ```text
//! base ── open ──┬────────── outside ──────────┬── close ── base, from now on
//!                └── the view ── the op itself ─┘
//! ```
//!
//! `close` sends the gradient of what lies outside of the view past the op, and that of the view into it; `open` puts the
//! two together again. Where the op does not look at the old values there is no `open`. Other views of the base are left
//! alone: their version is behind, and when their history is next asked for it grows from the base's (`follow_base`).
//!
//! # Invariants
//! * A linked view that requires grad has a base that does, whose history is at least as new.
//! * No history here owns a tensor of the family: views own their base's header, never the other way round.

use crate::formulas::Named;
use crate::mode::GradMode;
use crate::rule::{BackwardCtx, Gradients, Rule, RuleHandle, VjpRule};
use crate::tape::{Edge, Edges, NodeRef, Recipe, Saved, Saver, flag};
use crate::{hooks, meta, ops};
use tp_dispatch::{Arg, Call, Error, Result, state};
use tp_tensor::layout::{contiguous_strides, overlaps};
use tp_tensor::{Dim, Dims, Layout, Tensor};

// ---- what is a view of what ----

/// What a node has to know of its output `y`, which is a view of something. A view that a call made of its first
/// argument is linked to it; one of memory that no argument shares is nobody's view.
#[inline(never)]
pub(crate) fn made(call: &Call<'_>, y: &Tensor) -> u16 {
    let shared = |t: &Tensor| t.shares_storage(y);
    if let Some(Arg::Tensor(x)) = call.args.first()
        && shared(x)
    {
        y.link(x);
        hand_over(y);
        return flag::VIEW;
    }
    let mut is_shared = false;
    call.for_each_tensor(|_, t| is_shared |= shared(t));
    if !is_shared {
        y.unlink();
    }
    0
}

/// A base that the host's collector looks at is owned by way of its object.
pub(crate) fn hand_over(view: &Tensor) {
    let (Some(base), None) = (view.base(), view.handed_base()) else { return };
    if let (true, Some(hooks)) = (base.needs_tracking(), hooks::host_hooks()) {
        own_base(view, base, hooks);
    }
}

#[cold]
fn own_base(view: &Tensor, base: &Tensor, hooks: &dyn hooks::HostHooks) {
    view.set_needs_tracking();
    if !view.host().is_null() {
        hooks.track(view.host());
    }
    if hooks.own(base) && !view.hand_over_base() {
        hooks.release(base.host());
    }
}

/// Whether the tape made the view, so that it knows how gradients go back. What a foreign function returned has a rule
/// of its own.
fn is_known(view: &Tensor) -> bool {
    meta::made(view).is_none_or(|node| node.is_view() && !node.rule().is_foreign())
}

/// How a view lies in its base.
struct Place {
    base_sizes: Dims,
    base_strides: Dims,
    sizes: Dims,
    strides: Dims,
    offset: i64,
}

impl Place {
    /// None where that is no simple matter: a base with elements that overlap, sizes that are not known.
    fn of(base: &Tensor, view: &Tensor) -> Option<Place> {
        let sizes = base.sizes().iter().chain(view.sizes());
        let known = sizes.clone().all(|&s| !Dim::from_raw(s).is_symbol());
        let ascending = base.strides().iter().chain(view.strides()).all(|&s| s >= 0);
        let offset = view.offset().checked_sub(base.offset()).filter(|&o| o >= 0)?;
        if !known || !ascending || base.dtype() != view.dtype() || overlaps(base.sizes(), base.strides()) {
            return None;
        }
        let base_strides =
            if base.is_contiguous() { contiguous_strides(base.sizes()) } else { base.strides().into() };
        let (sizes, strides): (Dims, Dims) = (view.sizes().into(), view.strides().into());
        Some(Place { base_sizes: base.sizes().into(), base_strides, sizes, strides, offset })
    }

    /// The same with one element along each axis that repeats one.
    fn without_repeats(mut self) -> Option<Place> {
        for (size, stride) in self.sizes.iter_mut().zip(&self.strides) {
            if *stride == 0 && *size > 1 {
                *size = 1;
            }
        }
        (!overlaps(&self.sizes, &self.strides)).then_some(self)
    }

    fn save(&self, saver: &mut Saver<'_>) {
        for list in [&self.base_sizes, &self.base_strides, &self.sizes, &self.strides] {
            saver.ints(list);
        }
        saver.int(self.offset);
    }
}

/// A node without saved tensors that knows a place.
fn node(
    rule: &'static dyn VjpRule,
    place: &Place,
    mut edges: Edges,
    outputs: u32,
    flags: u16,
) -> Result<NodeRef> {
    let mut saved = Saved::default();
    place.save(&mut Saver::new(&edges, &mut saved));
    let rule = Rule::of(RuleHandle::Static(rule));
    let (edges, saved) = (&mut edges, &mut saved);
    Recipe { rule: &rule, op: None, edges, saved, outputs, flags }.build(|_, _| {})
}

fn edges(list: impl IntoIterator<Item = (NodeRef, u32, usize)>) -> Edges {
    list.into_iter().map(|(node, nr, arg)| Edge::new(node, nr, arg, 0)).collect()
}

// ---- reading a view whose memory was written to ----

/// A history for a view whose own is behind, from its base's; None where the base knows no more than the view.
#[cold]
pub(crate) fn follow_base(view: &Tensor) -> Result<Option<NodeRef>> {
    let Some(base) = view.base() else { return Ok(None) };
    let Some((from, nr, version)) = meta::history(base) else { return Ok(None) };
    if version != view.storage().version() || from.is_leaf() || !view.requires_grad() {
        return Ok(None);
    }
    if !is_known(view) {
        return Err(foreign_view(
            "a view that a foreign function returned is used after a write to its base",
        ));
    }
    let Some(place) = Place::of(base, view).and_then(Place::without_repeats) else { return Ok(None) };
    let node = node(&FOLLOW, &place, edges([(from, nr, 0)]), 1, flag::VIEW)?;
    meta::rebase(view, node.clone(), 0);
    Ok(Some(node))
}

// ---- writing through a view ----

/// The base of a view that is about to be written to, if the tape has to tell it. An error where the tape cannot: then
/// nothing may be written.
pub(crate) fn base_to_tell(t: &Tensor) -> Result<Option<Tensor>> {
    let sole = t.storage().live_headers() == 1;
    let Some(base) = t.base() else {
        return if t.requires_grad() || sole { Ok(None) } else { Err(shared_memory()) };
    };
    if !is_known(t) {
        return Err(foreign_view("a view that a foreign function returned is used in an in-place operation"));
    }
    // Of memory without a history only these two may be in sight: a third would not be told.
    let told = match (t.requires_grad(), base.requires_grad()) {
        (false, false) => t.storage().live_headers() == 2,
        (of_view, of_base) => of_view && of_base,
    };
    if told && Place::of(base, t).is_some() { Ok(Some(base.clone())) } else { Err(shared_memory()) }
}

/// A write through a view, between the look at the old histories and the new one.
pub(crate) struct Through {
    base: Tensor,
    place: Place,
    /// Where the gradient of what is outside of the view goes; None where the base had no history.
    outside: Option<(NodeRef, u32)>,
}

impl Through {
    /// Before anything is written: looks at the base's history.
    pub fn begin(base: Tensor, view: &Tensor) -> Result<Through> {
        let outside = if base.requires_grad() { Some(meta::gradient_edge(&base)?) } else { None };
        Through::over(base, view, outside)
    }

    /// As `begin`, when it was written already: the base's history is that before the write.
    pub fn late(base: Tensor, view: &Tensor) -> Result<Through> {
        let outside = meta::history(&base).filter(|_| base.requires_grad());
        Through::over(base, view, outside.map(|(node, nr, _)| (node, nr)))
    }

    fn over(base: Tensor, view: &Tensor, outside: Option<(NodeRef, u32)>) -> Result<Through> {
        let place = Place::of(&base, view).ok_or_else(shared_memory)?;
        Ok(Through { base, place, outside })
    }

    /// The op's gradient for the old values goes to the base through `open`, or nowhere where they are overwritten.
    pub fn redirect(&mut self, written: usize, rule: &Rule, op: &mut Edges) -> Result<()> {
        let Some(k) = op.iter().position(|e| e.arg() == written) else { return Ok(()) };
        if rule.get().overwrites(written) {
            op.remove(k);
            return Ok(());
        }
        let Some((from, nr)) = self.outside.take() else { return Ok(()) };
        let open = node(&OPEN, &self.place, edges([(from, nr, 0)]), 2, 0)?;
        op[k] = Edge::new(open.clone(), 1, written, 0);
        self.outside = Some((open, 0));
        Ok(())
    }

    /// The view was written, and its new value is output `nr` of `made`.
    pub fn end(self, view: &Tensor, made: &NodeRef, nr: u32) -> Result<()> {
        let inside = (!made.edges().is_empty()).then(|| (made.clone(), nr, 1));
        let outside = self.outside.map(|(node, nr)| (node, nr, 0));
        let node = node(&CLOSE, &self.place, edges(outside.into_iter().chain(inside)), 1, 0)?;
        meta::rebase(&self.base, node, 0);
        hand_over(view);
        Ok(())
    }
}

// ---- the rules ----

/// The saved place as arguments.
fn saved<'a>(ctx: &BackwardCtx<'a>, k: usize) -> Arg<'a> {
    ctx.value(k).as_arg()
}

fn part(ctx: &BackwardCtx<'_>, grad: &Tensor) -> Result<Tensor> {
    ops::VIEW_INSIDE.call(&[Arg::Tensor(grad), saved(ctx, 1), saved(ctx, 2), saved(ctx, 3), saved(ctx, 4)])
}

fn embed(ctx: &BackwardCtx<'_>, part: &Tensor) -> Result<Tensor> {
    ops::VIEW_BACKWARD.call(&[Arg::Tensor(part), saved(ctx, 0), saved(ctx, 1), saved(ctx, 3), saved(ctx, 4)])
}

fn erase(ctx: &BackwardCtx<'_>, grad: &Tensor) -> Result<Tensor> {
    ops::VIEW_OUTSIDE.call(&[Arg::Tensor(grad), saved(ctx, 1), saved(ctx, 2), saved(ctx, 3), saved(ctx, 4)])
}

/// The view in a gradient that nobody else sees, to be written to; so a chain of writes costs what it writes, not the
/// whole base each time. None where a fresh gradient has to be made.
fn hole(ctx: &BackwardCtx<'_>, grad: &Tensor) -> Option<Tensor> {
    if state::is_grad_enabled() || grad.requires_grad() || !grad.is_unseen() || grad.strides() != ctx.ints(1)
    {
        return None;
    }
    let (sizes, strides) = (ctx.ints(2).into(), ctx.ints(3).into());
    grad.view(&Layout { sizes, strides, offset: grad.offset() + ctx.int(4) }).ok()
}

/// From a base's history to that of a view of it.
static FOLLOW: Named = Named::new("view_of_base", 1, saved_by_hand, |ctx, grad, out| {
    out.set(0, embed(ctx, &ops::sum_to_size(grad.clone(), ctx.ints(2))?)?);
    Ok(())
});

/// These nodes belong to no call: `node` saves what they need.
fn saved_by_hand(_: &Call<'_>, _: &mut Saver<'_>) -> Result<()> {
    Ok(())
}

/// Base before a write: what is outside of the view (output 0), and the view (output 1).
struct Open;
static OPEN: Open = Open;

impl VjpRule for Open {
    fn name(&self) -> &str {
        "open_view"
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let grad = match grads {
            [Some(outside), Some(inside)] => match hole(ctx, outside) {
                // Zeros are there: `close` put them.
                Some(hole) => {
                    ops::COPY_.call(&[Arg::Tensor(&hole), Arg::Tensor(inside)])?;
                    outside.clone()
                }
                None => ops::add(outside, &embed(ctx, inside)?)?,
            },
            [Some(outside), None] => outside.clone(),
            [None, Some(inside)] => embed(ctx, inside)?,
            _ => return Ok(()),
        };
        out.set(0, grad);
        Ok(())
    }
}

/// Base after a write: what is outside of the view (argument 0), and what was written (argument 1).
static CLOSE: Named = Named::new("write_through_view", 3, saved_by_hand, |ctx, grad, out| {
    if ctx.needs(1) {
        out.set(1, part(ctx, grad)?);
    }
    if ctx.needs(0) {
        let outside = match hole(ctx, grad) {
            Some(hole) => {
                let _mode = GradMode::no_grad();
                ops::ZERO_.call(&[Arg::Tensor(&hole)])?;
                grad.clone()
            }
            None => erase(ctx, grad)?,
        };
        out.set(0, outside);
    }
    Ok(())
});

// ---- what is refused ----

#[cold]
fn shared_memory() -> Error {
    let message =
        "values that require grad would be written to memory that other tensors share without knowing";
    Error::autograd("TP3019", message)
        .note("write to the whole tensor itself, or through a view while no other view of it is alive")
        .note("or build the result with stack(), concat(), where() or index_put()")
}

#[cold]
fn foreign_view(message: &str) -> Error {
    Error::autograd("TP3025", message)
        .note("its gradient is that of the function, which the write would go past; clone() the result first")
}
