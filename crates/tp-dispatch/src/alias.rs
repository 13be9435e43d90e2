//! Which outputs of a foreign kernel share memory with what. Storages are compared by identity; memory that belongs
//! to somebody else (NumPy, DLPack) by its addresses, for two storages may be made over one buffer.

use crate::check::FAKE_RULE;
use crate::error::{Error, Result};
use crate::kernel::Call;
use crate::value::{Arg, Rets, Value};
use smallvec::SmallVec;
use std::collections::HashMap;
use tp_tensor::Tensor;
use tp_tensor::storage::StorageKind;

/// Up to this many outputs are compared with everything in pairs; more go through a table.
const FEW: usize = 8;

/// An argument or an output.
#[derive(Clone, Copy)]
enum Place {
    Arg(usize, Part),
    Out(usize, Part),
}

/// The whole of it, an item of a list, or something inside of an object that is only carried.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    Item(usize),
    Inside,
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    place: Place,
    tensor: &'a Tensor,
    /// An output that has to be a tensor of its own.
    fresh: bool,
}

/// The end of a range, and whose it is.
type Reach = (usize, usize);

type Entries<'a> = SmallVec<[Entry<'a>; FEW]>;

/// Whether two tensors surely share no memory.
#[inline]
pub(crate) fn are_apart(a: &Tensor, b: &Tensor) -> bool {
    let lent = |t: &Tensor| t.storage().kind() == StorageKind::Foreign;
    !a.shares_storage(b) && !((lent(a) || lent(b)) && overlap(a, b))
}

#[cold]
fn overlap(a: &Tensor, b: &Tensor) -> bool {
    span(a).zip(span(b)).is_some_and(|(a, b)| a.0 < b.1 && b.0 < a.1)
}

/// Addresses of the first byte and of the one past the last; None for tensors without data.
pub(crate) fn span(t: &Tensor) -> Option<(usize, usize)> {
    let base = t.data_ptr() as usize;
    if base == 0 || t.is_fake() || t.numel() == 0 {
        return None;
    }
    let layout = t.layout();
    let (low, high) = layout.extent()?;
    let size = t.dtype().itemsize() as i64;
    let at = |i: i64| base.wrapping_add_signed(((i - layout.offset) * size) as isize);
    Some((at(low), at(high)))
}

/// An error when an output that is declared as a new tensor shares memory with an argument or an earlier output, or
/// when one that is declared as an alias is none.
pub(crate) fn check(call: &Call<'_>, rets: &Rets, who: &str) -> Result<()> {
    let declared = call.def.schema.returns();
    let mut outputs = Entries::new();
    for (i, (value, ret)) in rets.iter().zip(declared).enumerate() {
        let fresh = ret.alias().is_none();
        list(value.as_arg(), |item, tensor| {
            outputs.push(Entry { place: Place::Out(i, item), tensor, fresh })
        });
        if !fresh {
            check_declared(call, i, value, who)?;
        }
    }
    if !outputs.iter().any(|e| e.fresh) {
        return Ok(());
    }
    let clash = if outputs.len() <= FEW { in_pairs(call, &outputs) } else { in_table(call, outputs) };
    match clash {
        Some((with, out)) => Err(shared(call, &with, &out, who)),
        None => Ok(()),
    }
}

/// Every tensor among the arguments.
fn arguments<'a>(call: &Call<'a>, mut f: impl FnMut(Entry<'a>)) {
    for (k, arg) in call.args.iter().enumerate() {
        list(*arg, |item, tensor| f(Entry { place: Place::Arg(k, item), tensor, fresh: false }));
    }
}

/// Tensors of an argument with their place in it.
fn list<'a>(arg: Arg<'a>, mut f: impl FnMut(Part, &'a Tensor)) {
    let place = match arg {
        Arg::Tensors(_) => Part::Item,
        Arg::OptTensors(ts) => {
            let given = ts.iter().enumerate().filter_map(|(n, t)| Some((n, t.as_ref()?)));
            return given.for_each(|(n, t)| f(Part::Item(n), t));
        }
        Arg::Host(_) => |_| Part::Inside,
        _ => |_| Part::Whole,
    };
    let mut n = 0;
    arg.for_each_tensor(|t| {
        f(place(n), t);
        n += 1;
    });
}

/// The first output that shares memory with an argument or an earlier output, and with what.
fn in_pairs<'a>(call: &Call<'a>, outputs: &[Entry<'a>]) -> Option<(Entry<'a>, Entry<'a>)> {
    outputs.iter().enumerate().filter(|(_, out)| out.fresh).find_map(|(b, out)| {
        let mut with = None;
        arguments(call, |e| {
            if with.is_none() && !are_apart(e.tensor, out.tensor) {
                with = Some(e);
            }
        });
        with.or_else(|| outputs[..b].iter().find(|e| !are_apart(e.tensor, out.tensor)).copied())
            .map(|e| (e, *out))
    })
}

fn in_table<'a>(call: &Call<'a>, outputs: Entries<'a>) -> Option<(Entry<'a>, Entry<'a>)> {
    let mut entries = Vec::with_capacity(call.args.len() + outputs.len());
    arguments(call, |e| entries.push(e));
    entries.extend(outputs);
    let mut first: HashMap<usize, usize> = HashMap::with_capacity(entries.len());
    for (b, e) in entries.iter().enumerate() {
        let a = *first.entry(e.tensor.storage().id()).or_insert(b);
        if e.fresh && a != b {
            return Some((entries[a], *e));
        }
    }
    let foreign = entries.iter().any(|e| e.tensor.storage().kind() == StorageKind::Foreign);
    let clash = if foreign { by_address(&entries) } else { None };
    clash.map(|(a, b)| (entries[a], entries[b]))
}

/// Overlapping addresses in a sorted sweep: each new output against the furthest reach of what began before it.
fn by_address(entries: &[Entry<'_>]) -> Option<(usize, usize)> {
    let spans = entries.iter().enumerate().filter_map(|(i, e)| Some((span(e.tensor)?, i)));
    let mut spans: Vec<((usize, usize), usize)> = spans.collect();
    spans.sort_unstable();
    // Furthest ends so far: of all, and of outputs alone.
    let mut any: Option<Reach> = None;
    let mut fresh: Option<Reach> = None;
    for ((low, high), i) in spans {
        let before = if entries[i].fresh { any } else { fresh };
        if let Some((end, j)) = before
            && end > low
        {
            return Some((i.min(j), i.max(j)));
        }
        let further = |seen: Option<Reach>| match seen {
            Some((end, j)) if end >= high => Some((end, j)),
            _ => Some((high, i)),
        };
        any = further(any);
        if entries[i].fresh {
            fresh = further(fresh);
        }
    }
    None
}

/// An output that the schema gives the alias set of an argument lies in that argument's memory; one that was written
/// to is that argument.
fn check_declared(call: &Call<'_>, i: usize, value: &Value, who: &str) -> Result<()> {
    let schema = &call.def.schema;
    let Some(alias) = schema.returns().get(i).and_then(|r| r.alias()) else { return Ok(()) };
    let in_set = |k: usize| schema.arguments()[k].alias().is_some_and(|a| alias.shares_set_with(a));
    let known: SmallVec<[usize; 2]> =
        (0..call.args.len().min(schema.arguments().len())).filter(|k| in_set(*k)).collect();
    let (Value::Tensor(out), false) = (value, known.is_empty()) else { return Ok(()) };
    let written = alias.is_write();
    let fits = |t: &Tensor| {
        t.shares_storage(out) && (!written || (t.dtype() == out.dtype() && t.layout() == out.layout()))
    };
    let mut found = false;
    for &k in &known {
        call.args[k].for_each_tensor(|t| found |= fits(t));
    }
    if found { Ok(()) } else { Err(not_aliased(call, i, known[0], written, who)) }
}

#[cold]
fn not_aliased(call: &Call<'_>, i: usize, k: usize, written: bool, who: &str) -> Error {
    let name = call.def.params.name(k).unwrap_or("?");
    let what = if written { "argument" } else { "a view of argument" };
    Error::contract("TP3209", format!("output {i} must be {what} '{name}', {who} returned another tensor"))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
        .note("return what the schema says, or declare a new tensor")
}

fn text(call: &Call<'_>, place: Place) -> String {
    let (head, part) = match place {
        Place::Arg(k, part) => (format!("argument '{}'", call.def.params.name(k).unwrap_or("?")), part),
        Place::Out(i, part) => (format!("output {i}"), part),
    };
    match part {
        Part::Whole => head,
        Part::Item(n) => format!("{head}[{n}]"),
        Part::Inside => format!("a tensor inside of {head}"),
    }
}

#[cold]
fn shared(call: &Call<'_>, with: &Entry<'_>, out: &Entry<'_>, who: &str) -> Error {
    let is_same = with.tensor.same(out.tensor);
    let is_argument = matches!(with.place, Place::Arg(..));
    let how = if is_same && is_argument { "is" } else { "shares memory with" };
    let (output, other) = (text(call, out.place), text(call, with.place));
    let is_fake = who == FAKE_RULE;
    let by = if is_fake { format!(" ({who} returned it)") } else { String::new() };
    let message = format!("{output} {how} {other}, but the schema declares a new tensor{by}");
    let mut e = Error::contract("TP3203", message).with_op(call.op.name());
    let written =
        matches!(with.place, Place::Arg(k, _) if call.def.params.all.get(k).is_some_and(|p| p.written));
    e = e.note(match (is_argument, written) {
        _ if is_fake => "return new tensors without data: empty_like(x)",
        (false, _) => "return a copy (clone()) of one of the two",
        (true, true) => "the op writes to it already: return nothing for it, or a copy (clone())",
        (true, false) => {
            "return a copy (clone()) instead, or write to the argument, declare it in mutates_args and return nothing"
        }
    });
    if is_argument && !is_same && !is_fake {
        e = e.note("a view is taken outside of the op: slice, reshape or detach what the call returns");
    }
    e.note(format!("outputs may be fed to other ops freely: the rule is about what {who} returns"))
}
