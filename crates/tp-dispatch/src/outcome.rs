//! What ran, and why not something else: one vocabulary for eager and compiled calls.

use crate::key::DispatchKey;
use std::fmt;
use std::sync::Arc;
use tp_tensor::{DType, Device};

/// Stamped by the code that ran, never by a planner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CodegenMarker {
    /// Open set of names: native, python, triton, triton-interpreter, tvm, ...
    pub executor: Arc<str>,
    pub kernel: Arc<str>,
    /// Module or cubin hash, kernel id.
    pub proof: Option<Arc<str>>,
    pub device: Device,
}

impl fmt::Display for CodegenMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} on {}", self.executor, self.kernel, self.device)?;
        if let Some(proof) = &self.proof {
            write!(f, " [{}]", proof.get(..12).unwrap_or(proof))?;
        }
        Ok(())
    }
}

/// Why the executor asked for did not run. Variants carry their operands; `Display` is one line with the way out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FallbackReason {
    UnsupportedOp { op: String, why: String },
    UnsupportedDType { op: String, dtype: String },
    UnsupportedDevice { op: String, device: String },
    Layout { value: String, got: String, wanted: String },
    BackendUnavailable { backend: String, missing: String },
    GuardMiss { guard: String },
    RecompileLimit { limit: usize, guard: String },
    Compiling { backend: String },
    LoweringFailed { stage: String, message: String },
    NoKernel { op: String, key: String },
    Predicate { kernel: String, why: String },
    Disabled { kernel: String },
    VersionUnpinned { package: String, found: String },
    Hazard { op: String, what: String },
}

impl FallbackReason {
    pub fn kind(&self) -> &'static str {
        use FallbackReason as R;
        match self {
            R::UnsupportedOp { .. } => "UnsupportedOp",
            R::UnsupportedDType { .. } => "UnsupportedDType",
            R::UnsupportedDevice { .. } => "UnsupportedDevice",
            R::Layout { .. } => "Layout",
            R::BackendUnavailable { .. } => "BackendUnavailable",
            R::GuardMiss { .. } => "GuardMiss",
            R::RecompileLimit { .. } => "RecompileLimit",
            R::Compiling { .. } => "Compiling",
            R::LoweringFailed { .. } => "LoweringFailed",
            R::NoKernel { .. } => "NoKernel",
            R::Predicate { .. } => "Predicate",
            R::Disabled { .. } => "Disabled",
            R::VersionUnpinned { .. } => "VersionUnpinned",
            R::Hazard { .. } => "Hazard",
        }
    }

    /// The op or node concerned, where there is one.
    pub fn op(&self) -> Option<&str> {
        use FallbackReason as R;
        match self {
            R::UnsupportedOp { op, .. }
            | R::UnsupportedDType { op, .. }
            | R::UnsupportedDevice { op, .. }
            | R::NoKernel { op, .. }
            | R::Hazard { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Operands by name, for machines.
    pub fn details(&self) -> Vec<(&'static str, String)> {
        use FallbackReason as R;
        let s = String::clone;
        match self {
            R::UnsupportedOp { op, why } => vec![("op", s(op)), ("why", s(why))],
            R::UnsupportedDType { op, dtype } => vec![("op", s(op)), ("dtype", s(dtype))],
            R::UnsupportedDevice { op, device } => vec![("op", s(op)), ("device", s(device))],
            R::Layout { value, got, wanted } => {
                vec![("value", s(value)), ("got", s(got)), ("wanted", s(wanted))]
            }
            R::BackendUnavailable { backend, missing } => {
                vec![("backend", s(backend)), ("missing", s(missing))]
            }
            R::GuardMiss { guard } => vec![("guard", s(guard))],
            R::RecompileLimit { limit, guard } => vec![("limit", limit.to_string()), ("guard", s(guard))],
            R::Compiling { backend } => vec![("backend", s(backend))],
            R::LoweringFailed { stage, message } => vec![("stage", s(stage)), ("message", s(message))],
            R::NoKernel { op, key } => vec![("op", s(op)), ("key", s(key))],
            R::Predicate { kernel, why } => vec![("kernel", s(kernel)), ("why", s(why))],
            R::Disabled { kernel } => vec![("kernel", s(kernel))],
            R::VersionUnpinned { package, found } => vec![("package", s(package)), ("found", s(found))],
            R::Hazard { op, what } => vec![("op", s(op)), ("what", s(what))],
        }
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FallbackReason as R;
        match self {
            R::UnsupportedOp { op, why } => {
                write!(f, "{op}: {why}; it runs through its own kernel, between the regions of the backend")
            }
            R::UnsupportedDType { op, dtype } => {
                write!(f, "{op}: dtype {dtype} is not in the backend's subset; cast the operands to use it")
            }
            R::UnsupportedDevice { op, device } => {
                write!(f, "{op}: device {device} is not served by the backend; move the tensors")
            }
            R::Layout { value, got, wanted } => {
                write!(f, "{value} has layout {got}, the kernel wants {wanted}; call contiguous() first")
            }
            R::BackendUnavailable { backend, missing } => {
                write!(f, "backend '{backend}' is not available: {missing}; see python -m tensorplay doctor")
            }
            R::GuardMiss { guard } => write!(f, "guard failed: {guard}; the function was captured again"),
            R::RecompileLimit { limit, guard } => {
                write!(
                    f,
                    "more than {limit} captures, last guard that failed: {guard}; pass varying numbers as tensors"
                )
            }
            R::Compiling { backend } => write!(f, "'{backend}' is still compiling; later calls will use it"),
            // Not a fault: the backend is asked for more than it takes in one piece.
            R::LoweringFailed { stage, message } if stage == "size" => {
                write!(f, "{message}; it runs native, compile its parts to use the backend")
            }
            R::LoweringFailed { stage, message } => {
                write!(f, "{stage} failed: {message}; please report this program")
            }
            R::NoKernel { op, key } => {
                write!(f, "{op} has no kernel for '{key}'; register one with register_kernel")
            }
            R::Predicate { kernel, why } => write!(f, "kernel '{kernel}' was passed over: {why}"),
            R::Disabled { kernel } => write!(f, "kernel '{kernel}' is disabled; see set_kernel_enabled"),
            R::VersionUnpinned { package, found } => {
                write!(f, "{package} {found} is not the tested version; see python -m tensorplay doctor")
            }
            R::Hazard { op, what } => {
                write!(f, "{op}: {what} could not be ruled out; it runs native, which raises")
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Forward,
    Backward,
}

/// One call that ran under `tp.trace()`.
#[derive(Clone, Debug)]
pub struct CallEvent {
    pub op: Arc<str>,
    pub key: DispatchKey,
    pub phase: Phase,
    pub marker: CodegenMarker,
    /// Kernels passed over, each with its reason.
    pub rejected: Vec<(String, FallbackReason)>,
    /// Shapes and dtypes of the tensor inputs, in order.
    pub shapes: Vec<Vec<i64>>,
    pub dtypes: Vec<DType>,
    pub host_seconds: f64,
    pub device_seconds: Option<f64>,
}
