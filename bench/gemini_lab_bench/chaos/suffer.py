"""One run of a campaign: a job under `gemini-lab run`, struck from outside, until it is over."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from gemini_lab.errors import GeminiError
from gemini_lab.job import Job, python_command
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.chaos.aftermath import Aftermath, Losses
from gemini_lab_bench.chaos.faults import Schedule
from gemini_lab_bench.chaos.observer import Observer, TierObserver
from gemini_lab_bench.chaos.oracles import losses_of
from gemini_lab_bench.chaos.scene import Scene, scene_of
from gemini_lab_bench.chaos.strikes import Strikes
from gemini_lab_bench.chaos.told import LogSoFar
from gemini_lab_bench.chaos.turn import FaultInRun, RunUnderFaults, StoodStillError
from gemini_lab_bench.chaos.victims import MARK, marked, send


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffered:
    """A run that is over."""

    schedule: Schedule  # what it was to suffer
    struck: tuple[FaultInRun, ...]  # what it did suffer, in order
    aftermath: Aftermath  # for the oracles
    folder: Path  # its own
    was_interrupted: bool = False  # whether somebody ended the campaign meanwhile


def suffer(
    schedule: Schedule,  # what to suffer
    *,
    folder: Path,  # where the run is to have its folder; it is made
    undisturbed: Losses,  # the job's losses
    limit_s: float,  # training that stands still for longer than this hangs
    # From then on, by this process's clock, it is struck no more and told to end.
    stop_s: float | None = None,
    # Called with each fault once it is over, or did not happen.
    say: Callable[[FaultInRun], None] = lambda _: None,
) -> Suffered:
    """Run the job, strike, and gather what the oracles need."""
    own = folder / f"run-{schedule.seed}-{schedule.number}-{secrets.token_hex(3)}"
    mark = secrets.token_hex(8)
    scratch = own / "scratch"
    scratch.mkdir(parents=True)
    hang, was_interrupted = "", False
    with (
        scene_of(schedule, own) as scene,
        started(schedule, own, scene, mark) as owner,
        Observer(mark, schedule.nodes - schedule.resizes) as observer,
        TierObserver(scene.tier.data) as tier,
    ):
        told = LogSoFar(own / "run", iterations=schedule.iterations)
        strikes = Strikes(
            mark=mark,
            folder=own / "run",
            owner=owner,
            told=told,
            scene=scene,
            rack_of=schedule.rack_of,
            nodes=schedule.nodes,
        )
        turn = RunUnderFaults(
            strikes,
            told,
            owner,
            own / "run",
            limit_s=limit_s,
            stop_s=stop_s,
            say=say,
            tier=lambda: (tier.newest(scene.tier.spoilt), max(scene.tier.spoilt, default=0)),
        )
        try:
            turn.go_through(schedule.faults)
        except StoodStillError as error:
            hang = str(error)
            write_processes(mark, own / "processes.txt")
        except KeyboardInterrupt:
            was_interrupted = turn.is_cut_short = True
            owner.kill()
        exit_status, left = end(owner, mark, scratch, is_hung=bool(hang))
        strikes.rest()
        told.poll()
        readable = tier.readable()
    aftermath = Aftermath(
        entries=told.entries,
        undisturbed=undisturbed,
        iterations=schedule.iterations,
        is_cut_short=turn.is_cut_short,
        was_told_to_end=turn.has_told_to_end,
        let_go_s=turn.let_go_s,
        hang=hang,
        exit_status=exit_status,
        bad_lines=told.bad_lines,
        gaps_s=observer.seen.gaps_s,
        looks=observer.seen.looks,
        memory=() if schedule.resizes else observer.seen.newest,
        tier=tier.seen,
        readable=readable,
        spoilt=frozenset(scene.tier.spoilt),
        said=strikes.said,
        edits=[(since_s, until_s) for since_s, until_s in strikes.edits],
        left=() if hang else left,
    )
    return Suffered(
        schedule=schedule,
        struck=tuple(turn.struck),
        aftermath=aftermath,
        folder=own / "run",
        was_interrupted=was_interrupted,
    )


def undisturbed(form: Schedule, folder: Path, *, limit_s: float) -> Losses:
    """Return the losses of the same job without any fault.

    Those of an earlier call with the same `folder` are used again.

    Raises:
        GeminiError: Even without faults it does not finish.
    """
    form = msgspec.structs.replace(form, faults=(), verifies=False, keeps=False)  # no loss changes
    kind = "-resizable" if form.resizes else "-stages" if form.differs else ""
    kept = folder / f"undisturbed-{form.nodes}-{form.iterations}{kind}.json"
    if not kept.exists():
        quiet = suffer(form, folder=folder, undisturbed={}, limit_s=limit_s)
        if quiet.was_interrupted:
            raise KeyboardInterrupt
        losses = losses_of(quiet.aftermath.entries)
        if len(losses) != form.nodes * form.iterations or not quiet.aftermath.has_finished:
            raise GeminiError(
                f"the job did not finish without any fault ({quiet.aftermath.hang or 'it ended'}); "
                f"see {quiet.folder.parent / 'owner.log'}"
            )
        told = [[*place, loss.hex()] for place, loss in losses.items()]
        kept.write_text(json.dumps(told) + "\n", encoding="utf-8")
    told = json.loads(kept.read_text(encoding="utf-8"))
    return {(iteration, rank): float.fromhex(loss) for iteration, rank, loss in told}


# -- the run's owner -------------------------------------------------------------------------------


GONE_S: Final = 60.0  # an agent whose lab ended before it had come waits for it for 30 s
LAYER_S: Final = 0.02  # of emulated accelerator: a pause is no work for a busy machine
PERSIST_EVERY: Final = 8
SETTINGS: Final = {"min_progress_s": 10.0, "log_collectives": False}
"""A worker that hangs is noticed within seconds and not minutes: the rest is as by default."""


@contextlib.contextmanager
def started(
    schedule: Schedule, folder: Path, scene: Scene, mark: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`gemini-lab run` with the job; ended, and all that it started, at the end."""
    threads = max(1, (os.cpu_count() or 1) // schedule.nodes)  # on hosts, too: so sums are the same
    environment = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        **scene.environment,
        MARK: mark,
        "TMPDIR": str(folder / "scratch"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # PyTorch's own stays by design
    }
    with (folder / "owner.log").open("wb") as log:
        owner = subprocess.Popen(
            python_command("gemini_lab.cli.main", *run_command(schedule, folder, scene)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield owner
        finally:
            send(marked(mark), signal.SIGKILL)
            owner.wait()


def run_command(schedule: Schedule, folder: Path, scene: Scene) -> list[str]:
    """Return what `gemini-lab` is told, so that the run's folder is `folder / "run"`."""
    arguments = job_of(schedule).args
    if schedule.differs:
        arguments = ("--steps", str(schedule.iterations), "--cut", "2")
    where = ["--hosts", ",".join(scene.hosts.names)] if scene.hosts else []
    keep = ["--set", "keep_processes=true"] if schedule.keeps else []
    quick = [f"--set={name}={value}".lower() for name, value in SETTINGS.items()]
    return [
        *("run", "--nodes", str(schedule.nodes), "--standbys", str(schedule.standbys)),
        *(*where, *keep, *quick, "--racks", ",".join(schedule.rack_of.values())),
        *("--folder", str(folder), "--name", "run", "--persistent-url", scene.tier_url),
        *("--persist-every", str(PERSIST_EVERY), str(scene.script), *arguments),
    ]


def job_of(schedule: Schedule) -> Job:
    """Return what a run trains; one that is resized keeps its global batch, whatever divides it."""
    settings = {**SETTINGS, **({"verify_every": 1} if schedule.verifies else {})}
    more: dict[str, float] = {}
    if schedule.resizes:
        more = {"global_batch": schedule.nodes * max(1, schedule.nodes - 1), "dropout": 0.0}
    return gpt_job(
        size="tiny", iterations=schedule.iterations, layer_s=LAYER_S, gemini=settings, **more
    )


def end(
    owner: subprocess.Popen[bytes], mark: str, scratch: Path, *, is_hung: bool
) -> tuple[int, tuple[str, ...]]:
    """Return the owner's exit status, and what is left some time after that."""
    if is_hung:
        owner.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            owner.wait(GONE_S)
        return owner.poll() or 0, ()
    exit_status = owner.wait()
    give_up_s = time.monotonic() + GONE_S
    while (left := left_of(mark, scratch)) and time.monotonic() < give_up_s:
        time.sleep(0.2)
    return exit_status, left


def write_processes(mark: str, path: Path) -> None:
    """Write the processes of a run that hangs, and whether they sleep, run or are stopped."""
    lines = []
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline()[:6])
            lines.append(f"{process.pid:>8} {process.ppid():>8} {process.status():<10} {command}\n")
    path.write_text("".join(lines), encoding="utf-8")


def left_of(mark: str, scratch: Path) -> tuple[str, ...]:
    """Processes of a run, and what it left in the folder for temporary files."""
    found = []
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            found.append(f"process {process.pid} ({' '.join(process.cmdline()[1:4])})")
    return (*found, *(f"file {path.name}" for path in scratch.iterdir()))
