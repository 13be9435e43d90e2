//! Numbers that the dtype they join cannot hold: what each stands for in a call. A comparison is computed in int64, so
//! that it is right as mathematics; what gives floats never makes it a value of the integers; a bound of max or min that bounds nothing becomes the end of the dtype's range;
//! everything else is an error, for a wrapped number is another one.

use smallvec::SmallVec;
use tp_tensor::scalar::Misfit;
use tp_tensor::{DType, Scalar};

use super::{ArgType, Func, Node, NodeId, ParamRule, ScalarExpr};
use crate::error::ExprError;
use crate::prim::Prim;

/// What a number is taken for where the dtype that it joins does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// An int64, which widens what it meets.
    Wide(i64),
    /// A bound that has the same effect.
    Bound(i64),
}

/// Where an argument is used.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Max,
    Min,
    Other,
}

impl ScalarExpr {
    /// The numbers (`Const`) among these arguments that do not fit, with their position and what they stand for. Empty
    /// for nearly every call.
    pub fn misfits(&self, args: &[ArgType]) -> Result<SmallVec<[(usize, Stand); 2]>, ExprError> {
        let mut out = SmallVec::new();
        let Some(joint) = self.joint_dtype(args.iter().copied()) else { return Ok(out) };
        for (k, (&arg, &rule)) in args.iter().zip(&self.params).enumerate() {
            match arg {
                ArgType::Const(scalar) if rule == ParamRule::Joint && !scalar.fits(joint) => {
                    out.push((k, self.stand(k, scalar, joint, args)?));
                }
                _ => {}
            }
        }
        Ok(out)
    }

    #[cold]
    fn stand(&self, k: usize, scalar: Scalar, joint: DType, args: &[ArgType]) -> Result<Stand, ExprError> {
        let misfit = ExprError::Number(Misfit { value: scalar, dtype: joint });
        let (Scalar::Int(v), Some(info)) = (scalar, joint.int_info()) else { return Err(misfit) };
        let kinds: SmallVec<[ArgType; 4]> = args
            .iter()
            .map(|&arg| if let ArgType::Const(s) = arg { ArgType::Weak(s.category()) } else { arg })
            .collect();
        let out = self.output_dtype(&kinds)?;
        if out.is_bool() || out.is_float() {
            return Ok(Stand::Wide(v));
        }
        match self.use_of(k as u16) {
            Some(Use::Max) if v < info.min => Ok(Stand::Bound(info.min)),
            Some(Use::Min) if v > info.max => Ok(Stand::Bound(info.max)),
            _ => Err(misfit),
        }
    }

    /// What all uses of an argument have in common; None where they differ.
    fn use_of(&self, k: u16) -> Option<Use> {
        let own: SmallVec<[NodeId; 2]> =
            (0..self.nodes.len()).filter(|&n| self.nodes[n] == Node::Arg(k)).map(|n| n as NodeId).collect();
        let mut all = self.nodes.iter().filter_map(|node| match node {
            Node::Call(func, operands) => {
                let arity = if let Func::Prim(prim) = func { prim.arity() } else { operands.len() };
                operands[..arity].iter().any(|id| own.contains(id)).then_some(match func {
                    Func::Prim(Prim::Max) => Use::Max,
                    Func::Prim(Prim::Min) => Use::Min,
                    _ => Use::Other,
                })
            }
            _ => None,
        });
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }
}
