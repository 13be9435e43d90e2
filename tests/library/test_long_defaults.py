"""Defaults that Python itself has no text for, or a very long one."""

from __future__ import annotations

import pytest

from tensorplay import Tensor, library
from tensorplay.errors import SchemaError


def schema(fn) -> str:
    return library.infer_schema(fn, mutates_args=())


@pytest.mark.parametrize("annotation", [int, float, str, int | None, int | float, Tensor], ids=str)
def test_a_default_without_a_text_is_refused_by_name(annotation) -> None:
    """2.7: Python has no text for an integer of 5000 digits, and says so by a ValueError without a code."""

    def f(x, n=10**5000): ...

    f.__annotations__["n"] = annotation
    with pytest.raises(
        SchemaError, match=r"parameter 'n' of type .* cannot have the default of type int"
    ) as e:
        schema(f)
    assert e.value.code == "TP1030"


def test_a_message_goes_without_the_text_that_a_default_lacks() -> None:
    """2.4, 2.7: for a parameter without a type, and where the signature is shown."""

    def bare(x, n=(10**5000,)): ...
    def wrong(x, b: bytes, n=10**5000): ...

    for fn, code in ((bare, "TP1029"), (wrong, "TP1028")):
        with pytest.raises(SchemaError) as e:
            schema(fn)
        assert e.value.code == code
        assert len(str(e.value)) < 200


def test_a_long_default_is_cut_in_the_message() -> None:
    """2.7"""

    def f(x, n: int = "a" * 100_000): ...

    with pytest.raises(SchemaError, match=r"default 'aaa.*a\.\.\.") as e:
        schema(f)
    assert len(str(e.value)) < 200
