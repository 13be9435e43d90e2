"""K2: the wheel installs in a clean environment and works there without NumPy, Triton, TVM or PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SOURCES = (".rs", ".py", ".pyi", ".md", ".ipynb")
SOMEBODY_ELSES = re.compile(r"""(install\b[^\n]*?[\s"']|extra of )tensorplay(?![\w-]|\.[a-z])""")

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
for name in ("tvm", "triton"):
    assert found[name].reason.endswith(f'is not installed; pip install "tensorplay-dispatch[{name}]"'), found[name]
try:
    tp.compile(lambda x: x * 2.0, backend="tvm", on_fallback="error")
except tp.errors.FallbackError as e:
    assert e.capability == found["tvm"]
else:
    raise AssertionError("a missing backend was accepted")
try:
    tp.ones((2,)).numpy()
except tp.errors.CapabilityError as e:
    assert (e.code, e.capability.name) == ("TP2003", "numpy"), e
else:
    raise AssertionError("NumPy came from nowhere")
print("works")
"""


def test_the_name_to_install_is_ours_and_stands_in_one_place() -> None:
    """K2: `tensorplay` on an index is somebody else's package, so no text may say to install that."""
    from tensorplay import outcome

    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    assert name == outcome.DISTRIBUTION
    assert outcome.how_to_install("tvm") == f'pip install "{name}[tvm]"'
    folders = ("crates", "python", "docs", "examples", "benches")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES]
    texts = {path: path.read_text() for path in [*ROOT.glob("*.md"), ROOT / "Makefile", *files]}
    assert [str(path) for path, text in texts.items() if SOMEBODY_ELSES.search(text)] == []
    python = [path for path in texts if path.suffix == ".py" and path.is_relative_to(ROOT / "python")]
    assert [path.name for path in python if name in texts[path]] == ["outcome.py"]


@pytest.mark.parametrize(
    "text",
    [
        "pip install tensorplay",
        "pip install 'tensorplay[tvm]'",
        'uv pip install --quiet "tensorplay"',
        "install the 'tvm' extra of tensorplay",
        "install tensorplay[triton]",
    ],
)
def test_a_text_that_says_to_install_somebody_elses_package_is_noticed(text: str) -> None:
    assert SOMEBODY_ELSES.search(text)


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
