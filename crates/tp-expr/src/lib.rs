//! tp-expr
