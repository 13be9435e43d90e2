"""The page for people who come from torch.library: every name that it gives is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "torch-library.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


def resolve(name: str) -> object:
    found: object = importlib.import_module("tensorplay")
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("torch", "here", "text"), ROWS, ids=[row[0] for row in ROWS])
def test_every_name_of_the_table_is_there(torch: str, here: str, text: str) -> None:
    """2.1, 3.1: `torch.library` names, and what else the page sets beside them."""
    assert torch.startswith(("torch.", "CustomOpDef."))
    assert resolve(here) is not None
    for name in re.findall(r"`(tensorplay\.[\w.]+)`", text):
        assert resolve(name) is not None


def test_every_public_name_of_torch_library_has_a_row_or_is_said_to_be_missing() -> None:
    """The names that `torch.library.__all__` has in 2.13."""
    names = [
        "Library",
        "define",
        "fallthrough_kernel",
        "impl",
        "register_kernel",
        "register_autocast",
        "register_fake",
        "register_torch_dispatch",
        "register_vmap",
        "get_ctx",
        "get_kernel",
        "custom_op",
        "triton_op",
        "wrap_triton",
        "infer_schema",
    ]
    page = PAGE.read_text()
    assert [n for n in names if f"torch.library.{n}`" not in page] == []
