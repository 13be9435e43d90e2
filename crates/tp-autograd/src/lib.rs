//! tp-autograd
