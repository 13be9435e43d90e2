//! What the tests share: the layers installed, tensors from numbers, ops by name, and ops defined for one test.
#![allow(dead_code)] // each test binary uses a part of it

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::registry::KernelSpec;
use tp_dispatch::select::Slot;
use tp_dispatch::{
    Arg, Call, Effects, FakeOut, FakeOuts, FakeRule, GradSpec, Kernel, KernelFn, OpDef, OpHandle, Provenance,
    Registry, Result, Rets, Schema, Value, bind::Params, dispatcher,
};
use tp_tensor::{DType, Device, Tensor, TensorSpec};

pub fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tp_kernels::register_all().expect("the op table is valid");
        tp_autograd::install();
        tp_graph::install();
    });
}

pub fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|n| (*n).into()).collect()
}

pub fn tensor(values: &[f32], sizes: &[i64]) -> Tensor {
    let t = Tensor::empty(sizes, DType::F32, Device::CPU).expect("small");
    assert_eq!(t.numel() as usize, values.len());
    // SAFETY: that many floats.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), t.data_ptr().cast(), values.len()) };
    t
}

/// Elements in index order, through the strides.
pub fn values(t: &Tensor) -> Vec<f32> {
    assert_eq!(t.dtype(), DType::F32);
    let nest = tp_tensor::iter::LoopNest::new(t.sizes(), &[(t.sizes(), t.strides())]);
    let mut out = Vec::new();
    // SAFETY: offsets stay inside the tensor.
    nest.for_each_row(|o, n| {
        (0..n).for_each(|i| {
            out.push(unsafe {
                *t.data_ptr().cast::<f32>().offset((o[0] + i * nest.inner_stride(0)) as isize)
            })
        })
    });
    out
}

pub fn handle(name: &str) -> OpHandle {
    Registry::global().lookup(name).expect("a known op")
}

pub fn try_op(name: &str, args: &[Arg<'_>]) -> Result<Tensor> {
    let op = handle(name);
    let def = op.def().expect("defined");
    let args = def.params.fill(name, args)?;
    let mut rets = Rets::new();
    dispatcher::call(op, &args, HostArgs::NONE, &mut rets)?;
    Ok(rets.into_iter().next().and_then(Value::into_tensor).unwrap_or_else(|| tensor(&[], &[0])))
}

pub fn op(name: &str, args: &[Arg<'_>]) -> Tensor {
    try_op(name, args).unwrap_or_else(|e| panic!("{e:?}"))
}

pub fn t(x: &Tensor) -> Arg<'_> {
    Arg::Tensor(x)
}

pub fn num(v: f64) -> Arg<'static> {
    Arg::Scalar(tp_tensor::Scalar::Float(v))
}

/// How often test kernels have run, so that tests see bodies that must not run.
pub static RUNS: AtomicU32 = AtomicU32::new(0);

/// A user's op with a native kernel.
pub fn define(schema: &str, effects: Effects, fake: FakeRule, kernel: KernelFn) -> OpHandle {
    let parsed = Schema::parse_definition(schema).expect("a valid schema");
    let params = Params::compile(&parsed).expect("valid params");
    let name = schema.split('(').next().unwrap_or(schema);
    let provenance =
        Provenance { name: "default".into(), file: "test.py".into(), line: 7, executor: "python".into() };
    let mutates = parsed.is_mutable();
    let def = OpDef {
        schema: Arc::new(parsed),
        params,
        effects: Effects { mutates, ..effects },
        fake,
        grad: GradSpec::Missing,
        pointwise: None,
        custom: true,
        tags: Vec::new(),
        provenance: provenance.clone(),
    };
    let registration = Registry::global().define(name, def, true).expect("a free name");
    let spec = KernelSpec {
        slot: Slot::Default,
        kernel: Kernel::Fn(kernel),
        provenance,
        when: None,
        contiguous: Box::default(),
    };
    let op = registration.op();
    Registry::global().register_kernel(op, spec).expect("just defined").keep();
    registration.keep();
    op
}

pub fn like_first(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    Ok([FakeOut::Spec(TensorSpec::contiguous(x.sizes(), x.dtype(), x.device()))].into())
}

/// `x * 3`, counted.
pub fn triple(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    RUNS.fetch_add(1, Ordering::SeqCst);
    let out = try_op("tp::mul.Scalar", &[t(call.tensor(0)?), num(3.0)])?;
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn opaque_triple(name: &str, effects: Effects) -> OpHandle {
    define(&format!("{name}(Tensor x) -> Tensor"), effects, FakeRule::Fn(like_first), triple)
}

/// A graph's text with another name of a value in place of `old`.
pub fn substituted(text: &str, old: &str, new: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(old) {
        let after = &rest[at + old.len()..];
        let whole = !after.starts_with(|c: char| c.is_ascii_digit());
        out += &rest[..at];
        out += if whole { new } else { old };
        rest = after;
    }
    out + rest
}

/// Values are numbered in the order in which they are made.
pub fn renumbered(text: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let n = rest[at + 1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - at - 1);
        let name = &rest[at..at + 1 + n];
        if !names.contains(&name) {
            names.push(name);
        }
        rest = &rest[at + 1..];
    }
    let mut out = text.to_string();
    for (k, name) in names.iter().enumerate() {
        out = substituted(&out, name, &format!("%#{k}"));
    }
    out.replace("%#", "%")
}
