"""What an agent sees of its workers: it hears their pulses, and tells the root what has changed."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import psutil

from gemini_lab.engine.heartbeat import BEAT_S
from gemini_lab.node.host import Worker
from gemini_lab.recovery.hangs import STILL_S
from gemini_lab.recovery.messages import WorkerPulse

NOTHING: Final = "nothing"


@dataclass(slots=True)
class _Seen:
    """One worker.

    Attributes:
        pulse: What it said last.
        is_new: Whether that was after the last look.
        silent_s: How long ago it was, as far as this agent itself was awake.
        told: What the root was told last, without its times.
    """

    pulse: WorkerPulse
    is_new: bool = False
    silent_s: float = 0.0
    told: object = None


class WorkerWatch:
    """Which workers stand still, by what they say and by what their machine says of them.

    Args:
        is_stopped: Whether a process is stopped, by its id.
        clock: Seconds, of a clock that nobody sets.
    """

    def __init__(
        self,
        *,
        is_stopped: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_stopped = is_stopped or is_process_stopped
        self._clock = clock
        self._looked_s = clock()
        self._seen: dict[tuple[int, int], _Seen] = {}  # by rank and epoch

    def hear(self, pulse: WorkerPulse) -> None:
        """A worker lives."""
        seen = self._seen.get((pulse.rank, pulse.epoch))
        if seen is not None:
            seen.pulse, seen.is_new = pulse, True

    def look(self, workers: Iterable[Worker]) -> list[WorkerPulse]:
        """What the root is to be told now; called about once a second.

        Args:
            workers: Those that run.
        """
        now = self._clock()
        # An agent that did not run itself has heard nobody meanwhile.
        passed_s, self._looked_s = min(now - self._looked_s, 2 * BEAT_S), now
        running = {(one.rank, one.epoch): one for one in workers if one.status == "running"}
        self._seen = {who: self._seen.get(who) or _Seen(_first(who)) for who in running}
        told = []
        for who, seen in self._seen.items():
            seen.silent_s = 0.0 if seen.is_new else seen.silent_s + passed_s
            seen.is_new = False
            picture = self._picture(seen, running[who].pid)
            if (key := _without_times(picture)) != seen.told:
                seen.told = key
                told.append(picture)
        return told

    @property
    def held_locks(self) -> list[str]:
        """The locks of compilations that workers hold."""
        return [one.pulse.lock for one in self._seen.values() if one.pulse.compiles]

    def forget_told(self) -> None:
        """Another root asks: it is told all of it, at the next look."""
        for seen in self._seen.values():
            seen.told = NOTHING

    def _picture(self, seen: _Seen, pid: int | None) -> WorkerPulse:
        """A worker as the root is to see it now."""
        pulse, silent_s = seen.pulse, seen.silent_s
        if silent_s < STILL_S:
            return pulse
        return msgspec.structs.replace(
            pulse,
            still_s=pulse.still_s + silent_s,
            idle_s=pulse.idle_s + silent_s,
            silent_s=silent_s,
            is_stopped=pid is not None and self._is_stopped(pid),
        )


def _first(who: tuple[int, int]) -> WorkerPulse:
    """Of a worker that has not spoken yet."""
    rank, epoch = who
    return WorkerPulse(rank=rank, epoch=epoch)


def _without_times(pulse: WorkerPulse) -> object:
    """What makes a pulse news: nothing does as long as its worker gets on."""
    is_paused, is_silent = pulse.doing in {"paused", "held"}, pulse.silent_s > 0
    if pulse.still_s < STILL_S and not is_paused:
        return None
    return (
        pulse.doing,
        pulse.detail,
        pulse.calls,
        pulse.waits_in,
        pulse.lock,
        pulse.runs_other,
        pulse.idle_s >= STILL_S,
        is_silent,
        pulse.is_stopped,
    )


def is_process_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds this process."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False
