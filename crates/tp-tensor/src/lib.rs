//! VALUES: what a tensor is. Element types, devices, scalars, shapes, layouts, memory, the counted tensor
//! handle, and exchange with other array libraries. This crate knows no operator, no tape, no graph and no
//! Python; the layers above hang their facts on the slots a tensor header offers (`ext`, `host`, `trace`).

pub mod base;
pub mod device;
pub mod dim;
pub mod dtype;
pub mod error;
pub mod header;
pub mod iter;
pub mod layout;
mod make;
mod pending;
pub mod pool;
pub mod promote;
pub mod runtime;
pub mod scalar;
mod shared;
pub mod spec;
pub mod storage;
pub mod symbols;
pub mod tensor;
pub mod thread;

pub use device::{Device, DeviceKind};
pub use dim::{Dim, Dims};
pub use dtype::DType;
pub use error::{TensorError, counted};
pub use header::{ExtHead, ExtTable, ExtVisitor, keybits};
pub use layout::Layout;
pub use scalar::Scalar;
pub use spec::TensorSpec;
pub use storage::{Storage, StorageOwner};
pub use tensor::Tensor;
