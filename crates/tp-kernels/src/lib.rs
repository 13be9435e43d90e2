//! tp-kernels
