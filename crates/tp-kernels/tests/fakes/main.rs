//! Every row's fake rule against its kernel: shape, dtype, strides, what is shared with which argument, and which
//! calls are refused. On the way, every kernel is held to its own answer on contiguous copies.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use cases::cases;
use common::*;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, OpHandle, Registry, Result, Rets, Value};
use tp_tensor::{DType, Dim, Tensor};

pub type Args = Vec<Value>;

fn fake_of(x: &Tensor, id: u32) -> Tensor {
    let span = x.storage().nbytes() / x.dtype().itemsize();
    Tensor::fake(&[span as i64], &[1], x.dtype(), x.device(), id).unwrap().view(&x.layout()).unwrap()
}

/// The same argument with fakes instead of tensors.
fn without_data(v: &Value, id: &mut u32) -> Value {
    let mut fake = |x: &Tensor| {
        *id += 1;
        fake_of(x, *id)
    };
    match v {
        Value::Tensor(x) => Value::Tensor(fake(x)),
        Value::Tensors(xs) => Value::Tensors(xs.iter().map(fake).collect()),
        Value::OptTensors(xs) => Value::OptTensors(xs.iter().map(|x| x.as_ref().map(&mut fake)).collect()),
        other => other.clone(),
    }
}

fn invoke(op: OpHandle, args: &[Value]) -> Result<Rets> {
    let def = op.def().unwrap();
    let given: Vec<Arg<'_>> = args.iter().map(Value::as_arg).collect();
    let mut rets = Rets::new();
    // Fakes belong to the Meta layer even where no argument is a tensor.
    tp_dispatch::call(op, &def.params.fill(op.name(), &given)?, HostArgs::NONE, &mut rets)?;
    Ok(rets)
}

/// Which tensor arguments an output is, or shares storage with.
fn relations(args: &[Value], out: &Tensor) -> Vec<(bool, bool)> {
    let mut all = Vec::new();
    for v in args {
        v.for_each_tensor(|x| all.push((out.same(x), out.shares_storage(x))));
    }
    all
}

fn compare(op: OpHandle, args: &[Value]) {
    let mut id = 0;
    let fakes: Args = args.iter().map(|v| without_data(v, &mut id)).collect();
    let _sizes = tp_tensor::symbols::enter(tp_tensor::symbols::Symbols::new());
    let predicted = if id == 0 { predict(op, args) } else { invoke(op, &fakes) };
    match (invoke(op, args), predicted) {
        (Ok(real), Ok(fake)) => {
            assert_eq!(real.len(), fake.len(), "{op} {args:?}");
            for (r, f) in real.iter().zip(&fake) {
                let (r, f) = (r.tensor().unwrap(), f.tensor().unwrap());
                assert!(f.is_fake(), "{op}");
                assert_eq!(r.dtype(), f.dtype(), "{op} {args:?}");
                let sizes: Vec<i64> = r.sizes().iter().zip(f.sizes()).map(|(r, f)| known(*r, *f)).collect();
                assert_eq!((r.ndim(), r.strides()), (f.ndim(), f.strides()), "{op} {args:?}");
                assert_eq!(r.sizes(), sizes, "{op} {args:?}");
                assert_eq!(relations(args, r), relations(&fakes, f), "{op} {args:?}");
            }
        }
        (Err(real), Err(fake)) => {
            assert_eq!(
                (real.kind(), real.code(), real.op()),
                (fake.kind(), fake.code(), fake.op()),
                "{op} {args:?}"
            );
        }
        // Only the data tells.
        (Err(real), Ok(_)) if real.kind() == tp_dispatch::ErrorKind::DivisionByZero => {}
        (real, fake) => panic!("{op} {args:?}: kernel {real:?}, fake rule {fake:?}"),
    }
}

/// A size as the rule predicts it; what only data tells stands for any.
fn known(real: i64, fake: i64) -> i64 {
    if Dim::from_raw(fake).is_symbol() { real } else { fake }
}

/// Ops without tensors have no fake argument to say that they are faked.
fn predict(op: OpHandle, args: &[Value]) -> Result<Rets> {
    let def = op.def().unwrap();
    let given: Vec<Arg<'_>> = args.iter().map(Value::as_arg).collect();
    let args = def.params.fill(op.name(), &given)?;
    let call = tp_dispatch::Call {
        op,
        def: &def,
        args: &args,
        keys: tp_dispatch::KeySet::EMPTY,
        host: HostArgs::NONE,
        table: None,
    };
    tp_dispatch::fake::materialize_fakes(&call, &mut || 1)
}

/// The same call on contiguous copies gives the same values.
fn agrees_with_contiguous(op: OpHandle, args: &[Value]) {
    let plain = |x: &Tensor| tensor(x.sizes(), x.dtype(), &values(x));
    let copied: Args = args
        .iter()
        .map(|v| match v {
            Value::Tensor(x) => Value::Tensor(plain(x)),
            Value::Tensors(xs) => Value::Tensors(xs.iter().map(plain).collect()),
            other => other.clone(),
        })
        .collect();
    let (Ok(a), Ok(b)) = (invoke(op, args), invoke(op, &copied)) else { return };
    for (x, y) in a.iter().zip(&b) {
        let (x, y) = (x.tensor().unwrap(), y.tensor().unwrap());
        // Sums of fractions may be added in another order.
        assert_close(x, &values(y), if x.dtype().itemsize() == 2 { 1e-2 } else { 1e-5 });
    }
}

#[test]
fn every_fake_rule_tells_what_its_kernel_does() {
    setup();
    let mut count = 0;
    for op in Registry::global().list(Some("tp")) {
        assert!(!op.def().unwrap().fake.is_missing(), "{op}");
        let cases = cases(op);
        assert!(!cases.is_empty(), "{op} has no case");
        let mut good = 0;
        for args in cases {
            compare(op, &args);
            good += usize::from(invoke(op, &args).is_ok());
            let def = op.def().unwrap();
            if def.effects.mergeable() && !op.name().contains("empty") {
                agrees_with_contiguous(op, &args);
            }
            count += 1;
        }
        assert!(good > 0, "{op}: every case is an error");
    }
    assert!(count > 10_000, "{count}");
}

#[test]
fn a_size_that_data_tells_is_a_fresh_symbol_of_a_capture() {
    setup();
    let op = Registry::global().lookup("tp::nonzero").unwrap();
    let x = fake_of(&f32s(&[2, 3], &[0., 1., 0., 2., 3., 0.]), 1);
    let e = invoke(op, &[Value::Tensor(x.clone())]).unwrap_err();
    assert_eq!((e.code(), e.op()), ("TP4018", Some("tp::nonzero")), "without a capture");
    let table = tp_tensor::symbols::Symbols::new();
    let _table = tp_tensor::symbols::enter(table.clone());
    let rets = invoke(op, &[Value::Tensor(x)]).unwrap();
    let found = rets[0].tensor().unwrap();
    assert_eq!((found.dtype(), found.sizes()[1]), (DType::I64, 2));
    assert!(Dim::from_raw(found.sizes()[0]).is_symbol());
    assert_eq!(table.len(), 1);
}

#[test]
fn symbols_are_passed_along_and_calculated_with() {
    setup();
    let table = tp_tensor::symbols::Symbols::new();
    let _table = tp_tensor::symbols::enter(table);
    let (s, u) = (Dim::symbol(0).raw(), Dim::symbol(1).raw());
    let fake = |sizes: &[i64], strides: &[i64]| {
        Tensor::fake(sizes, strides, DType::F32, tp_tensor::Device::CPU, 9).unwrap()
    };
    let x = fake(&[s, 4], &[4, 1]);
    let y = fake(&[4], &[1]);
    let sizes = |name: &str, args: &[Arg<'_>]| run(name, args).sizes().to_vec();
    assert_eq!(sizes("add", &[t(&x), t(&y)]), [s, 4]);
    assert_eq!(sizes("mul", &[t(&x), t(&fake(&[s, 1], &[1, 1]))]), [s, 4]);
    assert_eq!(sizes("sum", &[t(&x), Arg::Ints(&[1])]), [s]);
    assert_eq!(sizes("softmax", &[t(&x)]), [s, 4]);
    assert_eq!(sizes("matmul", &[t(&x), t(&fake(&[4, u], &[1, 4]))]), [s, u]);
    assert_eq!(sizes("permute_dims", &[t(&x), Arg::Ints(&[1, 0])]), [4, s]);
    assert_eq!(sizes("reshape", &[t(&x), Arg::Ints(&[-1, 2, 2])]), [s, 2, 2]);
    assert_eq!(sizes("reshape", &[t(&x), Arg::Ints(&[s, -1, 2])]), [s, 2, 2]);
    assert_eq!(sizes("expand", &[t(&y), Arg::Ints(&[s, 4])]), [s, 4]);
    assert_eq!(sizes("slice", &[t(&x), int(1), int(1)]), [s, 3]);
    assert_eq!(sizes("slice", &[t(&x), int(0)]), [s, 4]);
    let refused = |name: &str, args: &[Arg<'_>]| call(name, args).unwrap_err().code();
    assert_eq!(refused("slice", &[t(&x), int(0), int(1)]), "TP4002");
    assert_eq!(refused("select", &[t(&x), int(0), int(0)]), "TP4002");
    assert_eq!(refused("add", &[t(&x), t(&fake(&[u, 4], &[4, 1]))]), "TP4002");
    assert_eq!(refused("reshape", &[t(&x), Arg::Ints(&[-1, 3])]), "TP4002");
    let shown = |name: &str, args: &[Arg<'_>]| format!("{:?}", run(name, args).dims());
    assert_eq!(shown("reshape", &[t(&x), Arg::Ints(&[-1])]), "[4*s0]");
    let list = [x.clone(), x.clone()];
    assert_eq!(shown("concat", &[Arg::Tensors(&list), int(0)]), "[2*s0, 4]");
    let tall = run("permute_dims", &[t(&x), Arg::Ints(&[1, 0])]);
    let packed = run("clone", &[t(&tall)]);
    assert_eq!(format!("{:?}", Dim::slice(packed.strides())), "[s0, 1]");
    assert!(packed.is_contiguous() && !tall.is_contiguous());
}
