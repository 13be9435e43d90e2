"""Nests of tuples, lists and dicts, as the functional transforms take and return them.

Lives here: taking a nest apart into leaves and a structure, and putting it together again. Not here: what leaves may
be; a transform says so itself.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["Structure", "broadcast", "flatten", "map_named", "tree_map", "unflatten"]

_LEAF = object()


class Structure:
    """The shape of a nest: compares equal for nests that differ in leaves alone."""

    __slots__ = ("children", "keys", "kind")

    def __init__(self, kind: Any, keys: tuple[Any, ...], children: tuple[Structure, ...]) -> None:
        self.kind, self.keys, self.children = kind, keys, children

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and (self.kind, self.keys, self.children) == (
            other.kind,
            other.keys,
            other.children,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.kind is _LEAF:
            return "*"
        inner = ", ".join(map(repr, self.children))
        return f"{self.kind.__name__}({inner})"

    @property
    def is_leaf(self) -> bool:
        """Whether it stands for one leaf."""
        return self.kind is _LEAF

    def count(self) -> int:
        """Number of leaves."""
        return 1 if self.is_leaf else sum(child.count() for child in self.children)


ONE = Structure(_LEAF, (), ())


def flatten(nest: Any) -> tuple[list[Any], Structure]:
    """Leaves in order, and the structure; everything but tuples, lists and dicts is a leaf."""
    leaves: list[Any] = []
    return leaves, _flatten(nest, leaves)


def _flatten(nest: Any, leaves: list[Any]) -> Structure:
    if isinstance(nest, dict):
        keys = tuple(nest)
        return Structure(type(nest), keys, tuple(_flatten(nest[k], leaves) for k in keys))
    if isinstance(nest, (tuple, list)):
        return Structure(type(nest), (), tuple(_flatten(item, leaves) for item in nest))
    leaves.append(nest)
    return ONE


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """The nest of that structure over these leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.is_leaf:
        return next(leaves)
    children = [_unflatten(child, leaves) for child in structure.children]
    if issubclass(structure.kind, dict):
        return structure.kind(zip(structure.keys, children, strict=True))
    if hasattr(structure.kind, "_fields"):  # a named tuple takes its items one by one
        return structure.kind(*children)
    return structure.kind(children)


def tree_map(fn: Callable[[Any], Any], nest: Any) -> Any:
    """`fn` of every leaf, in the same nest."""
    leaves, structure = flatten(nest)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def map_named(fn: Callable[[Any, str], Any], nest: Any, name: str) -> Any:
    """`fn(leaf, place)` of every leaf, in the same nest; `place` is Python text such as `name[0]['key']`."""
    if isinstance(nest, dict):
        items = [(k, map_named(fn, v, f"{name}[{k!r}]")) for k, v in nest.items()]
        return type(nest)(items)
    if isinstance(nest, (tuple, list)):
        children = [map_named(fn, item, f"{name}[{i}]") for i, item in enumerate(nest)]
        return type(nest)(*children) if hasattr(nest, "_fields") else type(nest)(children)
    return fn(nest, name)


def broadcast(prefix: Any, structure: Structure) -> list[Any] | None:
    """One entry of `prefix` per leaf of `structure`: a leaf of the prefix stands for all below it. None when the two do not fit."""
    if not isinstance(prefix, (tuple, list, dict)):
        return [prefix] * structure.count()
    if structure.is_leaf or len(prefix) != len(structure.children):
        return None
    if isinstance(prefix, dict):
        if tuple(prefix) != structure.keys and set(prefix) != set(structure.keys):
            return None
        parts = [prefix[k] for k in structure.keys]
    elif structure.keys:
        return None
    else:
        parts = list(prefix)
    found: list[Any] = []
    for part, child in zip(parts, structure.children, strict=True):
        entries = broadcast(part, child)
        if entries is None:
            return None
        found += entries
    return found
