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
        Rule("reshape")
    ),
    view!("view(Tensor(a) x, SymInt[] shape) -> Tensor(a)", view::view, Rule("reshape")),
    view!(
        "expand(Tensor(a) x, SymInt[] shape) -> Tensor(a)",
        view::expand,
        Rule("expand"),
        short = short::expand
    ),
    view!("squeeze(Tensor(a) x, int[1]? axis=None) -> Tensor(a)", view::squeeze, Rule("squeeze")),
    view!("unsqueeze(Tensor(a) x, int axis) -> Tensor(a)", view::unsqueeze, Rule("unsqueeze")),
    // Order of axes.
    view!("permute_dims(Tensor(a) x, int[] axes) -> Tensor(a)", view::permute_dims, Rule("permute_dims")),
    view!("transpose(Tensor(a) x, int dim0, int dim1) -> Tensor(a)", view::transpose, Rule("transpose")),
    // Parts.
    view!(
        "slice(Tensor(a) x, int axis, SymInt? start=None, SymInt? stop=None, SymInt step=1) -> Tensor(a)",
        view::slice,
        Rule("slice")
    ),
    view!("select(Tensor(a) x, int axis, SymInt index) -> Tensor(a)", view::select, Rule("select")),
    // The same data under another header. `contiguous` gives its argument back where it can.
    op!(
        ["detach(Tensor(a) x) -> Tensor(a)"],
        Some(|call| Ok(smallvec![FakeOut::View { of: 0, layout: view::alias(call)? }])),
        |call, rets| {
            rets.push(Value::Tensor(call.tensor(0)?.detach()));
            Ok(())
        },
        NotDifferentiable("detach cuts the gradient off")
    ),
    view!("alias(Tensor(a) x) -> Tensor(a)", view::alias, Expr(&[Some("grad")])),
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
        Expr(&[Some("grad")])
    ),
    // Rearrangements, which copy.
    op!(
        ["flip(Tensor x, int[1]? axis=None) -> Tensor"],
        Some(fake::join::flip),
        cpu::view::flip,
        Rule("flip")
    ),
    op!(
        ["roll(Tensor x, int[1] shift, int[1]? axis=None) -> Tensor"],
        Some(fake::join::roll),
        cpu::view::roll,
        Rule("roll")
    ),
    op!(["tril(Tensor x, int k=0) -> Tensor"], Some(fake::join::triangle), cpu::view::tril, Rule("tril")),
    op!(["triu(Tensor x, int k=0) -> Tensor"], Some(fake::join::triangle), cpu::view::triu, Rule("triu")),
    op!(
        ["concat(Tensor[] arrays, int? axis=0) -> Tensor"],
        Some(fake::join::concat),
        cpu::join::concat,
        Rule("concat")
    ),
    op!(
        ["stack(Tensor[] arrays, int axis=0) -> Tensor"],
        Some(fake::join::stack),
        cpu::join::stack,
        Rule("stack")
    ),
    // Gradients of parts: zeros with the gradient put in its place.
    op!(
        [
            "slice_backward(Tensor grad, SymInt[] shape, int axis, SymInt? start, SymInt? stop, SymInt step) -> Tensor"
        ],
        Some(fake::join::embedded),
        cpu::view::slice_backward,
        Rule("slice_backward")
    ),
    op!(
        ["select_backward(Tensor grad, SymInt[] shape, int axis, SymInt index) -> Tensor"],
        Some(fake::join::embedded),
        cpu::view::select_backward,
        Rule("select_backward")
    ),
    // Gradients of writes through views. x is laid out as a base of strides `base_strides`; shape, strides and offset
    // (in elements, from the base's first) say where a view lies in it: read the part, put it into zeros, clear it.
    op!(
        [
            "view_inside_backward(Tensor x, SymInt[] base_strides, SymInt[] shape, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::part),
        cpu::place::part,
        Rule("view_inside_backward")
    ),
    op!(
        [
            "view_backward(Tensor part, SymInt[] base_shape, SymInt[] base_strides, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::embed),
        cpu::place::embed,
        Rule("view_backward")
    ),
    op!(
        [
            "view_outside_backward(Tensor x, SymInt[] base_strides, SymInt[] shape, SymInt[] strides, SymInt offset) -> Tensor"
        ],
        Some(fake::place::erase),
        cpu::place::erase,
        Rule("view_outside_backward")
    ),
];
