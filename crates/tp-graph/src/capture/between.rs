//! What a capture took for granted between tensors that existed before.

use tp_tensor::Tensor;

#[derive(Default)]
pub struct Between {
    /// Arguments that the function reaches on its own too. Each was taken for the argument: the entry is for calls with
    /// that very tensor.
    pub reached: Vec<Tensor>,
    /// Pairs, the first of which was not computed from the second: a gradient by that is taken inside.
    pub apart: Vec<(Tensor, Tensor)>,
    /// Pairs that the function was told to be two tensors.
    pub two: Vec<(Tensor, Tensor)>,
    /// Tensors of which the function had the hash, which tells each from the others, and whether it saw them as arguments.
    hashed: Vec<(Tensor, bool)>,
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

    /// The function was told that `a` and `b` are two.
    pub(super) fn tell_two(&mut self, a: Tensor, b: Tensor) {
        let is_it = |(x, y): &(Tensor, Tensor)| x.same(&a) && y.same(&b) || x.same(&b) && y.same(&a);
        if !self.two.iter().any(is_it) {
            self.two.push((a, b));
        }
    }

    /// The function had the hash of `t`, as an argument or as itself. False where it had it as the other too.
    pub(super) fn hash(&mut self, t: &Tensor, argument: bool) -> bool {
        if let Some((_, before)) = self.hashed.iter().find(|(other, _)| other.same(t)) {
            return *before == argument;
        }
        let others: Vec<Tensor> = self.hashed.iter().map(|(other, _)| other.clone()).collect();
        others.into_iter().for_each(|other| self.tell_two(other, t.clone()));
        self.hashed.push((t.clone(), argument));
        true
    }
}
