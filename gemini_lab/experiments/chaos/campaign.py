"""Many runs with random faults: which held, how long each fault stopped training, what failed."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from gemini_lab.errors import GeminiError
from gemini_lab.experiments.bench import Row, machine
from gemini_lab.experiments.chaos.faults import KINDS, Fault, Schedule, draw
from gemini_lab.experiments.chaos.oracles import Losses, problems, standstill_s
from gemini_lab.experiments.chaos.shrink import shrink
from gemini_lab.experiments.chaos.suffer import Suffered, suffer, undisturbed
from gemini_lab.experiments.chaos.turn import Struck

ITERATIONS: Final = 40
ITERATIONS_A_FAULT: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign is to do.

    Attributes:
        faults: How many in all.
        seed: Of all that is drawn.
        kinds: Names of the kinds, all equally likely.
        nodes: Machines that train, in each run.
        standbys: Machines that wait.
        a_run: Faults of one run.
        limit_s: Training that stands still for longer than this hangs.
        load: Processes that keep the machine busy.
        tries: Runs that may be spent on making a failing schedule smaller.
        folder: Where the runs keep theirs.
    """

    faults: int
    seed: int
    kinds: tuple[str, ...]
    nodes: int
    standbys: int
    a_run: int
    limit_s: float
    load: int
    tries: int
    folder: Path

    def schedules(self) -> Iterator[Schedule]:
        """One for each run."""
        for number, first in enumerate(range(0, self.faults, self.a_run)):
            form = self.form(number)
            yield draw(form, min(self.a_run, self.faults - first), kinds=self.kinds)

    def form(self, number: int) -> Schedule:
        """A run, without faults yet."""
        return Schedule(
            seed=self.seed,
            number=number,
            nodes=self.nodes,
            standbys=self.standbys,
            iterations=ITERATIONS + ITERATIONS_A_FAULT * self.a_run,
            faults=(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault, as it went.

    Attributes:
        run: The folder of its run.
        fault: What was to break.
        happened: Whether it did.
        hit: What it hit, or why it did not happen.
        at_s: When.
        standstill_s: The longest time without a new iteration until training went on; `None` where
            the run was over first.
        is_fine: Whether its run held.
    """

    run: str
    fault: Fault
    happened: bool
    hit: str
    at_s: float
    standstill_s: float | None
    is_fine: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "fault"}
        return {**own, **msgspec.to_builtins(self.fault)}


@dataclass(slots=True, kw_only=True)
class Result:
    """What a campaign has found.

    Attributes:
        strikes: Every fault, in order.
        failures: The runs that did not hold, with what did not.
        duration_s: How long all took.
        machine: Where, and how busy it was at the start.
    """

    strikes: list[Strike] = field(default_factory=list)
    failures: list[tuple[Suffered, list[str]]] = field(default_factory=list)
    duration_s: float = 0.0
    machine: dict[str, Any] = field(default_factory=machine)

    def add(self, run: Suffered, found: list[str]) -> None:
        """Take in a run that is over, and what did not hold there."""
        entries = run.aftermath.entries
        for one in run.struck:
            stood_s = None
            if one.happened and one.until_s is not None:
                stood_s = standstill_s(entries, since_s=one.at_s, until_s=one.until_s)
            self.strikes.append(
                Strike(
                    run=str(run.folder),
                    fault=one.fault,
                    happened=one.happened,
                    hit=one.hit,
                    at_s=one.at_s,
                    standstill_s=stood_s,
                    is_fine=not found,
                )
            )
        if found:
            self.failures.append((run, found))

    def rows(self) -> list[Row]:
        """One for each kind that was drawn: how long training stood still for it."""
        found = []
        for kind in KINDS:
            drawn = [one for one in self.strikes if one.fault.kind == kind]
            struck = [one for one in drawn if one.happened]
            values = [one.standstill_s for one in struck if one.standstill_s is not None]
            if drawn:
                failed = sum(not one.is_fine for one in struck)
                settings = {"struck": len(struck), "drawn": len(drawn), "in_failed_runs": failed}
                why_not = "" if values else "it never happened"
                row = Row(name=kind, values=tuple(values), settings=settings, why_not=why_not)
                found.append(row)
        return found

    def to_json(self) -> dict[str, Any]:
        """As a bench's record, with every fault."""
        return {
            "bench": "chaos",
            "machine": self.machine,
            "duration_s": self.duration_s,
            "rows": [row.to_json() for row in self.rows()],
            "faults": [one.to_json() for one in self.strikes],
            "failures": [
                {
                    "run": str(run.folder),
                    "problems": found,
                    "schedule": msgspec.to_builtins(run.schedule),
                }
                for run, found in self.failures
            ],
        }

    def __str__(self) -> str:
        lines = [f"{'kind':<14}{'struck':>7}{'stood still: median':>22}{'worst':>9}  verdict"]
        for row in self.rows():
            failed = row.settings["in_failed_runs"]
            verdict = "holds" if not failed else f"{failed} in runs that did not hold"
            if row.values:
                times = f"{row.median:>20.1f} s{max(row.values):>7.1f} s"
            else:
                times, verdict = f"{'':>31}", row.why_not
            lines.append(f"{row.name:<14}{row.settings['struck']:>7}{times}  {verdict}")
        struck = sum(one.happened for one in self.strikes)
        together = sum(one.happened and one.fault.moment != "calm" for one in self.strikes)
        runs = len({one.run for one in self.strikes})
        lines.append(
            f"\n{struck} faults struck, {together} of them close upon another, in a recovery or at "
            f"the end; {len(self.strikes) - struck} never happened; of {runs} run(s) "
            f"{len(self.failures)} did not hold"
        )
        return "\n".join(lines)


def campaign(plan: Plan, *, schedules: Sequence[Schedule] | None = None) -> Result:
    """Run all of it, and say each fault as it happens; Ctrl-C ends it with what it has so far.

    Args:
        plan: What to do.
        schedules: Instead of those that the plan draws.
    """
    result, began_s = Result(), time.monotonic()
    plan.folder.mkdir(parents=True, exist_ok=True)
    with busy(plan.load):
        for schedule in plan.schedules() if schedules is None else schedules:
            known = undisturbed(schedule, plan.folder, limit_s=plan.limit_s)
            _say(f"run {schedule.number} of seed {schedule.seed}: {len(schedule.faults)} faults")
            run, found = one_run(schedule, plan, known)
            result.add(run, found)
            if run.was_interrupted:
                _say("  interrupted: this is what was found so far")
                break
            for problem in found:
                _say(f"  DOES NOT HOLD: {problem}")
            if found:
                _report(run, smaller(run, plan, known) if plan.tries else schedule)
    result.duration_s = time.monotonic() - began_s
    return result


def one_run(schedule: Schedule, plan: Plan, known: Losses) -> tuple[Suffered, list[str]]:
    """One run, and what did not hold in it."""
    run = suffer(
        schedule, folder=plan.folder, undisturbed=known, limit_s=plan.limit_s, say=_say_struck
    )
    return run, problems(run.aftermath)


def smaller(failed: Suffered, plan: Plan, known: Losses) -> Schedule:
    """The fewest faults of a run that did not hold with which it does not hold again.

    Only those that happened count; what fails by chance may need more tries than there are.
    """
    left = plan.tries

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal left
        if not faults or left == 0:
            return False
        left -= 1
        _say(f"  again with {len(faults)} of its faults, {left} tries left")
        return bool(one_run(failed.schedule.having(faults), plan, known)[1])

    happened = [one.fault for one in failed.struck if one.happened]
    return failed.schedule.having(shrink(happened, fails))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processors busy meanwhile."""
    endless = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as ends:
        for _ in range(processes):
            process = ends.enter_context(subprocess.Popen(endless))
            ends.callback(process.kill)
        yield


def write(result: Result, path: Path) -> None:
    """Write all that was found as JSON.

    Raises:
        GeminiError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise GeminiError(f"cannot write {path}: {error.strerror}") from error


def load_now() -> float:
    """The machine's load over the last minute."""
    return float(machine()["load_1_min"])


def _report(run: Suffered, schedule: Schedule) -> None:
    file = run.folder.parent / "schedule.json"
    schedule.save(file)
    _say(f"  the smallest schedule found has {len(schedule.faults)} faults:")
    for fault in schedule.faults:
        _say(f"    {fault}")
    _say(f"  its log: {run.folder}")
    _say(f"  again: gemini-lab chaos --replay {file}")


def _say_struck(struck: Struck) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(struck.at_s))
    how = f"hit {struck.hit}" if struck.happened else f"did not happen, {struck.hit}"
    if struck.until_s is not None:
        how += f"; over after {struck.until_s - struck.at_s:.1f} s"
    _say(f"  {at} {struck.fault}: {how}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
