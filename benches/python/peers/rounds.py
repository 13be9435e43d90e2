"""The protocol: one worker per library, started one after another; every round visits every (library, case)
pair once in a fresh random order, so that a slow spell of the machine hits all of them alike.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
THREAD_VARIABLES = ("MKL", "NUMBA", "NUMEXPR", "OMP", "OPENBLAS", "TVM")


@dataclass
class Samples:
    """Blocks of one (library, case), in round order: nanoseconds per unit of work, wall and process CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def kept(self) -> list[float]:
        """The blocks that were not preempted: the clock did not run ahead of the processor."""
        return [w for w, c in zip(self.wall, self.cpu, strict=True) if w <= 1.1 * c]


@dataclass
class Results:
    """What one run with one number of threads gave."""

    threads: int
    samples: dict[tuple[str, str], Samples]
    versions: dict[str, str]
    notes: dict[tuple[str, str], str]
    stolen: float  # share of processor time that the host took away meanwhile


class Worker:
    """A library's process; asks it for blocks."""

    def __init__(self, name: str, interpreter: str, settings: dict, environment: dict[str, str]) -> None:
        self.name = name
        command = [interpreter, str(HERE / "worker.py"), name]
        self.process = subprocess.Popen(
            command, env=environment, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ask(json.dumps(settings))
        hello = json.loads(self._answer())
        self.version: str = hello["version"]
        self.cases: dict[str, dict] = hello["cases"]

    def _ask(self, line: str) -> None:
        self.process.stdin.write(line + "\n")  # type: ignore[union-attr]

    def _answer(self) -> str:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the worker of {self.name} ended (status {self.process.wait()})")
        return line

    def block(self, case: str) -> tuple[float, float]:
        self._ask(case)
        wall, cpu = json.loads(self._answer())
        return wall, cpu

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def environment(threads: int) -> dict[str, str]:
    env = dict(os.environ)
    # Installed packages have their bytecode; ours, installed in place, gets it at the first import.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {f"{name}_NUM_THREADS": str(threads) for name in THREAD_VARIABLES}
    # Kernels forced for another processor would slow some peers and not others.
    env.pop("OPENBLAS_CORETYPE", None)
    env.pop("OPENBLAS_L2_SIZE", None)
    return env


def processor_ticks() -> tuple[int, int]:
    """(all, stolen by the host) since boot."""
    fields = [int(f) for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[7]


def start(interpreters: dict[str, str], settings: dict, only: set[str] | None) -> list[Worker]:
    """One at a time: compiling while another one measures or compiles would disturb both."""
    workers = []
    for name, interpreter in interpreters.items():
        print(f"preparing {name} ...", file=sys.stderr)
        try:
            worker = Worker(name, interpreter, settings, environment(settings["threads"]))
        except (RuntimeError, OSError) as error:
            print(f"LEFT OUT {name}: {error}", file=sys.stderr)
            continue
        for case, said in worker.cases.items():
            if "error" in said and (only is None or case in only):
                print(f"FAILED {name} {case}: {said['error']}", file=sys.stderr)
        workers.append(worker)
    return workers


def measure(interpreters: dict[str, str], settings: dict, rounds: int, only: set[str] | None) -> Results:
    """Pins this process, and with it every worker, to as many cores as threads; then runs the rounds."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[-settings["threads"] :]))
    try:
        workers = start(interpreters, settings, only)
        slots = [
            (worker, case)
            for worker in workers
            for case, said in worker.cases.items()
            if "error" not in said and (only is None or case in only)
        ]
        samples = {(worker.name, case): Samples() for worker, case in slots}
        before = processor_ticks()
        for done in range(rounds):
            random.shuffle(slots)
            for worker, case in slots:
                wall, cpu = worker.block(case)
                samples[worker.name, case].wall.append(wall)
                samples[worker.name, case].cpu.append(cpu)
            print(f"\rround {done + 1} of {rounds}", end="", file=sys.stderr)
        print(file=sys.stderr)
        after = processor_ticks()
        for worker in workers:
            worker.close()
    finally:
        os.sched_setaffinity(0, set(cores))
    notes = {(w.name, c): s["note"] for w in workers for c, s in w.cases.items() if s.get("note")}
    stolen = (after[1] - before[1]) / max(1, after[0] - before[0])
    return Results(settings["threads"], samples, {w.name: w.version for w in workers}, notes, stolen)


def fresh(kind: str, subjects: dict[str, tuple[str, str]], repeats: int) -> dict[str, list[float]]:
    """Runs `fresh.py KIND ARGUMENT` for every subject (interpreter, argument), interleaved."""
    values: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, (interpreter, argument) in random.sample(list(subjects.items()), len(subjects)):
            command = [interpreter, str(HERE / "fresh.py"), kind, argument]
            ran = subprocess.run(command, env=environment(1), capture_output=True, text=True)
            if ran.returncode:
                print(f"FAILED {name} {kind}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            else:
                values[name].append(float(ran.stdout))
    return {name: v for name, v in values.items() if v}
