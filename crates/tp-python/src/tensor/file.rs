//! `save` and `load`: safetensors files. Nothing read from disk runs code, and the header is checked before any
//! data is.

use super::{builtin as ops, tensor_of, transfer, wrap};
use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::given;
use crate::types;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use safetensors::tensor::{Metadata, TensorInfo, View};
use safetensors::{Dtype, SafeTensorError};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use tp_dispatch::{Arg, Error, Result};
use tp_tensor::{DType, Device, Tensor};

/// The largest header that is read; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// Where a file of the format holds its metadata, among the names of its tensors.
const RESERVED: &str = "__metadata__";

fn code_of(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn dtype_of(name: &str, code: Dtype) -> Result<DType> {
    DType::ALL.into_iter().find(|d| code_of(*d) == code).ok_or_else(|| {
        Error::dtype(
            "TP1206",
            format!("tensor '{name}' has elements of type {code}, which no tensorplay dtype holds"),
        )
    })
}

/// A contiguous CPU tensor as the file format sees it.
struct Saved {
    tensor: Tensor,
    shape: Vec<usize>,
}

impl Saved {
    fn bytes(&self) -> &[u8] {
        if self.tensor.nbytes() == 0 {
            return &[];
        }
        // SAFETY: contiguous, and alive as long as self; a concurrent write is the caller's race, as with any array.
        unsafe { std::slice::from_raw_parts(self.tensor.data_ptr(), self.tensor.nbytes()) }
    }
}

impl View for &Saved {
    fn dtype(&self) -> Dtype {
        code_of(self.tensor.dtype())
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }
    fn data_len(&self) -> usize {
        self.tensor.nbytes()
    }
}

/// Writes named tensors to a safetensors file: `save(path, {"weight": w})`.
///
/// Tensors that are not contiguous are copied first. Two names for memory that overlaps are refused, because loading
/// would make two tensors of them. Gradients and graphs are not saved; `metadata` maps strings to strings.
#[pyfunction]
#[pyo3(signature = (path, tensors, *, metadata=None))]
pub fn save(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    tensors: &Bound<'_, PyAny>,
    metadata: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    guarded(|| {
        let want = "a dict of str to str";
        let metadata: Option<HashMap<String, String>> = match metadata.filter(|m| !m.is_none()) {
            Some(m) => Some(m.extract().map_err(|_| given::wrong("save", "metadata", want, m))?),
            None => None,
        };
        let misplaced = |what: &str, got: &Bound<'_, PyAny>| {
            let message = format!("save takes {what}, got {}", got.get_type());
            error::to_py(
                py,
                Error::argument("TP1165", message).note("the order is save(path, {name: tensor})"),
            )
        };
        let path: PathBuf = path.extract().map_err(|_| misplaced("a path first", path))?;
        let tensors = tensors
            .cast::<PyMapping>()
            .map_err(|_| misplaced("a dict of tensors after the path", tensors))?;
        let mut given = Vec::new();
        for pair in tensors.items()?.iter() {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            let name: String = name.extract().map_err(|_| misplaced("text as names of tensors", &name))?;
            let t = tensor_of(&value)
                .map_err(|_| misplaced(&format!("a Tensor under the name '{name}'"), &value))?;
            if name == RESERVED {
                let message =
                    format!("'{name}' cannot be the name of a tensor: the file keeps its metadata there");
                return Err(error::to_py(py, Error::value("TP1166", message)));
            }
            given.push((name, t));
        }
        refuse_overlap(&given).py(py)?;
        let saved =
            given.into_iter().map(|(name, t)| Ok((name, prepare(&t)?))).collect::<Result<Vec<_>>>().py(py)?;
        let views: Vec<(&str, &Saved)> = saved.iter().map(|(name, s)| (name.as_str(), s)).collect();
        write(&path, views, metadata)
    })
}

/// Writes the file as Python's `open(path, "wb")` would: through links, into devices and pipes, with the permissions of
/// what was there, or those that the process gives new files. What was there stays until the new content is whole.
fn write(path: &Path, views: Vec<(&str, &Saved)>, metadata: Option<HashMap<String, String>>) -> PyResult<()> {
    let failed = |e: std::io::Error| os_error(path, &e);
    let is_new = !path.exists();
    let mut file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let before = file.metadata().map_err(failed)?;
    if !before.is_file() {
        let bytes = safetensors::serialize(views, metadata).map_err(|e| file_error(path, &e))?;
        return file.write_all(&bytes).map_err(failed);
    }
    let target = path.canonicalize().map_err(failed)?;
    if let Err(e) = safetensors::serialize_to_file(views, metadata, &target) {
        if is_new {
            // The empty file of above; the error that is told is the first one.
            let _ = fs::remove_file(&target);
        }
        return Err(file_error(path, &e));
    }
    fs::set_permissions(&target, before.permissions()).map_err(failed)
}

fn prepare(t: &Tensor) -> Result<Saved> {
    types::readable(t, "TP4003", "the values of a tensor were", "tensorplay.save", types::RESULT)?;
    let local = transfer::to_device(&t.detach(), Device::CPU)?;
    let tensor = ops::CONTIGUOUS.run(&[Arg::Tensor(&local)])?;
    let shape = tensor.sizes().iter().map(|&s| s as usize).collect();
    Ok(Saved { tensor, shape })
}

fn refuse_overlap(tensors: &[(String, Tensor)]) -> Result<()> {
    // Byte ranges by device and address, sorted: neighbours are enough to find an overlap.
    let mut ranges: Vec<(Device, usize, usize, &str)> = Vec::new();
    for (name, t) in tensors.iter().filter(|(_, t)| t.numel() > 0) {
        let item = t.dtype().itemsize() as i64;
        if let Some((low, high)) = t.layout().extent() {
            let at = |i: i64| t.storage().data() as usize + (i * item) as usize;
            ranges.push((t.device(), at(low), at(high), name));
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let (&(device, _, end, one), &(other_device, start, _, other)) = (&pair[0], &pair[1]);
        if device == other_device && start < end {
            return Err(Error::value(
                "TP1163",
                format!("'{one}' and '{other}' share memory, which the file cannot say"),
            )
            .note("save one of them, or a .clone()"));
        }
    }
    Ok(())
}

/// The tensors of a safetensors file as a dict; `device` moves them there.
#[pyfunction]
#[pyo3(signature = (path, *, device=None))]
pub fn load<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    device: Option<super::DeviceArg>,
) -> PyResult<Bound<'py, PyDict>> {
    guarded(|| {
        tp_graph::capture::watch::once("load()", "load the file before the call").py(py)?;
        let path: PathBuf = given::read("load", "path", path)?;
        let (mut file, header) = open(&path)?;
        let out = PyDict::new(py);
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let mut t = read_tensor(py, &mut file, &path, &name, info)?;
            if let Some(d) = &device {
                t = transfer::to_device(&t, d.0).py(py)?;
            }
            out.set_item(name, wrap(py, t)?)?;
        }
        Ok(out)
    })
}

/// The string metadata of a safetensors file.
#[pyfunction]
pub fn load_metadata(path: &Bound<'_, PyAny>) -> PyResult<HashMap<String, String>> {
    guarded(|| {
        let path: PathBuf = given::read("load_metadata", "path", path)?;
        Ok(open(&path)?.1.metadata().clone().unwrap_or_default())
    })
}

/// The file behind its checked header: data follows in the order of the offsets, without gaps.
fn open(path: &Path) -> PyResult<(File, Metadata)> {
    let mut file = File::open(path).map_err(|e| os_error(path, &e))?;
    let mut length = [0u8; 8];
    file.read_exact(&mut length).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => broken(path, "it is shorter than a header"),
        _ => os_error(path, &e),
    })?;
    let length = u64::from_le_bytes(length);
    let total = file.metadata().map_err(|e| os_error(path, &e))?.len();
    if length > MAX_HEADER || length + 8 > total {
        return Err(broken(path, "the length of its header is wrong"));
    }
    let mut text = vec![0u8; length as usize];
    file.read_exact(&mut text).map_err(|e| os_error(path, &e))?;
    let header: Metadata = serde_json::from_slice(&text).map_err(|e| broken(path, &e.to_string()))?;
    if header.data_len() as u64 != total - length - 8 {
        return Err(broken(path, "its header and its size disagree"));
    }
    Ok((file, header))
}

fn read_tensor(
    py: Python<'_>,
    file: &mut File,
    path: &Path,
    name: &str,
    info: &TensorInfo,
) -> PyResult<Tensor> {
    let dtype = dtype_of(name, info.dtype).py(py)?;
    let sizes = info.shape.iter().map(|&s| i64::try_from(s)).collect::<std::result::Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|_| broken(path, "a size is too large"))?;
    let t = Tensor::empty(&sizes, dtype, Device::CPU).map_err(Error::from).py(py)?;
    if t.nbytes() > 0 {
        // SAFETY: fresh memory of that many bytes, zeroed so that a read of part of it is defined.
        let bytes = unsafe {
            std::ptr::write_bytes(t.data_ptr(), 0, t.nbytes());
            std::slice::from_raw_parts_mut(t.data_ptr(), t.nbytes())
        };
        file.read_exact(bytes).map_err(|e| os_error(path, &e))?;
    }
    Ok(t)
}

fn os_error(path: &Path, e: &std::io::Error) -> PyErr {
    match e.raw_os_error() {
        // With errno and file name, so that Python picks FileNotFoundError and its kin.
        Some(errno) => {
            let text = e.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_string();
            PyOSError::new_err((errno, text, path.as_os_str().to_os_string()))
        }
        None => PyOSError::new_err(format!("{}: {e}", path.display())),
    }
}

fn file_error(path: &Path, e: &SafeTensorError) -> PyErr {
    match e {
        SafeTensorError::IoError(e) => os_error(path, e),
        e => broken(path, &e.to_string()),
    }
}

fn broken(path: &Path, why: &str) -> PyErr {
    let e = Error::value("TP1164", format!("{} is no safetensors file: {why}", path.display()));
    error::attached(|py| error::to_py(py, e))
}
