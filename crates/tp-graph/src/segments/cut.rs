//! What of a segment has to be computed, and where it falls into pieces. Who holds a tensor that requires a gradient may
//! ask for gradients with respect to it: what is computed from it is a piece, and a node on the tape, of its own.

use super::queue::{Out, Segment, Source, Step};
use std::ops::Range;

pub(super) struct Cut {
    /// By numbers of made tensors: somebody holds it, or a later piece reads it, or one that is needed is a view of it.
    pub needed: Vec<bool>,
    /// Steps of each piece.
    pub pieces: Vec<Range<usize>>,
}

impl Cut {
    pub fn of(segment: &Segment) -> Cut {
        let held: Vec<bool> = segment.made.iter().map(|made| made.tensor.ref_count() > 1).collect();
        let last_read = last_reads(segment);
        let mut pieces = Vec::new();
        let mut start = 0;
        for (i, step) in segment.steps.iter().enumerate() {
            let parts = |n: u32| {
                let n = n as usize;
                held[n] && segment.made[n].requires_grad && last_read[n].is_some_and(|at| at > i)
            };
            if step.outs.iter().flat_map(Out::numbers).any(parts) {
                pieces.push(start..i + 1);
                start = i + 1;
            }
        }
        pieces.push(start..segment.steps.len());
        let mut needed = held;
        for piece in &pieces {
            for step in &segment.steps[piece.clone()] {
                for n in step.outs.iter().flat_map(Out::numbers) {
                    needed[n as usize] |= last_read[n as usize].is_some_and(|at| at >= piece.end);
                }
            }
        }
        for step in segment.steps.iter().rev() {
            for out in &step.outs {
                if let Out::View(n, of) = out
                    && needed[*n as usize]
                    && let Some(Source::Made(base)) = step.args.get(*of as usize)
                {
                    needed[*base as usize] = true;
                }
            }
        }
        Cut { needed, pieces }
    }

    /// Numbers of the needed tensors that a piece makes, but for views.
    pub fn results(&self, steps: &[Step]) -> Vec<u32> {
        let new = steps.iter().filter(|step| !step.is_view).flat_map(|step| &step.outs);
        new.flat_map(Out::numbers).filter(|n| self.needed[*n as usize]).collect()
    }
}

/// The last step that reads each made tensor.
fn last_reads(segment: &Segment) -> Vec<Option<usize>> {
    let mut last = vec![None; segment.made.len()];
    for (i, step) in segment.steps.iter().enumerate() {
        for arg in &step.args {
            arg.each(&mut |source| {
                if let Source::Made(n) = source {
                    last[*n as usize] = Some(i);
                }
            });
        }
    }
    last
}
