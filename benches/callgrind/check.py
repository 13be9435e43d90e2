"""Instructions per call inside the extension module, against a committed table.

Only instructions of our own shared object count: another Python build, C library or valgrind does not move the
figure. There is no clock, so there is no noise to excuse; the tolerance is for compilers. More than the
tolerance above the table fails. Clearly below asks for a new table, so that the gain is kept. `--update` writes the table
and the column of benches/README.md that shows it.

    python benches/callgrind/check.py [--update] [--table FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "expected.json"
PAGE = HERE.parent / "README.md"
COLUMNS = 5
# Rows of the page's table of that many columns, by their first column -> the case whose instructions they show.
ROWS = {
    "`tp.add(x, y)`": "add(x, y)",
    "`x + x`": "x + x",
    "`x * 2.0`": "x * 2.0",
    "custom op over its body": "custom op",
    "the same, gradient recorded": "custom op, grad recorded",
    "`(x * 2).sum().backward()`": "(x * 2).sum().backward()",
    "custom op forward + sum + backward": "custom op forward + sum + backward",
    "compiled `x * 2 + 1`": "compiled x * 2 + 1",
}
EXTENSION = re.compile(r"_native[^/]*\.so$")
MARK = "getppid"


def extension_instructions(profile: Iterable[str]) -> int:
    """The instructions that a callgrind profile attributes to the extension itself, callees left out.

    Callgrind's format: `ob=(id) path` switches the object (the path is given at the first use of an id),
    a line that opens with a position is a cost, and the line after `calls=` is the cost of the callee.
    """
    names: dict[str, str] = {}
    total, counting, callee = 0, False, False
    for line in profile:
        if line.startswith(("ob=", "cob=")):
            identity, _, path = line.partition("=")[2].strip().partition(" ")
            names.setdefault(identity, path)
            if line.startswith("ob="):
                counting = EXTENSION.search(names[identity]) is not None
        elif line.startswith("calls="):
            callee = True
        elif line[:1] in "0123456789+-*":
            if counting and not callee:
                total += int(line.split()[1])
            callee = False
    return total


@contextmanager
def profiles(workload: Path, *options: str) -> Iterator[tuple[dict[str, int], list[Path]]]:
    """The runs of every case of `workload`, and its profiles, three a case: warm-up | N runs | 2N runs."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            f"--dump-before={MARK}",
            "-q",
            *options,
        ]
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        ran = subprocess.run(
            [*command, sys.executable, str(workload)], env=environment, capture_output=True, text=True
        )
        if ran.returncode:
            raise SystemExit(f"the workload failed under callgrind:\n{ran.stderr}")
        runs: dict[str, int] = json.loads(
            next(line for line in ran.stderr.splitlines() if line.startswith("{"))
        )
        written = sorted(Path(folder).glob("profile.*"), key=lambda path: int(path.suffix[1:]))
        if len(written) < 3 * len(runs):
            raise SystemExit(
                f"callgrind wrote {len(written)} profiles for {len(runs)} cases: the mark {MARK} was not seen"
            )
        yield runs, written


def count(workload: Path) -> dict[str, int]:
    """Instructions per run of every case of `workload`."""
    costs = []
    with profiles(workload) as (runs, written):
        for path in written:
            with path.open(errors="replace") as lines:
                costs.append(extension_instructions(lines))
    return {
        name: round((costs[3 * i + 2] - costs[3 * i + 1]) / times)
        for i, (name, times) in enumerate(runs.items())
    }


def compare(found: dict[str, int], table: dict) -> list[str]:
    """What is wrong, one line a case."""
    tolerance, expected = table["tolerance"], table["instructions"]
    wrong = [f"{name}: not in the table" for name in found.keys() - expected.keys()]
    wrong += [f"{name}: in the table, not measured" for name in expected.keys() - found.keys()]
    for name in found.keys() & expected.keys():
        if found[name] > expected[name] * (1 + tolerance):
            wrong.append(
                f"{name}: {found[name]} instructions, {expected[name]} expected (tolerance {tolerance:.0%})"
            )
    return sorted(wrong)


def with_figures(page: str, instructions: dict[str, int]) -> str:
    """The page with the last column of its rows in `ROWS` as `instructions` has it; what stands behind a figure stays."""
    lines = []
    for line in page.split("\n"):
        cells = line.split("|")
        case = ROWS.get(cells[1].strip()) if len(cells) == COLUMNS + 2 else None
        lines.append(line if case is None else re.sub(r"\d+(?=[^|]*\|$)", str(instructions[case]), line))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write the table instead of comparing with it")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("SKIPPED instruction counts: valgrind is not installed")
        return 0
    found = count(HERE / "workload.py")
    if options.update:
        options.table.write_text(json.dumps({"tolerance": 0.1, "instructions": found}, indent=2) + "\n")
        PAGE.write_text(with_figures(PAGE.read_text(), found))
        print(f"wrote {options.table} and {PAGE}")
        return 0
    table = json.loads(options.table.read_text())
    for name, instructions in found.items():
        expected = table["instructions"].get(name, 0)
        print(f"{name:40}{instructions:9}{expected:9}{instructions / expected - 1 if expected else 0:+8.1%}")
        if instructions < expected * (1 - table["tolerance"]):
            print(f"  fewer than the table says: keep the gain with {Path(__file__).name} --update")
    wrong = compare(found, table)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
