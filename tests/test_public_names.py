"""What completion shows: public modules list their public names, all of them and no others; objects print themselves."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import tensorplay as tp
from tensorplay import functions

MODULES = [
    "tensorplay",
    *(f"tensorplay.{m.name}" for m in pkgutil.iter_modules(tp.__path__) if not m.name.startswith("_")),
    "tensorplay.backends.base",
]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "tensorplay.ops"])
def test_a_public_module_lists_its_public_names_and_no_others(name: str) -> None:
    """W17: names that are imported on first use are there from the start; what a module itself imports is not."""
    text = f"import importlib; m = importlib.import_module({name!r}); print(*dir(m), sep='\\n')"
    fresh = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    module = importlib.import_module(name)
    listed = fresh.stdout.split()
    assert listed == sorted(module.__all__) == dir(module)
    assert [n for n in listed if not hasattr(module, n)] == []


def test_every_function_is_listed_in_its_module_and_in_the_package() -> None:
    """W17: `functions.__all__` is what the package exports of it, without what it imports."""
    assert set(functions.__all__) <= set(tp.__all__)
    assert {"add", "clamp", "clip", "gelu", "multiply"} <= set(functions.__all__)
    assert {"Function", "gradcheck", "checkpoint"} <= set(dir(tp.autograd))
    assert not {"TYPE_CHECKING", "importlib", "Any"} & {*dir(tp), *dir(tp.library), *functions.__all__}
