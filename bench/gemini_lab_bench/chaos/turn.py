"""When a run is struck: each fault of a schedule in its moment, until the run is over."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.lab.control import ask
from gemini_lab.recovery.requests import GiveUpProgress
from gemini_lab_bench.chaos.faults import Fault
from gemini_lab_bench.chaos.kinds import KINDS, OF_SAVES
from gemini_lab_bench.chaos.strikes import Mend, Strikes
from gemini_lab_bench.chaos.told import LogSoFar

LOOK_S: Final = 0.01
CALM: Final = 2  # iterations of all ranks after which a fault is over
LET_GO_S: Final = 3.0  # what cannot come back is waited for so long before a person lets go
RETURN_S: Final = 20.0  # what was continued is back by then; what is not was killed
START_S: Final = 300.0  # for the first iterations: a busy machine imports for minutes
NEVER_CAME: Final = "its moment never came"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInRun:
    """A fault that was due."""

    fault: Fault  # which
    at_s: float  # when, on the log's clock
    # When training went on after it; `None` if it did not, or where the run was over.
    until_s: float | None = None
    hit: str = ""  # what it hit; where it did not happen, why not
    happened: bool = True  # whether it happened


class Mends:
    """What is broken for a while, when it is mended, and when it breaks again."""

    def __init__(self) -> None:
        self._due: list[tuple[float, Mend, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, do: Mend, *, after_s: float, breaks: bool = False) -> None:
        """Mend this later, or have it break again, which is not done where all is mended."""
        self._due.append((time.monotonic() + after_s, do, breaks))

    def do(self, *, all_of_them: bool = False) -> bool:
        now = time.monotonic()
        due = [one for one in self._due if all_of_them or one[0] <= now]
        self._due = [one for one in self._due if one not in due]
        for _, do, breaks in due:
            if not (breaks and all_of_them):
                do()
        return bool(due)


class StoodStillError(GeminiError):
    """Training did not go on in time."""


class RunUnderFaults:
    """Goes through the faults of a schedule while the run goes on.

    Attributes:
        is_cut_short: Whether one of them ends the run.
        has_told_to_end: Whether the run was told to end soon, as batch systems do.
    """

    def __init__(
        self,
        strikes: Strikes,  # what breaks things
        told: LogSoFar,  # what the log tells
        owner: subprocess.Popen[bytes],  # the run is over when this process is
        folder: Path,  # the run's
        *,
        limit_s: float,  # training that stands still for longer hangs
        # From then on nothing is struck, and a run that goes on is told to end.
        stop_s: float | None = None,
        # Called with each fault once it is over, or did not happen.
        say: Callable[[FaultInRun], None],
        # Gives the newest version that is whole in the tier, and the newest that was spoilt there,
        # whatever the run sees of it; 0 for none.
        tier: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.struck: list[FaultInRun] = []  # the faults that were due so far
        self.let_go_s: list[float] = []  # when what was waited for was let go, on the log's clock
        self.is_cut_short = self.has_told_to_end = False
        self._tier = tier
        self._strikes, self._told, self._owner, self._folder = strikes, told, owner, folder
        self._limit_s, self._stop_s, self._say = limit_s, stop_s, say
        self._mends = Mends()
        self._newest_s = self._moved_s = time.monotonic()  # the last strike; the last iteration
        self._waits_since_s: float | None = None
        self._progress = self._wanted = 0

    def go_through(self, faults: Sequence[Fault]) -> None:
        """Strike each in its moment, and wait for the end.

        Raises:
            StoodStillError: Training did not go on in time.
        """
        self._wanted = CALM
        try:
            self._strike_all(faults)
            while not self._is_over:
                self._look()
                self._tell_to_end()
            self._settle()
        finally:
            self._mends.do(all_of_them=True)

    def _strike_all(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            is_due = self._wait_for(fault)
            if self._is_over or self._is_late:
                break
            if is_due:
                self._strike(fault)
            else:
                self._take(
                    FaultInRun(fault=fault, at_s=time.time(), happened=False, hit=NEVER_CAME)
                )

    @property
    def _is_over(self) -> bool:
        return self._owner.poll() is not None

    @property
    def _is_late(self) -> bool:
        return self._stop_s is not None and time.monotonic() > self._stop_s

    @property
    def _goes_on(self) -> bool:
        return self._told.progress >= self._wanted

    @property
    def _is_calm(self) -> bool:
        return not self._mends and self._goes_on

    @property
    def _saves_count(self) -> bool:
        return "commit" in self._told.since_s

    def _tell_to_end(self) -> None:
        """Announce the end to a run whose time is up, once training goes on."""
        if self._is_late and self._is_calm and not self.has_told_to_end:
            self._settle()
            self.has_told_to_end = True
            self._moved_s = time.monotonic()
            self._owner.terminate()

    def _wait_for(self, fault: Fault) -> bool:
        """Wait for a fault's moment; false if that does not come."""
        while KINDS[fault.kind].needs == "store" and not (self._is_over or self._saves_count):
            self._look()  # there is nothing yet that it could keep from anybody
        since_s = self._newest_s
        is_any = fault.moment in ("calm", "meanwhile")
        if is_any or (not self.struck and fault.moment not in OF_SAVES):
            is_calm_enough = fault.moment == "meanwhile" and bool(self.struck)
            while not (self._is_calm or (is_calm_enough and self._goes_on) or self._is_over):
                self._look()
            self._settle()
            since_s = time.monotonic()
        elif fault.moment != "together":
            while not self._has_come(fault):
                is_sure = fault.moment in ("end", *OF_SAVES) and not self._is_late
                if self._is_over or (self._is_calm and not is_sure):
                    self._settle()
                    return False
                self._look()
            since_s = self._told.since_s[fault.moment]
        while time.monotonic() < since_s + fault.after_s and not self._is_over:
            self._look()
        return True

    def _has_come(self, fault: Fault) -> bool:
        came_s = self._told.since_s.get(fault.moment)
        return came_s is not None and (fault.moment == "end" or came_s > self._newest_s)

    def _strike(self, fault: Fault) -> None:
        at_s = time.time()
        try:
            hit, mend = self._strikes.strike(fault)
        except (ConfigError, GeminiError, OSError) as error:
            self._take(FaultInRun(fault=fault, at_s=at_s, happened=False, hit=str(error)))
            return
        self.is_cut_short |= KINDS[fault.kind].ends_run
        if mend is not None:
            self._mend_later(fault, mend)
        self._newest_s = self._moved_s = time.monotonic()
        self._wanted = self._told.progress + CALM
        self._take(FaultInRun(fault=fault, at_s=at_s, hit=hit))

    def _mend_later(self, fault: Fault, mend: Mend) -> None:
        """Mend it when its time is over, and have it come again if it is to."""

        def again() -> None:
            with contextlib.suppress(GeminiError, OSError):  # it may be gone meanwhile
                _, then = self._strikes.strike(left)
                if then is not None:
                    self._mend_later(left, then)

        left = msgspec.structs.replace(fault, times=fault.times - 1)
        self._mends.add(mend, after_s=fault.lasts_s)
        if left.times > 0:
            self._mends.add(again, after_s=fault.lasts_s + fault.pause_s, breaks=True)

    def _take(self, struck: FaultInRun) -> None:
        self.struck.append(struck)
        if not struck.happened:
            self._say(struck)

    def _settle(self) -> None:
        now = time.time()
        for number, struck in enumerate(self.struck):
            if struck.happened and struck.until_s is None:
                self.struck[number] = replace(struck, until_s=now)
                self._say(self.struck[number])

    def _look(self) -> None:
        """Sleep a moment, read the log, mend what is due, and see that training goes on."""
        time.sleep(LOOK_S)
        self._told.poll()
        now = time.monotonic()
        if self._mends.do():
            self._wanted = max(self._wanted, self._told.progress + CALM)
            self._moved_s = now
        if self._told.progress != self._progress or self._mends:
            self._progress, self._moved_s = self._told.progress, now
        self._let_go(now)
        limit_s = self._limit_s if self._told.progress else max(self._limit_s, START_S)
        if now - self._moved_s > limit_s and not self._is_over:
            waits = f"; it waits: {self._told.waits_for}" if self._told.waits_for else ""
            if (good := self._tier()[0]) > 0:
                waits += f"; version {good} is whole in the tier"
            raise StoodStillError(f"no iteration for {limit_s:.0f} s{waits}")

    def _let_go(self, now: float) -> None:
        """Give up what is certain not to come back, as a person would who sees all.

        Nothing is let go while something is still broken, or what the run does not find is whole.
        """
        waits = self._told.waits_for
        good, spoilt = self._tier()
        is_gone = "left anywhere" in waits and not good
        is_silent = "may come back" in waits
        is_of_tier = bool(waits) and not is_silent and "no machine" not in waits
        if self._mends or not (is_gone or is_silent or (is_of_tier and spoilt > good)):
            self._waits_since_s = None
            return
        self._waits_since_s = self._waits_since_s or now
        if now - self._waits_since_s > (LET_GO_S if is_gone else RETURN_S):
            self._waits_since_s = now
            self.let_go_s.append(time.time())
            with contextlib.suppress(ConfigError):
                ask(self._folder, GiveUpProgress())
