"""`gemini-lab run`: launch anyone's training script on protected nodes."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.config import LabConfig, hosts_from
from gemini_lab.lab.detached import start_detached
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.join import find_token
from gemini_lab.node.control_store import EtcdAddress
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings, SettingValue


def parser() -> argparse.ArgumentParser:
    """The options of `gemini-lab run`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab run",
        description="Run a training script on nodes whose failures it survives. The script calls "
        "gemini_lab.protect; everything after its name is its own.",
    )
    number = partial(options.add_argument, type=int)
    number("--nodes", default=LabConfig.nodes, help="machines that train (%(default)s)")
    number("--standbys", default=LabConfig.standbys, help="machines that wait (%(default)s)")
    number(
        "--workers-per-node", default=LabConfig.workers_per_node, help="one per GPU (%(default)s)"
    )
    options.add_argument("--hostfile", help="MPI hostfile; in a Slurm allocation, its hosts")
    options.add_argument("--hosts", help="host names, separated by commas")
    options.add_argument("--etcd", help="host:port[,host:port...]; otherwise one is started")
    options.add_argument(
        "--join",
        metavar="LAB",
        help="start no nodes: machines join under this name by `gemini-lab node`; needs --etcd",
    )
    options.add_argument("--token-file", type=Path, help="file with the token of those that join")
    options.add_argument(
        "--wait",
        type=float,
        default=LabConfig.wait_s,
        help="seconds to wait for those that join (%(default)s)",
    )
    options.add_argument(
        "--detach",
        action="store_true",
        help="return when the nodes are up: the run needs nobody from then on",
    )
    options.add_argument("--folder", default=LabConfig.folder, help="where runs keep their logs")
    options.add_argument("--name", help="of this run; by default the time and the script")
    options.add_argument("--replicas", type=int, help="copies of each shard, the own included")
    options.add_argument("--persistent-url", help="persistent tier: a folder, s3://... (fsspec)")
    options.add_argument("--persist-every", type=int, help="iterations between persistent versions")
    options.add_argument(
        "--resume", action="store_true", help="go on from what another run left in that tier"
    )
    options.add_argument("--scenario", type=Path, help="file with failures to inject on the way")
    options.add_argument(
        "--lease",
        type=float,
        default=LabConfig.lease_s,
        help="seconds of silence: lost (%(default)s)",
    )
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
    Seats(nodes=options.nodes).placed(Settings.parse(settings))  # before anything starts
    scenario = Scenario.load(options.scenario) if options.scenario else None
    if options.detach:
        return detach(options, job, scenario, settings)
    with Lab(
        options.nodes,
        options.standbys,
        workers_per_node=options.workers_per_node,
        hosts=None if options.join else hosts_of(options),
        join=options.join,
        token=find_token(options.token_file) if options.join else None,
        wait_s=options.wait,
        etcd=options.etcd,
        folder=options.folder,
        lease_s=options.lease,
    ) as lab:
        run = lab.train(
            job,
            scenario=scenario,
            name=options.name,
            resume=options.resume,
            placement=None,
            **settings,
        )
        print(f"the run's folder is {run.folder}", flush=True)  # noqa: T201
        try:
            run.progress(show_output=True)
        except RunFailedError as error:
            print(f"gemini-lab run: {error}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


def detach(
    options: argparse.Namespace,
    job: Job,
    scenario: Scenario | None,
    settings: dict[str, SettingValue],
) -> int:
    """Start the run, and leave it to its nodes."""
    config = LabConfig(
        nodes=options.nodes,
        standbys=options.standbys,
        workers_per_node=options.workers_per_node,
        hosts=hosts_from(None if options.join else hosts_of(options)),
        etcd=EtcdAddress.parse(options.etcd) if options.etcd else None,
        folder=Path(options.folder).absolute(),
        lease_s=options.lease,
        join=options.join,
        token=find_token(options.token_file) if options.join else "",
        wait_s=options.wait,
    )
    wanted = Submission.checked(
        config,
        job,
        scenario=scenario,
        name=options.name,
        resume=options.resume,
        settings=settings,
    )
    folder = start_detached(config, wanted)
    print(f"the run's folder is {folder}")  # noqa: T201
    print(f"follow it with: gemini-lab attach {folder}")  # noqa: T201
    return 0


def settings_of(options: argparse.Namespace) -> dict[str, SettingValue]:
    """The settings that were given on the command line."""
    given = {
        "replicas": options.replicas,
        "persistent_url": options.persistent_url,
        "persist_every_iterations": options.persist_every,
    }
    return {name: value for name, value in given.items() if value is not None}


def hosts_of(options: argparse.Namespace) -> Sequence[str] | str | None:
    """Hosts from the options, or from the Slurm allocation that this process is in."""
    if options.hosts and options.hostfile:
        raise ConfigError("give --hosts or --hostfile, not both")
    if options.hosts:
        return str(options.hosts).split(",")
    if options.hostfile:
        return str(options.hostfile)
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if nodelist and shutil.which("scontrol"):
        names = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
        return names.stdout.split()
    return None
