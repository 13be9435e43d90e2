"""This project beside NumPy, PyTorch, JAX and the published upstream package, in one interleaved run.

    python benches/python/peers ours=PYTHON torch=PYTHON ... [--rounds 31] [--threads 1 2] [--case NAME ...]
                                [--json FILE] [--readme FILE]

Each NAME=PYTHON names a library (`lib_NAME.py`) and the interpreter of the environment that holds it.
`make bench-peers` makes those environments and runs this. The method is described in benches/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
from pathlib import Path

import report
import rounds
import worker

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "tests" / "data" / "torch-schemas.txt"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--block-ms", type=float, default=25, help="length of one timed block")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--case", action="append", choices=report.CASES, help="only these cases (repeatable)")
    parser.add_argument(
        "--repeats", type=int, default=7, help="fresh processes for import time and tape size; 0 skips them"
    )
    parser.add_argument("--schemas", type=Path, default=SCHEMAS, metavar="FILE", help="one schema a line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="replace the marked table of FILE")
    return parser.parse_args()


def schema_lines(page: Path) -> list[str]:
    lines = (line.strip() for line in page.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def digits() -> dict[str, list]:
    """As many handwritten digits as the largest batch: pixels from 0 to 1, and labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    most = max(worker.BATCHES)
    return {"x": (data.data[:most] / 16).tolist(), "y": data.target[:most].tolist()}


def fresh(interpreters: dict[str, str], repeats: int) -> dict[str, dict[str, list[float]]]:
    if not repeats:
        return {}
    modules = {
        "ours": "tensorplay",
        "numpy": "numpy",
        "torch": "torch",
        "jax": "jax",
        "upstream": "tensorplay",
        "numexpr": "numexpr",
    }
    tapes = {
        name: (python, name) for name, python in interpreters.items() if name in ("ours", "torch", "upstream")
    }
    imports = {name: (python, modules[name]) for name, python in interpreters.items()}
    long = {name: subject for name, subject in tapes.items() if name != "upstream"}
    return {
        "import": rounds.fresh("import", imports, repeats),
        "tape": rounds.fresh("tape", tapes, repeats),
        "million": rounds.fresh("million", long, repeats),
        "peak": rounds.fresh("peak", long, repeats),
    }


def facts(all_results: list[rounds.Results]) -> dict[str, str]:
    """What a reader needs to place the figures; the machine in general words only."""

    def git(*words: str) -> str:
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return ran.stdout.strip()

    info = Path("/proc/cpuinfo").read_text()
    vectors = "AVX-512" if report.wide_vectors() else "AVX2" if " avx2" in info else "no AVX2"
    cores = len(os.sched_getaffinity(0))
    commit = git("rev-parse", "--short", "HEAD") or "none"
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit + (" with local changes" if git("status", "--porcelain") else ""),
        "machine": f"{platform.system()} {platform.machine()}, {cores} cores, {vectors}",
        "python": platform.python_version(),
        "libraries": ", ".join(f"{name} {v}" for name, v in sorted(all_results[0].versions.items()))
        if all_results
        else "",
        "stolen": ", ".join(f"{r.stolen:.1%} ({r.threads} threads)" for r in all_results),
    }


def replace_block(page: Path, text: str) -> None:
    old = page.read_text()
    head, _, rest = old.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{page}: no {BEGIN} ... {END} block")
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def main() -> None:
    options = arguments()
    interpreters = dict(spec.split("=", 1) for spec in options.libraries)
    only = set(options.case) if options.case else None
    all_results = []
    for threads in options.threads:
        settings = {
            "threads": threads,
            "block_seconds": options.block_ms / 1e3,
            "schemas": schema_lines(options.schemas),
            "digits": digits(),
        }
        results = rounds.measure(interpreters, settings, options.rounds, only)
        print(f"\n{threads} thread(s), {options.rounds} rounds, the host took {results.stolen:.1%}\n")
        print(report.time_table(results))
        all_results.append(results)
    measured = fresh(interpreters, options.repeats)
    found = report.rows(all_results, measured)
    about = facts(all_results)
    header = "\n".join(f"- {key}: {value}" for key, value in about.items() if value)
    text = f"{header}\n\n{report.ratio_table(found)}"
    print(f"\n{text}")
    if options.json:
        options.json.write_text(json.dumps(report.as_json(all_results, measured, found, about)))
    if options.readme:
        replace_block(options.readme, f"\n{text}\n")


if __name__ == "__main__":
    main()
