"""The page of error codes, made from the table that `python -m tensorplay explain` reads.

    python tests/error_page.py      writes docs/errors.md anew

Nothing here decides what a code means: that is `tensorplay.codes`.
"""

from __future__ import annotations

from pathlib import Path

from tensorplay.codes import CODES, FAMILIES

PATH = Path(__file__).parent.parent / "docs" / "errors.md"

_HEAD = """\
# Error codes

Made by `python tests/error_page.py` from the table behind `python -m tensorplay explain CODE`; do not edit.
Every error of `tensorplay.errors` has its code in `.code` and at the front of its message. A code keeps its meaning.
"""


def page() -> str:
    """The whole page: one table per family of codes."""
    parts = [_HEAD]
    for family, title in FAMILIES.items():
        entries = [entry for code, entry in sorted(CODES.items()) if code.startswith(family)]
        if entries:
            rows = "\n".join(f"| {e.code} | {_cell(e.meaning)} | {_cell(e.fix)} |" for e in entries)
            parts.append(f"## {title}\n\n| code | meaning | fix |\n| --- | --- | --- |\n{rows}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PATH.write_text(page())
