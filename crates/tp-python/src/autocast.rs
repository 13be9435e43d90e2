//! The Autocast layer: while a thread's autocast is on for a device, calls of ops with a policy get their floating
//! tensors of that device converted first, on the tape and in captures, and the op itself runs with autocast off.
//! Float64, integers and everything that is no tensor stay as they are.

use crate::error::{IntoPyResult, guarded};
use crate::types::DTypeArg;
use parking_lot::RwLock;
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use tp_dispatch::dispatcher::redispatch_args;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{
    Arg, Call, DispatchKey, Error, OpHandle, OpId, Registry, Result, Rets, Schema, Value, call_one,
    redispatch, state,
};
use tp_tensor::{DType, DeviceKind, Tensor};

/// What a policy casts to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The dtype of the context.
    Context,
    Fixed(DType),
}

/// One policy per device: CPU, CUDA.
type Policies = [Option<Target>; 2];

/// A policy belongs to one definition of its op, told by its schema: another one has none.
type Owned = (Arc<Schema>, Policies);

static POLICIES: RwLock<Option<HashMap<OpId, Owned>>> = RwLock::new(None);
/// Counts changes of policies, so that compiled functions notice them.
static EPOCH: AtomicU16 = AtomicU16::new(0);

/// Ops that run in the context's dtype without being asked.
const LOWERED: [&str; 1] = ["tp::matmul"];

/// Makes the Autocast key cast. Called once, after the built-in ops are there.
pub fn install() {
    Registry::global().install_layer(DispatchKey::Autocast, autocast);
    for op in LOWERED.into_iter().filter_map(|name| Registry::global().get(name)) {
        if let Some(def) = op.def() {
            let policies = [Some(Target::Context); 2];
            POLICIES.write().get_or_insert_default().insert(op.id(), (def.schema.clone(), policies));
        }
    }
}

/// Drops the policies of an op that is defined anew.
pub fn forget(op: OpHandle) {
    if let Some(all) = POLICIES.write().as_mut() {
        all.remove(&op.id());
    }
}

fn slot(kind: DeviceKind) -> Option<usize> {
    match kind {
        DeviceKind::Cpu => Some(0),
        DeviceKind::Cuda => Some(1),
        DeviceKind::Meta => None,
    }
}

/// The dtype that `word` (one byte per device, 0 = off, else the dtype's place plus one) names for a device.
fn context(word: u32, slot: usize) -> Option<DType> {
    let byte = (word >> (8 * slot)) as u8;
    byte.checked_sub(1).and_then(|i| DType::ALL.into_iter().nth(i.into()))
}

/// What tensors of each device are cast to in a call of `op`.
fn targets(call: &Call<'_>) -> Option<[Option<DType>; 2]> {
    let policies = match POLICIES.read().as_ref()?.get(&call.op.id())? {
        (schema, policies) if Arc::ptr_eq(schema, &call.def.schema) => *policies,
        _ => return None,
    };
    let word = state::autocast();
    let target = |i: usize| match (policies[i]?, context(word, i)?) {
        (Target::Context, dtype) => Some(dtype),
        (Target::Fixed(dtype), _) => Some(dtype),
    };
    let found = [target(0), target(1)];
    (found != [None, None]).then_some(found)
}

/// Autocast off until dropped.
struct Off(u32);

impl Drop for Off {
    fn drop(&mut self) {
        state::set_autocast(self.0);
    }
}

fn autocast(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let Some(targets) = targets(call) else { return redispatch(call, DispatchKey::Autocast, rets) };
    let _off = Off(state::set_autocast(0));
    let cast = call.args.iter().map(|a| cast_arg(a, targets)).collect::<Result<SmallVec<[_; 8]>>>()?;
    if cast.iter().all(Option::is_none) {
        return redispatch(call, DispatchKey::Autocast, rets);
    }
    let args: SmallVec<[Arg<'_>; 8]> =
        call.args.iter().zip(&cast).map(|(arg, cast)| cast.as_ref().map_or(*arg, Value::as_arg)).collect();
    redispatch_args(call, DispatchKey::Autocast, &args, HostArgs::NONE, rets)
}

/// The argument with its floating tensors cast; None where there are none to cast.
fn cast_arg(arg: &Arg<'_>, targets: [Option<DType>; 2]) -> Result<Option<Value>> {
    let wanted = |t: &Tensor| {
        let to = slot(t.device().kind).and_then(|i| targets[i])?;
        (t.dtype().is_float() && t.dtype() != DType::F64 && t.dtype() != to).then_some(to)
    };
    let mut any = false;
    arg.for_each_tensor(|t| any |= wanted(t).is_some());
    if !any {
        return Ok(None);
    }
    let mut cast = |t: &Tensor| match wanted(t) {
        Some(to) => astype(t, to),
        None => Ok(t.clone()),
    };
    arg.with_tensors(&mut cast).map(Some)
}

fn astype(t: &Tensor, to: DType) -> Result<Tensor> {
    static ASTYPE: OnceLock<OpHandle> = OnceLock::new();
    let op = match ASTYPE.get() {
        Some(op) => *op,
        None => {
            let op = Registry::global().lookup("tp::astype")?;
            *ASTYPE.get_or_init(|| op)
        }
    };
    call_one(op, &[Arg::Tensor(t), Arg::DType(to)])
}

/// Sets what `name` casts its floating tensors of a device to: a dtype, or None to take the policy away. Returns
/// the dtype set before.
#[pyfunction]
fn autocast_policy(
    py: Python<'_>,
    name: &str,
    device: &str,
    dtype: Option<DTypeArg>,
) -> PyResult<Option<Py<PyAny>>> {
    guarded(|| {
        let op = Registry::global().lookup(name).py(py)?;
        let at = usize::from(device == "cuda");
        let mut all = POLICIES.write();
        let schema = crate::ops::def_of(py, op)?.schema.clone();
        let fresh = || (schema.clone(), Policies::default());
        let (of, policies) = all.get_or_insert_default().entry(op.id()).or_insert_with(fresh);
        if !Arc::ptr_eq(of, &schema) {
            (*of, *policies) = fresh();
        }
        let before = std::mem::replace(&mut policies[at], dtype.map(|d| Target::Fixed(d.0)));
        EPOCH.fetch_add(1, Ordering::Relaxed);
        Ok(match before {
            Some(Target::Fixed(d)) => Some(dtype_object(py, d)),
            _ => None,
        })
    })
}

fn dtype_object(py: Python<'_>, d: DType) -> Py<PyAny> {
    // SAFETY: dtype objects are immortal singletons.
    unsafe { Bound::from_borrowed_ptr(py, crate::types::dtype_object(d)) }.unbind()
}

/// Switches this thread's autocast for a device to a dtype, or off; returns a word for `autocast_restore`.
#[pyfunction]
fn autocast_switch(py: Python<'_>, device: &str, dtype: Option<DTypeArg>) -> PyResult<u32> {
    guarded(|| {
        let slot = match device {
            "cpu" => 0,
            "cuda" => 1,
            _ => return Err(Error::value("TP3420", format!("no autocast for device '{device}'"))).py(py),
        };
        let place =
            dtype.and_then(|d| DType::ALL.into_iter().position(|x| x == d.0)).map_or(0, |i| i as u32 + 1);
        let before = state::autocast();
        let bytes = (before & !(0xff << (8 * slot))) & 0xffff | place << (8 * slot);
        let epoch = u32::from(EPOCH.load(Ordering::Relaxed)) << 16;
        Ok(state::set_autocast(if bytes == 0 { 0 } else { bytes | epoch }))
    })
}

/// Sets this thread's autocast to what a word says; returns the one before.
#[pyfunction]
fn autocast_restore(word: u32) -> PyResult<u32> {
    guarded(|| Ok(state::set_autocast(word)))
}

/// What is in force on this thread, for `autocast_restore`.
#[pyfunction]
fn autocast_word() -> PyResult<u32> {
    guarded(|| Ok(state::autocast()))
}

/// The dtype that this thread casts to on a device, None while that is off.
#[pyfunction]
fn autocast_dtype(py: Python<'_>, device: &str) -> PyResult<Option<Py<PyAny>>> {
    guarded(|| Ok(context(state::autocast(), usize::from(device == "cuda")).map(|d| dtype_object(py, d))))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(autocast_policy, m)?)?;
    m.add_function(wrap_pyfunction!(autocast_switch, m)?)?;
    m.add_function(wrap_pyfunction!(autocast_restore, m)?)?;
    m.add_function(wrap_pyfunction!(autocast_word, m)?)?;
    m.add_function(wrap_pyfunction!(autocast_dtype, m)?)
}
