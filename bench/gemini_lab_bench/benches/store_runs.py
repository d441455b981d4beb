"""Runs of `store_job` under torchrun that are killed, and what their ranks wrote down of it."""

import itertools
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from gemini_lab.errors import GeminiError, RunFailedError
from gemini_lab.job import python_command
from gemini_lab_bench.benches.live_lab import LIMIT_S
from gemini_lab_bench.in_memory import folder_in_memory

RANKS: Final = 2
LAYER_S: Final = 0.05
Said = dict[str, Any]
"""A line that a rank wrote down: what, rank, at_s (monotonic), and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wasted:
    """What one failure cost."""

    lost_s: float  # training since the version that was gone on from
    retrieval_s: float  # to read that version
    restart_s: float  # from the failure until an iteration had ended again, without the retrieval
    regained_s: float  # from the failure until training stood again where it had stood

    @property
    def wasted_s(self) -> float:
        """In the paper's sense: lost progress and retrieval."""
        return self.lost_s + self.retrieval_s


def failure_of(said: Sequence[Said], killed_s: float) -> Wasted:
    """Return what a kill cost, from what the ranks wrote down.

    Raises:
        GeminiError: They did not come back.
    """
    before = [one for one in said if one["at_s"] <= killed_s]
    after = [one for one in said if one["at_s"] > killed_s]
    loaded = [one for one in after if one["what"] == "loaded"][:RANKS]
    if not loaded:
        raise GeminiError("the ranks that were killed did not come back")
    version = loaded[0]["version"]
    start = max(one["at_s"] for one in before if one["what"] == "training")
    ends = [one for one in before if one["what"] == "iteration" and one["at_s"] > start]
    since_s = max([start, *(one["at_s"] for one in ends if one["version"] == version)])
    reached = max((one["version"] for one in ends), default=version)
    done = [one for one in after if one["what"] == "iteration"]
    again = [one["at_s"] for one in done if one["version"] >= reached]
    retrieval_s = max(one["took_s"] for one in loaded)
    return Wasted(
        lost_s=killed_s - since_s,
        retrieval_s=retrieval_s,
        restart_s=min((one["at_s"] for one in done), default=math.inf) - killed_s - retrieval_s,
        regained_s=min(again, default=math.inf) - killed_s,
    )


def stood_at(said: Sequence[Said], at_s: float, *, killed_s: float = 0.0) -> int:
    """Return the version that training stood at then, if the last kill before it was at `killed_s`.

    Until the ranks are back that is the version which they will go on from.
    """
    start = next(o for o in said if o["what"] == "training" and o["at_s"] > killed_s)
    ends = [o for o in said if o["what"] == "iteration" and killed_s < o["at_s"] <= at_s]
    return int(max((one["version"] for one in ends), default=start["version"]))


def checkpoint_times(said: Sequence[Said]) -> list[float]:
    """Return the times from an iteration's end until its checkpoint was whole on every rank."""
    ranks = len({one["rank"] for one in said})
    starts_s = [one["at_s"] for one in said if one["what"] == "training"]
    times_s = []
    for one in said:
        if one["what"] != "iteration" or one["rank"]:
            continue
        until_s = min((at_s for at_s in starts_s if at_s > one["at_s"]), default=math.inf)
        ends = [
            o["at_s"]
            for o in said
            if o["what"] == "whole"
            and o["version"] == one["version"]
            and one["at_s"] < o["at_s"] < until_s
        ]
        if len(ends) >= ranks:
            times_s.append(max(sorted(ends)[:ranks]) - one["at_s"])
    return times_s


def iteration_times(said: Sequence[Said], *, every: int) -> list[float]:
    """Return rank 0's iterations that no checkpoint held up."""
    ends = [one for one in said if one["what"] == "iteration" and one["rank"] == 0]
    return [
        after["at_s"] - before["at_s"]
        for before, after in itertools.pairwise(ends)
        if after["version"] == before["version"] + 1
        and before["version"] % every
        and before["version"] > 1
    ]


class StoreRun:
    """The job while it runs, under a torchrun of its own for each life."""

    def __init__(
        self, folder: Path, *, every: int, rate: float, ranks: int, job: Sequence[str]
    ) -> None:
        self._command = [
            *(*python_command("torch.distributed.run"), "--standalone"),
            *(f"--log-dir={folder / 'logs'}", f"--nproc-per-node={ranks}"),
            *("-m", "gemini_lab_bench.store_job"),
            *("--store", str(folder), "--store-bytes-per-s", str(rate), "--every", str(every)),
            *("--size", "tiny", "--iterations", str(10**6), *job),
        ]
        self._folder = folder
        self._torchrun = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self._torchrun.terminate()
        self._torchrun.wait()

    def said(self) -> list[Said]:
        """Return all that the ranks wrote down, in order of time."""
        lines = [
            line
            for path in self._folder.glob("said-*")
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        ]
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return sorted(found, key=lambda one: float(one["at_s"]))

    def wait(self, what: str, *, after_s: float, count: int = RANKS) -> list[Said]:
        """Return when so many things of that kind were written down after `after_s`; gives all.

        Raises:
            RunFailedError: They do not come.
        """
        give_up_s = time.monotonic() + LIMIT_S
        while True:
            said = self.said()
            if sum(one["what"] == what and one["at_s"] > after_s for one in said) >= count:
                return said
            if self._torchrun.poll() is not None or time.monotonic() > give_up_s:
                raise RunFailedError(f"no {what!r} came from the ranks under torchrun")
            time.sleep(0.05)

    def wait_until_regained(self, killed_s: float) -> list[Said]:
        """Return when training stands again where it stood at a kill; gives all."""
        ends = [one for one in self.said() if one["what"] == "iteration"]
        reached = max(one["version"] for one in ends if one["at_s"] <= killed_s)
        newest, at_s = 0, killed_s
        while newest < reached:
            said = self.wait("iteration", after_s=at_s, count=1)
            ends = [one for one in said if one["what"] == "iteration" and one["at_s"] > at_s]
            newest, at_s = max((one["version"], one["at_s"]) for one in ends)
        return self.said()

    def kill(self) -> float:
        """Kill all ranks, also those that only start; start them again, and return when."""
        ranks = psutil.Process(self._torchrun.pid).children(recursive=True)
        killed_s = time.monotonic()
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()
        self.close()
        self._torchrun = self._start()
        return killed_s


@contextmanager
def started(
    every: int,
    rate: float,
    *,
    ranks: int = RANKS,
    job: Sequence[str] = ("--layer-s", str(LAYER_S)),
) -> Iterator[StoreRun]:
    """Start the job on a store of that rate, in a folder in memory that is gone afterwards."""
    with folder_in_memory("gemini-lab-store-") as folder:
        run = StoreRun(folder, every=every, rate=rate, ranks=ranks, job=job)
        try:
            yield run
        finally:
            run.close()
