//! What watching needs of CPython beyond the limited API, found by name when it is first asked for, and the offsets of a
//! frame. An interpreter that lacks a symbol, or whose version has no row here, is not watched; nor is one whose frames
//! do not look as the row says, which a probe of one small function finds out.

use super::frame::{Frame, Layout, V3_11, dict_version, function_state};
use super::quick;
use crate::hot::ffi::{self as x, Obj};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;
use pyo3::types::PyDict;
use std::ffi::{CStr, CString};
use std::os::raw::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub type TraceFn = unsafe extern "C" fn(Obj, Obj, c_int, Obj) -> c_int;
type Unary = unsafe extern "C" fn(Obj) -> Obj;
type SetTrace = unsafe extern "C" fn(Option<TraceFn>, Obj);
type Lookup = unsafe extern "C" fn(*mut ffi::PyTypeObject, Obj) -> Obj;
type Get = unsafe extern "C" fn(Obj, Obj, Obj, c_int) -> Obj;
type Number = unsafe extern "C" fn(Obj) -> c_int;
type Set = unsafe extern "C" fn(Obj, Obj) -> c_int;

/// Functions and types that every CPython exports and the limited API leaves out. Results of `Unary` functions are
/// borrowed, but for `cell_get`.
pub struct Api {
    pub set_trace: SetTrace,
    /// Along the MRO, with its cache; borrowed, or null without an exception.
    pub type_lookup: Lookup,
    /// `object.__getattribute__`; with a last argument of 1 null means absent.
    pub generic_get: Get,
    pub frame_lasti: Number,
    pub function_code: Unary,
    pub function_defaults: Unary,
    pub function_kwdefaults: Unary,
    pub method_function: Unary,
    pub method_self: Unary,
    pub cell_get: Unary,
    pub cell_set: Set,
    pub function_type: *mut ffi::PyTypeObject,
    pub method_type: *mut ffi::PyTypeObject,
    pub cell_type: *mut ffi::PyTypeObject,
    pub layout: &'static Layout,
}

// SAFETY: addresses of functions and of types that live as long as the interpreter.
unsafe impl Send for Api {}
// SAFETY: as above; nothing is written.
unsafe impl Sync for Api {}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends in NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

macro_rules! function {
    ($name:literal, $type:ty) => {
        // SAFETY: the symbol has this type, in every version that has a row.
        unsafe { std::mem::transmute::<*mut c_void, $type>(symbol($name)?) }
    };
}

fn find() -> Option<Api> {
    Some(Api {
        layout: layout()?,
        set_trace: function!(c"PyEval_SetTrace", SetTrace),
        type_lookup: function!(c"_PyType_Lookup", Lookup),
        generic_get: function!(c"_PyObject_GenericGetAttrWithDict", Get),
        frame_lasti: function!(c"PyFrame_GetLasti", Number),
        function_code: function!(c"PyFunction_GetCode", Unary),
        function_defaults: function!(c"PyFunction_GetDefaults", Unary),
        function_kwdefaults: function!(c"PyFunction_GetKwDefaults", Unary),
        method_function: function!(c"PyMethod_Function", Unary),
        method_self: function!(c"PyMethod_Self", Unary),
        cell_get: function!(c"PyCell_Get", Unary),
        cell_set: function!(c"PyCell_Set", Set),
        function_type: symbol(c"PyFunction_Type")?.cast(),
        method_type: symbol(c"PyMethod_Type")?.cast(),
        cell_type: symbol(c"PyCell_Type")?.cast(),
    })
}

fn layout() -> Option<&'static Layout> {
    error_free(|py| {
        let sys = py.import("sys")?;
        let name: String = sys.getattr("implementation")?.getattr("name")?.extract()?;
        let part = |i: usize| sys.getattr("version_info")?.get_item(i)?.extract::<u8>();
        Ok((name == "cpython" && (part(0)?, part(1)?) == (3, 11)).then_some(&V3_11))
    })
}

fn error_free<T>(ask: impl FnOnce(Python<'_>) -> PyResult<Option<T>>) -> Option<T> {
    crate::error::attached(|py| ask(py).ok().flatten())
}

/// The interpreter's functions, or None where frames cannot be watched. The lock is held.
pub fn api() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    // The probe runs Python, which may hand the lock to a thread that asks as well: that one waits without it.
    crate::error::attached(|py| {
        API.get_or_init_py_attached(py, || find().filter(|api| probe(api) == Some(true))).as_ref()
    })
}

static PROBED: AtomicBool = AtomicBool::new(false);
static LAYOUT: OnceLock<&'static Layout> = OnceLock::new();

/// Runs one small function under opcode events, and looks whether its operands lie where the offsets say.
fn probe(api: &Api) -> Option<bool> {
    LAYOUT.get_or_init(|| api.layout);
    error_free(|py| {
        let before = py.import("sys")?.call_method0("gettrace")?;
        let scope = PyDict::new(py);
        let source = CString::new("def probe(a, b=1, *, c=2):\n    return a['tensorplay']\n")?;
        py.run(&source, Some(&scope), None)?;
        let function = scope.as_any().get_item("probe")?;
        let given = PyDict::new(py);
        given.set_item("tensorplay", 1)?;
        PROBED.store(false, Ordering::Relaxed);
        // SAFETY: the trace function is taken off again before this returns.
        let ran = unsafe {
            (api.set_trace)(Some(look), given.as_ptr());
            let ran = function.call1((&given,));
            (api.set_trace)(None, std::ptr::null_mut());
            ran
        };
        if !before.is_none() {
            py.import("sys")?.call_method1("settrace", (before,))?;
        }
        ran?;
        // SAFETY: a live function; words inside of it are read.
        let same = unsafe {
            let [code, defaults, keywords] =
                function_state(function.as_ptr(), api.layout).map(|at| at.read());
            code == (api.function_code)(function.as_ptr()) as usize
                && defaults == (api.function_defaults)(function.as_ptr()) as usize
                && keywords == (api.function_kwdefaults)(function.as_ptr()) as usize
        };
        let scope = PyDict::new(py);
        let source =
            CString::new("class Probe:\n    def __init__(self):\n        self.a, self.b = [], {}\n")?;
        py.run(&source, Some(&scope), None)?;
        let instance = scope.as_any().get_item("Probe")?.call0()?;
        // SAFETY: an instance of a class made by a class statement.
        let same = same && unsafe { quick::tells(&instance, api.layout) }?;
        Ok(Some(same && versions_tell(&given, api.layout)? && PROBED.load(Ordering::Relaxed)))
    })
}

/// Whether the version of a dict is where the layout says: each kind of change makes another, and a read none.
fn versions_tell(dict: &Bound<'_, PyDict>, layout: &Layout) -> PyResult<bool> {
    // SAFETY: a live dict.
    let version = || unsafe { dict_version(dict.as_ptr(), layout).read() };
    let mut seen = vec![version()];
    dict.set_item("other", 1)?;
    seen.push(version());
    dict.set_item("other", 2)?;
    seen.push(version());
    dict.del_item("other")?;
    seen.push(version());
    let is_there = dict.contains("tensorplay")? && dict.get_item("other")?.is_none();
    let stays = seen.last() == Some(&version());
    dict.clear();
    seen.push(version());
    seen.sort_unstable();
    Ok(is_there && stays && seen.windows(2).all(|pair| pair[0] != pair[1]))
}

unsafe extern "C" fn look(given: Obj, frame: Obj, what: c_int, _arg: Obj) -> c_int {
    // SAFETY: called by the interpreter on a live frame, lock held; nothing is read through a pointer before it was
    // compared with the object that it has to be.
    unsafe {
        let Some(layout) = LAYOUT.get() else { return 0 };
        if what == CALL {
            ask_for_opcodes(frame);
        }
        if what == OPCODE {
            let frame = Frame::of(frame, layout);
            let top = frame.top();
            if (4..=5).contains(&top) && frame.local(0) == given && frame.local(top - 2) == given {
                let key = frame.peek(1);
                if x::type_of(key) == &raw mut ffi::PyUnicode_Type && x::str_of(key) == Some("tensorplay") {
                    PROBED.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    0
}

pub const CALL: c_int = 0;
pub const RETURN: c_int = 3;
pub const OPCODE: c_int = 7;

/// Turns events for opcodes on for one frame, and those for lines off.
///
/// # Safety
/// A live frame, lock held.
pub unsafe fn ask_for_opcodes(frame: Obj) {
    // SAFETY: the caller's promise; True and False are immortal enough to be borrowed.
    unsafe {
        ffi::PyObject_SetAttrString(frame, c"f_trace_opcodes".as_ptr(), ffi::Py_True());
        ffi::PyObject_SetAttrString(frame, c"f_trace_lines".as_ptr(), ffi::Py_False());
    }
}
