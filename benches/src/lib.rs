//! What the benchmarks share: the built-in ops with every layer installed, and small tensors to call them on.

use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, OpHandle, Registry, Rets, Value};
use tp_tensor::{DType, Device, Tensor};

/// Installs the layers and the built-in ops, once per process.
pub fn setup() {
    tp_autograd::install();
    tp_graph::capture::install();
    tp_kernels::register_all().expect("the built-in ops register");
}

/// The op of that name.
pub fn op(name: &str) -> OpHandle {
    Registry::global().lookup(name).expect("a built-in op")
}

/// `n` float32 ones.
pub fn ones(n: i64) -> Tensor {
    let t = Tensor::empty(&[n], DType::F32, Device::CPU).expect("a small tensor");
    // SAFETY: n floats lie at the data pointer of a fresh tensor.
    unsafe { std::slice::from_raw_parts_mut(t.data_ptr().cast::<f32>(), n as usize).fill(1.0) };
    t
}

/// Calls an op that returns one tensor.
#[inline]
pub fn call(op: OpHandle, args: &[Arg<'_>]) -> Tensor {
    let mut rets = Rets::new();
    tp_dispatch::call(op, args, HostArgs::NONE, &mut rets).expect("the call succeeds");
    match rets.pop() {
        Some(Value::Tensor(t)) => t,
        other => panic!("expected a tensor, got {other:?}"),
    }
}
