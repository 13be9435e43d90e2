//! Keywords that an op does not know: the ones that people bring from PyTorch, then the ones that are misspelt.

use tp_dispatch::bind::Params;

/// PyTorch's keyword, and ours for the same thing: the first that the op has.
const OURS: &[(&str, &[&str])] = &[
    ("dim", &["axis", "axes"]),
    ("dims", &["axes", "axis"]),
    ("dim0", &["axis1"]),
    ("dim1", &["axis2"]),
    ("keepdim", &["keepdims"]),
    ("input", &["x", "x1"]),
    ("self", &["x", "x1"]),
    ("other", &["x2"]),
    ("mat2", &["x2"]),
    ("exponent", &["x2"]),
    ("size", &["shape"]),
    ("sizes", &["shape"]),
    ("steps", &["num"]),
    ("tensors", &["arrays"]),
    ("n", &["n_rows"]),
    ("m", &["n_cols"]),
    ("shifts", &["shift"]),
    ("diagonal", &["k", "offset"]),
    ("index", &["indices"]),
];

/// PyTorch's keywords for what built-in ops here do not do, and what to do instead.
const WITHOUT: &[(&str, &str)] = &[
    ("requires_grad", "call .requires_grad_() on the result; tensorplay.tensor alone has the keyword"),
    ("out", "built-in ops return new tensors: use the result, or y.copy_(...)"),
    ("alpha", "multiply the operand: x1 + alpha * x2"),
    ("unbiased", "correction=1 divides by n - 1, correction=0 (the default here) by n"),
    ("non_blocking", "copies are finished when they return: leave it out"),
    ("pin_memory", "there is no pinned memory: leave it out"),
    ("memory_format", "there are no memory formats: leave it out"),
    ("inplace", "call the method with the underscore, such as x.mul_(y)"),
];

/// The parameter that was probably meant, and what else there is to say about a keyword.
pub fn instead<'p>(op: &str, params: &'p Params, keyword: &str) -> (Option<&'p str>, Option<&'static str>) {
    let ours = OURS.iter().find(|(theirs, _)| *theirs == keyword);
    let known = ours.and_then(|(_, names)| names.iter().find_map(|n| params.index(n)));
    if let Some(i) = known {
        return (params.name(i), None);
    }
    let without = WITHOUT.iter().find(|(theirs, _)| *theirs == keyword && op.starts_with("tp::"));
    match without {
        Some((_, note)) => (None, Some(note)),
        None => (params.closest(keyword), None),
    }
}
