"""Where the functions of a call lie in the extension: side by side.

A small call touches a hundred functions. Where the linker leaves them, they lie on some fifty pages between others that
no call needs, which is more than the first level of the instruction TLB and cache hold beside the interpreter's own.
This script runs the call benchmarks under callgrind and writes `crates/tp-python/calls.ld`, a linker script with the
functions that ran, callee after caller, the dearest callee first; `crates/tp-python/build.rs` hands it to the linker.
Names have no hashes: a script outlives changes inside of functions, and another compiler.

    python benches/callgrind/layout.py            write the script
    python benches/callgrind/layout.py --check    how much of the calls' instructions it covers; less than 3/4 fails
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from check import EXTENSION, HERE, profiles

SCRIPT = HERE.parent.parent / "crates" / "tp-python" / "calls.ld"
# No calls of their own: they spend their time elsewhere.
OTHERS = {"schema parse", "capture of 10 ops"}
COVERED = 0.75
# One name without its hash may stand for hundreds of instances of a generic function; those stay where they are.
MOST_INSTANCES = 8
POSITIONS = tuple("0123456789+-*")
HASH = re.compile(r"(?<=17h)[0-9a-f]{16}E.*$")


@dataclass
class Calls:
    """Functions of the extension by mangled name: what they cost, and whom they call at which cost."""

    own: Counter[str] = field(default_factory=Counter)
    callees: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def read(self, profile: Iterable[str]) -> None:
        """Adds a callgrind profile with full names (see `check.extension_instructions` for the format)."""
        here = there = callee = False
        function = called = ""
        for line in profile:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "ob":
                here = there = EXTENSION.search(value) is not None
            elif key == "cob":
                there = EXTENSION.search(value) is not None
            elif key == "fn":
                function = value.partition("'")[0]
            elif key == "cfn":
                called = value.partition("'")[0]
            elif key == "calls":
                callee = True
            elif line.startswith(POSITIONS):
                # Costs of zero are left out.
                cost = int((line.split() + ["0"])[1])
                if callee and here and there:
                    self.callees[function][called] += cost
                elif not callee and here:
                    self.own[function] += cost
                callee, there = False, here

    def ordered(self) -> list[str]:
        """Every function once: callee after caller, the dearest first."""
        inner = {callee for callees in self.callees.values() for callee in callees}
        waiting = [name for name, _ in reversed(self.own.most_common()) if name in inner]
        waiting += [name for name, _ in reversed(self.own.most_common()) if name not in inner]
        order: dict[str, None] = {}
        while waiting:
            name = waiting.pop()
            if name not in order:
                order[name] = None
                waiting += [callee for callee, _ in reversed(self.callees[name].most_common())]
        return list(order)


def traced() -> tuple[Calls, Path]:
    """The call benchmarks' profile, and the extension."""
    calls, extension = Calls(), None
    with profiles(HERE / "workload.py", "--demangle=no", "--compress-strings=no") as (runs, written):
        for i, name in enumerate(runs):
            if name in OTHERS:
                continue
            text = written[3 * i + 2].read_text(errors="replace")
            calls.read(text.splitlines())
            for line in text.splitlines():
                if line.startswith("ob=") and EXTENSION.search(line):
                    extension = Path(line.partition("=")[2])
                    break
    if extension is None:
        raise SystemExit("no instruction of the extension was seen")
    return calls, extension


def instances(extension: Path) -> Counter[str]:
    """How many functions each name without its hash stands for."""
    listed = subprocess.run(["nm", str(extension)], capture_output=True, text=True, check=True).stdout
    symbols = (line.split() for line in listed.splitlines())
    return Counter(HASH.sub("", name) for *_, kind, name in symbols if kind in "tT")


def script(names: Iterable[str]) -> str:
    """The linker script: the head of `.text`, where tools look for functions. GNU ld and lld know `INSERT`.

    Each function begins at a line of the cache, the first at a page: what else the extension holds moves none of them.
    """
    lines = "\n".join(f"    *(.text.{name}*)" for name in names)
    return f"""/* Written by benches/callgrind/layout.py: functions of the call benchmarks, callee after caller. */
SECTIONS
{{
  .text : SUBALIGN(64)
  {{
    . = ALIGN(4096);
{lines}
  }}
}}
INSERT AFTER .init;
"""


def covered(calls: Calls, text: str) -> float:
    """The part of the instructions that functions named by the script execute."""
    named = set(re.findall(r"\*\(\.text\.(.*)\*\)", text))
    inside = sum(cost for name, cost in calls.own.items() if HASH.sub("", name) in named)
    return inside / calls.own.total()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="measure the script instead of writing it")
    options = parser.parse_args()
    if missing := [tool for tool in ("valgrind", "nm") if shutil.which(tool) is None]:
        print(f"SKIPPED the layout of calls: {' and '.join(missing)} not installed")
        return 0
    calls, extension = traced()
    if not options.check:
        counts = instances(extension)
        names = dict.fromkeys(HASH.sub("", name) for name in calls.ordered())
        SCRIPT.write_text(script(name for name in names if counts[name] <= MOST_INSTANCES))
    share = covered(calls, SCRIPT.read_text())
    print(f"{SCRIPT.name} covers {share:.1%} of the instructions of calls")
    return 0 if share >= COVERED else 1


if __name__ == "__main__":
    sys.exit(main())
