//! DLPack: the C structures of version 1.3, and the translation of dtypes and devices. Export, import and the C
//! exchange table have a file each.

pub mod exchange;
pub mod export;
pub mod import;

use crate::error;
use pyo3::exceptions::PyBufferError;
use std::ffi::CStr;
use std::os::raw::c_void;
use tp_dispatch::Error;
use tp_tensor::{DType, Device, DeviceKind};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

pub const VERSION: Version = Version { major: 1, minor: 3 };

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DlDevice {
    pub kind: i32,
    pub index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DlDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DlTensor {
    pub data: *mut c_void,
    pub device: DlDevice,
    pub ndim: i32,
    pub dtype: DlDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// The structure before version 1: no flags.
#[repr(C)]
pub struct Legacy {
    pub tensor: DlTensor,
    pub manager: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

#[repr(C)]
pub struct Versioned {
    pub version: Version,
    pub manager: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub flags: u64,
    pub tensor: DlTensor,
}

pub const READ_ONLY: u64 = 1;
pub const IS_COPIED: u64 = 2;

pub const LEGACY_NAME: &CStr = c"dltensor";
pub const LEGACY_USED: &CStr = c"used_dltensor";
pub const VERSIONED_NAME: &CStr = c"dltensor_versioned";
pub const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// The protocol's own exception.
#[cold]
pub fn buffer_error(message: impl Into<String>) -> Error {
    error::from_py(PyBufferError::new_err(message.into()))
}

impl DlDataType {
    pub fn of(dtype: DType) -> DlDataType {
        let code = match dtype {
            DType::Bool => 6,
            DType::U8 => 1,
            DType::BF16 => 4,
            d if d.is_float() => 2,
            _ => 0,
        };
        DlDataType { code, bits: 8 * dtype.itemsize() as u8, lanes: 1 }
    }

    pub fn dtype(self) -> Result<DType, Error> {
        let found = DType::ALL.into_iter().find(|d| {
            let own = DlDataType::of(*d);
            (own.code, own.bits, own.lanes) == (self.code, self.bits, self.lanes)
        });
        found.ok_or_else(|| {
            buffer_error(format!(
                "DLPack type code {} with {} bits and {} lanes ({}) has no tensorplay dtype",
                self.code,
                self.bits,
                self.lanes,
                self.name()
            ))
        })
    }

    fn name(self) -> &'static str {
        match self.code {
            0 => "signed integer",
            1 => "unsigned integer",
            2 => "float",
            3 => "opaque handle",
            4 => "bfloat",
            5 => "complex",
            6 => "bool",
            7..=14 => "float8",
            15..=17 => "float below 8 bits",
            _ => "unknown",
        }
    }
}

impl DlDevice {
    pub fn of(device: Device) -> Result<DlDevice, Error> {
        match device.kind {
            DeviceKind::Cpu => Ok(DlDevice { kind: CPU, index: 0 }),
            DeviceKind::Cuda => Ok(DlDevice { kind: CUDA, index: device.index.into() }),
            DeviceKind::Meta => Err(buffer_error("a tensor on 'meta' has no data to exchange")),
        }
    }

    pub fn device(self) -> Result<Device, Error> {
        match (self.kind, u8::try_from(self.index)) {
            (CPU | CUDA_HOST, _) => Ok(Device::CPU),
            (CUDA | CUDA_MANAGED, Ok(index)) => Ok(Device::cuda(index)),
            _ => Err(buffer_error(format!("DLPack device ({}, {}) is not supported", self.kind, self.index))),
        }
    }
}
