"""Guards that one word of a dict stands for: looked at again when the dict changed, and only then."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import _native

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)

SOURCE = """
import tensorplay as tp
import helpers
k, table, other = 2.0, {"a": 3.0, "b": 0.0}, 0
def f(x):
    return tp.add(x * k, 0.0) * table["a"] * len(table) * helpers.scale(2.0) + float("b" in table)
"""


def _program() -> tuple[dict[str, Any], types.ModuleType]:
    """The globals of a module with a function `f`, and the module `helpers` that it reads."""
    helpers = types.ModuleType("helpers")
    helpers.__dict__["scale"] = lambda v: v * 5.0
    scope: dict[str, Any] = {"__name__": "versions"}
    source = SOURCE.replace("import helpers\n", "")
    exec(compile(source, "versions.py", "exec"), scope)
    scope["helpers"] = helpers
    return scope, helpers


def _cleared(scope: dict[str, Any], helpers: types.ModuleType) -> None:
    kept = dict(scope)
    scope.clear()
    scope.update(reversed(list(kept.items())))
    scope["k"] = 7.0


CHANGES: dict[str, Callable[[dict[str, Any], types.ModuleType], Any]] = {
    "a global": lambda scope, helpers: scope.update(k=5.0),
    "a global by exec": lambda scope, helpers: exec("k = 6.0", scope),
    "a global removed": lambda scope, helpers: scope.pop("k"),
    "a global of another type": lambda scope, helpers: scope.update(k=2),
    "all globals put back in another order": _cleared,
    "an item": lambda scope, helpers: scope["table"].update(a=4.0),
    "an item removed": lambda scope, helpers: scope["table"].popitem(),
    "items added": lambda scope, helpers: scope["table"].update(c=1.0, d=2.0),
    "another table": lambda scope, helpers: scope.update(table={"a": 9.0}),
    "a function of a module": lambda scope, helpers: setattr(helpers, "scale", lambda v: v),
    "a builtin that is shadowed": lambda scope, helpers: scope.update(len=lambda t: 11.0),
}


def _outcome(fn: Callable[..., Any]) -> Any:
    try:
        return fn(tp.tensor([1.0, 2.0])).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_however_it_comes(name: str) -> None:
    """5.5: after calls that renewed the words, and after unrelated changes."""
    for unrelated in (0, 3):
        scope, helpers = _program()
        compiled = tp.compile(scope["f"])
        for i in range(unrelated + 1):
            assert _outcome(compiled) == _outcome(scope["f"])
            scope["other"] = helpers.__dict__["other"] = i
        CHANGES[name](scope, helpers)
        for _ in range(2):
            assert _outcome(compiled) == _outcome(scope["f"])


def test_unrelated_changes_and_values_put_back_make_no_graph() -> None:
    """5.5: the word moved, what it stands for did not."""
    scope, helpers = _program()
    compiled = tp.compile(scope["f"])
    wanted = _outcome(scope["f"])
    for i in range(5):
        assert _outcome(compiled) == wanted
        scope["other"] = i
        scope[f"new{i}"] = i
        scope["k"], scope["table"]["a"] = 9.0, 9.0
        scope["k"], scope["table"]["a"] = 2.0, 3.0
        helpers.__dict__[f"new{i}"] = i
    assert len(compiled.graphs) == 1


def test_dicts_of_other_classes_are_asked_each_time() -> None:
    """5.5: their length and order may be what their class says."""

    class Longer(dict[str, float]):
        extra = 1

        def __len__(self) -> int:
            return dict.__len__(self) + self.extra

    for table in (
        Longer(a=2.0),
        collections.OrderedDict(a=2.0, b=1.0),
        collections.defaultdict(float, a=2.0),
    ):
        fn = lambda x, table=table: x * len(table) + sum(table.values())  # noqa: E731
        compiled = tp.compile(fn)
        for _ in range(2):
            assert _outcome(compiled) == _outcome(fn)
        Longer.extra += 1
        if isinstance(table, collections.OrderedDict):
            table.move_to_end("a")
        table["c"] = 4.0
        assert _outcome(compiled) == _outcome(fn)
