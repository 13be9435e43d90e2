//! Registrations that are undone, what comes back, and whether an op still runs the kernel it was defined with.

use std::sync::Arc;
use tp_dispatch::bind::{Form, Params};
use tp_dispatch::kernel::Kernel;
use tp_dispatch::registry::{self, KernelSpec};
use tp_dispatch::select::Slot;
use tp_dispatch::{
    Call, DispatchKey, Effects, FakeRule, GradSpec, OpDef, OpHandle, Provenance, Registration, Registry,
    Result, Rets, Schema,
};

fn define(schema: &str, custom: bool) -> OpHandle {
    let parsed = Schema::parse_definition(schema).unwrap();
    let def = OpDef {
        params: Params::compile(&parsed).unwrap(),
        schema: Arc::new(parsed),
        effects: Effects::PURE,
        fake: FakeRule::Nothing,
        grad: GradSpec::Missing,
        pointwise: None,
        custom,
        tags: Vec::new(),
        provenance: Provenance::native("cpu", "row.rs", 7),
    };
    let name = schema.split('(').next().unwrap();
    let registration = Registry::global().define(name, def, false).unwrap();
    let op = registration.op();
    registration.keep();
    op
}

fn nothing(_: &Call<'_>, _: &mut Rets) -> Result<()> {
    Ok(())
}

fn kernel(op: OpHandle, line: u32) -> Registration {
    let spec = KernelSpec {
        slot: Slot::Key(DispatchKey::Cpu),
        kernel: Kernel::Fn(nothing),
        provenance: Provenance::native("cpu", "row.rs", line),
        when: None,
        contiguous: Box::default(),
    };
    Registry::global().register_kernel(op, spec).unwrap()
}

fn lines(op: OpHandle) -> Vec<u32> {
    op.kernels().iter().map(|k| k.provenance.line).collect()
}

/// 4.6: a kernel that another took the place of comes back, in any order of undoing, and only while it is registered.
#[test]
fn undoing_a_registration_brings_back_what_it_replaced() {
    let op = define("undo::f(Tensor x) -> ()", true);
    kernel(op, 1).keep();
    let (b, c) = (kernel(op, 2), kernel(op, 3));
    assert_eq!(lines(op), [3]);
    drop(b);
    assert_eq!(lines(op), [3]);
    drop(c);
    assert_eq!(lines(op), [1]);
    let d = kernel(op, 4);
    kernel(op, 5).keep();
    drop(d);
    assert_eq!(lines(op), [5]);
}

/// 4.5: every registration is counted, and a built-in op knows whether its own kernel is the only one.
#[test]
fn registrations_for_a_built_in_op_are_noticed() {
    let op = define("notice::f(Tensor x) -> ()", false);
    let def = op.def().unwrap();
    kernel(op, 7).keep();
    assert!(op.runs_own_kernel(&def, DispatchKey::Cpu));
    let (before, contract, changes) = (op.revision(), op.contract(), registry::changes());
    let other = kernel(op, 8);
    assert!(!op.runs_own_kernel(&def, DispatchKey::Cpu));
    assert!(op.runs_own_kernel(&def, DispatchKey::Cuda));
    assert!(op.revision() > before && op.contract() == contract && registry::changes() > changes);
    drop(other);
    assert!(op.runs_own_kernel(&def, DispatchKey::Cpu));
}

/// 9: the short ways of the door go by what is declared.
#[test]
fn forms_are_exact() {
    let form = |text: &str| Params::compile(&Schema::parse_definition(text).unwrap()).unwrap().form;
    assert_eq!(form("a::f(Tensor x, Scalar y) -> Tensor"), Form::TensorScalar);
    assert_eq!(form("a::f(Scalar x, Tensor y) -> Tensor"), Form::ScalarTensor);
    for other in [
        "(Tensor x, int y)",
        "(Tensor x, Scalar y, Scalar z=1)",
        "(Tensor x, Scalar? y)",
        "(Tensor x, *, Scalar y)",
    ] {
        assert_eq!(form(&format!("a::f{other} -> Tensor")), Form::Other, "{other}");
    }
}

/// 1.19: a default that the runtime has no value for is refused in the schema's own words.
#[test]
fn defaults_without_a_value_name_the_argument() {
    for argument in ["Scalar k=1j", "Device k=\"mps\"", "ScalarType k=complex64"] {
        let schema = Schema::parse_definition(&format!("a::f(Tensor x, {argument}) -> Tensor")).unwrap();
        let error = Params::compile(&schema).unwrap_err();
        assert_eq!(error.code(), "TP1011");
        assert!(error.message().contains(" k="), "{}", error.message());
    }
}
