"""`gemini-lab run`: launch anyone's training script on protected nodes."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

from gemini_lab.cli.dry_run import describe_decided, find_block, look_at_tier
from gemini_lab.cli.exits import EXIT_OF, Exit, on_hangup, silent_without_terminal
from gemini_lab.display import complain, interrupt_says, tell
from gemini_lab.errors import ConfigError, RunFailedError, shown
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.detached import check_detached, start_detached
from gemini_lab.lab.followed import save_within
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.lab_config import LabConfig, LabOptions, config_of
from gemini_lab.lab.metric_sinks import HOW, check_places, telling
from gemini_lab.lab.progress_bars import show_progress
from gemini_lab.lab.run import Run
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.join import find_token
from gemini_lab.limits import seconds, whole
from gemini_lab.log.file import FOLDER_HELP, RUNS_FOLDER
from gemini_lab.seats import Seats
from gemini_lab.settings import AUTO, SettingValue
from gemini_lab.units import LARGEST

NOTICE_S: Final = 60.0
TOO_SOON: Final = "interrupted before the run began; what was started for it has ended again"


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab run`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab run",
        description="Run a training script that survives failures of its nodes. The script calls "
        "gemini_lab.protect. Arguments after its name are its own.",
    )
    _add_machines(options.add_argument_group("machines"))
    _add_joining(options.add_argument_group("machines that join by themselves"))
    _add_protection(options.add_argument_group("what is kept"))
    _add_run(options.add_argument_group("the run"))
    _add_script(options.add_argument_group("the script"))
    return options


class Options(Protocol):
    """Options of one kind, which `--help` shows together."""

    @property
    def add_argument(self) -> Callable[..., argparse.Action]:
        """Takes one more."""


def _add_machines(options: Options) -> None:
    number = partial(options.add_argument, metavar="N")
    number(
        "--nodes",
        type=whole("nodes"),
        default=LabConfig.nodes,
        help="machines that train (default: %(default)s)",
    )
    number(
        "--standbys",
        type=whole("standbys", least=-LARGEST),
        default=LabConfig.standbys,
        help="machines that wait to replace a lost one (default: %(default)s)",
    )
    number(
        "--workers-per-node",
        type=whole("workers_per_node"),
        default=LabConfig.workers_per_node,
        help="training processes per node, one per GPU (default: %(default)s)",
    )
    options.add_argument(
        "--hostfile",
        metavar="FILE",
        help="file with a host per line, as for MPI or DeepSpeed (default: this machine, or the "
        "hosts of the Slurm allocation)",
    )
    options.add_argument("--hosts", metavar="A,B,...", help="host names, separated by commas")
    options.add_argument(
        "--racks", metavar="R,S,...", help="rack of each node and standby, separated by commas"
    )
    options.add_argument(
        "--etcd", metavar="HOST:PORT[,...]", help="use this etcd (default: start one)"
    )
    options.add_argument(
        "--lease",
        type=seconds,
        default=LabConfig.lease_s,
        metavar="S",
        help="seconds without heartbeat until a node counts as lost (default: %(default).0f)",
    )


def _add_joining(options: Options) -> None:
    options.add_argument(
        "--join",
        metavar="LAB",
        help="start no nodes: wait for machines that join by `gemini-lab node`; needs --etcd",
    )
    options.add_argument(
        "--provider",
        metavar="WORDS",
        help="with --join: request machines, and others for lost ones, by 'slurm [SBATCH OPTIONS]' "
        "or 'auto-scaling GROUP [REGION]'",
    )
    options.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="with --join: file with the lab's token (default: the variable GEMINI_LAB_TOKEN)",
    )
    options.add_argument(
        "--wait",
        type=seconds,
        default=LabConfig.wait_s,
        metavar="S",
        help="with --join: seconds to wait for machines (default: %(default).0f)",
    )


def _add_protection(options: Options) -> None:
    options.add_argument(
        "--replicas",
        type=replicas_of,
        metavar="M",
        help="copies per shard, including the owner's; 'auto' follows observed failures (default: "
        "the script's, or 2)",
    )
    options.add_argument(
        "--persistent-url", metavar="URL", help="persistent tier: a folder, s3://... (fsspec)"
    )
    options.add_argument(
        "--persist-every",
        type=whole("iterations"),
        metavar="N",
        help="iterations between persistent versions",
    )
    options.add_argument(
        "--resume", action="store_true", help="resume from the newest version in that tier"
    )
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set any other setting; overrides the script's own",
    )


def _add_run(options: Options) -> None:
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument("--name", help="the run's name (default: the time and the script)")
    options.add_argument(
        "--detach",
        action="store_true",
        help="return when the nodes are up; the run continues in the background",
    )
    options.add_argument(
        "--notice",
        type=seconds,
        default=NOTICE_S,
        metavar="S",
        help="on SIGTERM, SIGUSR1 or a closed terminal: seconds to save a version before the end "
        "(default: %(default).0f)",
    )
    options.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="WHERE",
        help="serve metrics for Prometheus at [ADDRESS:]PORT, or send them to " + HOW,
    )
    options.add_argument(
        "--scenario", type=Path, metavar="FILE", help="inject the failures in this file"
    )
    options.add_argument(
        "--dry-run", action="store_true", help="print every decision with its origin; start nothing"
    )
    options.add_argument(
        "--all", action="store_true", help="with --dry-run: list settings with defaults, too"
    )


def _add_script(options: Options) -> None:
    options.add_argument(
        "--pass-local-rank",
        action="store_true",
        help="pass --local_rank=N to the script, as deepspeed does (default: if it asks for it)",
    )
    options.add_argument(
        "-m", dest="module", action="store_true", help="run the script as a module"
    )
    options.add_argument("script", help="the training script")
    its = options.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    its.required = False  # by which an error would name it beside the script


def command(arguments: list[str]) -> int:
    """Launch, show progress and the first rank's output, and clean up."""
    return launch(parser().parse_args(arguments))


def launch(options: argparse.Namespace) -> int:
    """Return the same, with what `parser` read."""
    asked = lab_options(options)
    config = config_of(asked)
    wanted = checked(options, config)
    if options.dry_run:
        return dry_run(config, wanted, with_defaults=options.all)
    if options.detach:
        return detach(config, wanted)
    say_starting(config.seats)
    with interrupt_says(lambda: TOO_SOON), Lab(**asked) as lab:
        run = lab.train(
            wanted.job,
            scenario=wanted.scenario,
            name=options.name,
            resume=options.resume,
            placement=None,
            root=None,
            hold_at=(),
            **wanted.settings,
        )
        taken = "" if options.name in {None, run.name} else f" ({options.name} was there already)"
        tell(f"the run's folder is {run.folder}{taken}")
        with telling(run, options.metrics):
            return follow(run, options.notice)


def checked(options: argparse.Namespace, config: LabConfig) -> Submission:
    """Return what is to run, if it can on such a lab: nothing has been started for it.

    Raises:
        ConfigError: It cannot.
        LaunchError: A port for metrics is taken.
    """
    check_places(options.metrics)
    if options.metrics and options.detach:
        raise ConfigError(
            "--metrics sends them from this command, which --detach ends; leave it out, and start "
            "`gemini-lab metrics RUN` next to the run"
        )
    job = Job(
        script=options.script,
        args=options.args,
        module=options.module,
        passes_local_rank=options.pass_local_rank,
    )
    wanted = Submission.checked(
        config,
        job,
        scenario=Scenario.load(options.scenario) if options.scenario else None,
        name=options.name,
        resume=options.resume,
        settings=settings_of(options),
        writes=options.detach and not options.dry_run,
    )
    if options.detach:
        check_detached(config, wanted)
    return wanted


def say_starting(seats: Seats) -> None:
    """Say what the next seconds are for."""
    tell(f"starting {seats.in_words}")


def lab_options(options: argparse.Namespace) -> LabOptions:
    """Return the lab's options on the command line."""
    return {
        "nodes": options.nodes,
        "standbys": options.standbys,
        "workers_per_node": options.workers_per_node,
        "hosts": None if options.join is not None else hosts_of(options),
        "racks": options.racks.split(",") if options.racks is not None else None,
        "etcd": options.etcd,
        "folder": options.folder,
        "lease_s": options.lease,
        "join": options.join,
        "provider": options.provider,
        "token": find_token(options.token_file) if options.join is not None else None,
        "wait_s": options.wait,
    }


def dry_run(config: LabConfig, wanted: Submission, *, with_defaults: bool) -> int:
    """Print every decision."""
    block = find_block(wanted.job)
    look_at_tier(wanted, block)
    for line in describe_decided(config, wanted, block, with_defaults=with_defaults):
        tell(line)
    return Exit.FINISHED


def detach(config: LabConfig, wanted: Submission) -> int:
    """Start the run, and leave it to its nodes."""
    say_starting(config.seats)
    with interrupt_says(lambda: TOO_SOON):
        folder = start_detached(config, wanted)
    tell(f"the run's folder is {folder}")
    tell(f"follow it with: gemini-lab attach {folder}")
    return Exit.FINISHED


def settings_of(options: argparse.Namespace) -> dict[str, SettingValue]:
    """Return the settings that were given on the command line."""
    given = {
        "replicas": options.replicas,
        "persistent_url": options.persistent_url,
        "persist_every_iterations": options.persist_every,
    }
    named = dict(setting_of(text) for text in options.set)
    said = {name: value for name, value in given.items() if value is not None}
    if twice := sorted(named.keys() & said.keys()):
        raise ConfigError(
            f"{twice[0]} is given twice, by --set and by an option of its own; leave out one"
        )
    return named | said


def replicas_of(text: str) -> int | str:
    """Return a number of copies, or that they follow the risk; an option's `type`."""
    if text == AUTO:
        return text
    try:
        return whole("replicas")(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}; give a number, or "{AUTO}"') from None


def setting_of(text: str) -> tuple[str, SettingValue]:
    """Return `NAME=VALUE` as a setting; the value is JSON, or a word."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"cannot read the setting {shown(text)}; write --set NAME=VALUE")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    if isinstance(found, dict | list):
        raise ConfigError(
            f"the setting {shown(name)} cannot be {shown(value)}; give one number or word"
        )
    return name, found


def hosts_of(options: argparse.Namespace) -> Sequence[str] | str | None:
    """Return hosts from the options, or from the Slurm allocation that this process is in."""
    if options.hosts is not None and options.hostfile is not None:
        raise ConfigError("give --hosts or --hostfile, not both")
    if options.hosts is not None:
        return str(options.hosts).split(",")
    if options.hostfile is not None:
        return str(options.hostfile)
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if nodelist and shutil.which("scontrol"):
        names = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
        return names.stdout.split()
    return None


# -- following the run -----------------------------------------------------------------------------

NOTICES: Final = (signal.SIGTERM, signal.SIGUSR1)
"""How batch systems announce the end: Kubernetes and `scancel`, and `sbatch --signal`."""


def follow(run: Run, notice_s: float) -> Exit:
    """Show how a run goes until it ends, or until this process is told to end."""
    with interrupt_says(lambda: told_of(run), now=f"ending {run.name} and its nodes"), noticed():
        try:
            with silent_without_terminal():
                show_progress(run, show_output=True)
            run.wait()
        except RunFailedError as error:
            complain(f"gemini-lab run: {error}")
            return EXIT_OF[run.cause or "machines"]
        except NoticeGiven as notice:
            return end_at(notice, run, notice_s)
    return Exit.FINISHED


def told_of(run: Run) -> str:
    """Return what is left of a run that Ctrl-C has ended, with its lab."""
    lines = [
        f"interrupted at iteration {run.iteration}; nothing of {run.name} runs any longer",
        f"  its log is in {run.folder}",
    ]
    url = run.course.settings.get("persistent_url")
    if run.persisted is not None:
        version, url = run.persisted
        lines += [
            f"  version {version} is whole in {url}",
            f"  the same command with --resume goes on from version {version}",
        ]
    elif url:
        lines += [
            f"  no version of it has reached {url}: there is nothing new to resume from",
            "  SIGTERM, in place of Ctrl-C, has one saved first",
        ]
    elif "persistent_url" in run.course.settings:
        lines.append("  it has no persistent tier, so it cannot be gone on from")
    else:
        lines.append("  its script had not called protect yet: there is nothing new to resume from")
    return "\n".join(lines)


class NoticeGiven(BaseException):
    """This process was told to end soon; no error, so nothing may catch it as one."""


@contextmanager
def noticed() -> Iterator[None]:
    """Raise `NoticeGiven` on the first signal by which batch systems announce the end.

    A terminal that closes announces it, too. From then on SIGTERM ends this process at once, and
    what may be sent again does nothing: SIGUSR1, and SIGHUP.
    """
    before = {number: signal.getsignal(number) for number in (*NOTICES, signal.SIGHUP)}
    after = {**before, signal.SIGUSR1: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}

    def tell(number: int, _frame: object) -> NoReturn:
        for each, handler in after.items():
            signal.signal(each, handler)
        raise NoticeGiven(signal.Signals(number).name)

    for number in NOTICES:
        signal.signal(number, tell)
    on_hangup(tell)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGUSR1) is tell:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_at(notice: NoticeGiven, run: Run, notice_s: float) -> Exit:
    """Save the newest version that can be had in time, end the run, and say what came of it."""
    say = partial(print, file=sys.stderr, flush=True)
    say(f"gemini-lab run: {notice}: saving a version within {notice_s:.0f} s (--notice)")
    saved = save_within(run, notice_s)
    if run.is_over:
        return Exit.FINISHED if run.failure is None else EXIT_OF[run.cause or "machines"]
    if saved.version is None:
        told = f"{notice}: no version was saved: {saved.reason}"
    else:
        told = f"{notice}: version {saved.version} is whole in {saved.url}"
    run.give_up(told, "notice")
    say(f"gemini-lab run: {told}")
    say("gemini-lab run: the same command with --resume goes on from the newest version there is")
    return Exit.TERMINATED if saved.version is None else Exit.AGAIN
