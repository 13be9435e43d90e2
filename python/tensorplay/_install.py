"""Completes the types of the extension with the members written in Python, once, when the package is imported.

Lives here: the order of that. Not here: the members (`_tensor`, `_op_type`).
"""

from __future__ import annotations

from tensorplay import _native, _op_type, _tensor

_tensor.install(_native.Tensor)
_op_type.install()
