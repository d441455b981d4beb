"""Many runs with random faults, one after the other, each fault said as it happens."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from gemini_lab.lab.made_with import machine
from gemini_lab_bench.chaos.aftermath import Losses
from gemini_lab_bench.chaos.faults import Fault, Schedule, draw
from gemini_lab_bench.chaos.kinds import KINDS
from gemini_lab_bench.chaos.oracles import problems
from gemini_lab_bench.chaos.result import CampaignResult
from gemini_lab_bench.chaos.scene import UNLIKE
from gemini_lab_bench.chaos.suffer import Suffered, suffer, undisturbed
from gemini_lab_bench.chaos.turn import FaultInRun

ITERATIONS: Final = 40
ITERATIONS_A_FAULT: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """What a campaign is to do."""

    faults: int  # how many in all
    seed: int  # of all that is drawn
    kinds: tuple[str, ...]  # names of the kinds
    nodes: int  # machines that train, in each run
    standbys: int  # machines that wait
    a_run: int  # faults of one run
    limit_s: float  # training that stands still for longer than this hangs
    load: int  # processes that keep the machine busy
    tries: int  # runs that may be spent on making a failing schedule smaller
    folder: Path  # where the runs keep theirs
    # Whether each kind is to take as much time as any other, so that those from which a run is back
    # at once come more often; by default all are equally likely.
    by_time: bool = False
    # After so long nothing is struck any more, and the run under way is ended; `None` for as long
    # as it takes.
    most_s: float | None = None
    keeps: bool = False  # whether ranks that are not lost keep their process through a recovery

    def schedules(self) -> Iterator[Schedule]:
        for number, first in enumerate(range(0, self.faults, self.a_run)):
            form = self.form(number)
            count = min(self.a_run, self.faults - first)
            yield draw(form, count, kinds=self.kinds, by_time=self.by_time)

    def __str__(self) -> str:
        cut = "" if self.most_s is None else f", at most {self.most_s / 60:.1f} minutes"
        return (
            f"{self.faults} faults of {len(self.kinds)} kinds, each "
            f"{'for as long' if self.by_time else 'as often'} as any other, seed {self.seed}; "
            f"{self.nodes} nodes and {self.standbys} standbys; {self.load} processes of load{cut}"
            f"{'; ranks keep their process' if self.keeps else ''}"
        )

    def form(self, number: int) -> Schedule:
        jobs = {KINDS[kind].job for kind in self.kinds}
        return Schedule(
            seed=self.seed,
            number=number,
            nodes=self.nodes,
            standbys=self.standbys,
            iterations=ITERATIONS + ITERATIONS_A_FAULT * self.a_run,
            faults=(),
            verifies="verified" in jobs,
            resizes="resizable" in jobs,
            keeps=self.keeps,
            # Of every two runs one, if such a job has ranks for these machines.
            differs=number % 2 == 1 and self.nodes in UNLIKE and jobs <= {"usual"},
        )


def campaign(
    plan: CampaignPlan, *, schedules: Sequence[Schedule] | None = None, record: Path | None = None
) -> CampaignResult:
    """Run all of it, and say each fault as it happens; Ctrl-C ends it with what it has so far.

    Args:
        plan: What to do.
        schedules: Instead of those that the plan draws.
        record: Where the result is written, again after every run.

    Raises:
        GeminiError: The job does not run here at all, or the result cannot be written.
    """
    result, began_s = CampaignResult(plan=str(plan)), time.monotonic()
    stop_s = None if plan.most_s is None else began_s + plan.most_s
    plan.folder.mkdir(parents=True, exist_ok=True)
    result.was_interrupted = True  # until all is done
    with busy(plan.load), terminated_as_interrupted(), contextlib.suppress(KeyboardInterrupt):
        for schedule in plan.schedules() if schedules is None else schedules:
            known = undisturbed(schedule, plan.folder, limit_s=plan.limit_s)
            if stop_s is not None and time.monotonic() > stop_s:
                result.was_interrupted = False
                break
            _say(f"run {schedule.number} of seed {schedule.seed}: {len(schedule.faults)} faults")
            run, found = one_run(schedule, plan, known, stop_s=stop_s)
            result.add(run, found)
            result.duration_s = time.monotonic() - began_s
            if record is not None:
                result.write(record)
            for problem in found:
                _say(f"  DOES NOT HOLD: {problem}")
            if run.was_interrupted:
                _say("  interrupted: this is what was found so far")
                break
            if not found:
                continue
            smallest, was_interrupted = (
                smaller(run, plan, known) if plan.tries else (schedule, False)
            )
            _report(run, smallest)
            if was_interrupted:
                break
        else:
            result.was_interrupted = False
    result.duration_s = time.monotonic() - began_s
    return result


def one_run(
    schedule: Schedule, plan: CampaignPlan, known: Losses, *, stop_s: float | None = None
) -> tuple[Suffered, list[str]]:
    """Run one schedule; return the run, and what did not hold in it."""
    run = suffer(
        schedule,
        folder=plan.folder,
        undisturbed=known,
        limit_s=plan.limit_s,
        stop_s=stop_s,
        say=_say_struck,
    )
    return run, problems(run.aftermath)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that a campaign that is cut short keeps its table."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def smaller(failed: Suffered, plan: CampaignPlan, known: Losses) -> tuple[Schedule, bool]:
    """Return the fewest faults of a run that did not hold with which it does not hold again.

    Only those that happened count; what fails by chance may need more tries than there are.

    Returns:
        Those that were found, and whether somebody ended the campaign meanwhile.
    """
    left, was_interrupted = plan.tries, False

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal left, was_interrupted
        if not faults or left == 0:
            return False
        left -= 1
        _say(f"  again with {len(faults)} of its faults, {left} tries left")
        run, found = one_run(failed.schedule.having(faults), plan, known)
        if run.was_interrupted:
            left, was_interrupted = 0, True
        return bool(found) and not run.was_interrupted

    happened = [one.fault for one in failed.struck if one.happened]
    smallest = failed.schedule.having(shrink(happened, fails))
    return smallest, was_interrupted


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processors busy meanwhile."""
    endless = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as ends:
        for _ in range(processes):
            process = ends.enter_context(subprocess.Popen(endless))
            ends.callback(process.kill)
        yield


def load_now() -> float:
    """Return the machine's load over the last minute."""
    return float(machine()["load_1_min"])


def _report(run: Suffered, schedule: Schedule) -> None:
    file = run.folder.parent / "schedule.json"
    schedule.save(file)
    _say(f"  the smallest schedule found has {len(schedule.faults)} faults:")
    for fault in schedule.faults:
        _say(f"    {fault}")
    _say(f"  its log: {run.folder}")
    _say(f"  again: gemini-lab chaos --replay {file}")


def _say_struck(struck: FaultInRun) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(struck.at_s))
    how = f"hit {struck.hit}" if struck.happened else f"did not happen, {struck.hit}"
    if struck.until_s is not None:
        how += f"; over after {struck.until_s - struck.at_s:.1f} s"
    _say(f"  {at} {struck.fault}: {how}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


# -- delta debugging (Zeller, Hildebrandt, 2002) ---------------------------------------------------


Item = TypeVar("Item", bound=Hashable)


def shrink(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> tuple[Item, ...]:
    """Return as few of `items`, in their order, as taking away reaches while it still fails.

    Halves are taken away first, then quarters, at last single ones, until no single one of what is
    left can go.

    Args:
        items: With all of them it fails; that is not tried again.
        fails: Whether it fails with these; asked once for each of them.
    """
    left = tuple(items)
    fine: set[tuple[Item, ...]] = {left}  # what need not be tried again, too
    size = max(1, len(left) // 2)
    while left:
        before = left
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if fewer not in fine and fails(fewer):
                left = fewer
            else:
                fine.add(fewer)
                start += size
        if size == 1 and left == before:
            break
        size = max(1, size // 2)
    return left
