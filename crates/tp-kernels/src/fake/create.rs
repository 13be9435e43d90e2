//! What creation calls make: sizes, dtype, device. Rows make fake outputs of it, kernels memory.

use crate::fake::{contiguous, known};
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::promote::{DEFAULT_FLOAT, DEFAULT_INT, default_dtype};
use tp_tensor::{DType, Device, Dims, Scalar, TensorError, TensorSpec, layout, symbols};

/// Dtype and device given as keyword arguments from index `at` on, else these.
fn options(call: &Call<'_>, at: usize, dtype: DType, device: Device) -> (DType, Device) {
    (call.opt_dtype(at).unwrap_or(dtype), call.opt_device(at + 1).unwrap_or(device))
}

/// A fresh contiguous tensor.
pub struct Plan {
    pub sizes: Dims,
    pub dtype: DType,
    pub device: Device,
}

fn of_sizes(sizes: &[i64], (dtype, device): (DType, Device)) -> Result<Plan> {
    Ok(Plan { sizes: sizes.into(), dtype, device })
}

/// The plan as a fake output.
pub fn fresh(plan: Plan) -> Result<FakeOuts> {
    if !symbols::given(&plan.sizes) {
        layout::checked_numel(&plan.sizes, plan.dtype.itemsize())?;
    }
    Ok(contiguous(&plan.sizes, plan.dtype, plan.device))
}

pub fn sized(call: &Call<'_>) -> Result<Plan> {
    of_sizes(call.ints(0)?, options(call, 1, DEFAULT_FLOAT, Device::CPU))
}

/// A number that becomes an element: its fraction is cut off, but it is not wrapped.
fn held(value: Scalar, dtype: DType) -> Result<()> {
    value.checked(dtype).map(drop).map_err(|e| TensorError::from(e).into())
}

pub fn full(call: &Call<'_>) -> Result<Plan> {
    let value = call.scalar(1)?;
    let options = options(call, 2, default_dtype(value.category()), Device::CPU);
    held(value, options.0)?;
    of_sizes(call.ints(0)?, options)
}

pub fn strided(call: &Call<'_>) -> Result<TensorSpec> {
    let (sizes, strides) = (call.ints(0)?, call.ints(1)?);
    if sizes.len() != strides.len() {
        let message = format!("{} strides for {} dimensions", strides.len(), sizes.len());
        return Err(Error::value("TP1128", message));
    }
    known(sizes)?;
    if let Some(bad) = known(strides)?.iter().find(|s| **s < 0) {
        return Err(Error::value("TP1128", format!("strides must not be negative, got {bad}")));
    }
    let (dtype, device) = options(call, 2, DEFAULT_FLOAT, Device::CPU);
    layout::checked_numel(sizes, dtype.itemsize())?;
    Ok(TensorSpec { dtype, sizes: sizes.into(), strides: strides.into(), device })
}

pub fn like(call: &Call<'_>) -> Result<Plan> {
    let x = call.tensor(0)?;
    of_sizes(x.sizes(), options(call, 1, x.dtype(), x.device()))
}

pub fn full_like(call: &Call<'_>) -> Result<Plan> {
    let x = call.tensor(0)?;
    let options = options(call, 2, x.dtype(), x.device());
    held(call.scalar(1)?, options.0)?;
    of_sizes(x.sizes(), options)
}

pub fn new_sized(call: &Call<'_>) -> Result<Plan> {
    let x = call.tensor(0)?;
    of_sizes(call.ints(1)?, options(call, 2, x.dtype(), x.device()))
}

/// Start, step and count of a range. Integers are counted exactly.
pub struct Range {
    pub start: Scalar,
    pub step: Scalar,
    pub count: i64,
}

impl Range {
    /// The last of at least one number.
    fn last(&self) -> Scalar {
        match (self.start, self.step) {
            (Scalar::Float(_), _) | (_, Scalar::Float(_)) => {
                Scalar::Float(self.start.to::<f64>() + (self.count - 1) as f64 * self.step.to::<f64>())
            }
            _ => {
                let steps = (self.count - 1).wrapping_mul(self.step.to());
                Scalar::Int(self.start.to::<i64>().wrapping_add(steps))
            }
        }
    }
}

pub fn range(call: &Call<'_>) -> Result<Range> {
    let step = call.scalar(2)?;
    let (start, stop) = match call.args[1].scalar() {
        Some(stop) => (call.scalar(0)?, stop),
        None => (Scalar::Int(0), call.scalar(0)?),
    };
    let zero = || Error::value("TP1129", "step must not be zero");
    let count = match (start, stop, step) {
        (Scalar::Float(_), ..) | (_, Scalar::Float(_), _) | (.., Scalar::Float(_)) => {
            let (a, b, s): (f64, f64, f64) = (start.to(), stop.to(), step.to());
            let count = ((b - a) / s).ceil();
            match (s == 0.0, count.is_finite()) {
                (true, _) => return Err(zero()),
                (_, false) => return Err(Error::value("TP1129", "a range needs finite bounds")),
                _ => count.max(0.0) as i64,
            }
        }
        _ => {
            let (a, b, s) = (start.to::<i64>() as i128, stop.to::<i64>() as i128, step.to::<i64>() as i128);
            let span = if s > 0 { b - a + s - 1 } else { a - b - s - 1 };
            if s == 0 {
                return Err(zero());
            }
            i64::try_from((span / s.abs()).max(0)).unwrap_or(i64::MAX)
        }
    };
    Ok(Range { start, step, count })
}

pub fn arange(call: &Call<'_>) -> Result<Plan> {
    let given = call.args[..3].iter().filter_map(|a| a.scalar());
    let float = given.into_iter().any(|s| matches!(s, Scalar::Float(_)));
    let dtype = if float { DEFAULT_FLOAT } else { DEFAULT_INT };
    let (range, options) = (range(call)?, options(call, 3, dtype, Device::CPU));
    if range.count > 0 {
        held(range.start, options.0)?;
        held(range.last(), options.0)?;
    }
    of_sizes(&[range.count], options)
}

pub fn linspace(call: &Call<'_>) -> Result<Plan> {
    let options = options(call, 3, DEFAULT_FLOAT, Device::CPU);
    held(call.scalar(0)?, options.0)?;
    held(call.scalar(1)?, options.0)?;
    of_sizes(&[call.int(2)?], options)
}

/// A 0-d tensor of a size.
pub fn count(call: &Call<'_>) -> Result<Plan> {
    of_sizes(&[], options(call, 1, DEFAULT_FLOAT, Device::CPU))
}

pub fn eye(call: &Call<'_>) -> Result<Plan> {
    let rows = call.int(0)?;
    let columns = call.args[1].int().unwrap_or(rows);
    of_sizes(&[rows, columns], options(call, 3, DEFAULT_FLOAT, Device::CPU))
}

pub fn random(call: &Call<'_>) -> Result<Plan> {
    let (dtype, device) = options(call, 3, DEFAULT_FLOAT, Device::CPU);
    if !dtype.is_float() {
        return Err(Error::dtype("TP1203", format!("random floats need a float dtype, got {dtype}")));
    }
    of_sizes(call.ints(0)?, (dtype, device))
}

/// The spread of a normal distribution is no negative number.
pub fn normal(call: &Call<'_>) -> Result<Plan> {
    let std = call.scalar(2)?.to::<f64>();
    if std.is_nan() || std < 0.0 {
        return Err(Error::value("TP1142", format!("std must not be negative, got {}", Scalar::Float(std))));
    }
    random(call)
}

/// Bounds of a uniform distribution; equal ones are its only value.
pub fn uniform(call: &Call<'_>) -> Result<Plan> {
    let (low, high) = (call.scalar(1)?.to::<f64>(), call.scalar(2)?.to::<f64>());
    let shown = (Scalar::Float(low), Scalar::Float(high));
    if low > high {
        let message = format!("low must not be above high, got {} and {}", shown.0, shown.1);
        return Err(Error::value("TP1130", message));
    }
    if !(high - low).is_finite() {
        let message =
            format!("low and high must be a finite distance apart, got {} and {}", shown.0, shown.1);
        return Err(Error::value("TP1142", message));
    }
    random(call)
}

pub fn randint(call: &Call<'_>) -> Result<Plan> {
    let (low, high) = (call.int(0)?, call.int(1)?);
    if low >= high {
        return Err(Error::value("TP1130", format!("low must be less than high, got {low} and {high}")));
    }
    let options = options(call, 3, DEFAULT_INT, Device::CPU);
    held(Scalar::Int(low), options.0)?;
    held(Scalar::Int(high - 1), options.0)?;
    of_sizes(call.ints(2)?, options)
}
