"""What a node's workers say: passed on to the log and the root agent, or answered from memory."""

import msgspec

from gemini_lab.errors import CapacityError, GeminiError
from gemini_lab.kept.workers import KeptWorkers
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Protected, VersionComplete
from gemini_lab.node.host import Worker
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.memory_manager import MemoryManager
from gemini_lab.node.shard_writer import ShardWriter
from gemini_lab.node.tasks import Tasks
from gemini_lab.node.watch import WorkerWatch
from gemini_lab.node.worker_history import WorkerHistory
from gemini_lab.recovery.messages import (
    EndReached,
    EventSaid,
    Held,
    Message,
    OldSlabsGiven,
    OldSlabsWanted,
    OutputSaid,
    ReadyToJoin,
    Refused,
    RestoreFailed,
    ScriptFinished,
    Serving,
    Severed,
    SlabGiven,
    SlabRequest,
    Stands,
    WorkerPulse,
)
from gemini_lab.recovery.protocol import HeardEvent


class WorkerListener:
    """Hears the workers of one node.

    Args:
        lab: The way to the log.
        root: The way to the root agent.
        tasks: Where work beside a message runs.
        memory: Has the memory that they ask for.
        writer: Saves versions; is told when one may be whole.
        kept: Waits for those that are to stand still.

    Attributes:
        watch: Hears their pulses.
        history: What they said, for a root agent that asks later.
        is_placed: Whether the root agent knows the placement.
    """

    def __init__(
        self,
        *,
        lab: LabLink,
        root: RootLink,
        tasks: Tasks,
        memory: MemoryManager,
        writer: ShardWriter,
        kept: KeptWorkers,
    ) -> None:
        self.watch = WorkerWatch()
        self.history = WorkerHistory()
        self.is_placed = False
        self._lab, self._root, self._tasks = lab, root, tasks
        self._memory, self._writer, self._kept = memory, writer, kept

    def hear(self, worker: Worker, message: Message, fds: list[int]) -> None:
        """A worker says something."""
        del fds  # workers send none
        match message:
            case EventSaid():
                self._pass_on(message.entry)
            case WorkerPulse():
                self.watch.hear(message)
            case Stands() | Serving():
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
        """A worker prints something."""
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


def told_of(entry: Entry, *, is_placed: bool) -> tuple[Entry, EventSaid | None]:
    """What the log is told of a worker's event, and what the root agent.

    The root agent hears what it decides on. A placement grows with the nodes, so that not every
    one of thousands of ranks repeats it: the log has it from rank 0.

    Args:
        entry: What the worker says.
        is_placed: Whether the root agent knows the placement.
    """
    event, brief = entry.event, entry
    if isinstance(event, Protected):
        brief = msgspec.structs.replace(entry, event=msgspec.structs.replace(event, placement=None))
    is_first = isinstance(event, Protected) and event.rank == 0
    to_root = EventSaid(entry=brief if is_placed else entry)
    return entry if is_first else brief, to_root if isinstance(event, HeardEvent) else None
