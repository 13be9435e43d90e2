"""The page of error codes, made from the table that `python -m tensorplay explain` reads.

    python tests/error_page.py      writes docs/errors.md anew

Nothing here decides what a code means: that is `tensorplay.codes`.
"""

from __future__ import annotations

import html
from pathlib import Path

from tensorplay.codes import CODES, FAMILIES, Entry

PATH = Path(__file__).parent.parent / "docs" / "errors.md"

_HEAD = """\
# Error codes

Made by `python tests/error_page.py` from the table behind `python -m tensorplay explain CODE`; do not edit.
Every error of `tensorplay.errors` has its code in `.code` and at the front of its message. A code keeps its meaning.
The examples run with `import tensorplay as tp`; each is tested to raise exactly its code.
"""


def page() -> str:
    """The whole page: one table per family of codes."""
    parts = [_HEAD]
    for family, title in FAMILIES.items():
        entries = [entry for code, entry in sorted(CODES.items()) if code.startswith(family)]
        if entries:
            rows = "\n".join(
                f"| {e.code} | {_cell(e.meaning)} | {_cell(e.fix)} | {_example(e)} |" for e in entries
            )
            parts.append(
                f"## {title}\n\n| code | meaning | fix | example |\n| --- | --- | --- | --- |\n{rows}\n"
            )
    return "\n".join(parts)


def _example(entry: Entry) -> str:
    """The program in one cell, or why there is none."""
    if entry.example is None:
        return _cell(f"none: {entry.without}")
    lines = (html.escape(line, quote=False).replace(" ", "&nbsp;") for line in entry.example.splitlines())
    return "<code>" + "<br>".join(_cell(line) for line in lines) + "</code>"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PATH.write_text(page())
