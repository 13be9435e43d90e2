//! tp-graph
