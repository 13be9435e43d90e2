//! Offsets in objects of CPython, by which `quick` and this module read memory of the interpreter that no function tells;
//! and a running frame by them. They are of 64-bit builds; `api` compares them with real objects before anything relies on
//! them.

use crate::hot::ffi::Obj;

/// Where the parts of a frame lie, in bytes. In `PyFrameObject`: the pointer to the interpreter's own frame. In that one:
/// the rest, all pointers but `top`, an int.
pub struct Layout {
    inner: usize,
    function: usize,
    globals: usize,
    builtins: usize,
    code: usize,
    top: usize,
    locals: usize,
    /// In `PyFunctionObject`: its code, defaults and keyword defaults.
    pub function_state: [usize; 3],
    /// In `PyDictObject`: a number that every change of the dict makes another, and that no other dict has.
    pub dict_version: usize,
    /// In front of an instance: its values, and its dict.
    pub values: usize,
    pub own_dict: usize,
    /// In `PyTypeObject`: its version; every change of the class and of its bases makes it 0, until it is looked into.
    pub class_version: usize,
    /// In `PyHeapTypeObject`: `PyDictKeysObject` of the names that its instances have.
    pub class_names: usize,
    /// In that one: the logarithm of the size of its indices in bytes, how many names there are, and where the indices begin;
    /// behind them are the names.
    pub names_log2_bytes: usize,
    pub names_count: usize,
    pub names_indices: usize,
}

/// CPython 3.11 (`pycore_frame.h`). The top of the stack is stored before each opcode event.
pub static V3_11: Layout = Layout {
    inner: 24,
    function: 0,
    globals: 8,
    builtins: 16,
    code: 32,
    top: 64,
    locals: 72,
    function_state: [48, 56, 64],
    dict_version: 24,
    values: 32,
    own_dict: 24,
    class_version: 384,
    class_names: 872,
    names_log2_bytes: 9,
    names_count: 24,
    names_indices: 32,
};

/// The word of a dict that every change of it changes.
///
/// # Safety
/// A live dict of an interpreter that `layout` describes.
pub unsafe fn dict_version(dict: Obj, layout: &Layout) -> *const usize {
    // SAFETY: the caller's promise.
    unsafe { dict.cast::<u8>().add(layout.dict_version) }.cast()
}

/// The words of a function object that say what it does.
///
/// # Safety
/// A live function of an interpreter that `layout` describes.
pub unsafe fn function_state(function: Obj, layout: &Layout) -> [*const usize; 3] {
    // SAFETY: the caller's promise.
    layout
        .function_state
        .map(|offset| unsafe { function.cast::<u8>().add(offset) }.cast::<usize>().cast_const())
}

/// A frame that is running, at an event.
#[derive(Clone, Copy)]
pub struct Frame {
    inner: *const u8,
    layout: &'static Layout,
}

impl Frame {
    /// # Safety
    /// `frame` is a live frame object of an interpreter that `layout` describes; the value is used during one event.
    pub unsafe fn of(frame: Obj, layout: &'static Layout) -> Frame {
        // SAFETY: the caller's promise.
        let inner = unsafe { frame.cast::<u8>().add(layout.inner).cast::<*const u8>().read() };
        Frame { inner, layout }
    }

    /// Names the frame as long as it runs.
    pub fn id(self) -> usize {
        self.inner as usize
    }

    unsafe fn object(self, offset: usize) -> Obj {
        // SAFETY: by `of`.
        unsafe { self.inner.add(offset).cast::<Obj>().read() }
    }

    /// The function that runs, the globals and builtins it was made with, and its code; all borrowed.
    ///
    /// # Safety
    /// As `of`; so are those below.
    pub unsafe fn function(self) -> Obj {
        unsafe { self.object(self.layout.function) }
    }

    pub unsafe fn globals(self) -> Obj {
        unsafe { self.object(self.layout.globals) }
    }

    pub unsafe fn builtins(self) -> Obj {
        unsafe { self.object(self.layout.builtins) }
    }

    pub unsafe fn code(self) -> Obj {
        unsafe { self.object(self.layout.code) }
    }

    /// Locals, cells and the operands on the stack, counted together.
    pub unsafe fn top(self) -> usize {
        let top = unsafe { self.inner.add(self.layout.top).cast::<i32>().read() };
        usize::try_from(top).unwrap_or(0)
    }

    /// A local or a cell; null where it is unbound.
    pub unsafe fn local(self, i: usize) -> Obj {
        unsafe { self.object(self.layout.locals + i * size_of::<Obj>()) }
    }

    /// An operand, 1 being the top of the stack. Null where the interpreter pushed none.
    pub unsafe fn peek(self, n: usize) -> Obj {
        match unsafe { self.top() }.checked_sub(n) {
            Some(i) => unsafe { self.local(i) },
            None => std::ptr::null_mut(),
        }
    }
}
