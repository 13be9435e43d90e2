//! What the built-in ops say about themselves.

use tp_kernels::{describe, ops};

#[test]
fn every_row_says_what_it_computes() {
    for row in ops::rows() {
        for name in row.names() {
            let Some(text) = describe(name) else { panic!("{name} has no text") };
            assert!(text.len() > 20 && text.ends_with('.'), "{name}: {text:?}");
        }
    }
    assert_eq!(describe("no_such_op"), None);
}

#[test]
fn a_pointwise_row_says_what_follows_from_its_expression() {
    let numbers =
        "A Python number counts by its kind alone: 2.5 leaves float16 as it is and makes int64 float32.";
    let binary =
        format!("The operands broadcast together; their dtypes promote. {numbers} Shape: the broadcast one.");
    let said = |name: &str| describe(name).unwrap_or_default();
    assert_eq!(said("add"), format!("For each element: x1 + x2. {binary} dtype: the promoted one."));
    assert_eq!(said("lt"), format!("For each element: x1 < x2. {binary} dtype: bool."));
    assert_eq!(
        said("div"),
        format!("For each element: x1 / x2. {binary} dtype: the promoted one; float32 for ints and bool.")
    );
    assert_eq!(
        said("bitwise_and"),
        format!("For each element: x1 & x2. {binary} dtype: the promoted one; ints and bool only.")
    );
    assert_eq!(
        said("tanh"),
        "For each element: tanh(x). Shape: that of x. dtype: that of x; float32 for ints and bool."
    );
    assert_eq!(said("neg"), "For each element: -x. Shape: that of x. dtype: that of x.");
    assert!(said("add_").starts_with("For each element: x1 + x2, written to x1, which is returned."));
}
