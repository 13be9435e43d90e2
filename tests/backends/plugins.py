"""Distributions with entry points, made for a test without installing anything, and the example's as it is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "stablehlo"
GROUP = "tensorplay.backends"


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    points: Mapping[str, str],
    name: str = "plugin",
    **modules: str,
) -> None:
    """A distribution in `folder`, found by imports and by `importlib.metadata`: its entry points, and its modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))


def install_example(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The example's own entry points, its module where it lies."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(monkeypatch, folder, project["entry-points"][GROUP], project["name"].replace("-", "_"))
    monkeypatch.syspath_prepend(str(EXAMPLE))
