"""The command line: facts, capabilities, operators, verification and error codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorplay
from tensorplay import codes
from tensorplay.backends import base
from tensorplay.cli import diagnose, main
from tensorplay.errors import FallbackError, TensorPlayError
from tensorplay.outcome import Capability

ROOT = Path(__file__).parent.parent


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit status, output, errors) of one command."""
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "tensorplay", "explain", "TP1203"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("TP1203 (element types)")


def test_env_has_the_facts_a_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "env", "--json")
    facts = json.loads(out)
    assert status == 0
    assert set(facts) == {
        "tensorplay",
        "python",
        "implementation",
        "platform",
        "machine",
        "cpu",
        "cpu_count",
        "threads",
        "packages",
        "capabilities",
    }
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in facts["packages"]
    assert set(facts["capabilities"]) >= {"native", "python", "tvm", "triton", "cuda"}
    assert facts["capabilities"]["native"]["available"] is True
    status, text, _ = run(capsys, "env")
    assert status == 0
    assert facts["tensorplay"] in text


def test_doctor_fails_only_for_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    found = base.capabilities()
    status, out, _ = run(capsys, "doctor")
    assert status == 0
    assert all(name in out for name in found)
    assert run(capsys, "doctor", "--require", "native,python")[0] == 0
    absent = [name for name, capability in found.items() if not capability.available]
    for name in absent:
        status, out, _ = run(capsys, "doctor", "--require", f"native,{name}")
        assert status == 1
        assert f"required, and not ok: {name}" in out
    status, _, err = run(capsys, "doctor", "--require", "nope")
    assert status == 2
    assert "no capability named 'nope'" in err
    status, out, _ = run(capsys, "doctor", "--json")
    assert json.loads(out)["capabilities"]["native"]["state"] == "ok"


def test_missing_and_broken_are_told_apart() -> None:
    assert diagnose(Capability("native", True)) == ("ok", "", "")
    state, why, fix = diagnose(Capability("cuda", False, "no driver", {"driver": None}))
    assert (state, why) == ("missing", "no driver")
    assert "driver" in fix
    assert diagnose(Capability("cuda", False, "no kernels", {"driver": "libcuda.so.1"}))[0] == "broken"


@pytest.mark.requires("triton")
@pytest.mark.skipif(tensorplay.cuda.is_available(), reason="there is a GPU")
def test_triton_without_a_gpu_is_told_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    """K3: `capabilities()`, `doctor`, `env` and `tp.compile` agree: it compiles, it cannot launch, why, and the fix."""
    found = base.capabilities()["triton"]
    assert not found.available
    assert found.details["compiles"] is True
    assert found.details["launches"] is False
    cuda = base.capabilities()["cuda"].reason
    version = found.details["found"]
    assert found.reason == f"triton {version} compiles kernels to cubins here, and cannot launch them: {cuda}"
    rows = json.loads(run(capsys, "doctor", "--json")[1])["capabilities"]
    assert rows["triton"] == {"state": "partial", "why": found.reason, "fix": rows["cuda"]["fix"]}
    assert f"not available: {found.reason}" in run(capsys, "env")[1]
    compiled = tensorplay.compile(lambda x: tensorplay.tanh(x) + 1.0, backend="triton", on_fallback="record")
    compiled(tensorplay.ones((3,)))
    (region,) = compiled.last_run.forward
    assert region.reason is not None
    assert region.reason.message.startswith(f"backend 'triton' is not available: {found.reason}; see")
    with pytest.raises(FallbackError) as caught:
        tensorplay.compile(lambda x: x + 1.0, backend="triton", on_fallback="error")
    assert caught.value.capability == found


def test_ops_lists_and_describes(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "ops", "tp")
    assert status == 0
    assert "tp::relu(Tensor x) -> Tensor" in out
    status, out, _ = run(capsys, "ops", "tp::relu")
    assert status == 0
    assert "kernel cpu" in out
    assert "autograd" in out
    status, out, _ = run(capsys, "ops", "tp::relu", "--json")
    assert json.loads(out)["tp::relu"]["schema"] == "tp::relu(Tensor x) -> Tensor"
    status, _, err = run(capsys, "ops", "tp::rellu")
    assert status == 2
    assert "did you mean 'tp::relu'?" in err
    assert run(capsys, "ops", "nothing_here")[0] == 2


@pytest.mark.parametrize(("factor", "status"), [(2.0, 0), (2.1, 1)])
def test_verify_from_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, factor: float, status: int
) -> None:
    name = f"cli_verify_{status}"
    (tmp_path / f"{name}.py").write_text(f"""
import tensorplay as tp

@tp.library.custom_op("{name}::double", mutates_args=())
def double(x):
    return tp.mul(x, 2.0)

double.register_fake(lambda x: tp.empty_like(x))
double.register_kernel("cpu", lambda x: tp.mul(x, {factor}), name="second")

def inputs():
    return [(tp.ones((3,)),)]
""")
    place = str(tmp_path / f"{name}.py")
    junit = tmp_path / "report.xml"
    got, out, _ = run(
        capsys,
        "verify",
        f"{place}:double",
        "--inputs",
        f"{place}:inputs",
        "--no-sweep",
        "--junit",
        str(junit),
    )
    assert got == status, out
    assert out.splitlines()[-1].startswith("PASSED" if status == 0 else "FAILED")
    assert junit.read_text().startswith("<?xml")
    got, out, _ = run(
        capsys, "verify", f"{name}::double", "--inputs", f"{place}:inputs", "--no-sweep", "--json"
    )
    assert (got, json.loads(out)["passed"]) == (status, status == 0)


def test_verify_names_what_it_cannot_find(capsys: pytest.CaptureFixture[str]) -> None:
    for subject in ("no_such_module_here:op", "tensorplay.cli:nothing", "no::such_op", "plain"):
        status, _, err = run(capsys, "verify", subject)
        assert status == 2, subject
        assert err.startswith("error: ")


def test_graph_reads_checks_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "graph(%0 x: float32[2, 3]) {\n  %1: float32[2, 3] = tp::relu.default(%0)\n  return %1\n}\n"
    path = tmp_path / "g.txt"
    path.write_text(text)
    status, out, _ = run(capsys, "graph", str(path), "--format", "text")
    assert status == 0
    assert "tp::relu.default" in out
    assert run(capsys, "graph", str(path))[0] == 0
    assert run(capsys, "graph", str(path), "--format", "dot")[1].startswith("digraph")
    picture = run(capsys, "graph", str(path), "--format", "svg")[1]
    assert picture.startswith("<svg")
    assert "tp::relu" in picture
    path.write_text(text.replace("relu.default(%0)", "relu.default(%7)"))
    status, out, err = run(capsys, "graph", str(path))
    assert status == 1
    assert "%7" in out + err
    assert run(capsys, "graph", str(tmp_path / "absent"))[0] == 2


def test_explain_knows_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "3203")
    assert status == 0
    assert out.startswith("TP3203 (contracts of kernels, fake rules and backward rules)")
    assert "fix: " in out
    status, out, _ = run(capsys, "explain")
    assert status == 0
    assert len(out.splitlines()) == len(codes.CODES)
    assert run(capsys, "explain", "TP1")[0] == 2


def test_every_code_in_the_sources_is_listed_and_none_is_left_over() -> None:
    used: dict[str, str] = {}
    for folder in ("crates", "python"):
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.suffix not in (".rs", ".py")
                or path.name == "codes.py"
                or {"tests", "_codes"} & set(path.parts)
            ):
                continue
            used |= dict.fromkeys(re.findall(r'"(TP\d{4})"', path.read_text()), path.as_posix())
    assert {code: used[code] for code in used.keys() - codes.CODES.keys()} == {}
    assert codes.CODES.keys() - used.keys() == set()


def test_codes_are_well_formed() -> None:
    for code, entry in codes.CODES.items():
        assert re.fullmatch(r"TP\d{4}", code)
        assert code[:4] in codes.FAMILIES
        assert entry.meaning.endswith(".")
        assert entry.fix
        assert not entry.fix.endswith(".")
    assert len(codes.CODES) == len(codes._TABLE) + len(codes.INTERNAL)


def test_every_code_has_an_example_or_says_why_not() -> None:
    """The page of codes has a minimal example of each."""
    both = [code for code, entry in codes.CODES.items() if (entry.example is None) == (entry.without is None)]
    assert both == []
    assert (codes.EXAMPLES | codes.WITHOUT).keys() - codes.CODES.keys() == set()


@pytest.mark.parametrize("code", sorted(codes.EXAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_an_example_raises_exactly_its_code(code: str) -> None:
    """The examples of the page of codes are tested."""
    program = compile(codes.EXAMPLES[code], f"<example of {code}>", "exec", dont_inherit=True)
    with pytest.raises(TensorPlayError) as caught:
        exec(program, {"tp": tensorplay})
    assert caught.value.code == code, caught.value
    assert codes.lookup(code).text().splitlines()[3:] == [
        "  example:",
        *(f"    {line}".rstrip() for line in codes.EXAMPLES[code].splitlines()),
    ]


def test_names_that_are_nearly_right_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for command, told in (
        (("ops", "sin"), "did you mean the op 'tp::sin'?"),
        (("ops", "tp::sine"), "did you mean 'tp::sin'?"),
        (("verify", "tp::sine"), "did you mean 'tp::sin'?"),
        (("ops", "nope::x"), "--import MODULE"),
        (("ops", "nope"), "--import MODULE"),
        (("verify", "nope::x"), "--import MODULE"),
        (("ops", "tp::qqqqqqqq"), "ops tp` lists those of 'tp'"),
    ):
        status, _, err = run(capsys, *command)
        assert status == 2
        assert told in err, err


def test_a_graph_with_an_op_of_a_module_is_read_with_that_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "ops_of_graphs.py"
    module.write_text(
        "import tensorplay as tp\n"
        "op = tp.library.custom_op('cligraph::f', lambda x: x * 2.0, mutates_args=(), schema='(Tensor x) -> Tensor')\n"
        "op.register_fake(lambda x: tp.empty_like(x))\n",
        encoding="utf-8",
    )
    graph = tmp_path / "graph.txt"
    graph.write_text(
        "graph(%0 x: float32[3]) {\n  %1: float32[3] = cligraph::f.default(%0)\n  return %1\n}\n",
        encoding="utf-8",
    )
    status, _, err = run(capsys, "graph", str(graph))
    assert status == 1
    assert "--import MODULE imports the module that defines cligraph::f.default" in err
    status, out, err = run(capsys, "graph", str(graph), "--import", str(module))
    assert (status, err) == (0, "")
    assert "cligraph::f" in out
    status, out, _ = run(capsys, "verify", "cligraph::f", "--import", str(module))
    assert (status, "FAILED" in out) == (0, False)


def test_what_a_command_says_agrees_with_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "effects      pure" in run(capsys, "ops", "tp::add")[1]
    out = run(capsys, "doctor")[1]
    assert out.count('pip install "tensorplay-dispatch[triton]"') <= 1
    missing = Capability(
        "triton", available=False, reason='triton is not installed; pip install "tensorplay-dispatch[triton]"'
    )
    assert diagnose(missing)[1] == "triton is not installed"
    tensorplay.library.custom_op("clione::f", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")
    assert run(capsys, "ops", "clione")[1].endswith("\n1 op\n")
