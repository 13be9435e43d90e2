"""The parts of the verifier: inputs, comparison, one module per column of the report. `tensorplay.verify` is its face."""
