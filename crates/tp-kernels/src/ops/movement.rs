//! Movement rows: views, which share their argument's storage, and the rearrangements that copy.

use crate::cpu::{self, short};
use crate::fake;
use crate::fake::view::{self, Shaped};
use crate::row::{Row, op};
use smallvec::smallvec;
use tp_dispatch::GradSpec::{Expr, NotDifferentiable, Rule};
use tp_dispatch::{FakeOut, Value};
use tp_tensor::TensorSpec;

/// `view!("schema", layout function, grad)`: kernel and fake rule are one function from call to layout. The result knows
/// what it is a view of.
macro_rules! view {
    ($schema:expr, $layout:path, $grad:expr $(, $($rest:tt)*)?) => {
        op!(
            [$schema],
            Some(|call| Ok(smallvec![FakeOut::View { of: 0, layout: $layout(call)? }])),
            |call, rets| {
                rets.push(Value::Tensor(cpu::view::of(call.tensor(0)?, &$layout(call)?)?));
                Ok(())
            },
            $grad
            $(, $($rest)*)?
        )
    };
}

pub static ROWS: &[Row] = &[
    // Shape. `reshape` gives a view where the layout allows it, else a copy; `view` never copies.
    op!(
        ["reshape(Tensor(a) x, SymInt[] shape) -> Tensor(a)"],
        Some(|call| {
            let x = call.tensor(0)?;
            Ok(smallvec![match view::reshape(call)? {
                Shaped::View(layout) => FakeOut::View { of: 0, layout },
                Shaped::Copy(sizes) => FakeOut::Spec(TensorSpec::contiguous(&sizes, x.dtype(), x.device())),
            }])
        }),
        cpu::view::reshape,
        Rule("reshape"),
        doc = "The elements in another shape, in row-major order; one size may be -1. A view where the layout allows it, else a copy."
    ),
    view!(
        "view(Tensor(a) x, SymInt[] shape) -> Tensor(a)",
        view::view,
        Rule("reshape"),
        doc = "The elements in another shape, in row-major order; one size may be -1. Always a view: an error where the layout does not allow it."
    ),
    view!(
        "expand(Tensor(a) x, SymInt[] shape) -> Tensor(a)",
        view::expand,
        Rule("expand"),
        short = short::EXPAND,
        doc = "A view in which dimensions of size 1 repeat; -1 keeps a size."
    ),
    view!(
        "squeeze(Tensor(a) x, int[1]? axis=None) -> Tensor(a)",
        view::squeeze,
        Rule("squeeze"),
        doc = "A view without the dimensions of size 1, or without those of `axis`."
    ),
    view!(
        "unsqueeze(Tensor(a) x, int axis) -> Tensor(a)",
        view::unsqueeze,
        Rule("unsqueeze"),
        doc = "A view with a dimension of size 1 put in at `axis`."
    ),
    // Order of axes.
    view!(
        "permute_dims(Tensor(a) x, int[] axes) -> Tensor(a)",
        view::permute_dims,
        Rule("permute_dims"),
        doc = "A view with the dimensions in the order `axes`."
    ),
    view!(
        "transpose(Tensor(a) x, int dim0, int dim1) -> Tensor(a)",
        view::transpose,
        Rule("transpose"),
        doc = "A view with two dimensions exchanged."
    ),
    // Parts.
    view!(
        "slice(Tensor(a) x, int axis, SymInt? start=None, SymInt? stop=None, SymInt step=1) -> Tensor(a)",
        view::slice,
        Rule("slice"),
        doc =
            "A view of the elements from `start` up to, but without, `stop` in steps of `step` along `axis`."
    ),
    view!(
        "select(Tensor(a) x, int axis, SymInt index) -> Tensor(a)",
        view::select,
        Rule("select"),
        doc = "A view of the slice at one position along `axis`; that dimension is left out."
    ),
    // The same data under another header. `contiguous` gives its argument back where it can.
    op!(
        ["detach(Tensor(a) x) -> Tensor(a)"],
        Some(|call| Ok(smallvec![FakeOut::View { of: 0, layout: view::alias(call)? }])),
        |call, rets| {
            rets.push(Value::Tensor(call.tensor(0)?.detach()));
            Ok(())
        },
        NotDifferentiable("detach cuts the gradient off"),
        doc = "The same memory without a history: no gradient flows through it."
    ),
    view!(
        "alias(Tensor(a) x) -> Tensor(a)",
        view::alias,
        Expr(&[Some("grad")]),
        doc = "The same memory as another tensor, with a history."
    ),
    op!(
        ["contiguous(Tensor(a) x) -> Tensor(a)"],
        Some(|call| {
            let x = call.tensor(0)?;
            Ok(if x.is_contiguous() {
                smallvec![FakeOut::Same { of: 0 }]
            } else {
                fake::contiguous(x.sizes(), x.dtype(), x.device())
            })
        }),
        cpu::view::contiguous,
        Expr(&[Some("grad")]),
        doc = "The tensor itself where it is laid out row by row without gaps, else a copy that is."
    ),
    // Rearrangements, which copy.
    op!(
        ["flip(Tensor x, int[1]? axis=None) -> Tensor"],
        Some(fake::join::flip),
        cpu::view::flip,
        Rule("flip"),
        doc = "A copy with the order of the elements reversed along `axis`, or along all dimensions."
    ),
    op!(
        ["roll(Tensor x, int[1] shift, int[1]? axis=None) -> Tensor"],
        Some(fake::join::roll),
        cpu::view::roll,
        Rule("roll"),
        doc = "A copy with the elements moved by `shift` along `axis` (around the end), or over the flattened tensor."
    ),
    op!(
        ["tril(Tensor x, int k=0) -> Tensor"],
        Some(fake::join::triangle),
        cpu::view::tril,
        Rule("tril"),
        doc = "A copy of the matrices with zeros above diagonal `k`."
    ),
    op!(
        ["triu(Tensor x, int k=0) -> Tensor"],
        Some(fake::join::triangle),
        cpu::view::triu,
        Rule("triu"),
        doc = "A copy of the matrices with zeros below diagonal `k`."
    ),
    op!(
        ["concat(Tensor[] arrays, int? axis=0) -> Tensor"],
        Some(fake::join::concat),
        cpu::join::concat,
        Rule("concat"),
        doc = "The tensors one behind another along `axis`, which exists already; None flattens them first. dtype: the promoted one."
    ),
    op!(
        ["stack(Tensor[] arrays, int axis=0) -> Tensor"],
        Some(fake::join::stack),
        cpu::join::stack,
        Rule("stack"),
        doc = "The tensors, all of one shape, along a new dimension `axis`. dtype: the promoted one."
    ),
    // Gradients of parts: zeros with the gradient put in its place.
    op!(
        [
            "slice_backward(Tensor grad, SymInt[] shape, int axis, SymInt? start, SymInt? stop, SymInt step) -> Tensor"
        ],
        Some(fake::join::embedded),
        cpu::view::slice_backward,
        Rule("slice_backward"),
        doc = "The gradient of `slice`: zeros, with `grad` where the slice was."
    ),
    op!(
        ["select_backward(Tensor grad, SymInt[] shape, int axis, SymInt index) -> Tensor"],
        Some(fake::join::embedded),
        cpu::view::select_backward,
        Rule("select_backward"),
        doc = "The gradient of `select`: zeros, with `grad` where the slice was."
    ),
    // Gradients of writes through views. x is laid out as a base of strides `base_strides`; shape, strides and offset
    // (in elements, from the base's first) say where a view lies in it: read the part, put it into zeros, clear it.
    op!(
        [
            "view_inside_backward(Tensor x, SymInt[] base_strides, SymInt[] shape, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::part),
        cpu::place::part,
        Rule("view_inside_backward"),
        doc = "The part of a base's gradient that a view of it sees."
    ),
    op!(
        [
            "view_backward(Tensor part, SymInt[] base_shape, SymInt[] base_strides, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::embed),
        cpu::place::embed,
        Rule("view_backward"),
        doc = "A base's gradient from that of a view of it: zeros elsewhere."
    ),
    op!(
        [
            "view_outside_backward(Tensor x, SymInt[] base_strides, SymInt[] shape, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::erase),
        cpu::place::erase,
        Rule("view_outside_backward"),
        doc = "A base's gradient with zeros where a view of it lies."
    ),
];
