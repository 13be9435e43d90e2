"""Captured programs with symbols outside of their process: held to what their capture took of the sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, _expressions
from tensorplay.errors import GraphError
from tensorplay.graph import Graph


def _forms(graph: Graph, path: Path) -> dict[str, Any]:
    """All that a graph can be called as."""
    tp.graph.save(graph, path)
    source: dict[str, Any] = {}
    exec(graph.code(), source)
    return {
        "graph": graph,
        "loaded": tp.graph.load(path),
        "json": tp.graph.from_json(graph.to_json()),
        "text": tp.graph.parse(graph.text()),
        "code": source["forward"],
        "compiled": tp.compile(graph),
        "compiled with symbols": tp.compile(graph, dynamic=True),
    }


def test_a_program_is_held_to_the_sizes_that_its_capture_guarded(tmp_path: Path) -> None:
    """C16: guards and ranges of symbols hold of every form of it; other sizes are an error, not the other branch's values."""
    compiled = tp.compile(lambda x: x + 1.0 if x.shape[0] % 2 == 0 else x + 2.0, dynamic=True)
    compiled(tp.zeros((4,)))
    for name, form in _forms(compiled.graphs[0], tmp_path / "even").items():
        for n in (4, 6, 8):
            assert form(tp.zeros((n,))).tolist() == [1.0] * n, name
        for n in (5, 1, 0):
            with pytest.raises(ValueError, match="s0") as caught:
                form(tp.zeros((n,)))
            assert caught.value.code == ("TP1171" if name == "code" else "TP5007"), name


def test_a_program_with_symbols_compiles_with_symbols(tmp_path: Path) -> None:
    """C16: sizes of arguments stay symbols through a call of the graph: one entry for all of them."""
    compiled = tp.compile(lambda x: (tp.softmax(x, axis=1), x.reshape((-1,))), dynamic=True)
    compiled(tp.ones((4, 3)))
    again = tp.compile(compiled.graphs[0], dynamic=True)
    for shape in ((4, 3), (5, 7), (2, 9)):
        x = tp.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        for got, expected in zip(again(x), (tp.softmax(x, axis=1), x.reshape((-1,))), strict=True):
            assert got.tolist() == expected.tolist()
        assert again.last_run.forward[0].marker.executor == "native"
    assert len(again.graphs) == 1


@pytest.mark.thread_unsafe(reason="puts a parser of its own in place of Python's")
def test_a_parser_that_other_threads_disturb_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: `ast.parse` of CPython 3.11 raises SystemError where several threads call it; a program's sizes are read all the same."""
    compiled = tp.compile(lambda x: x.reshape((-1,)) * 2.0, dynamic=True)
    compiled(tp.ones((4, 3)))
    parse, calls = ast.parse, []

    def disturbed(*args: Any, **kwargs: Any) -> ast.AST:
        calls.append(args)
        if len(calls) % 2:
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(*args, **kwargs)

    _expressions._parsed.cache_clear()
    monkeypatch.setattr(ast, "parse", disturbed)
    assert compiled.graphs[0](tp.ones((11, 13))).tolist() == [2.0] * 143
    assert len(calls) > 1


def test_checks_of_a_program_hold_when_it_is_compiled_and_in_its_source(tmp_path: Path) -> None:
    """C16: a check of a size that only a run knows goes into the new graph, with its message."""

    def program(x: Tensor) -> Tensor:
        found = x[x > 0.0]
        tp.check(found.shape[0] > 1, 'two "hits" at least')
        return found * 2.0

    graph = tp.graph.capture(program, tp.ones((3,)))
    for name, form in _forms(graph, tmp_path / "checked").items():
        assert form(tp.tensor([1.0, -1.0, 2.0])).tolist() == [2.0, 4.0], name
        with pytest.raises(ValueError, match='two "hits" at least'):
            form(tp.tensor([1.0, -1.0, -2.0]))


def test_a_script_of_a_backward_has_the_sizes_of_its_capture(tmp_path: Path) -> None:
    """C16: a symbol that no input of the backward shows has the number that a guard gives it."""
    weight = tp.ones((3, 4))
    compiled = tp.compile(lambda x: tp.sum(tp.tanh(x @ weight)), dynamic=True)
    compiled(tp.ones((5, 3)).requires_grad_()).backward()
    backward = compiled.graphs[0].backward
    assert backward is not None
    backward.save_repro(tmp_path / "shown.py")
    run = subprocess.run([sys.executable, tmp_path / "shown.py"], capture_output=True, text=True, check=True)
    assert "eager" in run.stdout
    assert "random((5, 4)" in (tmp_path / "shown.py").read_text(encoding="utf-8")


def test_a_text_that_breaks_a_rule_is_not_run() -> None:
    """C16: what was parsed is verified before a call of it; the error lists what is wrong."""
    graph = tp.graph.parse(
        "graph(%0 x: float32[3]) {\n  %1: float32[3] = tp::add.default(%0)\n  return %1\n}\n"
    )
    with pytest.raises(GraphError) as caught:
        graph(tp.ones((3,)))
    assert caught.value.code == "TP5002"
