"""`tp.trace()`: the events of a block, as a list and as a table."""

from __future__ import annotations

import json
import threading

import tensorplay as tp


def test_events_in_order() -> None:
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    with tp.trace() as events:
        y = (x * 2.0).sum()
        assert len(events) == 2
        y.backward()
    forward = [e for e in events if e.phase == "forward"]
    assert [(e.op, e.key, e.marker.executor) for e in forward] == [
        ("tp::mul.Scalar", "cpu", "native"),
        ("tp::sum.default", "cpu", "native"),
    ]
    assert forward[0].shapes == ((2,),)
    assert forward[0].dtypes == ("float32",)
    assert forward[0].host_seconds > 0
    assert any(e.phase == "backward" for e in events)
    assert events[0] == next(iter(events))
    assert events[:1] == [events[0]]
    assert json.loads(json.dumps(events.to_dict()))[0]["marker"]["executor"] == "native"


def test_a_table() -> None:
    with tp.trace() as events:
        assert repr(events) == "no calls"
        tp.exp(tp.ones([2, 3]))
    lines = repr(events).splitlines()
    assert lines[0].split()[:4] == ["op", "key", "phase", "executor"]
    assert "tp::exp.default" in repr(events)
    assert "(2, 3)" in lines[-1]
    assert events._repr_html_().startswith("<table><tr><th>op</th>")


def test_nothing_is_seen_outside_or_by_other_threads() -> None:
    tp.ones([1])
    with tp.trace() as outer:
        tp.exp(tp.ones([1]))
        thread = threading.Thread(target=lambda: tp.sin(tp.ones([1])))
        thread.start()
        thread.join()
        with tp.trace() as inner:
            tp.cos(tp.ones([1]))
    tp.tan(tp.ones([1]))
    names = [e.op.split("::")[1].split(".")[0] for e in outer]
    assert "sin" not in names
    assert "tan" not in names
    assert [n for n in names if n in ("exp", "cos")] == ["exp", "cos"]
    assert [e.op for e in inner][-1] == "tp::cos.default"
