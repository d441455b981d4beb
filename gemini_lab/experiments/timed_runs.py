"""Iteration times of the lab's own job, in a lab and without one."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gemini_lab.errors import RunFailedError
from gemini_lab.events import read_events
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.lab import Lab


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every arm of a comparison runs, on two nodes.

    Attributes:
        size: Of the GPT.
        iterations: Of each run.
        counted: How many of the last ones count; before them a schedule must have been made.
        layer_s: Emulated accelerator time of a block's forward pass.
        link_bytes_per_s: The nodes' emulated links; `None` is bare loopback.
    """

    size: str = "tiny"
    iterations: int
    counted: int
    layer_s: float = 0.0
    link_bytes_per_s: float | None = None

    @property
    def conditions(self) -> dict[str, Any]:
        """What to say beside every result."""
        found: dict[str, Any] = {"size": self.size, "nodes": 2}
        if self.layer_s:
            found["layer_s"] = self.layer_s
        if self.link_bytes_per_s:
            found["link_bytes_per_s"] = self.link_bytes_per_s
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """What one run took.

    Attributes:
        iteration_s: Median duration of the counted iterations.
        planned: The data of its last `profiled` event; empty if there was none.
        notes: What it remarked.
        sent_bytes: What rank 0 sent of each version.
        waited_s: Median time for which rank 0's update waited for its version.
    """

    iteration_s: float
    planned: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sent_bytes: int = 0
    waited_s: float = 0.0


def in_lab(lab: Lab, workload: Workload, **settings: Any) -> TimedRun:
    """One run on the lab's nodes."""
    with tempfile.TemporaryDirectory(prefix="gemini-lab-times-") as folder:
        times = Path(folder) / "times.json"
        job = gpt_job(
            size=workload.size, iterations=workload.iterations, layer_s=workload.layer_s,
            times=times,
        )  # fmt: skip
        run = lab.train(
            job, persistent_url=None, link_bytes_per_s=workload.link_bytes_per_s, **settings
        ).wait()
        iteration_s = _median_s(times, workload)
    events = [e for e in read_events(run.folder / "events.jsonl") if e.data.get("rank") == 0]
    sent = [e.data["sent_bytes"] for e in events if e.kind == "version_complete"]
    waits = [e.data["waited_s"] for e in events if e.kind == "iteration"]
    planned = [dict(e.data) for e in events if e.kind == "profiled"]
    return TimedRun(
        iteration_s=iteration_s,
        planned=planned[-1] if planned else {},
        notes=run.report().notes,
        sent_bytes=max(sent, default=0),
        waited_s=statistics.median(waits[-workload.counted :]),
    )


def under_torchrun(workload: Workload) -> TimedRun:
    """The same script started by torchrun, without a lab.

    Raises:
        RunFailedError: The script failed.
    """
    with tempfile.TemporaryDirectory(prefix="gemini-lab-times-") as folder:
        times = Path(folder) / "times.json"
        job = gpt_job(
            size=workload.size, iterations=workload.iterations, layer_s=workload.layer_s,
            times=times,
        )  # fmt: skip
        args = list(job.args)
        if workload.link_bytes_per_s is not None:
            args += ["--link-bytes-per-s", str(workload.link_bytes_per_s)]
        runner = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*runner, "--nproc-per-node=2", "-m", job.script, *args],
            env={**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RunFailedError(f"the script failed under torchrun:\n{done.stderr[-2000:]}")
        return TimedRun(iteration_s=_median_s(times, workload))


def _median_s(times: Path, workload: Workload) -> float:
    ended_s = json.loads(times.read_text(encoding="utf-8"))
    durations = [after - before for before, after in pairwise(ended_s)]
    return float(statistics.median(durations[-workload.counted :]))
