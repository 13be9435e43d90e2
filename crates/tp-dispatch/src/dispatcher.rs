//! One call: the union of the tensors' keys, the thread's state, one table look-up. The slow path records events
//! and applies the thread's kernel preferences, and is entered only where one of them is in force.

use crate::error::{Error, Result};
use crate::kernel::{Call, HostArgs};
use crate::key::{DispatchKey, KeySet};
use crate::op::OpHandle;
use crate::outcome::CallEvent;
use crate::select::{self, KernelEntry, Rejected};
use crate::state::{self, CallState, InDispatch};
use crate::table::{self, DispatchTable};
use crate::value::{Arg, Rets};
use crate::{OpDef, marker};
use std::sync::Arc;
use std::time::Instant;
use tp_tensor::{Device, Tensor, keybits};

/// The bits of a tensor's keys that say where it is; one of them is set on every tensor.
const DEVICES: u16 = keybits::CPU | keybits::CUDA | keybits::META;

/// A thread inside dispatch with the table of one op in hand: binding and calling see the same definition.
#[repr(C)]
pub struct Session<'t> {
    op: OpHandle,
    /// This thread's state: looking it up costs as much as the rest of the key computation.
    state: *const CallState,
    /// Not beside `op`: a `Call` is made of both, and two words that were just written apart are slow to read as one.
    def: &'t Arc<OpDef>,
    table: &'t DispatchTable,
    _inside: InDispatch,
}

impl Session<'_> {
    /// Enters dispatch; an error when the op was unregistered.
    #[inline(always)]
    pub fn open<'t>(op: OpHandle) -> Result<Session<'t>> {
        let (inside, state) = state::with(|s| (s.enter(), std::ptr::from_ref(s)));
        // SAFETY: inside dispatch for as long as the session lives.
        let table: &'t DispatchTable = unsafe { op.table() };
        match &table.def {
            Some(def) => Ok(Session { op, state, def, table, _inside: inside }),
            None => Err(table::unregistered_error(op.name())),
        }
    }

    #[inline(always)]
    pub fn def(&self) -> &Arc<OpDef> {
        self.def
    }

    /// Calls with bound arguments, one per schema argument, defaults filled in.
    #[inline(always)]
    pub fn call(&self, args: &[Arg<'_>], host: HostArgs, rets: &mut Rets) -> Result<()> {
        self.call_keyed(ArgKeys::of(args), args, host, rets)
    }

    /// The result of a call that needs no layer and takes the CPU kernel's short form; None where `call_keyed` has
    /// to do it.
    #[inline(always)]
    pub fn short(&self, keys: ArgKeys, args: &[Arg<'_>]) -> Option<Tensor> {
        let short = self.table.short?;
        if self.is_for_cpu_alone(keys) { (short.fresh)(args) } else { None }
    }

    /// Whether a call passes no layer on its way to the CPU's kernel.
    #[inline(always)]
    fn is_for_cpu_alone(&self, keys: ArgKeys) -> bool {
        // SAFETY: as in `call_keyed`.
        unsafe { (*self.state).effective(keys.tensors) == DispatchKey::Cpu.set() }
    }

    /// As `short`, with the result in place of `first`, the first argument. False where that was left as it is: others
    /// may see it, or the kernel has to run.
    #[inline(always)]
    fn over(&self, first: &Tensor, keys: ArgKeys, args: &[Arg<'_>]) -> bool {
        let Some(over) = self.table.short.and_then(|short| short.over) else { return false };
        self.is_for_cpu_alone(keys)
            && first.keys() == keybits::CPU
            && first.is_unseen()
            && first.is_contiguous()
            && over(args)
    }

    /// The result of a call of an op that returns one new tensor; see `OneFn`.
    #[inline(always)]
    pub fn one(&self, keys: ArgKeys, args: &[Arg<'_>], host: HostArgs) -> Option<Result<Tensor>> {
        // SAFETY: as in `call_keyed`. Were the tensors on several devices, their keys would not be those of one.
        let keys = unsafe { (*self.state).effective(keys.tensors) };
        let table = Some(self.table);
        self.table.one(&Call { op: self.op, def: self.def, args, keys, host, table }, keys)
    }

    /// As `call`, for a caller that has the keys of the arguments already.
    #[inline(always)]
    pub fn call_keyed(&self, keys: ArgKeys, args: &[Arg<'_>], host: HostArgs, rets: &mut Rets) -> Result<()> {
        let mut bits = keys.tensors;
        if bits == 0 {
            bits = keys.device;
        } else if !(bits & DEVICES).is_power_of_two() {
            check_devices(self.op, self.def, args)?;
        }
        // SAFETY: the state lives as long as its thread, which a session (it is not Send) never leaves.
        let keys = unsafe { (*self.state).effective(bits) };
        let table = Some(self.table);
        self.table.run(&Call { op: self.op, def: self.def, args, keys, host, table }, rets)
    }
}

/// What the arguments of a call say about its keys.
#[derive(Clone, Copy)]
pub struct ArgKeys {
    /// The union over all tensors.
    tensors: u16,
    /// That of a device argument, which counts where there is no tensor.
    device: u16,
}

impl ArgKeys {
    #[inline(always)]
    pub fn of(args: &[Arg<'_>]) -> ArgKeys {
        let mut keys = ArgKeys { tensors: 0, device: 0 };
        for arg in args {
            match arg {
                Arg::Tensor(t) => keys.tensors |= t.keys(),
                Arg::Tensors(_) | Arg::OptTensors(_) | Arg::Host(_) => {
                    arg.for_each_tensor(|t| keys.tensors |= t.keys());
                }
                Arg::Device(d) => keys.device = DispatchKey::of(*d).set().0,
                _ => {}
            }
        }
        keys
    }

    /// For a call with a symbolic size among its numbers: without a tensor it makes one without data.
    #[cold]
    #[must_use]
    pub fn without_data(self) -> ArgKeys {
        ArgKeys { device: DispatchKey::Meta.set().0, ..self }
    }
}

/// Calls `op` with bound arguments (one per schema argument, defaults filled in).
#[inline]
pub fn call(op: OpHandle, args: &[Arg<'_>], host: HostArgs, rets: &mut Rets) -> Result<()> {
    Session::open(op)?.call(args, host, rets)
}

/// As `call`, for an op that returns one tensor.
#[inline]
pub fn call_one(op: OpHandle, args: &[Arg<'_>]) -> Result<Tensor> {
    let session = Session::open(op)?;
    let keys = ArgKeys::of(args);
    match session.short(keys, args) {
        Some(out) => Ok(out),
        None => one_of(&session, keys, args),
    }
}

/// As `call_one`, for a first operand that the caller gives up: where nobody else sees it, the result may lie in its
/// memory.
#[inline]
pub fn call_one_giving(op: OpHandle, first: &mut Option<Tensor>, second: Arg<'_>) -> Result<Tensor> {
    let session = Session::open(op)?;
    let Some(given) = first else { return Err(no_operand(op)) };
    let args = [Arg::Tensor(given), second];
    let keys = ArgKeys::of(&args);
    if session.over(given, keys, &args) {
        return first.take().ok_or_else(|| no_operand(op));
    }
    match session.short(keys, &args) {
        Some(out) => Ok(out),
        None => one_of(&session, keys, &args),
    }
}

#[cold]
fn no_operand(op: OpHandle) -> Error {
    Error::internal("TP9008", "the first operand is missing").with_op(op.name())
}

#[inline(never)]
fn one_of(session: &Session<'_>, keys: ArgKeys, args: &[Arg<'_>]) -> Result<Tensor> {
    if let Some(out) = session.one(keys, args, HostArgs::NONE) {
        return out;
    }
    let mut rets = Rets::new();
    session.call_keyed(keys, args, HostArgs::NONE, &mut rets)?;
    crate::pop_only_tensor(&mut rets)
        .ok_or_else(|| Error::internal("TP9008", "one tensor was expected").with_op(session.op.name()))
}

/// Goes on below `key` with the same arguments, where the op returns one new tensor; see `OneFn`.
#[inline(always)]
pub fn redispatch_one(call: &Call<'_>, key: DispatchKey) -> Option<Result<Tensor>> {
    let keys = (call.keys & KeySet::below(key)) | state::with(CallState::slow_bit);
    call.table?.one(call, keys)
}

/// Goes on below `key` with the same arguments.
#[inline]
pub fn redispatch(call: &Call<'_>, key: DispatchKey, rets: &mut Rets) -> Result<()> {
    redispatch_args(call, key, call.args, call.host, rets)
}

/// Goes on below `key` with other arguments. The host's own objects go along only if they still stand for them.
#[inline]
pub fn redispatch_args(
    call: &Call<'_>,
    key: DispatchKey,
    args: &[Arg<'_>],
    host: HostArgs,
    rets: &mut Rets,
) -> Result<()> {
    let keys = (call.keys & KeySet::below(key)) | state::with(CallState::slow_bit);
    // Whoever looked the table up is still inside dispatch.
    if let Some(table) = call.table
        && let Some(def) = &table.def
    {
        return table.run(&Call { op: call.op, def, args, keys, host, table: call.table }, rets);
    }
    redispatch_looked_up(call, keys, args, host, rets)
}

/// As `redispatch`, where the keys of the arguments, or of the thread, have changed since the call was looked up.
#[cold]
pub fn redispatch_anew(call: &Call<'_>, key: DispatchKey, rets: &mut Rets) -> Result<()> {
    let tensors = ArgKeys::of(call.args).tensors;
    let keys = if tensors == 0 { call.keys } else { state::with(|s| s.effective(tensors)) };
    redispatch(&Call { keys, ..*call }, key, rets)
}

/// As `redispatch_args`, for a call that did not come through the dispatcher.
#[cold]
fn redispatch_looked_up(
    call: &Call<'_>,
    keys: KeySet,
    args: &[Arg<'_>],
    host: HostArgs,
    rets: &mut Rets,
) -> Result<()> {
    state::with(|s| {
        let _inside = s.enter();
        // SAFETY: inside dispatch.
        let table = unsafe { call.op.table() };
        let Some(def) = &table.def else { return Err(table::unregistered_error(call.op.name())) };
        table.run(&Call { op: call.op, def, args, keys, host, table: Some(table) }, rets)
    })
}

/// Runs the same call on a device that is not that of its tensors.
pub(crate) fn run_on(call: &Call<'_>, device: Device, rets: &mut Rets) -> Result<()> {
    state::with(|s| {
        let _inside = s.enter();
        // SAFETY: inside dispatch.
        let table = unsafe { call.op.table() };
        table.run(
            &Call { keys: DispatchKey::of(device).set() | s.slow_bit(), table: Some(table), ..*call },
            rets,
        )
    })
}

/// Tensors on several devices: allowed for 0-d CPU tensors that are only read, else an error that names both. Tensors
/// of a capture count by the device that they stand for.
#[cold]
pub fn check_devices(op: OpHandle, def: &OpDef, args: &[Arg<'_>]) -> Result<()> {
    let mut first: Option<(usize, Device)> = None;
    let mut clash = None;
    for (i, arg) in args.iter().enumerate() {
        let written = def.params.written.iter().any(|w| usize::from(*w) == i);
        arg.for_each_tensor(|t| {
            if t.device().is_cpu() && t.ndim() == 0 && !written {
                return;
            }
            match first {
                None => first = Some((i, t.device())),
                Some((j, d)) if d != t.device() && clash.is_none() => clash = Some((j, d, i, t.device())),
                Some(_) => {}
            }
        });
    }
    let Some((j, d, i, e)) = clash else { return Ok(()) };
    let name = |k: usize| def.params.name(k).unwrap_or("?");
    let message = if i == j {
        format!("tensors of argument '{}' are on {d} and on {e}; nothing was run", name(i))
    } else {
        format!("argument '{}' is on {e}, but argument '{}' is on {d}; nothing was run", name(i), name(j))
    };
    let way = if d.is_meta() || e.is_meta() {
        "a tensor on 'meta' has no data that could be moved: make the other one with device=\"meta\" as well"
            .to_string()
    } else {
        format!("all tensors of one call must share a device: move it with {}.to(\"{d}\")", name(i))
    };
    Err(Error::device("TP2104", message).with_op(op.name()).note(way))
}

// ---- cells ----

pub(crate) fn unregistered(call: &Call<'_>, _: &mut Rets) -> Result<()> {
    Err(table::unregistered_error(call.op.name()))
}

pub(crate) fn fall_through(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let key = DispatchKey::ALL[call.keys.highest()];
    redispatch(call, key, rets)
}

#[cold]
pub(crate) fn no_kernel(call: &Call<'_>, _: &mut Rets) -> Result<()> {
    let key = DispatchKey::ALL[call.keys.highest()];
    if key == DispatchKey::Cuda && !call.def.custom && tp_tensor::runtime::runtime(Device::cuda(0)).is_err() {
        let message = "device 'cuda' is not available here; nothing was run";
        return Err(Error::capability("TP2001", message)
            .with_op(call.op.name())
            .note("python -m tensorplay doctor lists what is missing"));
    }
    let kernels = call.op.kernels();
    let mut slots: Vec<&str> = Vec::new();
    for k in &kernels {
        if !slots.contains(&k.slot.name()) {
            slots.push(k.slot.name());
        }
    }
    let have =
        if slots.is_empty() { "no kernel at all".to_string() } else { format!("kernels for {slots:?}") };
    let name = call.op.name();
    Err(Error::no_kernel("TP1401", format!("no kernel for device '{key}'; it has {have}"))
        .with_op(name)
        .note(format!("register one with register_kernel(\"{name}\", \"{key}\"), or move the tensors")))
}

#[cold]
fn none_fits(call: &Call<'_>, rejected: &Rejected) -> Error {
    let key = DispatchKey::ALL[call.keys.highest()];
    let mut e = Error::no_kernel("TP1402", format!("no kernel for device '{key}' takes this call"))
        .with_op(call.op.name());
    for (name, reason) in rejected {
        e = e.note(format!("{name}: {reason}"));
    }
    e
}

pub(crate) fn choose_and_run(table: &DispatchTable, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let mut rejected = Rejected::new();
    match select::choose(&table.candidates[call.keys.highest()], call, &[], &mut rejected)? {
        Some(entry) => entry.kernel.call(call, rets),
        None => Err(none_fits(call, &rejected)),
    }
}

/// The slow path: the same call, with events recorded and preferences applied where a device's kernel runs.
#[cold]
pub(crate) fn slow(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let call = &Call { keys: call.keys & !DispatchKey::Slow.set(), ..*call };
    let at = call.keys.highest();
    state::with(|s| {
        let _inside = s.enter();
        // SAFETY: inside dispatch.
        let table = unsafe { call.op.table() };
        let key = DispatchKey::ALL[at];
        if !KeySet::BACKENDS.contains(key) || table.candidates[at].is_empty() {
            let ran = table.run(call, rets);
            if key != DispatchKey::Meta && KeySet::BACKENDS.contains(key) && ran.is_err() {
                note_failure(call, key, Rejected::new());
            }
            return ran;
        }
        let mut rejected = Rejected::new();
        let prefs = state::preferences();
        let Some(entry) = select::choose(&table.candidates[at], call, &prefs, &mut rejected)? else {
            let error = none_fits(call, &rejected);
            note_failure(call, key, rejected);
            return Err(error);
        };
        if table.mutates {
            return crate::check::writing(call, || run_entry(entry, key, call, rejected, rets));
        }
        run_entry(entry, key, call, rejected, rets)
    })
}

fn run_entry(
    entry: &Arc<KernelEntry>,
    key: DispatchKey,
    call: &Call<'_>,
    rejected: Rejected,
    rets: &mut Rets,
) -> Result<()> {
    let tracing = state::is_tracing();
    if tracing {
        drop(marker::take());
    }
    let start = Instant::now();
    if state::is_debugging() {
        crate::debug::run(entry, call, rets)?;
    } else {
        entry.kernel.call(call, rets)?;
    }
    let host_seconds = start.elapsed().as_secs_f64();
    if tracing {
        let device = call_device(call, key);
        let stamped = marker::take();
        let marker = stamped.unwrap_or_else(|| select::static_marker(entry, call.op.name(), device));
        note(call, key, marker, rejected, host_seconds);
    }
    Ok(())
}

/// The event of a call that no kernel took.
#[cold]
fn note_failure(call: &Call<'_>, key: DispatchKey, rejected: Rejected) {
    if state::is_tracing() {
        let marker = crate::CodegenMarker {
            executor: "none".into(),
            kernel: "none".into(),
            proof: None,
            device: call_device(call, key),
        };
        note(call, key, marker, rejected, 0.0);
    }
}

fn note(
    call: &Call<'_>,
    key: DispatchKey,
    marker: crate::CodegenMarker,
    rejected: Rejected,
    host_seconds: f64,
) {
    let (mut shapes, mut dtypes) = (Vec::new(), Vec::new());
    call.for_each_tensor(|_, t| {
        shapes.push(t.sizes().to_vec());
        dtypes.push(t.dtype());
    });
    state::record(&CallEvent {
        op: call.op.full_name().into(),
        key,
        phase: state::phase(),
        marker,
        rejected,
        shapes,
        dtypes,
        host_seconds,
        device_seconds: None,
    });
}

fn call_device(call: &Call<'_>, key: DispatchKey) -> Device {
    let mut device = None;
    call.for_each_tensor(|_, t| device = device.or(Some(t.device())));
    device.unwrap_or(match key {
        DispatchKey::Cuda => Device::cuda(0),
        _ => Device::CPU,
    })
}

/// Which kernel each key would run, for people.
pub fn describe_table(op: OpHandle) -> Vec<(DispatchKey, String)> {
    state::with(|s| {
        let _inside = s.enter();
        // SAFETY: inside dispatch.
        table::describe(unsafe { op.table() })
    })
}
