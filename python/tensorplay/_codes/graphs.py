"""Codes TP41 to TP50 and their examples: names of backends, graphs and saved programs."""

from __future__ import annotations

__all__ = ["ENTRIES", "EXAMPLES"]

ENTRIES: tuple[tuple[str, str, str], ...] = (
    (
        "TP4101",
        "on_fallback='error' met a fallback.",
        "the reason says what to change, or use on_fallback='record'",
    ),
    ("TP4105", "backend= is no name.", "pass a name, or a list of names in order of preference"),
    ("TP4106", "What is to be compiled or transformed is no function.", "pass a function of tensors"),
    ("TP4107", "Nobody registered a backend of that name, or it is taken.", "use one that the message lists"),
    (
        "TP4108",
        "What was plugged in as a backend is none.",
        "derive it from tensorplay.backends.Backend; docs/backends.md has one",
    ),
    (
        "TP4109",
        "No named backend has such an option, or it is of another type.",
        "use one that the message lists",
    ),
    ("TP5001", "A text is no graph; line and column show where reading stopped.", "mend the text there"),
    ("TP5002", "A graph breaks a rule of its form.", "the notes list every violation"),
    ("TP5003", "A graph's node does not fit its op's schema.", "capture again with the present definition"),
    ("TP5004", "A returned list holds something else than numbers.", "return a tuple of tensors"),
    ("TP5005", "A file or a text is no saved program.", "save it again with tensorplay.graph.save"),
    (
        "TP5006",
        "A saved program needs ops that are not defined here, or are defined otherwise.",
        "import what defines them first; the message has their schemas",
    ),
    (
        "TP5007",
        "A graph is called with other tensors than it was captured for.",
        "pass tensors of the types that it lists, or capture again",
    ),
    ("TP5010", "The op is not pointwise.", "only pointwise ops have a scalar program"),
)

EXAMPLES: dict[str, str] = {
    "TP4109": 'tp.compile(lambda x: x + 1.0, backend="tvm", options={"fast": True})',
    "TP4108": 'tp.backends.register("mine", object())',
    "TP5005": 'tp.graph.from_json("{}")',
    "TP5006": """
f = tp.library.custom_op("ex5006::f", lambda x: x.clone(), mutates_args=())
f.register_fake(lambda x: tp.empty_like(x))
saved = tp.graph.capture(f, tp.ones((2,))).to_json()
tp.graph.from_json(saved.replace("ex5006::f", "ex5006::g"))
""",
    "TP5007": "tp.graph.capture(lambda x: x + 1.0, tp.ones((2,)))(tp.ones((3,)))",
}
