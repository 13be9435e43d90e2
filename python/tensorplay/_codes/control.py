"""The codes of control flow (TP43), and their examples."""

from __future__ import annotations

ENTRIES: tuple[tuple[str, str, str], ...] = (
    (
        "TP4301",
        "cond or while_loop was given something else than a bool of one element.",
        "compare: x.sum() > 0",
    ),
    (
        "TP4302",
        "The branches of a captured cond return other structures, shapes or dtypes.",
        "return the same of both: reshape(), expand() or astype() in one of them",
    ),
    (
        "TP4303",
        "body_fn of while_loop returns something else than it was given.",
        "keep structure, shape, dtype and device of what is carried",
    ),
    (
        "TP4304",
        "A branch of captured control flow writes to a tensor from outside of it.",
        "write to a clone() and return that",
    ),
    ("TP4305", "What a branch returns, or a loop carries, is no tensor.", "make it one: tp.tensor(value)"),
    (
        "TP4306",
        "A result of captured control flow has a size that only one branch finds.",
        "compute what the size depends on before, or pad to a known size",
    ),
    (
        "TP4307",
        "A while_loop whose trips differ from sample to sample of a vmap.",
        "run the loop outside of vmap, for as long as any sample goes on",
    ),
)

EXAMPLES: dict[str, str] = {
    "TP4301": "tp.cond(tp.ones((2,)), lambda: tp.zeros(()), lambda: tp.ones(()))",
    "TP4302": """
def f(x):
    return tp.cond(x.sum() > 0, lambda: x, lambda: x.sum())

tp.compile(f)(tp.ones((2,)))
""",
    "TP4303": "tp.while_loop(lambda x: x.sum() < 9.0, lambda x: x.sum(), (tp.ones((2,)),))",
    "TP4304": """
def f(x):
    return tp.cond(x.sum() > 0, lambda: x.add_(1.0), lambda: x * 2.0)

tp.compile(f)(tp.ones((2,)))
""",
    "TP4305": "tp.cond(tp.tensor(True), lambda: 1, lambda: 2)",
    "TP4307": """
tp.func.vmap(lambda x: tp.while_loop(lambda y: y < 9.0, lambda y: y * 2.0, (x,))[0])(tp.ones((2,)))
""",
    "TP4306": """
def f(x):
    return tp.cond(x.sum() > 0, lambda: tp.nonzero(x), lambda: tp.nonzero(-x))

tp.compile(f)(tp.ones((2,)))
""",
}
