//! Tensors whose data is pending, and calls that are written down (`tp_graph::segments`), at the door: what has to have run
//! before a tensor is read or changed by other ways than an op.

use tp_dispatch::Result;
use tp_dispatch::state::{self, Excursion};
use tp_dispatch::{DispatchKey, KeySet};
use tp_graph::segments::{self, Why};
use tp_tensor::Tensor;

/// Before a read of `t`, or a change of it, that `text` tells of: a break of the segment with that code.
#[inline]
pub fn read(t: &Tensor, code: &'static str, text: impl Fn() -> String) -> Result<()> {
    if is_concerned(t) { segments::settle(t, Why { code, text: &text }) } else { Ok(()) }
}

/// Before `t` goes to a function of the door that says itself what it reads.
#[inline]
pub fn quietly(t: &Tensor) -> Result<()> {
    if is_concerned(t) { segments::settle_quietly(t) } else { Ok(()) }
}

/// Before code that runs ops of its own, which run at their place while what this gives lives.
#[inline]
pub fn leave(what: &str) -> Result<Option<Excursion>> {
    if !segments::active() {
        return Ok(None);
    }
    segments::leave(Why { code: "TP4031", text: &|| format!("{what} runs at its place") })
}

/// Others get the address of the tensor's memory.
pub fn lend(t: &Tensor) -> Result<()> {
    segments::before_write(t)?;
    t.storage().lend();
    Ok(())
}

#[inline]
fn is_concerned(t: &Tensor) -> bool {
    const SEGMENT: KeySet = DispatchKey::Segment.set();
    t.is_pending() || state::includes_any(SEGMENT)
}
