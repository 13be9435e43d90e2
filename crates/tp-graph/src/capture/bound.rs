//! The arguments of a call that is being recorded.

use crate::ir::Operand;
use smallvec::SmallVec;
use tp_dispatch::{Arg, Call};
use tp_tensor::Tensor;

/// The arguments of one call as operands, and the fakes that stand for real tensors among them.
pub(super) struct Bound {
    pub operands: SmallVec<[Operand; 4]>,
    /// Argument number, and its tensors with twins in place of real ones.
    pub twins: SmallVec<[(usize, Twins); 2]>,
}

pub(super) enum Twins {
    One(Tensor),
    Many(Box<[Tensor]>),
    Optional(Box<[Option<Tensor>]>),
}

impl Bound {
    pub fn has_twins(&self) -> bool {
        !self.twins.is_empty()
    }

    /// The call's arguments without real tensors.
    pub fn args<'a>(&'a self, call: &Call<'a>) -> SmallVec<[Arg<'a>; 8]> {
        let mut args: SmallVec<[Arg<'a>; 8]> = call.args.into();
        for (i, twins) in &self.twins {
            args[*i] = match twins {
                Twins::One(t) => Arg::Tensor(t),
                Twins::Many(ts) => Arg::Tensors(ts),
                Twins::Optional(ts) => Arg::OptTensors(ts),
            };
        }
        args
    }
}
