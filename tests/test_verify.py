"""`verify` says nothing against an honest op, finds a wrong kernel, and reports in every form."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay._verify.report import Tally
from tensorplay.errors import ArgumentError, ContractError
from tensorplay.testing import make_tensor
from tensorplay.verify import VerifyReport, opcheck, verify
from verifying import define, failed, good

Tensor = tp.Tensor


# --- an honest op ---------------------------------------------------------------------------------------


def test_a_good_op_passes_with_generated_inputs() -> None:
    report = verify(good("vt::good"))
    assert report.passed, report.text()
    verdicts = {check.name: check.verdict for check in [*report.values, *report.graph, *report.executor]}
    assert verdicts["inputs unchanged"] == "pass"
    assert verdicts["kernel cpu/other against default/default"] == "pass"
    assert verdicts["gradient against differences in float64"] == "pass"
    assert verdicts["compiled with native against eager"] == "pass"
    assert verdicts["gradient compiled with native against eager"] == "pass"
    assert verdicts["one node per call"] == "pass"
    assert verdicts["fake rule: strides"] == "pass"
    assert verdicts["kernel cpu/other"] == "pass"
    compared = next(c for c in report.values if c.name == "kernel cpu/other against default/default")
    assert "allowed rtol" in compared.detail
    assert "python" in next(c for c in report.executor if c.name == "kernel cpu/other").detail
    assert report.text().splitlines()[-1].startswith("PASSED: ")
    report.raise_if_failed()


def test_it_is_called_as_an_attribute_of_the_package() -> None:
    op = good("vt::attribute")
    for call in (tp.verify, __import__("tensorplay.verify").verify):
        report = call(op, (make_tensor((4,)),), sweep=False)
        assert isinstance(report, VerifyReport)
        assert report.passed, report.text()


def test_given_inputs_are_seeds_of_neighbours() -> None:
    op = good("vt::seeds")
    x = make_tensor((3, 4), seed=3)
    alone = verify(op, (x,), sweep=False)
    swept = verify(op, (x,))
    several = verify(op, [(x,), (x, 3.0)], sweep=False)
    assert alone.passed
    assert swept.passed, swept.text()
    assert several.passed
    assert "1 of 1 case accepted, 1 of them given" in alone.values[-1 - len(alone.skips)].detail or any(
        "1 of 1 case" in check.detail for check in alone.values
    )
    counted = next(check for check in swept.values if check.name == "inputs")
    assert int(counted.detail.split(" of ")[0].split()[-1]) > 15


def test_a_built_in_op_passes() -> None:
    report = verify("tp::relu")
    assert report.passed, report.text()
    report = verify(tp.exp, (make_tensor((4, 5)),))
    assert report.passed, report.text()
    assert report.subject == "tp::exp"


def test_a_plain_function_is_compared_with_its_compiled_form() -> None:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        return tp.tanh(x * y) + x

    report = verify(chain, (make_tensor((4, 5), seed=1), make_tensor((4, 5), seed=2)))
    assert report.passed, report.text()
    assert any(c.name == "compiled with native against eager" and c.verdict == "pass" for c in report.values)


def test_refused_combinations_are_listed_and_fail_nothing() -> None:
    def body(x: Tensor) -> Tensor:
        if x.dtype != tp.float32:
            raise ValueError("float32 only")
        return tp.mul(x, 2.0)

    report = verify(define("vt::picky", body))
    assert report.passed, report.text()
    refused = [check for check in report.skips if check.name.startswith("inputs: dtype")]
    assert refused
    assert all("float32 only" in check.detail for check in refused)


def test_an_op_that_refuses_everything_fails() -> None:
    def body(x: Tensor) -> Tensor:
        raise ValueError("never")

    assert "refuses all of" in failed(verify(define("vt::never", body)), "inputs")


# --- kernels --------------------------------------------------------------------------------------------


def test_a_second_kernel_that_is_off_by_a_thousandth_is_found() -> None:
    op = define("vt::off", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.mul(x, 2.002), name="off")
    detail = failed(verify(op), "kernel cpu/off against default/default")
    assert "elements differ, worst at [" in detail
    assert "allowed rtol 1.3e-06, atol 1e-05" in detail
    assert "replay: vt::off(make_tensor(" in detail


def test_a_kernel_wrong_only_in_other_memory_order_is_found() -> None:
    def flat(x: Tensor) -> Tensor:
        """Walks memory from the first element on, whatever the strides say."""
        out = tp.empty(x.shape, dtype=x.dtype)
        if x.size:
            import ctypes

            bytes_in = (ctypes.c_char * (x.size * x.dtype.itemsize)).from_address(x.data_ptr())
            values = np.frombuffer(bytes_in, dtype=x.dtype.name)
            out.numpy()[...] = (values * values.dtype.type(2)).reshape(x.shape)
        return out

    op = define("vt::flat", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", flat, name="flat", when=lambda x: x.dtype == tp.float32)
    x = make_tensor((4, 6))
    assert verify(op, (x,), sweep=False).passed
    assert "non-contiguous input: mismatch" in failed(
        verify(op, (x,)), "kernel cpu/flat against default/default"
    )


def test_a_kernel_declared_contiguous_never_sees_other_layouts() -> None:
    seen: list[bool] = []

    def strict(x: Tensor) -> Tensor:
        seen.append(x.is_contiguous())
        return tp.mul(x, 2.0)

    op = define("vt::strict", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", strict, name="strict", layout={"x": "contiguous"})
    report = verify(op, (make_tensor((4, 6)),))
    assert report.passed, report.text()
    assert seen
    assert all(seen)
    (skip,) = [check for check in report.skips if "kernel cpu/strict" in check.name]
    # One fact for all cases in other layouts: the first stands for those that differ in their strides alone.
    assert skip.detail.count("Layout: ") == skip.detail.count("contiguous()") == 1
    assert {"given inputs, transposed", "given inputs, sliced"} < set(
        skip.detail.partition(": Layout")[0].split("; ")
    )


def test_a_disabled_kernel_is_compared_and_listed() -> None:
    op = define("vt::disabled", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.mul(x, 3.0))
    with op.set_kernel_enabled("cpu", False):
        report = verify(op, (make_tensor((4,)),), sweep=False)
    failed(report, "kernel cpu/default against default/default")
    listed = next(
        check for check in report.executor if check.name == "kernel cpu/default" and check.verdict == "skip"
    )
    assert listed.detail == "disabled"


@pytest.mark.parametrize("executor", ["native", "triton", "tvm"])
def test_a_lying_marker_is_found(executor: str) -> None:
    op = define(f"vt::liar_{executor}", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.mul(x, 2.0), name="liar", executor=executor)
    detail = failed(verify(op, (make_tensor((4,)),), sweep=False), "kernel cpu/liar")
    assert f"the marker says '{executor}', but what ran is the Python function" in detail


# --- what is required, and the forms of the report ----------------------------------------------------


def test_require_turns_an_absent_backend_into_a_failure() -> None:
    op = good("vt::required")
    x = make_tensor((4,))
    absent = [name for name, found in tp.backends.capabilities().items() if not found.available]
    for name in absent:
        assert verify(op, (x,), sweep=False).passed
        assert "not available here" in failed(
            verify(op, (x,), sweep=False, require=(name,)), f"requires {name}"
        )
    assert verify(op, (x,), sweep=False, require=("native",)).passed
    assert "nothing of that name" in failed(verify(op, (x,), sweep=False, require=("nope",)), "requires nope")


@pytest.mark.requires("tvm")
def test_tvm_serves_a_pointwise_chain_and_says_so() -> None:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        return tp.tanh(x * y) + x

    report = verify(chain, (make_tensor((4, 5), seed=1), make_tensor((4, 5), seed=2)), require=("tvm",))
    assert report.passed, report.text()
    served = [
        check
        for check in report.executor
        if check.name.startswith("tvm, forward") and check.verdict == "pass"
    ]
    assert served
    assert served[0].detail.split("; ")[-1].startswith("tvm:")


def test_the_report_as_json_junit_html_and_text() -> None:
    op = define("vt::forms", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.mul(x, 2.1), name="<wrong> & \x01")
    report = verify(op, (make_tensor((4,)),), sweep=False)
    loaded = json.loads(report.to_json())
    assert loaded["passed"] is False
    assert loaded["subject"] == "vt::forms"
    assert loaded == json.loads(json.dumps(report.to_dict()))
    assert {check["verdict"] for column in ("values", "graph", "executor") for check in loaded[column]} == {
        "pass",
        "fail",
        "skip",
    }
    suites = ElementTree.fromstring(report.to_junit())
    assert [suite.get("name") for suite in suites] == ["values", "graph", "executor"]
    assert sum(int(suite.get("failures", "0")) for suite in suites) == len(report.failures)
    assert sum(int(suite.get("skipped", "0")) for suite in suites) == len(report.skips)
    assert sum(len(suite) for suite in suites) == len([*report.values, *report.graph, *report.executor])
    assert "&lt;wrong&gt;" in report._repr_html_()
    assert report.text().splitlines()[-1] == f"FAILED: {report.counts()}"
    with pytest.raises(ContractError, match="does not keep its contract") as caught:
        report.raise_if_failed()
    assert caught.value.code == "TP3901"


def test_the_same_seed_gives_the_same_report() -> None:
    op = define("vt::seeded", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.mul(x, 2.1), name="off")
    details = [failed(verify(op, seed=seed), "kernel cpu/off") for seed in (5, 5, 6)]
    assert details[0] == details[1]
    assert details[0] != details[2]
    assert "seed=5" in details[0]


def test_a_replay_line_makes_the_failing_call_again() -> None:
    op = define("vt::replayed", lambda x: tp.mul(x, 2.0))
    op.register_kernel("cpu", lambda x: tp.add(tp.mul(x, 2.0), 0.0 if x.is_contiguous() else 1.0), name="odd")
    detail = failed(verify(op), "kernel cpu/odd against default/default")
    line = detail.split("replay: ")[1].splitlines()[0]
    from tensorplay import testing

    call = line[line.index("(") :]
    (x,) = eval(f"args{call}", {**vars(testing), "args": lambda *args: args, "tp": tp})
    with op.prefer("odd"):
        wrong = op(x)
    with op.prefer("default"), op.set_kernel_enabled("cpu", False):
        right = op(x)
    assert not testing.compare_tensors(wrong, right).ok


# --- opcheck --------------------------------------------------------------------------------------------


def test_opcheck_answers_in_the_words_of_its_users() -> None:
    results = opcheck(good("vt::checked"), (make_tensor((4,)), 3.0))
    assert results == {
        "test_schema": "SUCCESS",
        "test_autograd_registration": "SUCCESS",
        "test_faketensor": "SUCCESS",
        "test_aot_dispatch_dynamic": "SUCCESS",
    }


def test_opcheck_raises_or_reports_the_first_failure() -> None:
    op = library.custom_op("vt::unchecked", lambda x: tp.mul(x, 2.0), mutates_args=())
    with pytest.raises(ContractError, match="test_faketensor"):
        opcheck(op, (make_tensor((4,)),))
    results = opcheck(op, (make_tensor((4,)),), raise_exception=False)
    assert results["test_schema"] == "SUCCESS"
    assert "register_fake" in results["test_faketensor"]
    assert list(opcheck(op, (make_tensor((4,)),), test_utils="test_schema")) == ["test_schema"]
    with pytest.raises(ValueError, match="no test named"):
        opcheck(op, (make_tensor((4,)),), test_utils="test_nothing")
    with pytest.raises(ValueError, match="needs an op"):
        opcheck(lambda x: x, (make_tensor((4,)),))


def test_inputs_must_be_tuples() -> None:
    op = define("vt::tuples", lambda x: tp.mul(x, 2.0))
    with pytest.raises(ArgumentError, match="a tuple of one call's arguments"):
        verify(op, make_tensor((4,)))
    with pytest.raises(ArgumentError, match="pass inputs="):
        verify(lambda x: x)
    with pytest.raises(ArgumentError, match="no op named"):
        verify("vt::nothing_of_that_name")


def test_a_kernel_that_rounds_elsewhere_is_held_against_float64() -> None:
    def stepwise(x: Tensor) -> Tensor:
        return tp.mul(tp.mul(tp.mul(x, 1.1), 1.3), 1.7)

    def at_once(x: Tensor) -> Tensor:
        return tp.mul(x, 1.1 * 1.3 * 1.7)

    op = define("vt::rounds", stepwise)
    op.register_kernel("cpu", at_once, name="once")
    report = verify(op, (make_tensor((100,), "float16", seed=1),))
    assert report.passed, report.text()
    op.register_kernel("cpu", lambda x: tp.mul(x, 1.1 * 1.3 * 1.71), name="once")
    assert "elements differ" in failed(
        verify(op, (make_tensor((100,), "float16", seed=1),)), "kernel cpu/once"
    )


def test_agreement_counts_for_a_backend_only_where_it_ran() -> None:
    op = define("vt::opaque", lambda x: tp.mul(x, 2.0))
    report = verify(op, (make_tensor((4,)),), sweep=False)
    assert report.passed, report.text()
    named = {check.name: check for check in report.values}
    assert named["compiled with native against eager"].verdict == "pass"
    for name, check in named.items():
        if name.startswith("compiled with ") and "native" not in name:
            assert (check.verdict, "no region ran on" in check.detail) == ("skip", True)


def test_a_skip_names_its_cases_and_a_long_name_has_a_line_of_its_own() -> None:
    """Cases are counted behind the fourth; what is skipped for another reason, or elsewhere, stays apart."""
    tally = Tally()
    for i in range(6):
        tally.skip_case("k", f"Layout: strides {i}", "{}: ", f"case {i}", "file:1")
        tally.skip("plain", "the same", "file:1")
    tally.skip_case("k", "Predicate: no", "{}: ", "case 0", "file:1")
    tally.skip_case("k", "Layout: strides 0", "{}: ", "case 0", "file:2")
    tally.ok("n" * 60, "one\ntwo")
    both = Tally()
    both.extend(tally)
    both.extend(tally)
    assert both.checks()[1:] == tally.checks()[1:]
    assert [(check.name, check.detail, check.location) for check in tally.checks()[1:]] == [
        ("k", "case 0; case 1; case 2; case 3; 2 more: Layout: strides 0", "file:1"),
        ("plain", "the same", "file:1"),
        ("k", "case 0: Predicate: no", "file:1"),
        ("k", "case 0: Layout: strides 0", "file:2"),
    ]
    text = VerifyReport("s", 0, values=tally.checks()).text().splitlines()
    assert text[2:6] == [
        f"  pass  {'n' * 60}",
        "          1 case; one",
        "          two",
        "  skip  k      case 0; case 1; case 2; case 3; 2 more: Layout: strides 0  [file:1]",
    ]
