//! Types made by hand from slots and the offsets of what every object of them carries.

use super::ffi::Obj;
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::{c_int, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A type to be made. The `offsets` are pairs of a name that the interpreter knows (`__vectorcalloffset__`,
/// `__dictoffset__`, `__weaklistoffset__`) and the place of that field in the object.
pub struct HeapType<'a> {
    pub name: &'static CStr,
    pub basicsize: usize,
    /// Added to the default flags and the collector's.
    pub flags: c_ulong,
    pub offsets: &'a [(&'static CStr, usize)],
    /// Without the terminator and the members.
    pub slots: Vec<ffi::PyType_Slot>,
}

pub fn slot(slot: c_int, pfunc: *mut c_void) -> ffi::PyType_Slot {
    ffi::PyType_Slot { slot, pfunc }
}

impl HeapType<'_> {
    /// Makes the type and keeps it in `place`, where the functions of its slots find it.
    ///
    /// # Safety
    /// As `create`.
    pub unsafe fn create_in(self, place: &AtomicPtr<ffi::PyTypeObject>) -> *mut ffi::PyTypeObject {
        // SAFETY: the caller's promise.
        let ty = unsafe { self.create() }.cast();
        place.store(ty, Ordering::Release);
        ty
    }

    /// A new reference to the type, or null with an exception set.
    ///
    /// # Safety
    /// Lock held. Every slot holds a function of its slot's type or a table that lives for ever, and the offsets
    /// lie within an object of `basicsize` bytes.
    pub unsafe fn create(mut self) -> Obj {
        let mut members: Vec<_> = self.offsets.iter().map(|&(name, offset)| member(name, offset)).collect();
        // SAFETY: the terminator is all zeros.
        members.push(unsafe { std::mem::zeroed() });
        self.slots.push(slot(ffi::Py_tp_members, members.leak().as_mut_ptr().cast()));
        self.slots.push(slot(0, ptr::null_mut()));
        let mut spec = ffi::PyType_Spec {
            name: self.name.as_ptr(),
            basicsize: self.basicsize as c_int,
            itemsize: 0,
            flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | self.flags) as u32,
            slots: self.slots.as_mut_ptr(),
        };
        // SAFETY: the caller's promise; the spec and its slots are copied, the members are leaked.
        unsafe { ffi::PyType_FromSpec(&mut spec) }
    }
}

fn member(name: &'static CStr, offset: usize) -> ffi::PyMemberDef {
    ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code: ffi::Py_T_PYSSIZET,
        offset: offset as ffi::Py_ssize_t,
        flags: ffi::Py_READONLY,
        doc: ptr::null(),
    }
}
