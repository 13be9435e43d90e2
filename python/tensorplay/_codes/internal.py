"""The internal errors: codes TP90 and TP91, all with the same fix, and with no example."""

from __future__ import annotations

INTERNAL: dict[str, str] = {
    "TP9000": "A part of tensorplay stopped unexpectedly; the process goes on.",
    "TP9002": "A scalar expression could not be evaluated.",
    "TP9003": "A built-in kernel or rule met what it cannot meet.",
    "TP9004": "A broken invariant of a gradient rule.",
    "TP9005": "A row names a gradient rule that does not exist.",
    "TP9006": "A saved tensor is missing.",
    "TP9007": "A gradient rule called an op with the wrong arguments.",
    "TP9008": "An op or a rule gave something else than one tensor.",
    "TP9009": "A gradient came for an output that is not there.",
    "TP9010": "A gradient formula is broken.",
    "TP9011": "A formula met an operand of the wrong kind.",
    "TP9012": "A batching layer without rules, or a broken batch.",
    "TP9021": "A message that no C string can hold.",
    "TP9022": "An index array where none can be.",
    "TP9023": "The Autograd layer was entered without a gradient.",
    "TP9101": "A region was run with operands of other types than its own.",
    "TP9102": "A compiled kernel failed.",
    "TP9103": "A plan names a tensor that is not there.",
    "TP9104": "A forward graph needs what its backward makes.",
    "TP9105": "A sum of gradients is no tensor.",
    "TP9106": "A training region lost one of its tensors.",
    "TP9108": "A compiled entry lost one of its inputs.",
    "TP9109": "A compiled entry vanished.",
    "TP9110": "A region that is not one flat loop was run as one.",
    "TP9111": "A compiled entry without the structure of its results.",
    "TP9112": "A segment lost one of its tensors.",
    "TP9113": "A fused op over rows met other rows than it was planned for.",
    "TP9114": "Control flow lost a part of its capture.",
}
