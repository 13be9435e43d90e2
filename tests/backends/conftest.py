"""Backend tests: the adapters are plain Python, testable before the extension is built.

Lives here: the stand-in for the package that makes that so. Not here: programs (`scalar_program`)
and kernel calls (`kernel_call`).
"""

import pathlib
import sys
import types

import pytest

_PACKAGE = pathlib.Path(__file__).parents[2] / "python" / "tensorplay"


def _stand_in(name, folder):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return package


def _capabilities():
    from tensorplay.backends import tvm

    absent = dict.fromkeys(
        ("native", "python", "triton", "cuda"),
        types.SimpleNamespace(available=False, reason="the extension is not built"),
    )
    state = tvm.probe()
    return absent | {"tvm": types.SimpleNamespace(available=state["available"], reason=state["reason"])}


try:
    import tensorplay._native  # noqa: F401
except ImportError:
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "tensorplay"]:
        del sys.modules[loaded]
    _stand_in("tensorplay", _PACKAGE)
    _stand_in("tensorplay.backends", _PACKAGE / "backends").capabilities = _capabilities


@pytest.fixture(autouse=True)
def _forget_backends():
    """A backend that a test registered is gone behind it: verify compares with every backend there is."""
    base = sys.modules.get("tensorplay.backends.base")
    before = set(base._registered) if base is not None else set()
    yield
    base = sys.modules.get("tensorplay.backends.base")
    for name in [*base._registered] if base is not None else ():
        if name not in before:
            base.unregister(name)
