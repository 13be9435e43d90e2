"""What a capture makes of composite functions, gradient rules and writes: these are no passes, so the text shows them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import tensorplay as tp


def text(graph: Any) -> str:
    """The graph without places in files."""
    lines = re.sub(r"(#|;) at [^\n]*", "", graph.text()).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def expected(block: str) -> str:
    return textwrap.dedent(block).strip()


def test_a_function_is_taken_apart_into_the_ops_that_it_calls():
    """C: decomposition happens in the capture: a function of functions is one node per op."""

    def scaled(x):
        return tp.tanh(x) * 2.0

    def f(x):
        return scaled(scaled(x)) - 1.0

    assert text(tp.graph.capture(f, tp.ones((2,)))) == expected("""
        graph(%0 x: float32[2]) {
          %1: float32[2] = tp::tanh.default(%0)
          %2: float32[2] = tp::mul.Scalar(%1, 2.0)
          %3: float32[2] = tp::tanh.default(%2)
          %4: float32[2] = tp::mul.Scalar(%3, 2.0)
          %5: float32[2] = tp::sub.Scalar(%4, 1.0)
          return %5
        }
    """)


def test_a_gradient_is_taken_apart_into_the_ops_of_its_rule():
    """C: the backward graph holds what the rules call, one node per op."""
    compiled = tp.compile(lambda x: tp.exp(x) * 3.0)
    x = tp.ones((2,)).requires_grad_()
    tp.sum(compiled(x)).backward()
    assert text(compiled.graphs[0].backward) == expected("""
        graph(%0 saved2: float32[2] saved, %1 grad_out0: float32[2] gradient) {
          %2: float32[2] = tp::mul.Scalar(%1, 3.0)  # backward;
          %3: float32[2] = tp::mul.default(%2, %0)  # backward;
          return %3
        }
    """).replace("backward;", "backward")


def test_a_write_keeps_its_place_and_says_whose_memory_it_is():
    """C: writes are not turned into copies: later reads see them by the alias facts of the values."""

    def f(x):
        y = tp.clone(x)
        row = y[0]
        row += 1.0
        y *= 2.0
        return tp.exp(row)

    assert text(tp.graph.capture(f, tp.ones((2, 3)))) == expected("""
        graph(%0 x: float32[2, 3]) {
          %1: float32[2, 3] = tp::clone.default(%0)
          %2: float32[3] = tp::select.default(%1, 0, 0)  # %2 views %1
          %3: float32[3] = tp::add_.Scalar(%2, 1.0)  # mutates; %3 is %2
          %4: float32[2, 3] = tp::mul_.Scalar(%1, 2.0)  # mutates; %4 is %1
          %5: float32[3] = tp::exp.default(%2)
          return %5
        }
    """)
    x = tp.ones((2, 3))
    assert tp.compile(f)(x).tolist() == f(x).tolist()
