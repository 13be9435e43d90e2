//! Rules of built-in ops whose gradient is no scalar expression. A row of the op table names its rule; here the
//! name becomes the rule. All of these ops return one tensor.

mod convert;
mod index;
mod join;
mod matmul;
mod reduce;
mod scan;
mod shape;
mod softmax;

use crate::rule::{BackwardCtx, Gradients, Short, VjpRule};
use crate::tape::{Node, Saver};
use tp_dispatch::{Call, Result, Value};
use tp_tensor::{DType, Dim, Dims, Tensor, layout, symbols};

/// A rule made of functions.
pub(crate) struct Named {
    name: &'static str,
    /// Arguments with a gradient, as bits.
    args: u64,
    save: fn(&Call<'_>, &mut Saver<'_>) -> Result<()>,
    /// Saves output 0 as well, behind the inputs.
    saves_output: bool,
    specs: bool,
    /// Calls of which nothing is saved.
    short: Short,
    /// `VjpRule::direct` for the calls of `short`.
    direct: fn(&Node, &Tensor) -> Option<Result<Tensor>>,
    back: fn(&BackwardCtx<'_>, &Tensor, &mut Gradients<'_>) -> Result<()>,
}

impl Named {
    pub(crate) const fn new(
        name: &'static str,
        args: u64,
        save: fn(&Call<'_>, &mut Saver<'_>) -> Result<()>,
        back: fn(&BackwardCtx<'_>, &Tensor, &mut Gradients<'_>) -> Result<()>,
    ) -> Named {
        Named {
            name,
            args,
            save,
            saves_output: false,
            specs: false,
            short: Short::No,
            direct: |_, _| None,
            back,
        }
    }

    const fn with_output(self) -> Named {
        Named { saves_output: true, ..self }
    }

    const fn with_specs(self) -> Named {
        Named { specs: true, ..self }
    }

    /// Says which calls `save` does nothing for, and the gradient of their input.
    const fn saving_nothing(
        self,
        of: fn(&Call<'_>) -> bool,
        direct: fn(&Node, &Tensor) -> Option<Result<Tensor>>,
    ) -> Named {
        Named { short: Short::If(of), direct, ..self }
    }
}

impl VjpRule for Named {
    fn name(&self) -> &str {
        self.name
    }

    fn args(&self) -> u64 {
        self.args
    }

    fn keeps_specs(&self) -> bool {
        self.specs
    }

    fn short(&self) -> Short {
        self.short
    }

    fn save_inputs(&self, call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
        (self.save)(call, saver)
    }

    fn save_outputs(&self, _: &Call<'_>, rets: &[Value], saver: &mut Saver<'_>) -> Result<()> {
        if let (true, Some(Value::Tensor(out))) = (self.saves_output, rets.first()) {
            saver.output(out, 0);
        }
        Ok(())
    }

    fn direct(&self, node: &Node, grad: &mut Option<Tensor>) -> Option<Result<Tensor>> {
        (self.direct)(node, grad.as_ref()?)
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        match grads.first() {
            Some(Some(grad)) => (self.back)(ctx, grad, out),
            _ => Ok(()),
        }
    }
}

/// The rule of that name.
pub(crate) fn rule(name: &str) -> Option<&'static dyn VjpRule> {
    let all = [
        convert::RULES,
        reduce::RULES,
        scan::RULES,
        softmax::RULES,
        matmul::RULES,
        shape::RULES,
        join::RULES,
        index::RULES,
    ];
    all.into_iter().flatten().find(|r| r.name == name).map(|r| r as &dyn VjpRule)
}

// ---- what many rules do ----

/// Saves the sizes of argument 0 as the next value.
fn save_sizes(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.ints(call.tensor(0)?.sizes());
    Ok(())
}

fn dtype_bits(dtype: DType) -> u64 {
    dtype as u64 + 1
}

/// The dtype put into the bits, if one was.
fn dtype_of_bits(bits: u64) -> Option<DType> {
    DType::from_code((bits & 15).checked_sub(1)? as u8)
}

/// The axes of a reduction, counted from the front; None for all.
fn axes_of(call: &Call<'_>, arg: usize, ndim: usize) -> Result<Option<Dims>> {
    let Some(axes) = call.opt_ints(arg) else {
        return match call.args.get(arg).and_then(|a| a.int()) {
            Some(axis) => Ok(Some(Dims::from_slice(&[axis_of(axis, ndim)?]))),
            None => Ok(None),
        };
    };
    axes.iter().map(|&a| axis_of(a, ndim)).collect::<Result<Dims>>().map(Some)
}

fn axis_of(axis: i64, ndim: usize) -> Result<i64> {
    Ok(layout::normalize_axis(axis, ndim)? as i64)
}

/// How many elements were reduced into one: a float, or an int that is a symbolic size.
fn reduced_count(sizes: &[i64], axes: Option<&[i64]>) -> Result<Value> {
    let is_reduced = |i: usize| axes.is_none_or(|a| a.contains(&(i as i64)));
    let reduced = || sizes.iter().enumerate().filter(|(i, _)| is_reduced(*i)).map(|(_, &size)| size);
    if reduced().any(|size| Dim::from_raw(size).is_symbol()) {
        return Ok(Value::Int(reduced().try_fold(1, symbols::mul)?));
    }
    Ok(Value::Float(reduced().map(|size| size as f64).product()))
}
