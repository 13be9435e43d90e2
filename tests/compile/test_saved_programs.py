"""Captured programs outside of their process: run, as source, as JSON, in files, in scripts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.errors import ContractError, GraphError

WEIGHT = tp.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
SHIFT = tp.tensor([0.5, -0.5])


def several(x):
    """Constants, lists, keywords, several outputs, infinite and typed literals."""
    y = tp.matmul(x, tp.transpose(WEIGHT, 0, 1)) + SHIFT
    low, high = tp.min(y, axis=1, keepdims=True), tp.max(y)
    z = tp.where(y > 0, y, float("-inf"))
    both = tp.concat([tp.softmax(z, axis=-1), y], axis=1)
    return both, tp.astype(y * 3, tp.int8), low - high, tp.zeros((2,), dtype=tp.float64)


def writes(x):
    """A write to an argument through a view, and a read behind it."""
    row = x[0]
    row.add_(1.0)
    return x * 2.0


def splits(x):
    """A list of results, and literals that no text form says plainly."""
    first, rest = x[:1], x[1:]
    return tp.stack([first[0], rest[0]], axis=0), tp.full((2,), float("nan")), tp.pow(x, 2)


def draws(x):
    """Random numbers of the process's generator."""
    return x + tp.normal(x.shape)


X = [[1.0, 2.0, 3.0], [-1.0, 0.0, 0.5], [0.0, -0.0, 2.0], [4.0, 1.0, 1.0]]
PROGRAMS = {f.__name__: f for f in (several, writes, splits, draws)}


def results(f: Callable, *args: tp.Tensor) -> list[bytes]:
    """The exact values, from the same state of the generator."""
    tp.manual_seed(5)
    made = f(*args)
    made = made if isinstance(made, tuple) else (made,)
    return [(t.dtype.name, tuple(t.shape), t.contiguous().numpy().tobytes()) for t in made]


def fresh() -> tp.Tensor:
    return tp.tensor(X)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_runs_to_the_values_of_its_function(name: str) -> None:
    """5.saved: called, compiled, as source and read back from file and JSON; writes reach the argument."""
    f = PROGRAMS[name]
    graph = tp.graph.capture(f, fresh())
    want, changed = results(f, x := fresh()), x.tolist()
    scope: dict = {}
    exec(graph.code("program"), scope)
    constants = list(graph.constants.values())
    ways = {
        "called": graph,
        "compiled": tp.compile(graph),
        "source": lambda x: scope["program"](x, *constants),
        "json": lambda x: tp.graph.from_json(graph.to_json())(x, *constants),
    }
    for way, run in ways.items():
        x = fresh()
        assert results(run, x) == want, way
        assert x.tolist() == changed, way


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_gives_the_program_back(name: str, tmp_path: Path) -> None:
    """5.saved: graph and constants, equal, verified, to the same values; the constants are the file's own."""
    graph = tp.graph.capture(PROGRAMS[name], fresh())
    tp.graph.save(graph, tmp_path / "program.safetensors")
    loaded = tp.graph.load(tmp_path / "program.safetensors")
    assert loaded == graph
    assert loaded.verify() == []
    assert {k: v.tolist() for k, v in loaded.constants.items()} == {
        k: v.tolist() for k, v in graph.constants.items()
    }
    assert results(loaded, fresh()) == results(PROGRAMS[name], fresh())
    own = {t.data_ptr() for t in loaded.constants.values()}
    assert not own & {t.data_ptr() for t in graph.constants.values()}


def test_gradients_go_through_a_graph() -> None:
    """5.saved: a call is one of the ops themselves."""
    graph = tp.graph.capture(lambda x: tp.sum(tp.tanh(x) * x), fresh())
    x = fresh().requires_grad_()
    graph(x).backward()
    want = fresh().requires_grad_()
    tp.sum(tp.tanh(want) * want).backward()
    assert x.grad.tolist() == want.grad.tolist()


def test_constants_of_any_layout_come_back(tmp_path: Path) -> None:
    """5.saved: transposed, expanded, flipped, sliced, empty and 0-d, of every dtype; two over one memory."""
    base = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    kept = [
        tp.from_numpy(base).T,
        tp.expand(tp.tensor([[1.0], [2.0]]), (2, 5)),
        tp.from_numpy(base[::-1]),
        tp.from_numpy(base)[:, ::2],
        tp.zeros((0, 3)),
        tp.tensor(2.5),
        tp.from_numpy(base)[1:],
        *(
            tp.astype(tp.tensor([0.0, 1.5]), getattr(tp, d))
            for d in ("bool", "uint8", "int64", "float16", "bfloat16")
        ),
    ]
    graph = tp.graph.capture(lambda x: tuple(x + k for k in kept), tp.tensor(1.0))
    tp.graph.save(graph, tmp_path / "p")
    loaded = tp.graph.load(tmp_path / "p")
    got, want = loaded(tp.tensor(1.0)), tuple(1.0 + k for k in kept)
    assert [t.tolist() for t in got] == [t.tolist() for t in want]
    assert loaded.constants["%1"].stride() == (1, 6)


def test_what_a_file_cannot_say_is_not_saved(tmp_path: Path) -> None:
    """5.saved: constants without data, and memory that is written and shared."""
    x = tp.ones((3,))
    tail = x[1:]

    def shared(x):
        x.add_(1.0)
        return tail * 2.0

    graph = tp.graph.capture(shared, x)
    with pytest.raises(GraphError, match="no data for lifted0"):
        tp.graph.save(tp.graph.parse(graph.text()), tmp_path / "p")
    with pytest.raises(GraphError, match="share"):
        tp.graph.save(graph, tmp_path / "p")


DEFINES = """
import tensorplay as tp
from tensorplay import library

@library.custom_op("m::f", mutates_args=())
def f(x, slope: float = 2.0):
    return x * slope

f.register_fake(lambda x, slope=2.0: tp.empty_like(x * slope))
library.custom_op("m::g", lambda x: x + 1.0, mutates_args=()).register_fake(lambda x: tp.empty_like(x))
"""


def run(script: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ops_that_are_missing_are_listed_with_their_schemas(tmp_path: Path) -> None:
    """C5: in a process where they were never defined; after the import of what defines them it loads and runs."""
    (tmp_path / "defines.py").write_text(DEFINES)
    run(
        "import defines, tensorplay as tp\n"
        "g = tp.graph.capture(lambda x: tp.ops.m.g(tp.ops.m.f(x, 3.0)), tp.ones((2,)))\n"
        "tp.graph.save(g, 'p.safetensors')",
        tmp_path,
    )
    script = """
        import tensorplay as tp
        try:
            tp.graph.load("p.safetensors")
        except tp.errors.GraphError as error:
            print(error, *error.__notes__, sep="\\n")
        import defines
        print(tp.graph.load("p.safetensors")(tp.ones((2,))).tolist())
    """
    printed = run(textwrap.dedent(script), tmp_path).splitlines()
    assert printed[0] == (
        "[TP5006] ops that the program calls are not defined here: "
        "m::f(Tensor x, float slope=2.) -> Tensor; m::g(Tensor x) -> Tensor"
    )
    assert "import the modules that define them" in printed[1]
    assert printed[-1] == "[4.0, 4.0]"
    # Defined, but otherwise: arguments were filled in by position.
    (tmp_path / "defines.py").write_text(DEFINES.replace("slope: float = 2.0", "scale: float = 2.0"))
    script = "import defines, tensorplay as tp\ntry:\n tp.graph.load('p.safetensors')\nexcept ValueError as e: print(e)"
    assert "m::f(Tensor x, float slope=2.) -> Tensor is m::f(Tensor x, float scale=2.) -> Tensor here" in run(
        script, tmp_path
    )


def test_every_way_to_call_an_op_is_the_same_target(ns: str) -> None:
    """C7: the packet, the overload and the def object; two overloads stay two."""
    lib = tp.library.Library(ns, "DEF")
    for overload, kind in (("", "Tensor y"), (".Scalar", "Scalar y")):
        name = f"{ns}::h{overload}"
        tp.library.define(name, f"(Tensor x, {kind}) -> Tensor", lib=lib)
        tp.library.impl(name, "default", lambda x, y: x + y, lib=lib)
        tp.library.register_fake(name, lambda x, y: tp.empty_like(x), lib=lib)
    packet = getattr(tp.ops, ns).h
    graph = tp.graph.capture(lambda x: packet(packet.default(packet(x, x), x), 2.0), tp.ones((2,)))
    assert [n.target for n in graph.nodes] == [f"{ns}::h.default", f"{ns}::h.default", f"{ns}::h.Scalar"]
    assert f"tp.ops.{ns}.h.Scalar(v2, 2.0)" in graph.code()
    assert graph(tp.ones((2,))).tolist() == [5.0, 5.0]


def test_a_graph_is_called_with_what_it_was_captured_for() -> None:
    """5.saved: count, type, dtype, shape and strides, each named; sizes that data tells are found and checked."""
    graph = tp.graph.capture(lambda x: x + 1.0, fresh())
    wrong = {
        "takes 1 tensors, got 2": (fresh(), fresh()),
        "x is a float, not a tensor": (1.0,),
        "x is float64": (tp.astype(fresh(), tp.float64),),
        r"x is float32\[3, 3\].*captured for float32\[4, 3\]": (fresh()[:3],),
        r"strides \[1, 4\]": (tp.ones((3, 4)).T,),
    }
    for match, args in wrong.items():
        with pytest.raises(GraphError, match=match):
            graph(*args)


def test_sizes_that_depend_on_data_are_those_of_the_run(ns: str) -> None:
    """5.saved: called and as source; a range and a check are held."""
    op = tp.library.custom_op(f"{ns}::positive", lambda x: x[x > 0.0], mutates_args=())
    op.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(max=3),)))

    def f(x):
        y = op(x)
        tp.check(y.shape[0] < x.shape[0], "too many")
        return tp.reshape(y, (y.shape[0], 1)) * 2.0, tp.ones((y.shape[0] + 1,))

    graph = tp.graph.capture(f, tp.ones((4,)))
    scope: dict = {}
    exec(graph.code(), scope)
    for values in ([1.0, -1.0, 2.0, -3.0], [-1.0] * 4, [1.0, 2.0, 3.0, -1.0]):
        x = tp.tensor(values)
        want = [t.tolist() for t in f(x)]
        assert [t.tolist() for t in graph(x)] == want
        assert [t.tolist() for t in scope["forward"](x)] == want
        assert [t.tolist() for t in tp.graph.from_json(graph.to_json())(x)] == want
    with pytest.raises((GraphError, ContractError)):
        graph(tp.ones((4,)))


def test_an_op_that_changed_its_mind_is_noticed(ns: str) -> None:
    """5.saved: results are held to what the fake rule promised, values that are no tensors too."""
    op = tp.library.custom_op(
        f"{ns}::two", lambda x: (x[:1].clone(), 7), mutates_args=(), schema="(Tensor x) -> (Tensor, int)"
    )
    op.register_fake(lambda x: (tp.empty_like(x), 7))
    graph = tp.graph.capture(lambda x: op(x)[0], tp.ones((2,)))
    with pytest.raises(ContractError, match=r"is float32\[1\], the fake rule promised float32\[2\]"):
        graph(tp.ones((2,)))


def test_hostile_files_are_graph_errors(tmp_path: Path) -> None:
    """5.saved: files cut short, changed bytes, other JSON, other tensors; never a crash, and nothing runs."""
    graph = tp.graph.capture(several, fresh())
    path = tmp_path / "p"
    tp.graph.save(graph, path)
    whole = path.read_bytes()
    draw = random.Random(3)
    loaded, codes = 0, set()
    for _ in range(1500):
        data = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.2 else whole)
        for _ in range(draw.randint(1, 4)):
            if data:
                data[draw.randrange(len(data))] = draw.choice(b'0123456789%[](){},:"=-. abfnu\\\x00\xff')
        path.write_bytes(data)
        try:
            tp.graph.load(path)
            loaded += 1
        except GraphError as error:
            codes.add(error.code)
    assert codes <= {"TP5001", "TP5002", "TP5005", "TP5006"}
    # Bytes of constants, places in comments and names may change.
    assert 0 < loaded < 700
    with pytest.raises(FileNotFoundError):
        tp.graph.load(tmp_path / "absent")


def changed(graph: tp.graph.Graph, **parts: object) -> str:
    return json.dumps(json.loads(graph.to_json()) | parts)


def test_hostile_json_is_a_graph_error() -> None:
    """5.saved: each part that is missing or of another kind, deep nesting, programs that the verifier refuses."""
    graph = tp.graph.capture(lambda x: tp.exp(x) + 1.0, tp.ones((3,)))
    text = graph.text()
    cases = [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "format"),
        (changed(graph, format="x"), "format"),
        (changed(graph, version=2), "version is 2"),
        (changed(graph, version=True), "version"),
        (changed(graph, text=3), "lacks"),
        (changed(graph, ops=[]), "lacks"),
        (changed(graph, ops={}), "lacks the schemas of tp::add.Scalar, tp::exp.default"),
        (changed(graph, ops={"tp::exp.default": 3}), "lacks"),
        (changed(graph, text="graph("), "line 1"),
        (changed(graph, text=text.replace("float32[3] = tp::exp", "float32[4] = tp::exp")), "breaks rules"),
        (changed(graph, text=text.replace("exp.default(%0)", "exp.default(%0, %0)")), "breaks rules"),
        (changed(graph, text=text.replace("return %2", "return %7")), "breaks rules"),
        (
            changed(
                graph,
                text=text.replace("exp.", "nothing."),
                ops={"tp::nothing.default": "tp::nothing(Tensor x) -> Tensor", "tp::add.Scalar": ""},
            ),
            "not defined here: tp::nothing",
        ),
    ]
    for case, match in cases:
        with pytest.raises(GraphError, match=match):
            tp.graph.from_json(case)
    assert tp.graph.from_json(graph.to_json()) == graph


def test_source_is_readable_and_its_names_are_its_own() -> None:
    """5.saved: parameters by name unless that is a word of Python's, `tp`, or a value's; places as comments."""
    graph = tp.graph.capture(
        lambda x, v3, tp, **rest: x + v3 * rest["class"] - tp,
        *[tp.ones((2,))] * 1,
        fresh()[0][:2],
        tp.tensor([2.0, 2.0]),
        **{"class": tp.tensor([3.0, 4.0])},
    )
    source = graph.code()
    scope: dict = {}
    exec(source, scope)
    args = [tp.ones((2,)), tp.tensor([1.0, 2.0]), tp.tensor([2.0, 2.0]), tp.tensor([3.0, 4.0])]
    assert scope["forward"](*args).tolist() == [2.0, 7.0]
    assert source.splitlines()[3].startswith("def forward(x, ")
    assert "test_saved_programs.py:" in source


def test_source_of_a_hostile_graph_is_that_of_its_calls(ns: str) -> None:
    """5.saved: names of ops that are words of Python's, and places with a line of code in them."""
    op = tp.library.custom_op(f"{ns}::lambda", lambda x: x + 1.0, mutates_args=())
    op.register_fake(lambda x: tp.empty_like(x))
    text = tp.graph.capture(lambda x: op(x), tp.ones((2,))).text()
    place = text.partition("# at ")[2].partition("\n")[0]
    graph = tp.graph.parse(text.replace(place, r"a.py\nraise SystemExit(3)\n:1"))
    assert "\n" in graph.nodes[0].location
    scope: dict = {}
    exec(graph.code(), scope)
    assert scope["forward"](tp.ones((2,))).tolist() == [2.0, 2.0]
    for name in ("not a name", "class", ""):
        with pytest.raises(ValueError, match="cannot be named"):
            graph.code(name)


def test_constants_of_a_changed_file_have_values_before_strides(tmp_path: Path) -> None:
    """5.saved: strides that cannot be given, symbols among them, leave the values or are a GraphError."""
    graph = tp.graph.capture(lambda x: x + WEIGHT, tp.ones((2, 3)))
    tp.graph.save(graph, tmp_path / "p")
    whole = json.loads(tp.load_metadata(tmp_path / "p")["tensorplay.graph"])
    tensors = tp.load(tmp_path / "p")
    for strides in ("1, 1", "0, 0", "-3, 1", "1, 2", "9000000000000000000, 1", "u0, 1", "1000000, 1"):
        text = whole["text"].replace("float32[2, 3] lifted", f"float32[2, 3] strides [{strides}] lifted")
        assert text != whole["text"]
        body = json.dumps(whole | {"text": text})
        tp.save(tmp_path / "q", tensors, metadata={"tensorplay.graph": body})
        try:
            loaded = tp.graph.load(tmp_path / "q")
        except GraphError:
            continue
        assert loaded.constants["%1"].tolist() == WEIGHT.tolist(), strides


def test_print_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """5.saved."""
    graph = tp.graph.capture(lambda x: x + 1.0, tp.ones((2,)))
    graph.print()
    assert capsys.readouterr().out == graph.text() + "\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_repro_runs_by_itself(name: str, tmp_path: Path) -> None:
    """5.repro: a script with random inputs of the same shapes, dtypes and strides."""
    graph = tp.graph.capture(PROGRAMS[name], tp.ones((3, 4)).T)
    graph.save_repro(tmp_path / "repro.py")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "repro.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("eager")
    assert "compiled" in done.stdout
    scope: dict = {"__name__": "repro"}
    exec((tmp_path / "repro.py").read_text(), scope)
    (x, *_) = scope["inputs"]()
    assert (tuple(x.shape), x.stride()) == ((4, 3), (1, 4))


def test_a_repro_of_custom_ops_says_what_to_import(tmp_path: Path) -> None:
    """5.repro: the comment stands where the import goes; with it the script runs."""
    (tmp_path / "defines.py").write_text(DEFINES)
    run(
        "import defines, tensorplay as tp\n"
        "tp.graph.capture(lambda x: tp.ops.m.f(x), tp.tensor([1, 2])).save_repro('repro.py')",
        tmp_path,
    )
    text = (tmp_path / "repro.py").read_text()
    assert "# It calls m::f.default: import what defines it here." in text
    (tmp_path / "repro.py").write_text(text.replace("# It calls", "import defines  # It calls"))
    assert "eager" in run((tmp_path / "repro.py").read_text(), tmp_path)
