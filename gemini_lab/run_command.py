"""`gemini-lab run`: launch anyone's DeepSpeed script on protected nodes."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.events import Event
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab import Lab
from gemini_lab.placement import plan_placement
from gemini_lab.run import Run
from gemini_lab.settings import Settings
from gemini_lab.units import format_seconds


def parser() -> argparse.ArgumentParser:
    """The options of `gemini-lab run`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab run",
        description="Run a DeepSpeed script on nodes whose failures it survives. The script calls "
        "gemini_lab.protect(engine); everything after its name is its own.",
    )
    options.add_argument("--nodes", type=int, default=4, help="machines that train (4)")
    options.add_argument("--standbys", type=int, default=1, help="machines that wait (1)")
    options.add_argument("--workers-per-node", type=int, default=1, help="one a GPU (1)")
    options.add_argument("--hostfile", help="MPI hostfile; in a Slurm allocation, its hosts")
    options.add_argument("--hosts", help="host names, separated by commas")
    options.add_argument("--etcd", help="host:port[,host:port...]; otherwise one is started")
    options.add_argument("--folder", default="gemini-runs", help="where runs keep their logs")
    options.add_argument("--name", help="of this run; by default the time and the script")
    options.add_argument("--replicas", type=int, help="copies of each shard, the own included")
    options.add_argument("--persistent-url", help="persistent tier: a folder, s3://... (fsspec)")
    options.add_argument("--persist-every", type=int, help="iterations between persistent versions")
    options.add_argument("--scenario", type=Path, help="file with failures to inject on the way")
    options.add_argument("--lease", type=float, default=2.0, help="seconds of silence: lost (2)")
    options.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
    options.add_argument("script")
    options.add_argument("args", nargs=argparse.REMAINDER)
    return options


def command(arguments: list[str]) -> int:
    """Launch, show progress and the first rank's output, and clean up."""
    options = parser().parse_args(arguments)
    job = Job(script=options.script, args=options.args, module=options.module)
    job.check()
    settings = settings_of(options)
    plan_placement(nodes=options.nodes, replicas=Settings.parse(settings).replicas)
    scenario = Scenario.load(options.scenario) if options.scenario else None
    with Lab(
        options.nodes, options.standbys, workers_per_node=options.workers_per_node,
        hosts=hosts_of(options), etcd=options.etcd, folder=options.folder, lease_s=options.lease,
    ) as lab:  # fmt: skip
        run = lab.train(job, scenario=scenario, name=options.name, **settings)
        print(f"the run's folder is {run.folder}")  # noqa: T201
        try:
            with follow(run):
                run.wait()
        except RunFailedError as error:
            print(f"gemini-lab run: {error}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given on the command line."""
    given = {
        "replicas": options.replicas,
        "persistent_url": options.persistent_url,
        "persist_every_iterations": options.persist_every,
    }
    return {name: value for name, value in given.items() if value is not None}


def hosts_of(options: argparse.Namespace) -> Any:
    """Hosts from the options, or from the Slurm allocation that this process is in."""
    if options.hosts and options.hostfile:
        raise ConfigError("give --hosts or --hostfile, not both")
    if options.hosts:
        return options.hosts.split(",")
    if options.hostfile:
        return options.hostfile
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if nodelist and shutil.which("scontrol"):
        names = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
        return names.stdout.split()
    return None


class follow:  # noqa: N801  (a context manager that reads like a verb)
    """Show a run on the terminal: rank 0's lines, a progress line, and what goes wrong."""

    def __init__(self, run: Run, *, total: int | None = None, show_output: bool = True) -> None:
        self._run = run
        self._show_output = show_output
        self._bar: Any = tqdm(total=total, unit="iteration", dynamic_ncols=True, disable=None)

    def __enter__(self) -> None:
        self._run.watch(self._see)
        if self._show_output:
            self._run.listen(self._hear)

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def _hear(self, rank: int, lines: list[str]) -> None:
        if rank == 0:
            for line in lines:
                self._bar.write(line)

    def _see(self, event: Event) -> None:
        told = describe(event)
        if told:
            self._bar.write(told)
        self._bar.set_postfix_str(f"{self._run.phase}, nodes {' '.join(self._run.members)}")
        self._bar.update(self._run.iteration - self._bar.n)


def describe(event: Event) -> str | None:
    """One line for people on an event that they want to hear of."""
    data = event.data
    match event.kind:
        case "injected":
            return f"    injected: {data['failure']['kind'].replace('_', ' ')} on {event.node}"
        case "recovery_started":
            lost = f" ({', '.join(data['lost'])})" if data["lost"] else ""
            return f"    failure {data['recovery']}: {data['cause'].replace('_', ' ')}{lost}"
        case "root_elected":
            return f"    root agent is on {data['name']}"
        case "recovery_waiting":
            return f"    waiting for a machine for position {data['missing']}"
        case "recovery_finished":
            took = format_seconds(data["duration_s"])
            return f"    training goes on after {took}, from version {data['version']}"
        case "persist_failed":
            return f"    persistent tier: {data['reason']}"
        case "unprotected" if data["rank"] == 0:
            return "    the script never called gemini_lab.protect: it ran unprotected"
        case "note":
            return f"    {data['text']}"
    return None
