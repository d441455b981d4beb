"""`gemini-lab doctor`: what is on this machine, and what to do about what is not."""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from gemini_lab.display import tell
from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.mpi import find_mpiexec, mpi_environment
from gemini_lab.log.file import RUNS_FOLDER
from gemini_lab.memory.free import free_memory
from gemini_lab.status_line import busy
from gemini_lab.units import GIB, format_bytes

NEEDED_BYTES: Final = 7 * GIB
"""Room for the quickstart: four workers (1 GiB each), five agents with replicas, warm parents."""

NEEDED_PYTHON: Final = (3, 11)
EMBED: Final = "pip install 'gemini-lab[embedded]'"
PROBE_S: Final = 20.0
WIDTH: Final = 80
State = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str  # what was looked at
    # `"ok"`; `"note"`: something optional is absent or small; `"missing"`: the main job cannot run.
    state: State
    found: str  # what is there
    remedy: str = ""  # what to do about what is not; empty if nothing


def ok(name: str, found: str) -> Finding:
    """Return a finding with nothing to do about it."""
    return Finding(name=name, state="ok", found=found)


def note(name: str, found: str, remedy: str) -> Finding:
    """Return a finding that something optional is absent or small."""
    return Finding(name=name, state="note", found=found, remedy=remedy)


def missing(name: str, found: str, remedy: str) -> Finding:
    """Return a finding for which the main job cannot run."""
    return Finding(name=name, state="missing", found=found, remedy=remedy)


def examine() -> list[Finding]:
    """Look at everything; takes some seconds, most of them torch's."""
    checks: list[Callable[[], Finding]] = [
        python,
        torch,
        deepspeed,
        kept_processes,
        lambda: package("mpi4py"),
        mpi,
        etcd,
        cores,
        memory,
        slabs,
        shared_memory,
        ports,
        folder,
        ssh,
        slurm,
    ]
    findings = []
    for number, check in enumerate(checks, start=1):
        with busy(f"looking at this machine: {number} of {len(checks)}"):
            findings.append(check())
    return findings


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    """Look at the interpreter."""
    found = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version >= NEEDED_PYTHON:
        return ok("python", found)
    return missing("python", found, "use Python 3.11 or a later one")


def package(name: str) -> Finding:
    """Look for a package that is needed, by its name in the package index and as a module."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if version and importlib.util.find_spec(name) is not None:
        return ok(name, version)
    return missing(name, "not installed", f"pip install {name}")


def torch() -> Finding:
    """Look at PyTorch, and at the device that it would train on."""
    installed = package("torch")
    if installed.state == "missing":
        return installed
    try:
        module = importlib.import_module("torch")
    except (ImportError, OSError) as error:  # a library that it links is absent
        return _not_importable(installed, error, "pip install --force-reinstall torch")
    device = "CPU (fp32, Gloo)"
    if module.cuda.is_available():
        count = module.cuda.device_count()
        device = f"{count} x {module.cuda.get_device_name(0)} (bf16, NCCL)"
    return ok("torch", f"{module.__version__}, trains on {device}")


def deepspeed() -> Finding:
    """Look at DeepSpeed, which every worker imports."""
    installed = package("deepspeed")
    if installed.state == "missing":
        return installed
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it logs which device it sees
            importlib.import_module("deepspeed")
    except Exception as error:  # noqa: BLE001 - its own code, or what it imports, raises it
        remedy = "pip install --force-reinstall deepspeed"
        if "active drivers" in str(error):  # Triton 3.2's, which comes with PyTorch 2.6
            remedy = "pip uninstall triton, whose import wants a GPU, or install a newer torch"
        return _not_importable(installed, error, remedy)
    return installed


def _not_importable(installed: Finding, error: Exception, remedy: str) -> Finding:
    return missing(installed.name, f"{installed.found}, and its import fails: {error}", remedy)


def _obstacle() -> str:
    from gemini_lab.kept.groups import obstacle  # noqa: PLC0415 - imports torch

    return obstacle()


def kept_processes(obstacle: Callable[[], str] = _obstacle) -> Finding:
    """Look whether ranks can keep their process through a recovery, as `keep_processes` asks."""
    try:
        found = obstacle()
    except (ImportError, OSError) as error:
        found = f"torch cannot be imported: {error}"
    if not found:
        return ok("keep_processes", "this torch can")
    remedy = "without that setting all goes on as ever; for it, install a newer torch"
    return note("keep_processes", found, remedy)


def mpi(find: Callable[[], str] = find_mpiexec) -> Finding:
    """Look at the MPI launcher, and whether it has user-level failure mitigation (ULFM)."""
    return _program("mpi", "mpiexec", find, "load your site's MPI module", more=_ulfm)


def etcd(find: Callable[[], str] = find_etcd) -> Finding:
    """Look at the etcd server that a lab starts unless it is told of another one."""
    return _program("etcd", "etcd", find, "name a running one with --etcd host:port")


def _program(
    name: str,  # of the finding
    command: str,  # the program's own name
    find: Callable[[], str],  # returns its path
    otherwise: str,  # what to do if not installing the extra
    *,
    # Returns what else is to be said of the one at a path.
    more: Callable[[str], str] = lambda _: "",
) -> Finding:
    """Look at a program that the `embedded` extra brings."""
    try:
        path = find()
    except LaunchError:
        found = f"no {command} next to this Python or on the PATH"
        return missing(name, found, f"{EMBED}, or {otherwise}")
    printed = _printed([path, "--version"])
    if printed is None:
        return missing(name, f"{path} does not run", EMBED)
    version = (printed.strip().splitlines() or [""])[0]
    return ok(name, f"{version}, {more(path)}at {path}")


def cores(count: int | None = None) -> Finding:
    """Look at the processors that this process may use."""
    if count is None:
        usable = getattr(os, "sched_getaffinity", None)
        count = len(usable(0)) if usable else os.cpu_count() or 1
    found = f"{count} on {platform.machine()}"
    if count >= 2:
        return ok("cores", found)
    remedy = "everything runs, but a failure may be noticed late: use 2 cores or more"
    return note("cores", found, remedy)


def memory(free_bytes: int | None = None, bound_by: str = "") -> Finding:
    """Look at the memory that is free on the machine, or in its container if that is less."""
    if free_bytes is None:
        free = free_memory()
        free_bytes, bound_by = free.size_bytes, free.bound_by
    found = f"{format_bytes(free_bytes)} free" + (f", bounded by {bound_by}" if bound_by else "")
    if free_bytes >= NEEDED_BYTES:
        return ok("memory", found)
    return missing(
        "memory",
        found,
        f"the main job takes up to {format_bytes(NEEDED_BYTES)}: end other programs or raise the "
        "container's limit",
    )


def slabs() -> Finding:
    """Look whether memory can be had that belongs to a process and is open to others."""
    has_memfd = hasattr(os, "memfd_create")
    return ok("slabs", "memfd" if has_memfd else "unlinked shared-memory files (no memfd here)")


def shared_memory(path: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - looked at, not used
    """Look whether /dev/shm can be used; replicas do not need it where there is memfd."""
    if path.is_dir() and os.access(path, os.W_OK):
        return ok(str(path), f"{format_bytes(shutil.disk_usage(path).free)} free")
    remedy = "replicas do not need it; torch data loaders with worker processes may"
    return note(str(path), "absent or not writable", remedy)


def ports(wanted: int = 16) -> Finding:
    """Look whether this user can listen on loopback ports, which agents and etcd do."""
    held = []
    try:
        for _ in range(wanted):
            held.append(socket.create_server(("127.0.0.1", 0)))  # noqa: PERF401 - closed below
    except OSError as error:
        remedy = "allow this user to open ports on the loopback interface"
        return missing("ports", f"cannot listen on 127.0.0.1: {error}", remedy)
    finally:
        for server in held:
            server.close()
    return ok("ports", f"{wanted} opened on 127.0.0.1")


def folder(path: Path | None = None) -> Finding:
    """Look whether runs can keep their logs here."""
    path = path or Path.cwd()
    if os.access(path, os.W_OK):
        return ok("folder", f"{path}, {format_bytes(shutil.disk_usage(path).free)} free")
    remedy = f"change to a folder of your own: a run's log is kept in ./{RUNS_FOLDER}"
    return missing("folder", f"{path} is not writable", remedy)


def ssh() -> Finding:
    """Look for `ssh`, which a lab on several machines needs, unless Slurm starts it."""
    if path := shutil.which("ssh"):
        return ok("ssh", path)
    remedy = "only for several machines without Slurm: install an OpenSSH client"
    return note("ssh", "not installed", remedy)


def slurm(environment: Mapping[str, str] = os.environ) -> Finding:
    """Look whether this is inside an allocation of Slurm."""
    if job := environment.get("SLURM_JOB_ID"):
        return ok("slurm", f"job {job} with {environment.get('SLURM_JOB_NUM_NODES', '?')} nodes")
    if shutil.which("srun"):
        remedy = "only for several machines: salloc -N NODES, then start the lab in it"
        return note("slurm", "installed, but this is no allocation", remedy)
    return note("slurm", "not here", "only for its clusters")


def _printed(command: Sequence[str]) -> str | None:
    """Return what a program prints; `None` if it does not run, or fails."""
    try:
        done = subprocess.run(
            command,
            env=mpi_environment(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _ulfm(mpiexec: str) -> str:
    """Return whether this launcher's MPI mitigates failures, which a lab does not need."""
    info = Path(mpiexec).with_name("ompi_info")
    printed = _printed([str(info)]) if info.exists() else None
    if printed is None:
        return "ULFM unknown, "
    for line in printed.splitlines():
        subject, _, answer = line.partition(":")
        if subject.strip() == "Fault Tolerance support":
            return "with ULFM, " if answer.split()[:1] == ["yes"] else "without ULFM, "
    return "without ULFM, "


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, and a verdict."""
    width = max(len(finding.name) for finding in findings)
    indent = " " * (width + 13)
    lines = []
    for finding in findings:
        mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[finding.state]
        head = f"  {mark}  {finding.name:<{width}}  "
        lines += _wrapped(finding.found, head, indent)
        lines += _wrapped(finding.remedy, f"{indent}-> ", f"{indent}   ")
    if lacks := [finding.name for finding in findings if finding.state == "missing"]:
        verdict = f"The main job cannot run here yet: see {', '.join(lacks)} above."
    else:
        verdict = "The main job can run here: gemini-lab quickstart"
    return "\n".join([*lines, "", verdict])


def _wrapped(text: str, first: str, then: str) -> list[str]:
    """Return `text` in a terminal's lines; a path stays whole, so that it can be copied."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def command(arguments: Sequence[str]) -> int:
    """Run `gemini-lab doctor`; the exit code is 1 where the main job cannot run."""
    parser = argparse.ArgumentParser(
        prog="gemini-lab doctor",
        description="Check what this machine has and lacks, and print the way out. Exits with 1 if "
        "the main job cannot run.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    findings = examine()
    can_run = all(finding.state != "missing" for finding in findings)
    if options.json:
        record = {"can_run": can_run, "findings": [asdict(finding) for finding in findings]}
        tell(json.dumps(record, indent=2))
    else:
        tell(render(findings))
    return 0 if can_run else 1
