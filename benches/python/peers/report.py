"""Ratios, bars and tables: what the samples say. Lower is better everywhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rounds import Results

CASES = {
    "add": "add(x, y)",
    "op_body": "body of the custom op",
    "op": "custom op",
    "op_grad": "custom op, grad recorded",
    "op_step": "custom op forward + sum + backward",
    "op14": "custom op of 14 arguments",
    "op14_grad": "custom op of 14 arguments, grad recorded",
    "function": "autograd.Function forward + backward",
    "native_step": "(x * 2).sum().backward()",
    "chain": "chain of 100, forward + backward, per op",
    "capture": "capture of 200 ops, per op",
    "compiled8": "compiled call, 8 pointwise ops",
    "schema": "schema parse, per schema",
    "gelu": "tanh-GELU over 2^24 float32, compiled",
    "gelu_native": "tanh-GELU over 2^24 float32, compiled, native",
    "double": "x * 2 over 2^24 float32, compiled (numpy: a copy)",
    "softmax": "softmax of (4096, 4096)",
    "digits32": "training step of 64-64-10, batch 32",
    "digits512": "training step of 64-64-10, batch 512",
}


@dataclass(frozen=True)
class Bar:
    """A ratio that was promised. `less` is a case subtracted on both sides (what an op costs over its body), `against` the
    peer's case where it has another name, and the peer `best` the quickest of all that have it."""

    what: str
    case: str
    peer: str
    bar: float
    less: str | None = None
    against: str | None = None


def bars(wide_vectors: bool) -> list[Bar]:
    return [
        Bar("tp.add", "add", "torch", 0.15),
        Bar("custom op over its body", "op", "torch", 0.03, less="op_body"),
        Bar("custom op over its body, grad recorded", "op_grad", "torch", 0.03, less="op_body"),
        Bar("seed op forward + sum + backward", "op_step", "torch", 0.03),
        Bar("seed op forward + sum + backward", "op_step", "upstream", 0.03),
        Bar("chain forward + backward, per op", "chain", "torch", 0.05),
        Bar("chain forward + backward, per op", "chain", "upstream", 0.15),
        Bar("custom op of 14 arguments", "op14", "torch", 0.04),
        Bar("custom op of 14 arguments, grad recorded", "op14_grad", "torch", 0.04),
        Bar("autograd.Function forward + backward", "function", "torch", 0.06),
        Bar("tape bytes per op that saves nothing", "tape", "upstream", 0.5),
        Bar("tape of a million ops, bytes per op", "million", "torch", 0.15),
        Bar("tape of a million ops, peak bytes per op", "peak", "torch", 0.15),
        Bar("capture, per op (torch.fx)", "capture", "torch", 0.05),
        Bar("compiled call, 8 pointwise ops", "compiled8", "torch", 0.01),
        Bar("compiled call, 8 pointwise ops", "compiled8", "upstream", 0.12),
        Bar("schema parse", "schema", "torch", 0.2),
        Bar(
            f"TVM tanh-GELU, 2^24 f32 ({'AVX-512' if wide_vectors else 'AVX2'})",
            "gelu",
            "torch",
            0.22 if wide_vectors else 0.33,
        ),
        Bar("TVM tanh-GELU, 2^24 f32", "gelu", "best", 0.5),
        Bar("native tanh-GELU, 2^24 f32", "gelu_native", "best", 0.8, against="gelu"),
        Bar("x * 2, 2^24 f32, over a memory copy", "double", "numpy", 1.15),
        Bar("softmax (4096, 4096)", "softmax", "torch", 0.45),
        Bar("softmax (4096, 4096)", "softmax", "upstream", 1.05),
        Bar("digits training step, batch 32", "digits32", "best", 0.6),
        Bar("digits training step, batch 512", "digits512", "best", 1.0),
        Bar("import", "import", "numpy", 0.4),
    ]


def wide_vectors() -> bool:
    return " avx512f" in Path("/proc/cpuinfo").read_text()


@dataclass(frozen=True)
class Row:
    """One line of the ratio table. `least` are the least times seen; `kept` the blocks not preempted, of all."""

    what: str
    peer: str
    threads: int
    ratio: float | None
    least: tuple[float, float] | None
    kept: tuple[int, int] | None
    rounds: int
    bar: float | None
    verdict: str


def verdict(ratio: float | None, bar: float | None, note: str | None) -> str:
    if ratio is None:
        return "not measured"
    if note and note.startswith("FALLBACK"):
        return "not a performance result"
    if bar is None:
        return "-"
    return "met" if ratio <= bar else "not met"


def best_peer(results: Results, case: str) -> str:
    """The library other than ours whose median time of `case` is the least."""
    medians = {
        lib: statistics.median(s.wall)
        for (lib, c), s in results.samples.items()
        if c == case and lib != "ours"
    }
    return min(medians, key=medians.__getitem__) if medians else "best"


def timed_row(
    what: str,
    results: Results,
    case: str,
    peer: str,
    bar: float | None,
    less: str | None = None,
    against: str | None = None,
) -> Row:
    """Ratio = median over rounds of the ratio of that round: a slow spell of the machine cancels."""
    if peer == "best":
        peer = best_peer(results, against or case)
    pairs = [("ours", case), (peer, against or case)]
    wanted = pairs + [(lib, less) for lib, _ in pairs if less]
    if any(key not in results.samples for key in wanted):
        return Row(what, peer, results.threads, None, None, None, 0, bar, verdict(None, bar, None))
    sides = [results.samples[key].wall for key in pairs]
    if less:
        bodies = [results.samples[lib, less].wall for lib in ("ours", peer)]
        sides = [
            [a - b for a, b in zip(side, body, strict=True)] for side, body in zip(sides, bodies, strict=True)
        ]
    mine, theirs = sides
    # A body that took longer than the op in the same round says only that the machine was disturbed.
    ratio = statistics.median(a / b if b > 0 else float("inf") for a, b in zip(mine, theirs, strict=True))
    kept = (len(results.samples[pairs[0]].kept), len(results.samples[pairs[1]].kept))
    said = verdict(ratio, bar, results.notes.get(("ours", case)))
    return Row(what, peer, results.threads, ratio, (min(mine), min(theirs)), kept, len(mine), bar, said)


def fresh_row(bar: Bar, values: dict[str, list[float]]) -> Row:
    """Ratio of the medians over fresh processes."""
    if "ours" not in values or bar.peer not in values:
        return Row(bar.what, bar.peer, 1, None, None, None, 0, bar.bar, "not measured")
    mine, theirs = values["ours"], values[bar.peer]
    ratio = statistics.median(mine) / statistics.median(theirs)
    least = (min(mine), min(theirs))
    return Row(bar.what, bar.peer, 1, ratio, least, None, len(mine), bar.bar, verdict(ratio, bar.bar, None))


def rows(all_results: Iterable[Results], fresh: dict[str, dict[str, list[float]]]) -> list[Row]:
    """The promised ratios first, for each number of threads, then the other pairs that were measured."""
    promised = bars(wide_vectors())
    out = [fresh_row(bar, fresh.get(bar.case, {})) for bar in promised if bar.case not in CASES]
    for results in all_results:
        timed = [bar for bar in promised if bar.case in CASES]
        out += [timed_row(b.what, results, b.case, b.peer, b.bar, b.less, b.against) for b in timed]
        told = {(bar.case, bar.peer) for bar in timed if not bar.less}
        pairs = [
            (case, peer) for peer, case in results.samples if peer != "ours" and (case, peer) not in told
        ]
        out += [timed_row(CASES[case], results, case, peer, None) for case, peer in sorted(pairs)]
    return [row for row in out if row.bar is not None or row.ratio is not None]


def quantity(value: float, what: str) -> str:
    if what.startswith("tape"):
        return f"{value:.0f} B"
    if what == "import":
        return f"{value:.1f} ms"
    scale, unit = next((s, u) for s, u in ((1e6, "ms"), (1e3, "µs"), (0, "ns")) if abs(value) >= s)
    return f"{value / (scale or 1):.3g} {unit}"


def ratio_table(found: list[Row]) -> str:
    """Markdown, so that the same text serves the terminal and the page."""
    lines = [
        "| what | peer | threads | ours / peer | ours, least | peer, least | kept | bar | |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for row in found:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        least = [quantity(value, row.what) for value in row.least] if row.least else ["", ""]
        kept = (
            f"{row.kept[0]}+{row.kept[1]} of {2 * row.rounds}"
            if row.kept
            else f"{row.rounds} processes"
            if row.rounds
            else ""
        )
        bar = "" if row.bar is None else f"{row.bar:g}"
        cells = [row.what, row.peer, str(row.threads), ratio, *least, kept, bar, row.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def time_table(results: Results) -> str:
    """Every (case, library): least, median of the blocks kept, how many those were."""
    lines = [f"{'case':44}{'library':10}{'least':>10}{'median':>10}{'kept':>9}  note"]
    for case, label in CASES.items():
        for (library, measured), s in results.samples.items():
            if measured != case:
                continue
            median = quantity(statistics.median(s.kept), case) if s.kept else "-"
            note = results.notes.get((library, case), "")
            kept = f"{len(s.kept)}/{len(s.wall)}"
            lines.append(
                f"{label:44}{library:10}{quantity(min(s.wall), case):>10}{median:>10}{kept:>9}  {note}".rstrip()
            )
    return "\n".join(lines)


def as_json(all_results: Iterable[Results], fresh: dict, found: list[Row], facts: dict) -> dict:
    return {
        "facts": facts,
        "ratios": [asdict(row) for row in found],
        "fresh": fresh,
        "runs": [
            {
                "threads": r.threads,
                "versions": r.versions,
                "stolen": r.stolen,
                "samples": [
                    {"library": lib, "case": case, "note": r.notes.get((lib, case)), **asdict(s)}
                    for (lib, case), s in r.samples.items()
                ],
            }
            for r in all_results
        ],
    }
