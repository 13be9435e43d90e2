"""The command line: facts about this machine, its capabilities and operators, verification, and error codes.

Every command prints to standard output and ends with 0, with 1 when what was asked about does not hold, and with 2 when
the question itself is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorplay import _native, codes, graph
from tensorplay._arguments import counted, nearest
from tensorplay._program import targets
from tensorplay.backends import base
from tensorplay.errors import GraphError, TensorPlayError
from tensorplay.outcome import Capability, how_to_install, render_table

__all__ = ["main"]

PACKAGES = ("numpy", "triton", "apache-tvm", "apache-tvm-ffi", "torch", "jax", "safetensors", "ml_dtypes")
# What to do about a capability that is absent.
FIXES = {
    **{extra: f"{how_to_install(extra)} (installs the tested version)" for extra in ("tvm", "triton")},
    "cuda": "needs an NVIDIA driver and a build with CUDA kernels; everything else works without",
}
MODULES = {"tvm": "tvm", "triton": "triton"}


class UsageError(Exception):
    """The question is wrong: printed without a traceback, exit status 2."""


# --- env and doctor -----------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Facts to paste into a report."""
    return {
        "tensorplay": _native.__version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "threads": _native.get_num_threads(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "capabilities": {name: found.to_dict() for name, found in base.capabilities().items()},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    """Name and vector extensions, where the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {"name": platform.processor() or None, "features": []}
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    wanted = (
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512_bf16",
        "asimd",
        "sve",
    )
    return {"name": facts.get("model name"), "features": [flag for flag in wanted if flag in flags]}


def command_env(arguments: argparse.Namespace) -> int:
    """`env`: print the facts, as text or JSON."""
    facts = environment()
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    for key in ("tensorplay", "python", "implementation", "platform", "machine", "cpu_count", "threads"):
        print(f"{key:<15} {facts[key]}")
    print(f"{'cpu':<15} {facts['cpu']['name']} ({' '.join(facts['cpu']['features'])})")
    print(f"{'packages':<15} {', '.join(f'{name} {version}' for name, version in facts['packages'].items())}")
    for name, found in facts["capabilities"].items():
        print(f"{name:<15} {'available' if found['available'] else 'not available: ' + str(found['reason'])}")
    return 0


def diagnose(capability: Capability) -> tuple[str, str, str]:
    """(state, why, fix): `ok`, `missing` (nothing is installed), `broken` (something is, and cannot be used) or `partial`.

    `partial` is installed and works as far as it goes without another capability, whose fix it has.
    """
    if capability.available:
        known = {key: value for key, value in capability.details.items() if value is not None}
        facts = "; ".join(f"{key} {_shown(value)}" for key, value in known.items())
        return "ok", facts, ""
    needs = capability.details.get("needs")
    if needs is not None:
        return "partial", capability.reason or "", FIXES[needs]
    module = MODULES.get(capability.name)
    installed = bool(module and importlib.util.find_spec(module)) or bool(capability.details.get("driver"))
    fix = FIXES.get(capability.name, "")
    # The reason of an adapter ends with the command that the fix has.
    reason = (capability.reason or "").removesuffix(f"; {how_to_install(capability.name)}" if module else "")
    return "broken" if installed else "missing", reason, fix


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def command_doctor(arguments: argparse.Namespace) -> int:
    """`doctor`: each capability with what is wrong and the fix; 1 when a required one is not there."""
    found = base.capabilities()
    required = [name for text in arguments.require for name in text.split(",") if name]
    if unknown := [name for name in required if name not in found]:
        raise UsageError(f"no capability named {unknown[0]!r}; known are {', '.join(found)}")
    states = {name: diagnose(capability) for name, capability in found.items()}
    lacking = [name for name in required if states[name][0] != "ok"]
    if arguments.json:
        rows = {name: {"state": s, "why": why, "fix": fix} for name, (s, why, fix) in states.items()}
        print(json.dumps({"capabilities": rows, "required": required, "lacking": lacking}, indent=2))
        return 1 if lacking else 0
    table = [(name, state, why, fix) for name, (state, why, fix) in states.items()]
    print(render_table(table, ("capability", "state", "why", "fix")))
    if lacking:
        print(f"required, and not ok: {', '.join(lacking)}")
    return 1 if lacking else 0


# --- ops and graph ------------------------------------------------------------------------------------


def command_ops(arguments: argparse.Namespace) -> int:
    """`ops`: every op, those of a namespace, or all about one."""
    for module in arguments.imports:
        _module(module)
    name = arguments.name
    if name and "::" in name:
        return _describe(name, arguments.json)
    listed = sorted(_native.list_ops(name))
    if name and not listed:
        near = _near(name)
        raise UsageError(
            f"no ops in the namespace {name!r}"
            + (f"; did you mean the op {near!r}?" if near else "")
            + f"\n  namespaces are {', '.join(_spaces())}; --import MODULE imports the module that defines others"
        )
    if arguments.json:
        print(json.dumps({full: _native.op_info(full)["schema"] for full in listed}, indent=2))
        return 0
    for full in listed:
        print(_native.op_info(full)["schema"])
    print(counted(len(listed), "op"))
    return 0


def _describe(name: str, as_json: bool) -> int:
    op = _native.get_op(name.removesuffix(".default"))
    if op is None:
        raise UsageError(f"no op named {name!r}{_instead(name)}")
    overloads = _native.op_overloads(op)
    chosen = [name] if name in overloads else overloads
    if as_json:
        print(json.dumps({full: _native.op_info(full) for full in chosen}, indent=2))
    else:
        print("\n".join(_describe_one(full) for full in chosen))
    return 0


def _spaces() -> list[str]:
    """Namespaces that have ops."""
    return sorted({full.split("::")[0] for full in _native.list_ops()})


def _near(name: str) -> str | None:
    """The op whose name is closest; a name without a namespace is compared with those of all."""
    ops = {full if "::" in name else full.split("::")[1]: full for full in sorted(_native.list_ops())}
    near = nearest(name, ops)
    return ops[near] if near else None


def _instead(name: str) -> str:
    """What else an op that is not known may be, for the end of a message."""
    space, near = name.split("::")[0], _near(name)
    if near is not None:
        return f"; did you mean {near!r}?"
    if space in _spaces():
        return f"; `python -m tensorplay ops {space}` lists those of {space!r}"
    return (
        f"\n  namespaces are {', '.join(_spaces())}; --import MODULE imports the module that defines the op"
    )


def _describe_one(full: str) -> str:
    info = _native.op_info(full)
    rows = [("schema", info["schema"]), ("effects", ", ".join(info["effects"]) or "pure")]
    rows += [("fake", info["fake"]), ("autograd", info["autograd"])]
    if info["pointwise"]:
        rows.append(("expression", info["pointwise"]))
    for slot, (kernel, file, line, executor), when in info["kernels"]:
        rows.append(
            (f"kernel {slot}", f"{kernel} ({executor}, {file}:{line})" + (f" when {when}" if when else ""))
        )
    rows.append(("defined at", f"{info['at'][1]}:{info['at'][2]}"))
    return "\n".join([full, *(f"  {label:<12} {text}" for label, text in rows)])


def command_graph(arguments: argparse.Namespace) -> int:
    """`graph`: read a graph's text, check it, and print it as a table, text, Graphviz or SVG."""
    for module in arguments.imports:
        _module(module)
    path = Path(arguments.file)
    try:
        text = sys.stdin.read() if arguments.file == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {arguments.file}: {error.strerror}") from error
    try:
        found = graph.parse(text)
    except GraphError as error:
        print(error)
        return 1
    methods = {"table": "table", "text": "text", "dot": "to_dot", "svg": "svg"}
    print(getattr(found, methods[arguments.format])())
    violations = list(found.verify())
    for violation in violations:
        print(f"violation: {violation}", file=sys.stderr)
    called = targets(found._structure())
    if unknown := sorted(target for target in called if _native.get_op(_op_of(target)) is None):
        print(f"  --import MODULE imports the module that defines {', '.join(unknown)}", file=sys.stderr)
    return 1 if violations else 0


def _op_of(target: str) -> str:
    """`ns::name` of the target of a node."""
    return target.removesuffix(".default")


# --- verify and explain -------------------------------------------------------------------------------


def _module(name: str) -> Any:
    """Imports a module by name, or a `.py` file by path; the working directory counts as a source of modules."""
    try:
        if name.endswith(".py"):
            path = Path(name).resolve()
            known = sys.modules.get(path.stem)
            if known is not None and getattr(known, "__file__", None) == str(path):
                return known  # importing a file twice would define its ops twice
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.exists():
                raise UsageError(f"no file {name!r}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            return module
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise UsageError(f"no module named {name!r}") from error


def _subject(text: str) -> Any:
    """`module:attribute`, `file.py:attribute` or `ns::op` as an object."""
    place, separator, attribute = text.rpartition(":")
    if not separator or place.endswith(":"):
        found = _native.get_op(text)
        if found is None:
            raise UsageError(
                f"{text!r} is neither 'module:op' nor the name of a registered op{_instead(text)}"
            )
        return found
    found = _module(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{place!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def command_verify(arguments: argparse.Namespace) -> int:
    """`verify`: the report on one op; 1 when it does not keep its contract."""
    from tensorplay.verify import verify

    required = [name for text in arguments.require for name in text.split(",") if name]
    for module in arguments.imports:
        _module(module)
    inputs = _subject(arguments.inputs) if arguments.inputs else None
    inputs = inputs() if callable(inputs) else inputs
    subject = _subject(arguments.op)
    report = verify(subject, inputs, require=required, seed=arguments.seed, sweep=not arguments.no_sweep)
    if arguments.junit:
        Path(arguments.junit).write_text(report.to_junit(), encoding="utf-8")
    print(report.to_json() if arguments.json else report.text())
    return 0 if report.passed else 1


def command_cache(arguments: argparse.Namespace) -> int:
    """`cache`: the kernels that backends keep on disk; `--purge` removes them."""
    kept = base.adapter("tvm")
    if arguments.purge:
        print(f"removed {counted(kept.purge(), 'kernel')}")
        return 0
    entries = kept.entries()
    if arguments.json:
        print(json.dumps(entries, indent=2))
        return 0
    rows = [["tvm", e["key"][:16], str(e["bytes"]), e.get("program", "?")] for e in entries]
    print(render_table(rows, ["backend", "key", "bytes", "program"]) if rows else "no kernels are kept")
    return 0


def command_explain(arguments: argparse.Namespace) -> int:
    """`explain`: what an error code means and what to do; without a code, the whole table."""
    if arguments.code is None:
        for code, each in sorted(codes.CODES.items()):
            print(f"{code}  {each.meaning}")
        return 0
    entry = codes.lookup(arguments.code)
    if entry is None:
        raise UsageError(
            f"no error code {arguments.code!r}; they look like TP1203, and `explain` alone lists them"
        )
    print(entry.text())
    return 0


# --- arguments ----------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(prog="python -m tensorplay", description="Inspect and check tensorplay.")
    top.add_argument("--version", action="version", version=f"tensorplay {_native.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], about: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(function=function)
        return sub

    env = command("env", command_env, "facts about this machine, to paste into a report")
    env.add_argument("--json", action="store_true", help="as JSON")
    doctor = command(
        "doctor", command_doctor, "each capability: ok, partial, missing or broken, why, and the fix"
    )
    _require(doctor)
    doctor.add_argument("--json", action="store_true", help="as JSON")
    ops = command("ops", command_ops, "list the operators, or describe one")
    ops.add_argument("name", nargs="?", help="a namespace, or ns::op")
    _imports(ops)
    ops.add_argument("--json", action="store_true", help="as JSON")
    verify = command("verify", command_verify, "check an operator against its contract")
    verify.add_argument("op", help="module:op, file.py:op or ns::op")
    _imports(verify)
    verify.add_argument("--inputs", metavar="MODULE:NAME", help="the inputs, or a function that returns them")
    _require(verify)
    verify.add_argument("--seed", type=int, default=0, help="of generated inputs (default 0)")
    verify.add_argument("--no-sweep", action="store_true", help="no neighbours of the given inputs")
    verify.add_argument("--json", action="store_true", help="as JSON")
    verify.add_argument("--junit", metavar="FILE", help="write JUnit XML as well")
    drawing = command("graph", command_graph, "read the text of a graph, check it, and print it")
    drawing.add_argument("file", help="a file, or - for standard input")
    _imports(drawing)
    drawing.add_argument(
        "--format", choices=("table", "text", "dot", "svg"), default="table", help="default: table"
    )
    cache = command("cache", command_cache, "list the compiled kernels that are kept on disk, or remove them")
    cache.add_argument("--purge", action="store_true", help="remove all of them")
    cache.add_argument("--json", action="store_true", help="as JSON")
    explain = command("explain", command_explain, "what an error code means, and the fix")
    explain.add_argument("code", nargs="?", help="such as TP1203; all of them when left out")
    return top


def _imports(sub: argparse.ArgumentParser) -> None:
    about = "import it first (a module by name, or a .py file)"
    sub.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help=about)


def _require(sub: argparse.ArgumentParser) -> None:
    about = "fail where one of these capabilities is absent (comma-separated)"
    sub.add_argument("--require", action="append", default=[], metavar="NAMES", help=about)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status."""
    arguments = parser().parse_args(argv)
    try:
        status = int(arguments.function(arguments))
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except TensorPlayError as error:
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n  ", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a pipe went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full device, say; what is left must not fail again at exit
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def __dir__() -> list[str]:
    return sorted(__all__)
