"""A check of whether a user's script is bit-identical after failures, in a small lab.

The script trains undisturbed in a lab, which shows the places that it reaches. It trains under
plain torchrun, which shows whether protection alone changes its numbers. Then it trains in the lab
again and is killed at one place after the other. The check compares what the runs computed, and
their states.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.failures import NodeLoss, RootLoss, WorkerCrash
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.lab.script_source import hints_of
from gemini_lab.lab.under_torchrun import UnderTorchrun
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Note, RecoveryFinished, Unprotected
from gemini_lab.log.file import read_log
from gemini_lab.log.witnessed import (
    HANDED_OVER,
    Kill,
    PlaceSeen,
    Records,
    StateDifference,
    StatesCompared,
    StateSeen,
    Struck,
    WitnessOrder,
    choose_kills,
    compare_states,
    differing_anywhere,
    values_file,
)
from gemini_lab.report.compare_runs import FirstDifference, Twice, accounts, compare
from gemini_lab.units import format_seconds

FEWEST: Final = 6
"""Iterations that a worker's loss and a node's need at least, with some between them."""
FEWEST_NODES: Final = 2
"""Nodes that are needed so that one still has the shards of a lost one."""
GLANCE_S: Final = 0.1
BEGIN_S: Final = 600.0
"""For the first record of any rank under plain torchrun: its libraries may compile before it."""
STILL_S: Final = 120.0
"""The same between two records: without one, all ranks stand still."""
Verdict = Literal[
    "bit-identical",
    "differs",
    "does not come back",
    "differs without a failure",
    "not repeatable",
    "nothing to compare",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A kill, and the recovery from it."""

    kill: Kill  # its place and its rank
    epoch: int  # of the start that was killed
    version: int | None = None  # the version from which training continued
    # Until the first iteration after it; `None`: there was none, as at the end.
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run beside another one."""

    twice: Twice  # what they computed
    states: StatesCompared  # their states after iterations
    # By name, the largest difference of each piece that differs in `states`, at the runs' end;
    # infinite if it is no number, or has another shape.
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_same(self) -> bool:
        """Whether nothing differs, except batches and random numbers without effect."""
        return self.twice.first is None and self.states.first is None

    @property
    def has_any(self) -> bool:
        return bool(self.twice.with_values or self.states.states)

    @property
    def first(self) -> FirstDifference | StateDifference | None:
        # An iteration begins and computes before its state exists.
        number, state = self.twice.first, self.states.first
        if number is None or state is None:
            return number or state
        return number if number.iteration <= state.version else state


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check."""

    script: str  # the script that ran
    nodes: int  # their number
    ranks: int  # the number of training processes
    iterations: int  # the number that all runs have
    recovered: tuple[Recovered, ...] = ()  # the kills that were made
    missed: tuple[Kill, ...] = ()  # kills whose place the script did not reach
    disturbed: Compared | None = None  # the run with kills beside the undisturbed one
    # The undisturbed run beside plain torchrun; `None` if there is no plain run.
    plain: Compared | None = None
    plain_failed: str = ""  # why there is none, or why the second plain run failed
    # Whether two runs of plain torchrun are the same; true if that was not tried.
    is_repeatable: bool = True
    failure: str = ""  # why the run with kills failed, if it did
    # Pieces of what the script handed over that differ even between undisturbed runs.
    unsteady: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # notes in the logs of the runs
    hints: tuple[str, ...] = ()  # names from the script's source, with what to do about them
    duration_s: float = 0.0  # of all runs

    @property
    def verdict(self) -> Verdict:
        if not self.is_repeatable:
            return "not repeatable"
        if self.plain is not None and not self.plain.is_same:
            return "differs without a failure"
        if self.failure:
            return "does not come back"
        if self.disturbed is None or not self.disturbed.has_any:
            return "nothing to compare"
        return "bit-identical" if self.disturbed.is_same else "differs"

    @property
    def shown(self) -> Compared | None:
        is_plain = self.verdict in {"not repeatable", "differs without a failure"}
        return self.plain if is_plain else self.disturbed

    @property
    def after(self) -> Recovered | None:
        """The last kill before the runs differ, or before training did not come back."""
        if self.verdict == "does not come back":
            return self.recovered[-1] if self.recovered else None
        first = None if self.verdict != "differs" or self.shown is None else self.shown.first
        if first is None:
            return None
        if isinstance(first, StateDifference):
            before = [one for one in self.recovered if one.epoch < first.epoch]
        else:
            known = [one for one in self.recovered if one.version is not None]
            before = [one for one in known if (one.version or 0) < first.iteration]
        return before[-1] if before else None

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["recovered"] = [{**asdict(one), "kill": str(one.kill)} for one in self.recovered]
        told["missed"] = [str(kill) for kill in self.missed]
        return {"verdict": self.verdict, **told}


def require_room(*, nodes: int, iterations: int) -> None:
    """Refuse a check that is too short or too small, before anything starts.

    Raises:
        ConfigError: There are too few iterations, or nodes.
    """
    if iterations < FEWEST:
        raise ConfigError(f"{iterations} iterations leave no room; give at least {FEWEST}")
    if nodes < FEWEST_NODES:
        raise ConfigError(
            "a node is killed, and another one has to keep its shards; give at least "
            f"{FEWEST_NODES} nodes (got {nodes})"
        )


def check_script(
    lab: Lab,  # it has a standby and no run
    job: Job,  # the script. It runs three or four times, and writes its files each time.
    *,
    iterations: int,  # how many to train each time, if the script does not end before
    kills: int,  # how often to kill it, at most
    limit_s: float,  # the longest time of a run
    tell: Callable[[str], None],  # called with each line of progress
) -> Checked:
    """Train `job` undisturbed, under plain torchrun and with kills, and compare.

    Raises:
        ConfigError: There are too few iterations or nodes, or the script never calls `protect`.
        RunFailedError: The script failed without a failure of ours, or took too long.
    """
    require_room(nodes=lab.nodes, iterations=iterations)
    return _Check(lab, job, iterations=iterations, limit_s=limit_s, tell=tell).run(kills)


class _Check:
    """The runs of a check, one after the other."""

    def __init__(
        self, lab: Lab, job: Job, *, iterations: int, limit_s: float, tell: Callable[[str], None]
    ) -> None:
        self._lab, self._job, self._iterations = lab, job, iterations
        self._limit_s, self._tell = limit_s, tell
        self._ranks = lab.nodes * lab.workers_per_node
        self._struck: list[Recovered] = []
        self._logs: list[Entry] = []

    def run(self, most: int) -> Checked:
        began_s = time.monotonic()
        undisturbed, _ = self._in_lab("undisturbed")
        plain, failed, is_repeatable = self._beside_torchrun(undisturbed)
        found = Checked(
            script=self._job.script,
            nodes=self._lab.nodes,
            ranks=self._ranks,
            iterations=min(self._iterations, _reached(undisturbed)),
            plain=plain,
            plain_failed=failed,
            is_repeatable=is_repeatable,
        )
        if plain is None or plain.is_same:
            kills = choose_kills(undisturbed.all, iterations=self._iterations, most=most)
            self._tell(f"with {len(kills)} kills")
            disturbed, failure = self._in_lab("with-failures", kills)
            done = {one.kill.number for one in self._struck}
            found = replace(
                found,
                iterations=min(found.iterations, _reached(disturbed)),
                recovered=tuple(self._struck),
                missed=tuple(kill for kill in kills if kill.number not in done),
                disturbed=self._compared(undisturbed, disturbed),
                failure=failure,
            )
            found = self._without_unsteady(found, undisturbed, disturbed)
        for file in self._lab.folder.glob(f"check-{self._job.word}-*/rank-*.pt"):
            file.unlink(missing_ok=True)  # values may be large; the records stay
        notes = (e.event.text for e in self._logs if isinstance(e.event, Note))
        return replace(
            found,
            remarks=tuple(dict.fromkeys(notes)),
            hints=tuple(hints_of(self._job, differs=found.verdict == "differs")),
            duration_s=time.monotonic() - began_s,
        )

    def _beside_torchrun(self, undisturbed: Records) -> tuple[Compared | None, str, bool]:
        """Compare the undisturbed run with plain torchrun; if they differ, that with itself too."""
        plain, failed = self._under_torchrun("torchrun")
        if failed:
            return None, failed, True
        compared = self._compared(plain, undisturbed)
        if compared.is_same:
            return compared, "", True
        self._tell("  it differs from the lab's: once more")
        again, failed = self._under_torchrun("torchrun-again")
        if failed:  # so it is not known whether the script is repeatable
            return compared, failed, True
        beside_itself = self._compared(plain, again)
        return (compared, "", True) if beside_itself.is_same else (beside_itself, "", False)

    def _without_unsteady(
        self, found: Checked, undisturbed: Records, disturbed: Records
    ) -> Checked:
        """Leave out what differs even between undisturbed runs, such as times in a Trainer's log.

        Only if nothing differs but what was handed over: no result depends on it then.
        """
        compared = found.disturbed
        state = None if compared is None else compared.states.first
        if compared is None or state is None or compared.twice.first is not None:
            return found
        if not all(name.startswith(HANDED_OVER) for name in state.pieces):
            return found
        self._tell("  only what `protect` was handed differs: undisturbed once more")
        again, failure = self._in_lab("undisturbed-again")
        apart = differing_anywhere(undisturbed.all, again.all)
        unsteady = tuple(sorted(name for name in apart if name.startswith(HANDED_OVER)))
        if failure or not unsteady:
            return found
        return replace(
            found,
            disturbed=self._compared(undisturbed, disturbed, unsteady=unsteady),
            unsteady=unsteady,
        )

    # -- a run -------------------------------------------------------------------------------------

    def _order(self, how: str, kills: Sequence[Kill] = ()) -> tuple[Records, Job]:
        folder = self._lab.folder.absolute() / f"check-{self._job.word}-{time.time_ns()}-{how}"
        folder.mkdir(parents=True, mode=0o700)
        order = WitnessOrder(folder=str(folder), iterations=self._iterations, kills=tuple(kills))
        job = replace(self._job, env={**self._job.env, **order.to_variable()})
        return Records(folder, self._ranks), job

    def _under_torchrun(self, how: str) -> tuple[Records, str]:
        """Run the script under plain torchrun; return its records, and why it failed, if it did."""
        self._tell("under plain torchrun")
        records, job = self._order(how)
        began_s, heard_s = time.monotonic(), time.monotonic()
        with UnderTorchrun(
            job,
            nodes=self._lab.nodes,
            workers_per_node=self._lab.workers_per_node,
            folder=records.folder,
        ) as run:
            while not run.is_over_within(GLANCE_S):
                now_s = time.monotonic()
                heard_s = now_s if records.news() else heard_s
                if self._is_enough(records):
                    break
                still_s = STILL_S if records.all else BEGIN_S
                if now_s - began_s > self._limit_s or now_s - heard_s > still_s:
                    still, last = format_seconds(now_s - heard_s), run.last_lines[-1:]
                    told = f"it said nothing for {still} after {_place(records)}"
                    return records, "; the last that it printed: ".join([told, *last])
            failed = "; ".join(run.last_lines[-3:]) if run.has_failed else ""
        records.news()
        if not failed and not any(records.of(StateSeen)):
            failed = "it has not called `protect` there, or trained nothing"
        self._tell(f"  {failed or f'iteration {_reached(records)}: enough'}")
        return records, failed

    def _in_lab(self, how: str, kills: Sequence[Kill] = ()) -> tuple[Records, str]:
        """Run the script in the lab; return its records, and why it failed after a kill.

        Raises:
            ConfigError: The script never called `protect`.
            RunFailedError: The run failed without a kill, or it took too long.
        """
        if not kills:
            self._tell(how)
        records, job = self._order(how, kills)
        name = f"check-{self._job.word}-{how}"
        run = self._lab.train(job, name=name, persistent_url=None, on_divergence="warn")
        follower = _Follower(run, records, kills, self._struck, self._tell)
        forget = run.watch(follower.hear)
        end_s = time.monotonic() + self._limit_s
        while not run.is_over_within(GLANCE_S) and time.monotonic() < end_s:
            follower.look()
            if self._is_enough(records):
                break
        follower.look()
        was_over = run.is_over
        if not was_over:
            run.stop()
        with suppress(RunFailedError):
            run.wait(60)
        forget()
        follower.look()
        self._logs += read_log(run.log)
        if follower.unprotected.is_set():
            raise ConfigError(
                "the script never calls gemini_lab.protect, so there is nothing to check"
            )
        if was_over and run.failure is not None:
            if not kills:
                run.wait()  # says why, with the worker's last lines
            self._tell(f"  {run.failure}")
            return records, run.failure
        if not was_over and not self._is_enough(records):
            told = f"after {format_seconds(self._limit_s)} the run was at {_place(records)}"
            if kills:
                return records, told
            raise RunFailedError(
                f"{told}; ask for fewer iterations, or allow more time with --limit"
            )
        self._tell(f"  iteration {_reached(records)}: enough")
        return records, ""

    def _is_enough(self, records: Records) -> bool:
        """Return whether every rank has begun an iteration after the last one to compare."""
        begun = {
            one.rank
            for one in records.all
            if isinstance(one, PlaceSeen)
            and one.place == "forward"
            and one.version >= self._iterations
        }
        return len(begun) == self._ranks

    # -- two runs ----------------------------------------------------------------------------------

    def _compared(self, one: Records, other: Records, *, unsteady: Sequence[str] = ()) -> Compared:
        until = self._iterations
        left, right = (
            [r for r in records.all if not isinstance(r, StateSeen) or r.version <= until]
            for records in (one, other)
        )
        states = compare_states(left, right, unsteady=unsteady)
        values = {} if states.first is None else _differences(one, other, states.first)
        pair = (accounts(records.entries, until=until) for records in (one, other))
        return Compared(twice=compare(*pair), states=states, values=values)


class _Follower:
    """The one that kills ranks at their places, and reports how training comes back."""

    def __init__(
        self,
        run: Run,
        records: Records,
        kills: Sequence[Kill],
        struck: list[Recovered],
        tell: Callable[[str], None],
    ) -> None:
        self.unprotected = threading.Event()
        self._run, self._records, self._tell = run, records, tell
        self._kills = {kill.number: kill for kill in kills}
        self._struck = struck
        self._back: list[RecoveryFinished] = []

    def hear(self, entry: Entry) -> None:
        """Keep what a log entry says; runs on the lab's thread."""
        if isinstance(entry.event, Unprotected):
            self.unprotected.set()
        if isinstance(entry.event, RecoveryFinished) and entry.event.recovery:
            self._back.append(entry.event)

    def look(self) -> None:
        """Kill the ranks that wait for it, and report recoveries."""
        for record in self._records.news():
            if isinstance(record, Struck):
                kill = self._kills[record.number]
                self._struck.append(Recovered(kill=kill, epoch=record.epoch))
                self._tell(f"  {kill}")
                place = f"rank-{kill.rank}"
                with suppress(ConfigError):  # it may be over
                    node = RootLoss() if kill.is_at_root else NodeLoss(place)
                    self._run.inject(node if kill.loses_node else WorkerCrash(place))
        while self._back:
            event = self._back.pop(0)
            took = format_seconds(event.duration_s)
            self._tell(f"    training again after {took}, from version {event.version}")
            for number, one in enumerate(self._struck):
                if one.duration_s is None and one.epoch < event.epoch:
                    self._struck[number] = replace(
                        one, version=event.version, duration_s=event.duration_s
                    )


def _reached(records: Records) -> int:
    """Return the newest version that every rank has reached."""
    newest = dict.fromkeys(range(records.ranks), 0)
    for one in records.all:
        if isinstance(one, StateSeen):
            newest[one.rank] = max(newest[one.rank], one.version)
    return min(newest.values())


def _place(records: Records) -> str:
    return f"iteration {_reached(records)}"


def _differences(one: Records, other: Records, first: StateDifference) -> dict[str, float]:
    """Return the largest difference of each piece at the end, by name."""
    files = [values_file(records.folder, first.rank) for records in (one, other)]
    if not all(file.exists() for file in files):
        return {}
    import torch  # noqa: PLC0415 - nothing else here needs it

    left, right = (torch.load(file, weights_only=True, mmap=True) for file in files)
    found = {}
    for name in first.pieces:
        was, is_now = left.get(name), right.get(name)
        if isinstance(was, torch.Tensor) and isinstance(is_now, torch.Tensor):
            is_alike = was.shape == is_now.shape
            apart = (was.double() - is_now.double()).abs() if is_alike else None
            found[name] = (
                float("inf") if apart is None else float(apart.max()) if apart.numel() else 0.0
            )
    return found
