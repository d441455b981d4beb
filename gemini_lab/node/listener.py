"""The receiver of what a node's workers send: for the log and the root agent, or for an answer."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from gemini_lab.engine.heartbeat import BEAT_S
from gemini_lab.errors import CapacityError, GeminiError
from gemini_lab.kept.workers import KeptWorkers
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    CodeSeen,
    Iteration,
    IterationBegun,
    Protected,
    RewindFailed,
    Rewound,
    ShardRestored,
    VersionComplete,
    WrongSums,
)
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.host import Worker
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.memory_manager import MemoryManager, ShardWriter
from gemini_lab.node.tasks import Tasks
from gemini_lab.recovery.discarded_versions import left_of
from gemini_lab.recovery.hangs import STILL_S
from gemini_lab.recovery.messages import (
    EndReached,
    EventSaid,
    ExecutedAs,
    Held,
    Message,
    OldSlabsGiven,
    OldSlabsWanted,
    OutputSaid,
    RankProtected,
    ReadyToJoin,
    Refused,
    RestoreFailed,
    ScriptFinished,
    Severed,
    SlabGiven,
    SlabRequest,
    Stands,
    WorkerPulse,
)
from gemini_lab.recovery.plan import VersionId, joined
from gemini_lab.recovery.protocol import HeardEvent
from gemini_lab.recovery.wrong_sums import left_by


class WorkerListener:
    """Hears the workers of one node."""

    def __init__(
        self,
        *,
        lab: LabLink,  # the way to the log
        root: RootLink,  # the way to the root agent
        tasks: Tasks,  # where work beside a message runs
        memory: MemoryManager,  # has the memory that they ask for
        writer: ShardWriter,  # saves versions; is told when one may be whole
        kept: KeptWorkers,  # waits for those that are to stand still
        machine: AgentMachine,  # where its agent runs
    ) -> None:
        # Hears their pulses.
        self.watch = WorkerWatch(is_stopped=machine.is_stopped, clock=machine.steady_s)
        self.history = WorkerHistory()  # what they said, for a root agent that asks later
        self.is_placed = False  # whether the root agent knows the placement
        self._lab, self._root, self._tasks = lab, root, tasks
        self._memory, self._writer, self._kept = memory, writer, kept

    def hear(self, worker: Worker, message: Message, fds: list[int]) -> None:
        """Handle a message of a worker."""
        del fds  # workers send none
        match message:
            case EventSaid():
                self._pass_on(message.entry)
            case WorkerPulse():
                self.watch.hear(message)
            case Stands():
                self._kept.on_answer(message)
            case SlabRequest():
                self._tasks.begin(self._give_slab(worker, message))
            case OldSlabsWanted():
                slabs, layouts = self._memory.set_aside(message.ranks)
                given = OldSlabsGiven(layouts=layouts)
                worker.channel.send(given, tuple(slab.fd for slab in slabs))
            case EndReached() | ScriptFinished():
                self.history.end(message)
                self._root.send(message)
            case Held() | Severed() | ReadyToJoin() | RestoreFailed():
                self._root.send(message)

    def hear_output(self, worker: Worker, lines: list[str]) -> None:
        """Send the lines that a worker printed to the log."""
        self._lab.say(OutputSaid(rank=worker.rank, epoch=worker.epoch, lines=lines))

    def _pass_on(self, entry: Entry) -> None:
        """Pass an event on, and keep of it what this node is asked for later."""
        to_log, to_root = told_of(entry, is_placed=self.is_placed)
        self._lab.pass_on(to_log)
        if to_root is not None:
            self._root.send(to_root)
        if isinstance(entry.event, VersionComplete):
            self._writer.begin_if_whole()
        self.history.take(entry)

    def say_again(self, epoch: int) -> None:
        """Repeat to a root agent that has greeted what it waits for and may have missed."""
        for said in self.history.decisive(epoch):
            to_root = (
                told_of(said, is_placed=self.is_placed)[1] if isinstance(said, Entry) else said
            )
            if to_root is not None:
                self._root.send(to_root)

    async def _give_slab(self, worker: Worker, wanted: SlabRequest) -> None:
        try:
            slab = await self._memory.slab(worker.local_rank, wanted)
        except OSError as error:
            text = f"the node's agent cannot make memory for copies: {error}"
            worker.channel.send(Refused.of(CapacityError(text)))
        except GeminiError as error:
            worker.channel.send(Refused.of(error))
        else:
            worker.channel.send(SlabGiven(), (slab.fd,))


def told_of(entry: Entry, *, is_placed: bool) -> tuple[Entry, EventSaid | RankProtected | None]:
    """Return what of a worker's event goes to the log, and what to the root agent.

    The root agent hears what it decides on. A placement grows with the nodes, and settings are the
    same on all ranks. So rank 0 tells both for all: the placement to the log, and to a root agent
    that does not know them.

    Args:
        entry: What the worker says.
        is_placed: Whether the root agent knows the placement.
    """
    event = entry.event
    if isinstance(event, Protected):
        if event.rank == 0:
            brief = replace(entry, event=replace(event, placement=None))
            return entry, EventSaid(entry=brief if is_placed else entry)
        said = RankProtected(rank=event.rank, epoch=event.epoch, fingerprint=event.fingerprint)
        return replace(entry, event=replace(event, placement=None)), said
    return entry, EventSaid(entry=entry) if isinstance(event, HeardEvent) else None


# -- what they said, for later ---------------------------------------------------------------------


REMEMBERED: Final = 32  # words of a worker on its iterations, two of each


_DECISIVE: Final = (
    Protected,
    CodeSeen,
    ShardRestored,
    IterationBegun,
    VersionComplete,
    RewindFailed,
)
"""Of these the newest of each rank is said again when a connection to a root agent broke: the last
version of a run, say, is saved when all ranks have said that it is whole. So are the ends that a
rank has come to since its last iteration: another rank that has begun one waits in vain."""

Word = Entry | EndReached | ScriptFinished


class WorkerHistory:
    """The newest words of one node's workers."""

    def __init__(self) -> None:
        self.protected: Protected | None = None  # what the last one that is protected said of it
        self.left: tuple[VersionId, ...] = ()  # what their rewinds left behind
        # What one of the last start said of machines that compute wrong.
        self.wrong_sums: WrongSums | None = None
        self._decisive: dict[tuple[int, type, str], tuple[int, Word]] = {}  # in order; its epoch
        self._code: dict[str, ExecutedAs] = {}
        self._run: int | None = None  # whose all of this is
        self._said: defaultdict[int, deque[IterationBegun | Iteration]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )

    def begin(self, run: int) -> None:
        """Prepare for workers of a run; forget what those of another one said."""
        if run != self._run:
            self._said.clear()
            self._run, self.left, self.protected, self._code = run, (), None, {}
        self.wrong_sums = None
        self._decisive.clear()

    def decisive(self, epoch: int) -> list[Word]:
        """Return what workers of an epoch said once, and the root agent waits for, in order."""
        return [word for made_in, word in self._decisive.values() if made_in == epoch]

    def end(self, said: EndReached | ScriptFinished) -> None:
        """Keep that something of a rank is over, until the rank does another iteration."""
        what = said.what if isinstance(said, EndReached) else ""
        self._keep(said.rank, type(said), said.epoch, said, what=what)

    def code(self, run: int) -> dict[str, ExecutedAs]:
        """Return how a run's workers executed the script's files last, by name."""
        return self._code if run == self._run else {}

    def iterations(self, run: int, *, after: int) -> list[IterationBegun | Iteration]:
        """Return a run's newest iterations that came after one, rank by rank."""
        said = (one for of_rank in self._said.values() for one in of_rank)
        return [one for one in said if one.iteration > after] if run == self._run else []

    def take(self, entry: Entry) -> None:
        """Keep what counts of a worker's event."""
        event = entry.event
        if isinstance(event, CodeSeen):  # a rank that imports while it trains says several
            self._code |= {name: (event.epoch, one) for name, one in event.files.items()}
            of_epoch = {n: one for n, (epoch, one) in self._code.items() if epoch == event.epoch}
            entry = replace(entry, event=replace(event, files=of_epoch))
        if isinstance(event, _DECISIVE):
            self._keep(event.rank, type(event), event.epoch, entry)
        match event:
            case IterationBegun():
                self._said[event.rank].append(event)
            case Iteration(restored=False):
                self._said[event.rank].append(event)
                self._forget(event.rank, EndReached)
            case Protected():
                self.protected = event
            case Rewound():
                self._go_back(event, left_of(event, run=self._run or 0))
            case WrongSums():
                self.wrong_sums = event
                if event.goes_back:
                    self._go_back(event, left_by(event, run=self._run or 0))

    def _go_back(self, event: Rewound | WrongSums, left: VersionId) -> None:
        """Forget what a worker did after the version to which it goes back."""
        kept = [one for one in self._said[event.rank] if one.iteration <= event.version]
        self._said[event.rank] = deque(kept, maxlen=REMEMBERED)
        self._forget(event.rank, EndReached, IterationBegun)
        self.left = joined(self.left, [left])

    def _keep(self, rank: int, kind: type, epoch: int, word: Word, *, what: str = "") -> None:
        """Keep a word as the newest of its kind."""
        self._decisive.pop((rank, kind, what), None)
        self._decisive[rank, kind, what] = epoch, word

    def _forget(self, rank: int, *kinds: type) -> None:
        for key in [key for key in self._decisive if key[0] == rank and key[1] in kinds]:
            del self._decisive[key]


# -- what is seen of them --------------------------------------------------------------------------


NOTHING: Final = "nothing"


@dataclass(slots=True)
class _Seen:
    """One worker."""

    pulse: WorkerPulse  # what it said last
    is_new: bool = False  # whether that was after the last look
    silent_s: float = 0.0  # how long ago it was, as far as this agent itself was awake
    told: object = None  # what the root was told last, without its times


class WorkerWatch:
    """Which workers stand still, by what they say and by what their machine says of them."""

    def __init__(
        self,
        *,
        is_stopped: Callable[[int], bool],  # whether a process is stopped, by its id
        clock: Callable[[], float],  # seconds, of a monotonic clock
    ) -> None:
        self._is_stopped = is_stopped
        self._clock = clock
        self._looked_s = clock()
        self._seen: dict[tuple[int, int], _Seen] = {}  # by rank and epoch

    def hear(self, pulse: WorkerPulse) -> None:
        """Note that a worker lives."""
        seen = self._seen.get((pulse.rank, pulse.epoch))
        if seen is not None:
            seen.pulse, seen.is_new = pulse, True

    def look(self, workers: Iterable[Worker]) -> list[WorkerPulse]:
        """Return the pulses that the root agent is to get now; called about once a second.

        Args:
            workers: Those that run.
        """
        now = self._clock()
        # An agent that did not run itself has received nothing meanwhile.
        passed_s, self._looked_s = min(now - self._looked_s, 2 * BEAT_S), now
        running = {(one.rank, one.epoch): one for one in workers if one.status == "running"}
        self._seen = {
            who: self._seen.get(who) or _Seen(WorkerPulse(rank=who[0], epoch=who[1]))
            for who in running
        }
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
        """Send all pulses again at the next look: another root agent asks."""
        for seen in self._seen.values():
            seen.told = NOTHING

    def _picture(self, seen: _Seen, pid: int | None) -> WorkerPulse:
        """Return a worker as the root is to see it now."""
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


def _without_times(pulse: WorkerPulse) -> object:
    """Return what makes a pulse news: nothing does as long as its worker makes progress."""
    is_paused, is_silent = pulse.doing in {"paused", "held"}, pulse.silent_s > 0
    if pulse.still_s < STILL_S and not is_paused:
        return None
    return (
        pulse.doing,
        pulse.detail,
        pulse.calls,
        pulse.waits_in,
        pulse.entered,
        pulse.lock,
        pulse.runs_other,
        pulse.idle_s >= STILL_S,
        is_silent,
        pulse.is_stopped,
    )
