"""Functions that read Python state, each made anew with state of its own: for the tests of guards."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import tensorplay as tp
from tensorplay import Tensor

__all__ = ["PROGRAMS"]

Program = Callable[..., Any]


def _from(source: str) -> Callable[[], Program]:
    """A maker of the function `f` of a module of its own, so that each has globals of its own."""

    def make() -> Program:
        scope: dict[str, Any] = {"tp": tp, "math": math, "__name__": "state_program"}
        exec(compile(source, "state_program.py", "exec"), scope)
        return scope["f"]  # type: ignore[no-any-return]

    return make


def closure() -> Program:
    scale, shift = 2.0, [1.0, 3.0]

    def f(x: Tensor) -> Tensor:
        return x * scale + shift[0]

    return f


def defaults() -> Program:
    def f(x: Tensor, k: float = 2.0, *, bias: float = 1.0) -> Tensor:
        return x * k + bias

    return f


def nested_defaults() -> Program:
    def inner(x: Tensor, ks: tuple[float, ...] = (2.0, 3.0)) -> Tensor:
        for k in ks:
            x = x * k
        return x

    return lambda x: inner(x) + 1.0


class Layer:
    gain = 1.5

    def __init__(self, k: float) -> None:
        self.k = k
        self.w = tp.full((2,), k)

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x) * self.gain

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w + self.k


def module() -> Program:
    """A class of its own per program: class attributes are changed too."""
    own = type("Layer", (Layer,), {"gain": 2.5})
    layers = [own(1.0), own(2.0)]

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return f


def inherited() -> Program:
    class Base:
        def scale(self) -> float:
            return 2.0

    class Derived(Base):
        extra = 1.0

        def scale(self) -> float:
            return super().scale() + self.extra

    one = Derived()
    return lambda x: x * one.scale()


def properties() -> Program:
    class Config:
        def __init__(self) -> None:
            self._k = 2.0

        @property
        def k(self) -> float:
            return self._k + 1.0

        @staticmethod
        def static(v: float) -> float:
            return v * 2.0

        @classmethod
        def by(cls) -> float:
            return cls.step

        step = 0.5

    c = Config()
    return lambda x: x * c.k + c.static(c.by())


def slots() -> Program:
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self) -> None:
            self.a, self.b = 2.0, [1.0]

    s = Slotted()
    return lambda x: x * s.a + s.b[0]


def getattr_hook() -> Program:
    class Hook:
        def __init__(self) -> None:
            self.table = {"k": 2.0}

        def __getattr__(self, name: str) -> Any:
            return self.table[name]

    h = Hook()
    return lambda x: x * h.k


def dataclass() -> Program:
    @dataclasses.dataclass
    class C:
        k: float = 2.0
        names: dict[str, float] = dataclasses.field(default_factory=lambda: {"a": 1.0})

    c = C()
    return lambda x: x * c.k + sum(c.names.values())


def namespace() -> Program:
    n = types.SimpleNamespace(k=2.0, flag=True)
    return lambda x: x * n.k if n.flag else x - n.k


def enumeration() -> Program:
    class Mode(enum.Enum):
        A = 1
        B = 2

    box = {"mode": Mode.A}
    return lambda x: x * 2.0 if box["mode"] is Mode.A else x * 3.0


def dispatch_table() -> Program:
    table = {"twice": lambda x: x * 2.0, "more": lambda x: x + 1.0}
    order = ["twice", "more"]

    def f(x: Tensor) -> Tensor:
        for name in order:
            x = table[name](x)
        return x

    return f


def partial() -> Program:
    def g(x: Tensor, k: float) -> Tensor:
        return x * k

    p = functools.partial(g, k=3.0)
    box = [p]
    return lambda x: box[0](x)


def ordered() -> Program:
    o = collections.OrderedDict(a=2.0, b=3.0)
    d = collections.deque([1.0, 2.0])

    def f(x: Tensor) -> Tensor:
        for k, v in o.items():
            x = x * v if k == "a" else x + v
        return x - d[0] * len(d)

    return f


def comprehension() -> Program:
    ks = [1.0, 2.0, 3.0]

    def f(x: Tensor) -> Tensor:
        return sum([x * k for k in ks if k > 1.5], x)

    return f


def generator() -> Program:
    ks = {"a": 1.0, "b": 2.0}
    return lambda x: sum((x * v for v in ks.values()), x)


def zipped() -> Program:
    a, b = [1.0, 2.0], [3.0, 4.0]

    def f(x: Tensor) -> Tensor:
        for p, q in zip(a, b, strict=False):
            x = x * p + q
        for i, p in enumerate(a):
            x = x + i * p
        return x + max(b) + sorted(a)[0]

    return f


def nested() -> Program:
    tree = {"a": [1.0, {"b": (2.0, [3.0])}]}
    return lambda x: x * tree["a"][0] + tree["a"][1]["b"][1][0] + len(str(tree))


def fresh_copy() -> Program:
    base = [1.0, 2.0]

    def f(x: Tensor) -> Tensor:
        mine = list(base)
        mine.append(5.0)
        mine[0] = 7.0
        return x * sum(mine) + len(base)

    return f


def fresh_object() -> Program:
    own = type("Own", (Layer,), {"gain": 2.0})

    def f(x: Tensor) -> Tensor:
        layer = own(3.0)
        layer.k = layer.k + 1.0
        return x * layer.k * layer.gain

    return f


def flag_put_back() -> Program:
    state = types.SimpleNamespace(flag=False, k=2.0)

    def g(x: Tensor) -> Tensor:
        return x * state.k if state.flag else x

    def f(x: Tensor) -> Tensor:
        before = state.flag
        state.flag = True
        try:
            return g(x) + 1.0
        finally:
            state.flag = before

    return f


def inner_function() -> Program:
    k = 2.0

    def f(x: Tensor) -> Tensor:
        j = 3.0

        def g(y: Tensor) -> Tensor:
            nonlocal j
            j = j + 1.0
            return y * k * j

        return g(g(x))

    return f


def bound_method() -> Program:
    own = type("Own", (Layer,), {"gain": 2.0})
    return own(2.0).forward


def instance() -> Program:
    own = type("Own", (Layer,), {"gain": 2.0})
    return own(2.0)


def caught() -> Program:
    table = {"a": 1.0}

    def f(x: Tensor) -> Tensor:
        try:
            return x * table["b"]
        except KeyError:
            return x + table["a"]

    return f


def defaulted() -> Program:
    table = {"a": 1.0}
    n = types.SimpleNamespace(a=2.0)
    return lambda x: x * table.get("b", 3.0) + getattr(n, "b", n.a)


def membership() -> Program:
    names, some, order = {"a": 1}, {1, 2}, [3, 4]
    return lambda x: (
        x * (2.0 if "a" in names else 3.0) + (1.0 if 2 in some else 0.0) + (1.0 if 4 in order else 5.0)
    )


def truth() -> Program:
    some: list[float] = []
    name = "relu"
    return lambda x: (x * 2.0 if some else x * 3.0) + (1.0 if name == "relu" and not some else 0.0)


def unpacked() -> Program:
    pair = [2.0, 3.0]

    def f(x: Tensor) -> Tensor:
        a, b = pair
        first, *rest = pair
        return x * a + b + first * len(rest)

    return f


def spread() -> Program:
    args, kwargs = [2.0], {"b": 3.0}

    def g(x: Tensor, a: float, b: float = 0.0) -> Tensor:
        return x * a + b

    return lambda x: g(x, *args, **kwargs)


def matched() -> Program:
    shape = {"kind": "circle", "r": 2.0}

    def f(x: Tensor) -> Tensor:
        match shape:
            case {"kind": "circle", "r": r}:
                return x * r
            case _:
                return x

    return f


def matched_class() -> Program:
    class Point:
        __match_args__ = ("a",)

        def __init__(self) -> None:
            self.a, self.b = 1.0, 2.0

    p = Point()

    def f(x: Tensor) -> Tensor:
        match p:
            case Point(a, b=b):
                return x * a + b
        return x

    return f


def tensors() -> Program:
    ws = {"a": tp.full((2,), 2.0), "b": [tp.full((2,), 3.0)]}
    return lambda x: x * ws["a"] + ws["b"][0]


def special_numbers() -> Program:
    box = [0.0, float("nan"), True, 1, 2**70]
    return lambda x: (
        (x * math.copysign(1.0, box[0]) + len([b for b in box if b == b])) * (2.0 if box[2] is True else 3.0)
    )


def formatted() -> Program:
    names = ["a", "b"]
    return lambda x: x * float(len(f"{names}{names[0]!r}")) + len(str(names))


def subclass() -> Program:
    class Bag(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> float:
            return super().__getitem__(key) + 1.0  # type: ignore[no-any-return]

    bag = Bag(a=2.0)
    return lambda x: x * bag["a"]


def attrgetter() -> Program:
    n = types.SimpleNamespace(k=2.0, inner=types.SimpleNamespace(k=3.0))
    get, deep = operator.attrgetter("k"), operator.attrgetter("inner.k")
    return lambda x: x * get(n) + deep(n)


def getattribute() -> Program:
    class Own:
        def __init__(self) -> None:
            self.k = 2.0

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name)

    own = Own()
    return lambda x: x * own.k


_GLOBALS = {
    "global": "scale = 2.0\ndef f(x):\n    return x * scale\n",
    "global function": "k = 2.0\ndef g(x):\n    return x * k\ndef f(x):\n    return g(x) + 1.0\n",
    "global list": "ks = [1.0, 2.0]\ndef f(x):\n    for k in ks:\n        x = x * k\n    return x\n",
    "absent global": "def f(x):\n    return x * max(2.0, 1.0) * (3.0 if 'late' in globals() else 1.0)\n",
    "import inside": "def f(x):\n    import math as m\n    from math import pi\n    return x * m.e + pi\n",
    "class body": "k = 2.0\ndef f(x):\n    class C:\n        v = k\n    return x * C.v\n",
    "lambda in a list": "fs = [lambda x: x * 2.0, lambda x: x + 1.0]\ndef f(x):\n    for g in fs:\n        x = g(x)\n    return x\n",
}

PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: _from(source) for name, source in _GLOBALS.items()},
    **{
        make.__name__: make
        for make in (
            closure, defaults, nested_defaults, module, inherited, properties, slots, getattr_hook, dataclass, namespace,
            enumeration, dispatch_table, partial, ordered, comprehension, generator, zipped, nested, fresh_copy,
            fresh_object, flag_put_back, inner_function, bound_method, instance, caught, defaulted, membership, truth,
            unpacked, spread, matched, matched_class, tensors, special_numbers, formatted, subclass, attrgetter, getattribute,
        )
    },
}  # fmt: skip
