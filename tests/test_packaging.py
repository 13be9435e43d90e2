"""K2: the wheel installs in a clean environment and works there without NumPy, Triton, TVM or PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FIRST_USE = """
import importlib.util, sys
import tensorplay as tp
for name in ("numpy", "torch", "triton", "tvm"):
    assert importlib.util.find_spec(name) is None, name
x = tp.tensor([1.0, 2.0], requires_grad=True)
y = tp.compile(lambda x: (x * 2.0 + 1.0).sum())(x)
y.backward()
assert (y.item(), x.grad.tolist()) == (8.0, [2.0, 2.0])
found = tp.backends.capabilities()
assert found["native"].available and not found["tvm"].available and not found["triton"].available
assert "tvm" in found["tvm"].reason and "triton" in found["triton"].reason.lower()
try:
    tp.compile(lambda x: x * 2.0, backend="tvm", on_fallback="error")
except tp.errors.FallbackError as e:
    assert e.capability == found["tvm"]
else:
    raise AssertionError("a missing backend was accepted")
try:
    tp.ones((2,)).numpy()
except ImportError as e:
    assert "numpy" in str(e).lower()
else:
    raise AssertionError("NumPy came from nowhere")
print("works")
"""


@pytest.mark.requires("cargo")
def test_wheel_in_a_clean_environment(tmp_path: Path) -> None:
    """K2: one abi3 wheel; every missing extra gives one clear message on first use."""
    maturin = [
        sys.executable,
        "-m",
        "maturin",
        "build",
        "--release",
        "--quiet",
        "--out",
        str(tmp_path / "dist"),
    ]
    subprocess.run([*maturin, "--interpreter", sys.executable], cwd=ROOT, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith("tensorplay_dispatch-")
    assert "-cp311-abi3-" in wheel.name
    typed = {"py.typed", *(path.name for path in (ROOT / "python" / "tensorplay").glob("*.pyi"))}
    assert len(typed) >= 5
    assert {f"tensorplay/{name}" for name in typed} <= set(zipfile.ZipFile(wheel).namelist())
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
    ]
    subprocess.run([*install, str(wheel)], check=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [python, "-I", "-c", FIRST_USE], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr
