//! The shape of a matrix product: one-dimensional operands are rows or columns, leading axes broadcast.

use crate::fake;
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::promote::promote_types;
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{DType, Dims, TensorError, layout};

pub struct Product {
    /// Sizes of the result as the caller sees them.
    pub sizes: Dims,
    /// Leading axes of both operands together.
    pub batch: Dims,
    pub m: i64,
    pub k: i64,
    pub n: i64,
    pub dtype: DType,
}

pub fn product(call: &Call<'_>) -> Result<Product> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let refuse = |why: String| {
        let message = format!("x1 has shape {:?}, x2 has shape {:?}: {why}", a.dims(), b.dims());
        Error::shape("TP1134", message)
    };
    if a.ndim() == 0 || b.ndim() == 0 {
        return Err(refuse("a product with a number is written x * y".to_string()));
    }
    let dtype = promote_types(a.dtype(), b.dtype());
    if dtype == DType::Bool {
        return Err(Error::dtype("TP1204", "matrix products of bool tensors are not defined")
            .note("convert first: x.astype(int64)"));
    }
    let (a_lead, a_last) = a.sizes().split_at(a.ndim().saturating_sub(2));
    let (b_lead, b_last) = b.sizes().split_at(b.ndim().saturating_sub(2));
    let (m, k) = if let [m, k] = *a_last { (m, k) } else { (1, a_last[0]) };
    let (k2, n) = if let [k, n] = *b_last { (k, n) } else { (b_last[0], 1) };
    if !symbols::require(k, Relation::Eq, k2)? {
        return Err(refuse(format!(
            "the last axis of x1 ({:?}) must be the {} axis of x2 ({:?})",
            tp_tensor::Dim::from_raw(k),
            if b.ndim() == 1 { "only" } else { "second to last" },
            tp_tensor::Dim::from_raw(k2)
        )));
    }
    let batch = layout::broadcast(a_lead, b_lead).map_err(|e| match e {
        TensorError::Symbolic(_) | TensorError::Undecided(_) => e.into(),
        _ => refuse("the leading axes do not broadcast".into()),
    })?;
    let mut sizes = batch.clone();
    if a.ndim() > 1 {
        sizes.push(m);
    }
    if b.ndim() > 1 {
        sizes.push(n);
    }
    Ok(Product { sizes, batch, m, k, n, dtype })
}

pub fn matmul(call: &Call<'_>) -> Result<FakeOuts> {
    let p = product(call)?;
    Ok(fake::like_call(call, &p.sizes, p.dtype))
}
