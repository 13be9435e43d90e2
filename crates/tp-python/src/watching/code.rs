//! Code objects as the watcher reads them: instructions with their whole arguments, and the names they mean.

use super::addresses::Addresses;
use crate::hot::ffi::Obj;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Instructions that read or write what may have existed before the capture. All others are `Other`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Other,
    LoadGlobal,
    LoadName,
    LoadDeref,
    LoadClosure,
    LoadAttr,
    Subscript,
    Iterate,
    Unpack,
    Contains,
    Compare,
    Identity,
    Binary,
    Unary,
    With,
    Truth,
    Format,
    Source,
    Length,
    MatchWhole,
    MatchKeys,
    MatchClass,
    ImportName,
    Call,
    /// Names of arguments of the call that comes next.
    Keywords,
    /// CALL, which follows PRECALL.
    Called,
    CallEx,
    StoreGlobal,
    StoreName,
    StoreDeref,
    StoreAttr,
    StoreSubscript,
    DeleteGlobal,
    DeleteName,
    DeleteDeref,
    DeleteAttr,
    DeleteSubscript,
}

const OPS: &[(&str, Op)] = &[
    ("LOAD_GLOBAL", Op::LoadGlobal),
    ("LOAD_NAME", Op::LoadName),
    ("LOAD_DEREF", Op::LoadDeref),
    ("LOAD_CLASSDEREF", Op::LoadDeref),
    ("LOAD_CLOSURE", Op::LoadClosure),
    ("LOAD_ATTR", Op::LoadAttr),
    ("LOAD_METHOD", Op::LoadAttr),
    ("IMPORT_FROM", Op::LoadAttr),
    ("BINARY_SUBSCR", Op::Subscript),
    ("GET_ITER", Op::Iterate),
    ("GET_YIELD_FROM_ITER", Op::Iterate),
    ("UNPACK_SEQUENCE", Op::Unpack),
    ("UNPACK_EX", Op::Unpack),
    ("CONTAINS_OP", Op::Contains),
    ("COMPARE_OP", Op::Compare),
    ("IS_OP", Op::Identity),
    ("BINARY_OP", Op::Binary),
    ("POP_JUMP_FORWARD_IF_TRUE", Op::Truth),
    ("POP_JUMP_FORWARD_IF_FALSE", Op::Truth),
    ("POP_JUMP_BACKWARD_IF_TRUE", Op::Truth),
    ("POP_JUMP_BACKWARD_IF_FALSE", Op::Truth),
    ("JUMP_IF_TRUE_OR_POP", Op::Truth),
    ("JUMP_IF_FALSE_OR_POP", Op::Truth),
    ("UNARY_NOT", Op::Truth),
    ("UNARY_NEGATIVE", Op::Unary),
    ("UNARY_POSITIVE", Op::Unary),
    ("UNARY_INVERT", Op::Unary),
    ("BEFORE_WITH", Op::With),
    ("KW_NAMES", Op::Keywords),
    ("FORMAT_VALUE", Op::Format),
    ("LIST_EXTEND", Op::Source),
    ("SET_UPDATE", Op::Source),
    ("DICT_UPDATE", Op::Source),
    ("DICT_MERGE", Op::Source),
    ("GET_LEN", Op::Length),
    ("MATCH_SEQUENCE", Op::MatchWhole),
    ("MATCH_MAPPING", Op::MatchWhole),
    ("MATCH_KEYS", Op::MatchKeys),
    ("MATCH_CLASS", Op::MatchClass),
    ("IMPORT_NAME", Op::ImportName),
    ("PRECALL", Op::Call),
    ("CALL", Op::Called),
    ("CALL_FUNCTION_EX", Op::CallEx),
    ("STORE_GLOBAL", Op::StoreGlobal),
    ("STORE_NAME", Op::StoreName),
    ("STORE_DEREF", Op::StoreDeref),
    ("STORE_ATTR", Op::StoreAttr),
    ("STORE_SUBSCR", Op::StoreSubscript),
    ("DELETE_GLOBAL", Op::DeleteGlobal),
    ("DELETE_NAME", Op::DeleteName),
    ("DELETE_DEREF", Op::DeleteDeref),
    ("DELETE_ATTR", Op::DeleteAttr),
    ("DELETE_SUBSCR", Op::DeleteSubscript),
];

struct Numbers {
    ops: [Op; 256],
    extended: u8,
    /// Its argument is a name shifted left by one, the low bit asking for a NULL on the stack.
    load_global: u8,
}

fn numbers(py: Python<'_>) -> PyResult<&Numbers> {
    static NUMBERS: PyOnceLock<Numbers> = PyOnceLock::new();
    NUMBERS.get_or_try_init(py, || {
        let map: HashMap<String, usize> = py.import("opcode")?.getattr("opmap")?.extract()?;
        let mut ops = [Op::Other; 256];
        for (name, op) in OPS {
            if let Some(place) = map.get(*name).and_then(|&n| ops.get_mut(n)) {
                *place = *op;
            }
        }
        let number = |name: &str| map.get(name).map_or(0, |&n| n as u8);
        Ok(Numbers { ops, extended: number("EXTENDED_ARG"), load_global: number("LOAD_GLOBAL") })
    })
}

/// How the frames of a code object are watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every opcode.
    User,
    /// Not at all: code of this package, whose state is no user's, and of the import system.
    Ours,
    /// Of the standard library: for whom it is called decides.
    Standard,
    /// Nor what it calls: a module is imported, or an op batched by its rule.
    Outside,
}

pub struct Code {
    /// By offset in units of two bytes. Where an EXTENDED_ARG stands, the instruction that it extends.
    instructions: Vec<(Op, u32)>,
    pub kind: Kind,
    pub name: String,
    names: Py<PyTuple>,
    free: Py<PyTuple>,
    cells: Vec<String>,
    pub locals: Vec<String>,
    /// Locals and cells, in the order of the frame; the last ones are the free variables.
    pub slots: usize,
    pub arguments: usize,
    flags: u32,
    _code: Py<PyAny>,
}

impl Code {
    pub fn new(code: &Bound<'_, PyAny>) -> PyResult<Code> {
        let py = code.py();
        let numbers = numbers(py)?;
        let strings = |name: &str| code.getattr(name)?.extract::<Vec<String>>();
        let number = |name: &str| code.getattr(name)?.extract::<usize>();
        let (locals, cells) = (strings("co_varnames")?, strings("co_cellvars")?);
        let free = code.getattr("co_freevars")?.cast_into::<PyTuple>()?;
        let own_cells: Vec<String> = cells.iter().filter(|c| !locals.contains(c)).cloned().collect();
        let name: String = code.getattr("co_name")?.extract()?;
        let file: String = code.getattr("co_filename")?.str()?.to_string_lossy().into_owned();
        let flags = code.getattr("co_flags")?.extract::<u32>()?;
        let imports = file.starts_with("<frozen importlib") && name == "_find_and_load";
        let kind = match (crate::host::is_ours(&file) && !is_frozen_library(&file), name.as_str()) {
            _ if imports || file.ends_with("/tensorplay/_batching.py") => Kind::Outside,
            // Computed from the pattern and its flags, and kept in a table that says nothing else.
            (false, "_compile") if file.ends_with("/re/__init__.py") => Kind::Outside,
            (true, _) => Kind::Ours,
            (false, "<module>") => Kind::Outside,
            _ if crate::host::is_standard(&file) || is_frozen_library(&file) => Kind::Standard,
            _ => Kind::User,
        };
        let mut arguments = number("co_argcount")? + number("co_kwonlyargcount")?;
        arguments += usize::from(flags & VARARGS != 0) + usize::from(flags & VARKEYWORDS != 0);
        let bytes: Vec<u8> = code.getattr("co_code")?.extract()?;
        Ok(Code {
            instructions: decode(&bytes, numbers),
            kind,
            name,
            names: code.getattr("co_names")?.cast_into::<PyTuple>()?.unbind(),
            slots: locals.len() + own_cells.len() + free.len(),
            free: free.unbind(),
            cells: own_cells,
            locals,
            arguments,
            flags,
            _code: code.clone().unbind(),
        })
    }

    pub fn instruction(&self, unit: usize) -> (Op, u32) {
        self.instructions.get(unit).copied().unwrap_or((Op::Other, 0))
    }

    /// The name that an instruction's argument means; borrowed, it lives as long as the code.
    pub fn name_at(&self, py: Python<'_>, arg: u32) -> Obj {
        self.names.bind(py).get_borrowed_item(arg as usize).map_or(std::ptr::null_mut(), |n| n.as_ptr())
    }

    /// Whether a slot of the frame is a free variable, whose cell came with the function.
    pub fn is_free(&self, py: Python<'_>, slot: usize) -> bool {
        slot + self.free.bind(py).len() >= self.slots
    }

    pub fn variable(&self, py: Python<'_>, slot: usize) -> String {
        if let Some(name) = self.locals.get(slot) {
            return name.clone();
        }
        if let Some(name) = self.cells.get(slot - self.locals.len()) {
            return name.clone();
        }
        let free = self.free.bind(py);
        let name = free
            .get_item(slot + free.len() - self.slots)
            .and_then(|n| n.cast_into::<PyString>().map_err(Into::into));
        name.map_or_else(|_| "?".to_string(), |n| n.to_string_lossy().into_owned())
    }

    /// Slots of the tuple and the dict that a call made for `*args` and `**kwargs`.
    pub fn made_by_call(&self) -> impl Iterator<Item = usize> {
        let made = usize::from(self.flags & VARARGS != 0) + usize::from(self.flags & VARKEYWORDS != 0);
        self.arguments - made..self.arguments
    }
}

/// Modules of the standard library that the interpreter carries, `os` among them, but for the import system.
fn is_frozen_library(file: &str) -> bool {
    file.strip_prefix("<frozen ")
        .is_some_and(|name| !name.starts_with("importlib") && !name.starts_with("zipimport"))
}

const VARARGS: u32 = 0x4;
const VARKEYWORDS: u32 = 0x8;

fn decode(bytes: &[u8], numbers: &Numbers) -> Vec<(Op, u32)> {
    let mut out = Vec::with_capacity(bytes.len() / 2);
    let mut high = 0u32;
    for unit in bytes.chunks_exact(2) {
        let arg = high << 8 | u32::from(unit[1]);
        if unit[0] == numbers.extended {
            high = arg;
            out.push((Op::Other, 0));
            continue;
        }
        let arg = if unit[0] == numbers.load_global { arg >> 1 } else { arg };
        let instruction = (numbers.ops[usize::from(unit[0])], arg);
        let mut at = out.len();
        // An extended instruction has its event at the first EXTENDED_ARG.
        while high != 0 {
            at -= 1;
            out[at] = instruction;
            high >>= 8;
        }
        out.push(instruction);
    }
    out
}

thread_local! {
    /// Code objects by address, each kept alive by its entry.
    static CODES: RefCell<Addresses<Rc<Code>>> = RefCell::default();
}

/// What is known of a code object.
///
/// # Safety
/// A live code object, lock held.
pub unsafe fn known(py: Python<'_>, code: Obj) -> Option<Rc<Code>> {
    if let Some(known) = CODES.with(|codes| codes.borrow().get(&(code as usize)).cloned()) {
        return Some(known);
    }
    // SAFETY: the caller's promise.
    let object: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, code) };
    let made = Rc::new(Code::new(&object).ok()?);
    CODES.with(|codes| codes.borrow_mut().insert(code as usize, made.clone()));
    Some(made)
}
