//! Native code by what is known of it: functions that read nothing but what their arguments hold and write to nothing but
//! those, and types whose objects can be read by a guard. Whatever is in none of these tables is refused.

use super::attributes::has;
use super::buffers::{MOST, Snapshot};
use super::calls::text;
use super::code::{Code, Kind};
use super::contents;
use super::expect::{is_immutable, owned};
use super::guards::{Check, Guard, item};
use super::session::{Session, VALUE};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::{Error, Result};
use tp_graph::capture::watch;

/// Functions by module. They read what their arguments hold; containers among those may change, which is looked at when
/// the function has returned. "*" is a module all of whose functions compute from their arguments.
const FUNCTIONS: &[(&str, &str)] = &[
    (
        "builtins",
        "__build_class__ __import__ abs all any ascii bin callable chr delattr divmod format getattr globals hasattr hash hex \
         isinstance issubclass iter len locals max min next oct ord pow repr round setattr sorted sum vars",
    ),
    ("math", "*"),
    ("cmath", "*"),
    ("itertools", "*"),
    ("_struct", "*"),
    ("binascii", "*"),
    ("unicodedata", "*"),
    ("_json", "*"),
    ("zlib", "*"),
    ("_string", "*"),
    ("_stat", "*"),
    ("_statistics", "*"),
    ("_sre", "*"),
    ("_hashlib", "*"),
    ("_heapq", "*"),
    ("_bisect", "*"),
    ("_functools", "reduce cmp_to_key"),
    ("_collections", "_count_elements"),
    ("_abc", "_abc_init _abc_instancecheck _abc_subclasscheck"),
    (
        "_operator",
        "abs add and_ call concat contains countOf delitem eq floordiv ge getitem gt iadd iand iconcat ifloordiv \
         ilshift imatmul imod imul index indexOf inv invert ior ipow irshift is_ is_not isub itruediv ixor le \
         length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem sub truediv truth xor",
    ),
    ("posix", "fspath _path_normpath"),
    ("sys", "intern getrecursionlimit"),
    ("_io", "text_encoding"),
];

/// What the standard library may call besides: what it does with locks, frames and identities comes out the same.
const FOR_LIBRARY: &[(&str, &str)] = &[
    ("builtins", "compile dir eval exec id"),
    ("sys", "_getframe exc_info audit"),
    ("_thread", "RLock allocate_lock get_ident"),
    ("_weakref", "*"),
    ("gc", "*"),
];

/// Functions of NumPy that read or write more than their arguments.
const NUMPY_HIDDEN: &str = "fromfile load save savez tofile dump seterr geterr setbufsize seterrcall \
     get_printoptions set_printoptions memmap info show_config";

/// Types, by the nearest one that is native, whose objects never change, or do so only in ways of their own that are
/// guarded (attributes of functions, classes and modules).
const VALUES: &[(&str, &str)] = &[
    (
        "builtins",
        "object int float bool complex str bytes tuple frozenset NoneType NotImplementedType ellipsis slice range type \
         function builtin_function_or_method method method_descriptor wrapper_descriptor method-wrapper \
         classmethod_descriptor getset_descriptor member_descriptor property classmethod staticmethod code cell \
         module super traceback",
    ),
    ("types", "GenericAlias UnionType"),
    ("re", "Pattern Match"),
    ("datetime", "date time datetime timedelta tzinfo timezone"),
    ("operator", "itemgetter attrgetter methodcaller"),
    ("functools", "partial KeyWrapper _lru_cache_wrapper"),
    ("collections", "_tuplegetter"),
    ("numpy", "dtype ufunc _ArrayFunctionDispatcher"),
    ("_struct", "Struct"),
    ("_json", "Encoder Scanner"),
];

/// Types that are made from what they are given.
const MADE: &[(&str, &str)] = &[
    (
        "builtins",
        "list dict set bytearray memoryview enumerate zip map filter reversed mappingproxy odict_iterator",
    ),
    ("itertools", "*"),
    ("collections", "*"),
    ("types", "*"),
    ("_io", "StringIO BytesIO"),
    ("array", "array"),
    ("numpy", "*"),
    ("_json", "*"),
];

/// Types that keep what they are given, and look into nothing.
const KEEPING: &str = "partial super property classmethod staticmethod method type object tuple_iterator";

fn is_in(table: &[(&str, &str)], module: &str, name: &str) -> bool {
    table
        .iter()
        .any(|(m, names)| *m == module && (*names == "*" || names.split_whitespace().any(|n| n == name)))
}

/// How the objects of a type are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nature {
    Value,
    Container,
    /// Lends its memory.
    Buffer,
    Namespace,
    Proxy,
    /// Of a type that nothing is known of.
    Unknown,
}

/// The nearest native type: classes made in Python have the deallocator of such.
pub(super) unsafe fn native_base(ty: *mut ffi::PyTypeObject) -> *mut ffi::PyTypeObject {
    unsafe {
        let mut ty = ty;
        while ffi::PyType_GetFlags(ty) & ffi::Py_TPFLAGS_HEAPTYPE != 0 && is_of_python(ty) {
            let base: *mut ffi::PyTypeObject = ffi::PyType_GetSlot(ty, ffi::Py_tp_base).cast();
            if base.is_null() {
                break;
            }
            ty = base;
        }
        ty
    }
}

/// Whether a heap type was made by a `class` statement or the like.
unsafe fn is_of_python(ty: *mut ffi::PyTypeObject) -> bool {
    crate::error::attached(|py| {
        let Ok(model) = py.import("tensorplay.errors").and_then(|m| m.getattr("CaptureError")) else {
            return false;
        };
        // SAFETY: live types.
        unsafe {
            ffi::PyType_GetSlot(ty, ffi::Py_tp_dealloc)
                == ffi::PyType_GetSlot(model.as_ptr().cast(), ffi::Py_tp_dealloc)
        }
    })
}

impl Session {
    pub(super) unsafe fn nature(&mut self, ty: *mut ffi::PyTypeObject) -> Nature {
        if let Some(known) = self.natures.get(&(ty as usize)) {
            return *known;
        }
        let found = crate::error::attached(|py| unsafe { self.find_nature(py, ty) });
        self.natures.insert(ty as usize, found);
        found
    }

    unsafe fn find_nature(&mut self, py: Python<'_>, ty: *mut ffi::PyTypeObject) -> Nature {
        unsafe {
            let base = native_base(ty);
            let (module, name) = (text(py, base.cast(), "__module__"), text(py, base.cast(), "__name__"));
            let is = |base_type: *mut ffi::PyTypeObject| ffi::PyType_IsSubtype(ty, base_type) != 0;
            match (&*module, &*name) {
                ("numpy", "ndarray") | ("array", "array") => return Nature::Buffer,
                ("builtins", "bytearray" | "memoryview") => return Nature::Buffer,
                ("types", "SimpleNamespace") => return Nature::Namespace,
                ("builtins", "mappingproxy") => return Nature::Proxy,
                _ => {}
            }
            let is_scalar = module == "numpy" && {
                let class: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, base.cast());
                py.import("numpy").and_then(|np| np.getattr("generic")).is_ok_and(|generic| {
                    class
                        .cast::<pyo3::types::PyType>()
                        .is_ok_and(|c| c.is_subclass(&generic).unwrap_or(false))
                })
            };
            let exception: *mut ffi::PyTypeObject = ffi::PyExc_BaseException.cast();
            let containers = [
                &raw mut ffi::PyList_Type,
                &raw mut ffi::PyDict_Type,
                &raw mut ffi::PySet_Type,
                &raw mut ffi::PyDictKeys_Type,
                &raw mut ffi::PyDictValues_Type,
                &raw mut ffi::PyDictItems_Type,
            ];
            if containers.iter().any(|c| is(*c)) || module == "collections" && name == "deque" {
                return Nature::Container;
            }
            let is_value = is_in(VALUES, &module, &name)
                || is_scalar
                || is(exception)
                || is(&raw mut ffi::PyType_Type)
                || is(&raw mut ffi::PyModule_Type)
                || module == "numpy.dtypes"
                || module == "tensorplay"
                || module.starts_with("tensorplay.");
            if is_value { Nature::Value } else { Nature::Unknown }
        }
    }

    /// Guards the memory of an array, the attributes of a namespace, what is behind a proxy.
    pub(super) unsafe fn read_native(&mut self, of: Obj, depth: usize) {
        unsafe {
            if !self.is_old(of) || is_immutable(of, 0) {
                return;
            }
            match self.nature(x::type_of(of)) {
                Nature::Buffer => self.read_buffer(of),
                Nature::Namespace => {
                    let dict = ffi::PyObject_GenericGetDict(of, std::ptr::null_mut());
                    if dict.is_null() {
                        return ffi::PyErr_Clear();
                    }
                    let name = self.name(of);
                    self.name_it(dict, || name);
                    self.read_contents(dict, depth);
                    ffi::Py_DECREF(dict);
                }
                Nature::Proxy => crate::error::attached(|py| {
                    let proxy: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, of);
                    let behind = py.import("gc").and_then(|gc| gc.call_method1("get_referents", (&proxy,)));
                    for one in behind.into_iter().filter_map(|all| all.get_item(0).ok()) {
                        let name = self.name(of);
                        self.name_it(one.as_ptr(), || name);
                        self.read_contents(one.as_ptr(), depth);
                    }
                }),
                Nature::Value | Nature::Container | Nature::Unknown => {}
            }
        }
    }

    unsafe fn read_buffer(&mut self, of: Obj) {
        unsafe {
            if self.is_known(of, VALUE) {
                return;
            }
            let Some(seen) = Snapshot::of(of) else {
                let message = format!(
                    "the captured function reads {}, {} that cannot be compared at each call",
                    self.name(of),
                    article(&x::type_name(of)),
                );
                let e = watch::refusal("TP4036", message).note(format!(
                    "make it a tensor outside of the function; arrays of numbers up to {MOST} bytes can"
                ));
                self.pending.get_or_insert(e);
                return;
            };
            let check = Check::Buffer { of: owned(of), seen };
            self.guard(of, VALUE, |session| Guard { name: session.name(of), check });
        }
    }

    /// Refuses what native code does with an object from outside that no guard can read.
    pub(super) unsafe fn refuse_unknown(&mut self, of: Obj) {
        unsafe {
            if of.is_null() || !self.is_old(of) || shell::is_tensor(of) || is_immutable(of, 0) {
                return;
            }
            if self.nature(x::type_of(of)) != Nature::Unknown || contents::kind(of).is_some() {
                return;
            }
            // Advancing it is refused on its own.
            if has(self.api, x::type_of(of), "__next__") {
                return;
            }
            let name = self.name(of);
            let message = format!(
                "the captured function reads {name}, {} whose state cannot be seen",
                article(&x::type_name(of))
            );
            let e = watch::refusal("TP4036", message).note(format!(
                "move it out, pass in what it gives, or vouch for it: assume_constant=[{name}]"
            ));
            self.pending.get_or_insert(e);
        }
    }

    /// An operator or `with` works on these operands.
    pub(super) unsafe fn operands(&mut self, code: &Code, operands: &[Obj]) {
        for &one in operands {
            unsafe {
                if one.is_null() {
                    continue;
                }
                self.read_native(one, 1);
                if code.kind == Kind::User {
                    self.refuse_unknown(one);
                }
            }
        }
    }

    /// Whether a native function is known.
    pub(super) unsafe fn is_known_function(
        &mut self,
        code: &Code,
        callee: Obj,
        on: Obj,
        module: &str,
        name: &str,
    ) -> bool {
        unsafe {
            let ty = x::type_of(callee);
            // Calls of objects of Python's classes are calls of their `__call__`.
            if on.is_null() && module.is_empty() && self.nature(ty) == Nature::Value {
                return true;
            }
            let is_numpy = module == "numpy" || module.starts_with("numpy.");
            if is_numpy {
                let draws = module.starts_with("numpy.random") && on.is_null();
                return !draws && !NUMPY_HIDDEN.split_whitespace().any(|n| n == name);
            }
            if on.is_null() && ffi::PyCFunction_Check(callee) == 0 {
                return self.nature(ty) == Nature::Value;
            }
            if !on.is_null() {
                return self.is_known_method(code, on, name);
            }
            is_in(FUNCTIONS, module, name) || code.kind != Kind::User && is_in(FOR_LIBRARY, module, name)
        }
    }

    unsafe fn is_known_method(&mut self, code: &Code, on: Obj, name: &str) -> bool {
        unsafe {
            if name == "__subclasses__" || name == "tofile" || name == "fromfile" {
                return false;
            }
            let class = if ffi::PyType_Check(on) != 0 { on.cast() } else { x::type_of(on) };
            self.nature(class) != Nature::Unknown || !self.is_old(on) || code.kind != Kind::User
        }
    }

    /// Whether objects of a native type, or of a class of Python's that extends it, may be made.
    pub(super) unsafe fn may_make(&mut self, py: Python<'_>, code: &Code, class: Obj) -> bool {
        unsafe {
            if code.kind != Kind::User || self.nature(class.cast()) != Nature::Unknown {
                return true;
            }
            let base = native_base(class.cast());
            let (module, name) = (text(py, base.cast(), "__module__"), text(py, base.cast(), "__name__"));
            is_in(MADE, &module, &name) || module.starts_with("numpy.")
        }
    }

    /// A callable of native code that native code gets, to be called.
    pub(super) unsafe fn native_callback(&mut self, py: Python<'_>, code: &Code, arg: Obj) -> Result<()> {
        unsafe {
            if ffi::PyCFunction_Check(arg) == 0 || self.assumed.contains(arg) {
                return Ok(());
            }
            let mut on = ffi::PyCFunction_GetSelf(arg);
            if !on.is_null() && ffi::PyModule_Check(on) != 0 {
                on = std::ptr::null_mut();
            }
            let (module, name) = (text(py, arg, "__module__"), text(py, arg, "__name__"));
            if module.starts_with("tensorplay") || !on.is_null() && shell::is_tensor(on) {
                return Ok(());
            }
            if !self.is_known_function(code, arg, on, &module, &name) {
                return Err(unknown(py, arg, on));
            }
            match on.is_null() {
                true => Ok(()),
                false => self.native_method(on, &name, &[]),
            }
        }
    }
}

pub(super) fn keeps(name: &str) -> bool {
    KEEPING.split_whitespace().any(|n| n == name)
}

pub(super) fn article(name: &str) -> String {
    let vowel = name.starts_with(|c: char| "aeiouAEIOU".contains(c));
    format!("{} {name}", if vowel { "an" } else { "a" })
}

/// The refusal of a native function of which nothing is known.
#[cold]
pub(super) fn unknown(py: Python<'_>, callee: Obj, on: Obj) -> Error {
    let (module, name) = (text(py, callee, "__module__"), text(py, callee, "__qualname__"));
    // SAFETY: live objects, lock held.
    let owner = unsafe {
        match on.is_null() {
            false => {
                let class = if ffi::PyType_Check(on) != 0 { on } else { x::type_of(on).cast() };
                text(py, class, "__module__")
            }
            true => module,
        }
    };
    let name = if name.is_empty() { unsafe { x::type_name(callee) } } else { name };
    let full = if owner.is_empty() { name } else { format!("{owner}.{name}") };
    watch::refusal(
        "TP4036",
        format!("the captured function calls {full}, which depends on or changes what cannot be seen"),
    )
    .note(format!("move it out, pass in what it gives, or vouch for it: assume_constant=[{full}]"))
}

/// The full name of an object's type; empty of null.
pub(super) unsafe fn type_text(py: Python<'_>, of: Obj) -> String {
    if of.is_null() {
        return String::new();
    }
    let class: Obj = unsafe { x::type_of(of) }.cast();
    format!("{}.{}", text(py, class, "__module__"), text(py, class, "__name__"))
}

/// A method as its class has it.
pub(super) unsafe fn is_descriptor(callee: Obj) -> bool {
    let ty = unsafe { x::type_of(callee) };
    ty == &raw mut ffi::PyMethodDescr_Type
        || ty == &raw mut ffi::PyWrapperDescr_Type
        || ty == &raw mut ffi::PyClassMethodDescr_Type
}

/// A special method of a native type, bound to an object.
pub(super) unsafe fn is_wrapper(callee: Obj) -> bool {
    unsafe { x::type_name(callee) == "method-wrapper" }
}

/// Whether an item is about to be made by a default dict, of a native type.
pub(super) unsafe fn fills(py: Python<'_>, of: Obj, key: Obj) -> bool {
    unsafe {
        if of.is_null()
            || key.is_null()
            || x::type_of(of) == &raw mut ffi::PyDict_Type
            || ffi::PyDict_Check(of) == 0
            || type_text(py, of) != "collections.defaultdict"
            || !item(of, key).is_null()
        {
            return false;
        }
        let dict: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, of);
        dict.getattr("default_factory").is_ok_and(|made| {
            let made = made.as_ptr();
            ffi::PyType_Check(made) != 0 && ffi::PyType_GetFlags(made.cast()) & ffi::Py_TPFLAGS_HEAPTYPE == 0
        })
    }
}
