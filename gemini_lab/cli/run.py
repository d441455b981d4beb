"""`gemini-lab run`: launch anyone's DeepSpeed script on protected nodes."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.placement import plan_placement
from gemini_lab.settings import Settings


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
        print(f"the run's folder is {run.folder}", flush=True)  # noqa: T201
        try:
            run.progress(show_output=True)
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
