"""The owner of a campaign's run: `gemini-lab run`, a process of its own that can be struck, too."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.job import Job, python_command
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.chaos.faults import Schedule
from gemini_lab_bench.chaos.scene import Scene
from gemini_lab_bench.chaos.victims import MARK, marked, send

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
    job = job_of(schedule)
    where = ["--hosts", ",".join(scene.hosts.names)] if scene.hosts else []
    keep = ["--set", "keep_processes=true"] if schedule.keeps else []
    return [
        *("run", "--nodes", str(schedule.nodes), "--standbys", str(schedule.standbys)),
        *(*where, *keep, "--racks", ",".join(schedule.rack_of.values())),
        *("--folder", str(folder), "--name", "run", "--persistent-url", scene.tier_url),
        *("--persist-every", str(PERSIST_EVERY), str(scene.script), *job.args),
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
