//! The table of device runtimes. CPU memory comes from `pool`; any other device registers a runtime here once,
//! at start-up, and the layers above never name a driver.

use crate::device::{Device, DeviceKind};
use crate::error::TensorError;
use std::sync::OnceLock;

/// What a device must offer for tensors to live on it.
pub trait DeviceRuntime: Send + Sync {
    /// Device memory of at least `bytes`, aligned to 256; null only for zero bytes.
    fn alloc(&self, device: Device, bytes: usize) -> Result<*mut u8, TensorError>;
    /// # Safety
    /// `ptr` came from `alloc` with the same device and size, and nothing uses it any more on the host.
    unsafe fn free(&self, device: Device, ptr: *mut u8, bytes: usize);
    /// # Safety
    /// Both ranges are valid for `bytes` on their devices.
    unsafe fn copy(&self, dst: *mut u8, dst_device: Device, src: *const u8, src_device: Device, bytes: usize);
    fn synchronize(&self, device: Device);
    /// The current stream as an opaque handle (0 = the default stream).
    fn current_stream(&self, device: Device) -> u64;
    fn device_count(&self) -> usize;
}

static CUDA: OnceLock<&'static dyn DeviceRuntime> = OnceLock::new();

/// Makes `runtime` answer for its kind of device. The first registration stays.
pub fn register(kind: DeviceKind, runtime: &'static dyn DeviceRuntime) -> bool {
    kind == DeviceKind::Cuda && CUDA.set(runtime).is_ok()
}

pub fn runtime(device: Device) -> Result<&'static dyn DeviceRuntime, TensorError> {
    match device.kind {
        DeviceKind::Cuda => CUDA.get().copied().ok_or(TensorError::NoDevice(device)),
        _ => Err(TensorError::NoDevice(device)),
    }
}
