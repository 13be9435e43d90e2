"""Guards on attributes of instances are told by words of the interpreter's memory; every way to change one is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import Tensor, _native

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)


class _Base:
    low = 1.0


class _Layer(_Base):
    gain = 3.0

    def __init__(self) -> None:
        self.k, self.on, self.w = 2.0, True, tp.full((2,), 5.0)


class _Other:
    """The same attributes under another class, with another gain."""

    gain, low = 7.0, 1.0


def _make() -> _Layer:
    # A class of its own: what one test does to it no other sees.
    return type("Layer", (_Layer,), {"__module__": __name__})()  # type: ignore[no-any-return]


def _run(of: Any, x: Tensor) -> Tensor:
    y = x * of.w * of.gain * of.low
    return y * of.k if of.on else y


def _into_dict(of: Any) -> None:
    vars(of)["k"] = 11.0


def _new_dict(of: Any) -> None:
    of.__dict__ = {**vars(of), "k": 13.0}


def _shadow(of: Any) -> None:
    of.gain = 17.0


def _shadow_by_another_first(of: Any) -> None:
    other = type(of)()
    other.gain = 1.0
    of.gain = 19.0


def _property(of: Any) -> None:
    type(of).k = property(lambda self: 23.0, lambda self, value: None)


def _slot_like(of: Any) -> None:
    class Data:
        def __get__(self, _of: Any, _type: Any = None) -> float:
            return 29.0

        def __set__(self, _of: Any, value: float) -> None: ...

    type(of).k = Data()


def _another_class(of: Any) -> None:
    of.__class__ = type("Other", (_Other,), {"__module__": __name__})


def _many_names(of: Any) -> None:
    for i in range(40):
        setattr(of, f"name{i}", i)
    of.k = 31.0


CHANGES: dict[str, Callable[[Any], None]] = {
    "value": lambda of: setattr(of, "k", 37.0),
    "minus zero": lambda of: setattr(of, "k", -0.0),
    "type": lambda of: setattr(of, "k", 2),
    "flag": lambda of: setattr(of, "on", False),
    "through the dict": _into_dict,
    "another dict": _new_dict,
    "in front of the class": _shadow,
    "in front of the class, elsewhere first": _shadow_by_another_first,
    "property": _property,
    "data descriptor": _slot_like,
    "class attribute": lambda of: setattr(type(of), "gain", 41.0),
    "class attribute of a base": lambda of: setattr(type(of), "low", 43.0),
    "another class": _another_class,
    "many names": _many_names,
    "another tensor": lambda of: setattr(of, "w", tp.full((2,), 47.0)),
    "a number for a tensor": lambda of: setattr(of, "w", 53.0),
    "values of the tensor": lambda of: of.w.fill_(59.0),
    "gone": lambda of: delattr(of, "k"),
    "a larger tensor": lambda of: setattr(of, "w", tp.full((2, 1), 61.0)),
}


def _outcome(fn: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    try:
        out = fn(x)
    except AttributeError as error:
        return type(error)
    return out.dtype, out.tolist(), [str(v) for v in out.reshape((-1,)).tolist()]


@pytest.mark.parametrize("start", ["values", "dict", "later dict", "copied"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_way_to_change_an_attribute_is_noticed(change: str, start: str) -> None:
    """C: whether the instance has its values in front, in a dict, or came to have a dict between two calls."""
    of: Any = _make()
    if start == "dict":
        vars(of)
    if start == "copied":
        of = copy.copy(of)
    compiled = tp.compile(lambda x: _run(of, x))
    x = tp.tensor([1.0, 2.0])
    for _ in range(2):
        assert _outcome(compiled, x) == _outcome(lambda x: _run(of, x), x)
    if start == "later dict":
        vars(of)
        for _ in range(2):
            assert _outcome(compiled, x) == _outcome(lambda x: _run(of, x), x)
    assert len(compiled.graphs) == 1
    CHANGES[change](of)
    for _ in range(2):
        assert _outcome(compiled, x) == _outcome(lambda x: _run(of, x), x)
    # What was changed once is watched as before.
    for name, value in (("k", 67.0), ("w", tp.full((2,), 71.0)), ("gain", 73.0)):
        setattr(of, name, value)
        assert _outcome(compiled, x) == _outcome(lambda x: _run(of, x), x)


def test_a_tensor_that_comes_to_require_a_gradient_is_noticed() -> None:
    """C: of a tensor that stands where it stood more is guarded than which one it is."""
    of = _make()
    compiled = tp.compile(lambda x: _run(of, x))
    x = tp.tensor([1.0, 2.0])
    assert not compiled(x).requires_grad
    of.w.requires_grad = True
    out = compiled(x)
    assert out.requires_grad
    out.sum().backward()
    assert of.w.grad.tolist() == [6.0, 12.0]


def test_a_class_without_versions_is_looked_into_at_each_call() -> None:
    """C: CPython gives classes with an MRO of their own none."""

    class Meta(type):
        def mro(cls) -> list[type]:
            return [*super().mro()]

    class Layer(metaclass=Meta):
        gain = 2.0

        def __init__(self) -> None:
            self.k = 3.0

    of = Layer()
    compiled = tp.compile(lambda x: x * of.k * of.gain)
    for change in (lambda: None, lambda: setattr(Layer, "gain", 5.0), lambda: setattr(of, "k", 7.0)):
        change()
        for _ in range(2):
            assert compiled(tp.ones(())).item() == of.k * of.gain


def test_tensors_of_many_places_are_each_fetched_from_theirs() -> None:
    """C: some of them swapped, others not, among attributes, dicts and lists."""
    layers: list[Any] = [_make() for _ in range(6)]
    for i, layer in enumerate(layers):
        layer.w = tp.full((2,), float(i))
        layer.table = {"b": tp.full((2,), 0.5 * i)}

    def fn(x: Tensor) -> Tensor:
        for layer in layers:
            x = x * layer.w + layer.table["b"]
        return x

    compiled = tp.compile(fn)
    x = tp.tensor([1.0, 2.0])
    for change in range(12):
        layer = layers[change * 5 % 6]
        if change % 2:
            layer.w = tp.full((2,), change + 0.25)
        else:
            layer.table["b"] = tp.full((2,), change + 0.75)
        for _ in range(2):
            assert compiled(x).tolist() == fn(x).tolist()
    assert len(compiled.graphs) == 1
    assert {run.marker.executor for run in compiled.last_run.forward} == {"native"}
