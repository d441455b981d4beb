"""What a run's log tells once, whoever says it again."""

from msgspec.structs import replace

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    Protected,
    RecoveryFinished,
    RecoveryPlanned,
    RecoveryStarted,
)
from gemini_lab.placement import Placement


class Recoveries:
    """Takes each recovery's start and end once.

    A root agent that is elected says the newest ones again: where its predecessor was cut off as it
    said them, they have not been heard.
    """

    def __init__(self) -> None:
        self._newest: dict[type[AnyEvent], int] = {}

    def takes(self, event: AnyEvent) -> bool:
        """Whether it is to be taken: it was not said before."""
        if not isinstance(event, RecoveryStarted | RecoveryFinished):
            return True
        is_new = event.recovery > self._newest.get(type(event), 0)
        if is_new:
            self._newest[type(event)] = event.recovery
        return is_new


class Placed:
    """Leaves a placement out where the log has it already.

    Rank 0 says it in each start, and it grows with the nodes. Readers go on with the last one, or,
    where there are more nodes or fewer, with none: then it is told again.
    """

    def __init__(self) -> None:
        self._known: Placement | None = None
        self._epoch = 0
        self._is_told: dict[int, bool] = {}  # by epoch: what is said again is told as it was

    def brief(self, entry: Entry) -> Entry:
        """The entry as the log is to tell it; one of the log itself stays as it is."""
        match entry.event:
            case RecoveryPlanned(epoch=epoch, members=members) if epoch >= self._epoch:
                self._epoch = epoch
                if self._known is not None and self._known.nodes != len(members):
                    self._known = None
            case Protected(rank=0, epoch=epoch, placement=None):
                self._is_told[epoch] = False
            case Protected(epoch=epoch, placement=Placement() as placement) as event:
                if not self._is_told.setdefault(epoch, placement != self._known):
                    return replace(entry, event=replace(event, placement=None))
                if epoch >= self._epoch:
                    self._known = placement
        return entry
