"""What newcomers run into in the first hour: each error names what was wrong and the way out."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import tensorplay as tp
from messages import notes
from tensorplay import errors, library

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_a_number_for_a_parameter_without_annotation_says_to_annotate_it(ns: str) -> None:
    """2.4, E1."""
    f = library.custom_op(f"{ns}::f", lambda x, y: x * y, mutates_args=())
    with pytest.raises(errors.ArgumentError, match="argument 'y' must be Tensor, got float") as e:
        f(tp.ones((3,)), 2.0)
    assert "write `y: float` in the function" in notes(e.value)
    with pytest.raises(errors.ArgumentError) as e:
        tp.matmul(tp.ones((3,)), 2.0)
    assert "tensorplay.tensor(...)" in notes(e.value)


def test_operands_that_do_not_go_together_come_with_a_way_out() -> None:
    """E1, E2."""
    for call, text in (
        (lambda: tp.add(tp.ones((3,)), tp.ones((4,))), "reshape or expand"),
        (lambda: tp.neg(tp.tensor([True])), "x.astype(tensorplay.int64)"),
        (lambda: tp.ones((2,)).to("cuda"), "doctor lists what is missing"),
        (lambda: tp.ones((2,), device="cuda"), "doctor lists what is missing"),
    ):
        if "doctor" in text and tp.backends.capabilities()["cuda"].available:
            continue
        with pytest.raises(errors.TensorPlayError) as e:
            call()
        assert text in notes(e.value), e.value


@pytest.mark.requires("tvm")
def test_a_refused_fallback_says_how_to_run_all_the_same(ns: str) -> None:
    """E6."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=())
    f.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda x: f(x) + 1.0, backend="tvm", on_fallback="error")
    with pytest.raises(errors.FallbackError) as e:
        compiled(tp.ones((3,)))
    assert 'on_fallback="record"' in notes(e.value)


@pytest.mark.parametrize("backend", [None, 3, [], [None], {"tvm"}])
def test_a_backend_that_is_no_name_lists_the_known_ones(backend: object) -> None:
    with pytest.raises(errors.ArgumentError, match=r"known are 'native', 'tvm', 'triton'") as e:
        tp.compile(lambda x: x, backend=backend)
    assert e.value.code == "TP4105"
    assert isinstance(e.value, TypeError)


def test_opcheck_wants_a_tuple() -> None:
    """11.6."""
    for check in (library.opcheck, tp.verify.opcheck):
        with pytest.raises(errors.ArgumentError, match="as a tuple, got Tensor") as e:
            check(tp.ops.tp.sqrt, tp.ones((3,)))
        assert e.value.code == "TP3907"
        assert "opcheck(op, (x,))" in notes(e.value)


def test_save_says_which_argument_comes_first(tmp_path: Path) -> None:
    x, path = tp.ones((3,)), tmp_path / "x.safetensors"
    for args, got in (
        (({"x": x}, path), "a path first, got"),
        ((path, x), "a dict of tensors after the path"),
    ):
        with pytest.raises(errors.ArgumentError, match=got) as e:
            tp.save(*args)
        assert e.value.code == "TP1165"
        assert "save(path, {name: tensor})" in notes(e.value)
    tp.save(path, {"x": x})
    assert tp.load(path)["x"].tolist() == x.tolist()


def test_a_kernel_that_takes_the_place_of_the_body_says_so_once_and_with_both_places(ns: str) -> None:
    """4.1: the last registration wins, as in torch; the body is lost only with a warning."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=(), device_types="cpu")
    with pytest.warns(
        UserWarning, match=r"takes the place of the op's own body at .*first_hour.*; pass name="
    ):
        f.register_kernel("cpu", lambda x: x * 3.0)
    assert f(tp.ones((1,))).item() == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.register_kernel("cpu", lambda x: x * 4.0)
        g = library.custom_op(f"{ns}::g", lambda x: x * 2.0, mutates_args=())
        g.register_kernel("cpu", lambda x: x * 3.0)
        g.register_kernel(None, lambda x: x * 5.0, name="other")
    assert g(tp.ones((1,))).item() == 3.0


def test_a_kernel_for_an_op_that_nobody_defined_is_told_of(ns: str) -> None:
    """9.1: it waits, as in torch, and whoever looks for the op is told."""
    name = f"{ns}::late"
    library.impl(name, "cpu", lambda x: x * 3.0)
    (shown,) = library.waiting()[name]
    assert shown.startswith("the kernel for 'cpu' at ")
    for look in (lambda: library.get_op(name), lambda: library.get_op(f"{name}.default")):
        with pytest.raises(errors.RegistrationError) as e:
            look()
        assert f"{shown} waits for its definition" in notes(e.value)
    library.define(f"{ns}::other", "(Tensor x) -> Tensor")
    with pytest.raises(AttributeError) as e:
        getattr(tp.ops, ns).late
    assert f"{shown} waits for its definition" in notes(e.value)
    library.define(name, "(Tensor x) -> Tensor")
    assert name not in library.waiting()


def test_the_older_spelling_of_impl_is_told_the_newer_one(ns: str) -> None:
    """9.1: `impl(lib, "f", "CPU")`, called or as a decorator."""
    with library.Library(ns, "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
        for call in (lambda: library.impl(lib, "f", "CPU"), lambda: library.impl(lib, "f")):
            with pytest.raises(errors.ArgumentError, match="got Library") as e:
                call()
            assert 'lib.impl("name", fn, "CPU")' in notes(e.value)
        lib.impl("f", lambda x: x * 3.0, "CPU")
        assert library.get_op(f"{ns}::f")(tp.ones((1,))).item() == 3.0


@pytest.mark.requires("sklearn")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--steps", "0"], "argument --steps: must be a whole number of at least 1, got '0'"),
        (["--steps", "many"], "must be a whole number of at least 1, got 'many'"),
        (["--backend", "tmv"], "invalid choice: 'tmv' (choose from 'native', 'tvm', 'triton'"),
    ],
)
def test_the_quickstart_refuses_bad_options_in_a_sentence(options: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, str(QUICKSTART), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_quickstart_registers_its_gradient_once() -> None:
    assert QUICKSTART.read_text().count("register_autograd") == 1
