//! The backward pass: `run` walks the tape, `accumulate` adds gradients up, `check` holds what users and foreign
//! rules give to the shapes and dtypes it must have, `api` is what people call.

mod accumulate;
mod api;
mod check;
mod reach;
mod run;

pub use api::{
    GradOptions, backward, backward_from, depends_on, distinct, grad, grad_up_to, grad_up_to_data, hide_leaf,
    reaches_other_leaf, reaches_outside, same_edge,
};
