"""The table of the contract's rows: every row has a test that exists, or says why it has none."""

from __future__ import annotations

import sys
from collections import Counter

import contract_rows as table


def test_every_named_test_is_there() -> None:
    """A renamed or deleted test is noticed here."""
    known = table.python_tests().keys() | table.rust_tests()
    gone = [(row.id, test) for row in table.ROWS for test in row.tests if test not in known]
    assert not gone


def test_every_row_has_a_test_or_a_reason(capsys) -> None:
    """Prints how many rows are proved; a row with neither test nor reason fails."""
    silent = [row.id for row in table.open_rows() if not row.missing]
    assert not silent
    left = table.open_rows()
    done = len(table.ROWS) - len(left)
    figure = f"contract rows with a test: {done} of {len(table.ROWS)} ({100 * done / len(table.ROWS):.1f} %)"
    with capsys.disabled():
        sys.stdout.write(
            "\n".join(["", figure, *(f"  open {r.id:<5} {r.label}: {r.missing}" for r in left), ""])
        )


def test_a_deleted_test_leaves_its_row_open() -> None:
    """Whatever else begins with the same id: a row is proved by the tests that the table names."""
    known = table.python_tests().keys() | table.rust_tests()
    for row in (row for row in table.ROWS if row.tests):
        assert not table.unproved(row, known)
        assert all(table.unproved(row, known - {test}) for test in row.tests)


def test_docstrings_begin_with_ids_of_rows_alone() -> None:
    """Ids of other lists would look like proof of a row."""
    assert table.strange_ids() == []


def test_rows_are_complete_and_named_once() -> None:
    """As many rows per section as the reference has."""
    ids = [row.id for row in table.ROWS]
    assert len(set(ids)) == len(ids)
    sections = Counter(id.partition(".")[0] if "." in id else id.rstrip("0123456789") for id in ids)
    assert sections == {
        "1": 25,
        "2": 10,
        "3": 16,
        "4": 6,
        "5": 10,
        "6": 19,
        "7": 2,
        "8": 5,
        "9": 4,
        "11": 8,
        "S": 7,
        "A": 10,
        "F": 5,
        "G": 10,
        "H": 5,
        "U": 4,
        "K": 2,
        "V": 6,
        "L": 28,
        "W": 18,
        "C": 20,
        "T": 10,
    }


def test_ids_in_docstrings() -> None:
    """Only what stands at the beginning counts."""
    assert table.ids_of("A1, A2.") == {"A1", "A2"}
    assert table.ids_of("6.12, 6.15: right") == {"6.12", "6.15"}
    assert table.ids_of("S6 b.") == {"S6"}
    assert table.ids_of("The row G8: no") == set()
    assert table.ids_of("U1, L11: both") == {"U1", "L11"}
    assert table.ids_of("U1, T05, C10: ids of two lists") == {"U1"}
