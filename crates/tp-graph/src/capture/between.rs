//! What a capture took for granted between tensors that existed before.

use tp_tensor::Tensor;

#[derive(Default)]
pub struct Between {
    /// Arguments that the function reaches on its own too. Each was taken for the argument: the entry is for calls with
    /// that very tensor.
    pub reached: Vec<Tensor>,
    /// Pairs, the first of which was not computed from the second: a gradient by that is taken inside.
    pub apart: Vec<(Tensor, Tensor)>,
}

impl Between {
    pub(super) fn reach(&mut self, t: &Tensor, arguments: &[Tensor]) {
        if arguments.iter().any(|a| a.same(t)) && !self.reached.iter().any(|r| r.same(t)) {
            self.reached.push(t.clone());
        }
    }

    pub(super) fn keep_apart(&mut self, t: Tensor, source: Tensor) {
        if !self.apart.iter().any(|(a, b)| a.same(&t) && b.same(&source)) {
            self.apart.push((t, source));
        }
    }
}
