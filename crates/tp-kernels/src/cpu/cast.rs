//! Changing the element type, and filling with a number: programs that name no expression.

use crate::cpu::gather::by_width;
use crate::cpu::pointwise::{Operands, UNLOCK};
use smallvec::smallvec;
use std::sync::OnceLock;
use tp_dispatch::{Call, Error, Result, Rets, Value};
use tp_expr::{ProgramBuilder, TileKernel};
use tp_tensor::{DType, Device, Scalar, Tensor, TensorError};

/// The kernel that converts `from` into `to` (a plain copy when they are the same).
pub fn cast_kernel(from: DType, to: DType) -> Result<&'static TileKernel> {
    static KERNELS: [[OnceLock<TileKernel>; DType::COUNT]; DType::COUNT] =
        [const { [const { OnceLock::new() }; DType::COUNT] }; DType::COUNT];
    let slot = &KERNELS[from as usize][to as usize];
    if let Some(kernel) = slot.get() {
        return Ok(kernel);
    }
    let mut builder = ProgramBuilder::new();
    let input = builder.input(from);
    let output = builder.cast(input, to)?;
    let kernel = TileKernel::compile(&builder.finish(&[output])?)?;
    Ok(slot.get_or_init(|| kernel))
}

/// The elements of `x` converted into those of `out`, which has its shape (or one it broadcasts to).
pub fn cast_into(out: &Tensor, x: &Tensor) -> Result<()> {
    let operands = Operands { tensors: smallvec![Some(x)], bits: smallvec![0], misfit: false };
    // SAFETY: the callers see to it that x broadcasts to out and that they do not overlap.
    unsafe { operands.run(cast_kernel(x.dtype(), out.dtype())?, out) }
}

/// A contiguous copy in another dtype.
pub fn cast(x: &Tensor, to: DType) -> Result<Tensor> {
    let out = Tensor::empty(x.sizes(), to, Device::CPU)?;
    if x.dtype() == to {
        super::copy::copy_into(&out, x)?;
    } else {
        cast_into(&out, x)?;
    }
    Ok(out)
}

/// `x` itself when it has that dtype already.
pub fn as_dtype(x: &Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to { Ok(x.clone()) } else { cast(x, to) }
}

pub fn astype(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let to =
        call.opt_dtype(1).ok_or_else(|| Error::argument("TP1002", "argument 'dtype' must be a dtype"))?;
    rets.push(Value::Tensor(cast(call.tensor(0)?, to)?));
    Ok(())
}

/// Writes one value to every element; an error where the dtype cannot hold it.
pub fn fill(x: &Tensor, value: Scalar) -> Result<()> {
    let (dtype, n) = (x.dtype(), x.numel() as usize);
    let bits = value.checked(dtype).map_err(TensorError::from)?.to_bits(dtype);
    if !x.is_contiguous() || n >= UNLOCK as usize {
        let operands = Operands { tensors: smallvec![None], bits: smallvec![bits], misfit: false };
        // SAFETY: the only operand is a number.
        return unsafe { operands.run(cast_kernel(dtype, dtype)?, x) };
    }
    by_width!(dtype, T => {
        for i in 0..n {
            // SAFETY: contiguous.
            unsafe { x.data_ptr().cast::<T>().add(i).write_unaligned(bits as T) };
        }
    });
    Ok(())
}
