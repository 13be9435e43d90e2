//! tp-python
