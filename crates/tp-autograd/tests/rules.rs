//! Ops that users define: rules from outside, missing formulas, refused mutation, nodes recorded by hand.

mod common;

use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_autograd::{
    BackwardCtx, GradOptions, Gradients, NodeRef, Saver, VjpRule, custom_spec, meta, record_node,
};
use tp_dispatch::bind::Params;
use tp_dispatch::registry::KernelSpec;
use tp_dispatch::select::Slot;
use tp_dispatch::{
    Arg, Call, DispatchKey, Effects, FakeRule, GradSpec, Kernel, KernelFn, OpDef, OpHandle, Provenance,
    Registry, Result, Rets, Schema, Value,
};
use tp_tensor::{DType, Tensor};

fn define(schema: &str, kernel: KernelFn, grad: GradSpec) -> OpHandle {
    setup();
    let parsed = Schema::parse(schema).unwrap();
    let name = schema.split('(').next().unwrap();
    let params = Params::compile(&parsed).unwrap();
    let provenance = Provenance::native("test", file!(), line!());
    let mutates = parsed.is_mutable();
    let def = OpDef {
        schema: Arc::new(parsed),
        params,
        effects: Effects { mutates, ..Effects::PURE },
        fake: FakeRule::Missing,
        grad,
        pointwise: None,
        custom: true,
        tags: Vec::new(),
        provenance: provenance.clone(),
    };
    let registration = Registry::global().define(name, def, true).unwrap();
    let op = registration.op();
    registration.keep();
    let slot = Slot::Key(DispatchKey::Cpu);
    let spec =
        KernelSpec { slot, kernel: Kernel::Fn(kernel), provenance, when: None, contiguous: Box::default() };
    Registry::global().register_kernel(op, spec).unwrap().keep();
    op
}

fn apply(name: &str, args: &[Arg<'_>]) -> Result<Tensor> {
    Ok(try_all(name, args)?.remove(0).into_tensor().unwrap())
}

fn double(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let _mode = tp_autograd::GradMode::no_grad();
    rets.push(Value::Tensor(scalar("mul", call.tensor(0)?, 2.0)));
    Ok(())
}

/// Gives whatever `make` makes of the gradient.
struct Gives(fn(&Tensor) -> Tensor);

impl VjpRule for Gives {
    fn name(&self) -> &str {
        "gives"
    }
    fn is_foreign(&self) -> bool {
        true
    }
    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        assert_eq!(ctx.input_spec(0).unwrap().sizes.as_slice(), &[2]);
        assert!(ctx.output_spec(0).is_none(), "an only output has its gradient whenever backward runs");
        out.set(0, (self.0)(grads[0].as_ref().unwrap()));
        Ok(())
    }
}

fn gives(f: fn(&Tensor) -> Tensor) -> GradSpec {
    custom_spec(Arc::new(Gives(f)))
}

#[test]
fn no_formula() {
    define("t::missing(Tensor x) -> Tensor", double, GradSpec::Missing);
    let x = leaf(&[1.0, 2.0], &[2]);
    let y = apply("t::missing", &[Arg::Tensor(&x)]).unwrap();
    assert!(y.requires_grad());
    let e = error_of(backward(&sum(&y)));
    assert_eq!((e.code(), e.op()), ("TP3001", Some("t::missing")));
    assert!(e.notes()[0].contains("register_autograd"));
    let plain = apply("t::missing", &[Arg::Tensor(&tensor(&[1.0], &[1]))]).unwrap();
    assert!(!plain.requires_grad());
}

#[test]
fn declared_without_gradient() {
    define("t::flat(Tensor x) -> Tensor", double, GradSpec::NotDifferentiable("said so"));
    let y = apply("t::flat", &[Arg::Tensor(&leaf(&[1.0], &[1]))]).unwrap();
    assert!(!y.requires_grad() && meta::grad_fn(&y).is_none());
}

#[test]
fn foreign_gradients_are_checked() {
    let run = |f| {
        define("t::checked(Tensor x) -> Tensor", double, gives(f));
        let x = leaf(&[1.0, 2.0], &[2]);
        backward(&sum(&apply("t::checked", &[Arg::Tensor(&x)]).unwrap())).map(|()| grad_of(&x))
    };
    assert_eq!(run(|g| scalar("mul", g, 2.0)).unwrap(), [2.0, 2.0]);
    assert_eq!(run(|_| tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2])).unwrap(), [4.0, 6.0]);
    assert_eq!(run(|g| call("astype", &[Arg::Tensor(g), Arg::DType(DType::F32)])).unwrap(), [1.0, 1.0]);
    let e = error_of(run(|_| tensor(&[1.0, 2.0, 3.0], &[3])));
    assert_eq!((e.code(), e.op()), ("TP3006", Some("t::checked")));
    assert!(e.message().contains("argument 'x' has shape [3], expected [2]"), "{e}");
    assert_eq!(run(|_| ints(&[1, 2], &[2])).unwrap(), [1.0, 2.0]);
}

#[test]
fn a_recorded_graph_keeps_its_rule() {
    define("t::again(Tensor x) -> Tensor", double, gives(|g| scalar("mul", g, 2.0)));
    let x = leaf(&[1.0, 2.0], &[2]);
    let before = sum(&apply("t::again", &[Arg::Tensor(&x)]).unwrap());
    let op = Registry::global().lookup("t::again").unwrap();
    let change = |old: &OpDef| OpDef {
        schema: old.schema.clone(),
        params: old.params.clone(),
        effects: old.effects,
        fake: old.fake.clone(),
        grad: gives(|g| scalar("mul", g, 7.0)),
        pointwise: None,
        custom: true,
        tags: Vec::new(),
        provenance: old.provenance.clone(),
    };
    Registry::global().redefine(op, change).unwrap();
    backward(&before).unwrap();
    assert_eq!(grad_of(&x), [2.0, 2.0]);
    meta::set_grad(&x, None).unwrap();
    backward(&sum(&apply("t::again", &[Arg::Tensor(&x)]).unwrap())).unwrap();
    assert_eq!(grad_of(&x), [7.0, 7.0]);
}

fn overwrite(call: &Call<'_>, _: &mut Rets) -> Result<()> {
    // SAFETY: a contiguous float64 tensor with an element.
    unsafe { call.tensor(0)?.data_ptr().cast::<f64>().write(9.0) };
    Ok(())
}

#[test]
fn mutating_ops_refuse_gradients() {
    define("t::write(Tensor(a!) x, Tensor y) -> ()", overwrite, GradSpec::Missing);
    let run = |x: &Tensor, y: &Tensor| try_all("t::write", &[Arg::Tensor(x), Arg::Tensor(y)]).map(drop);
    let (plain, x) = (tensor(&[1.0], &[1]), leaf(&[1.0], &[1]));
    let e = error_of(run(&x, &plain));
    assert_eq!((e.code(), values(&x)), ("TP3018", vec![1.0]));
    assert!(e.message().contains("leaf that requires grad"));
    assert_eq!(code_of(run(&scalar("mul", &x, 1.0), &plain)), "TP3018");
    assert_eq!(code_of(run(&plain, &x)), "TP3018");
    run(&plain, &plain).unwrap();
    assert_eq!((values(&plain), plain.storage().version()), (vec![9.0], 1));
}

fn split(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let _mode = tp_autograd::GradMode::no_grad();
    let x = call.tensor(0)?;
    let parts: Box<[Tensor]> = Box::new([scalar("mul", x, 2.0), scalar("mul", x, 3.0)]);
    rets.push(Value::Tensors(parts));
    rets.push(Value::Tensor(ints(&[4], &[1])));
    rets.push(Value::Tensor(scalar("mul", x, 5.0)));
    Ok(())
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

struct Split;

impl VjpRule for Split {
    fn name(&self) -> &str {
        "split"
    }
    fn is_foreign(&self) -> bool {
        true
    }
    fn save_outputs(&self, _: &Call<'_>, rets: &[Value], saver: &mut Saver<'_>) -> Result<()> {
        assert_eq!(rets.len(), 3);
        saver.mark_non_differentiable(3);
        Ok(())
    }
    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let used = grads.iter().enumerate().filter(|(_, g)| g.is_some()).map(|(i, _)| 1 << i).sum();
        SEEN.store(used, Ordering::Relaxed);
        assert_eq!(ctx.output_spec(2).unwrap().dtype, DType::I64);
        out.set(0, scalar("mul", grads[1].as_ref().unwrap(), 3.0));
        Ok(())
    }
}

#[test]
fn several_outputs_and_lists() {
    define("t::split(Tensor x) -> (Tensor[], Tensor, Tensor)", split, custom_spec(Arc::new(Split)));
    let x = leaf(&[1.0], &[1]);
    let rets = try_all("t::split", &[Arg::Tensor(&x)]).unwrap();
    let mut tensors = Vec::new();
    rets.iter().for_each(|v| v.for_each_tensor(|t| tensors.push(t.clone())));
    let needs: Vec<bool> = tensors.iter().map(Tensor::requires_grad).collect();
    assert_eq!(needs, [true, true, false, false]);
    backward(&tensors[1]).unwrap();
    assert_eq!((SEEN.load(Ordering::Relaxed), grad_of(&x)), (0b10, vec![3.0]));
}

/// Adds a list of tensors, each times its position plus one.
struct Region(Arc<AtomicUsize>);

impl VjpRule for Region {
    fn name(&self) -> &str {
        "region"
    }
    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let base = ctx.saved(0)?;
        for (k, e) in ctx.edges().iter().enumerate() {
            let g = scalar("mul", grads[0].as_ref().unwrap(), e.index() as f64 + 1.0);
            out.put(k, Some(op2("mul", &g, &base)));
        }
        Ok(())
    }
}

#[test]
fn a_node_recorded_by_hand() {
    setup();
    let runs = Arc::new(AtomicUsize::new(0));
    let inputs: Vec<Tensor> =
        (0..300).map(|i| if i % 3 == 0 { tensor(&[1.0], &[1]) } else { leaf(&[1.0], &[1]) }).collect();
    let given: Vec<&Tensor> = inputs.iter().collect();
    let (out, base) = (tensor(&[45_150.0], &[1]), tensor(&[2.0], &[1]));
    let rule = Arc::new(Region(runs.clone()));
    let node: NodeRef = record_node(rule, &given, &[&out], |s| {
        s.input(&base);
        Ok(())
    })
    .unwrap()
    .unwrap();
    assert_eq!((node.name(), node.edges().len()), ("region", 200));
    assert!(meta::grad_fn(&out).unwrap().same(&node));
    backward(&out).unwrap();
    assert_eq!((grad_of(&inputs[1]), grad_of(&inputs[299])), (vec![4.0], vec![600.0]));
    assert!(meta::grad(&inputs[0]).is_none());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let nothing = record_node(Arc::new(Region(runs)), &[&base], &[&out], |_| Ok(())).unwrap();
    assert!(nothing.is_none());
}

#[test]
fn saved_outputs_make_no_cycle() {
    setup();
    let x = leaf(&[1.0], &[1]);
    let y = op1("exp", &x);
    let node = meta::grad_fn(&y).unwrap();
    assert_eq!(node.ref_count(), 2);
    drop(y);
    assert_eq!(node.ref_count(), 1);
    let options = GradOptions::default();
    drop(node);
    assert!(tp_autograd::backward(&[op1("exp", &x)], &[], options, &[]).is_ok());
}

/// Keeps halves of what is saved.
struct Halves(Arc<AtomicUsize>);

impl tp_autograd::SavedHooks for Halves {
    fn pack(&self, t: &Tensor) -> Result<Value> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Value::Tensor(scalar("mul", t, 0.5)))
    }
    fn unpack(&self, packed: &Value) -> Result<Tensor> {
        self.0.fetch_add(10, Ordering::Relaxed);
        Ok(packed.tensor().unwrap().clone())
    }
    fn own(&self) -> Arc<dyn tp_autograd::SavedHooks> {
        Arc::new(Halves(self.0.clone()))
    }
}

#[test]
fn saved_tensors_can_be_kept_elsewhere() {
    setup();
    let hooks = Arc::new(Halves(Arc::default()));
    let x = leaf(&[3.0], &[1]);
    let guard = tp_autograd::SavedTensorsHooks::push(hooks.clone());
    let y = op1("exp", &op2("mul", &x, &tensor(&[2.0], &[1])));
    drop(guard);
    let z = op2("mul", &y, &tensor(&[1.0], &[1]));
    assert_eq!(hooks.0.load(Ordering::Relaxed), 2);
    backward(&z).unwrap();
    close(&grad_of(&x), &[0.5 * 6f64.exp() * 0.5 * 2.0]);
    assert_eq!(hooks.0.load(Ordering::Relaxed), 22);
    assert_eq!(code_of(backward(&z)), "TP3004");
}
