"""Whose processes go on through a recovery, and whether the plan lets them.

At a recovery's first fence, workers may stand still instead of ending. They go on in place if the
version that is chosen is in memory, and every one of them has its seat on its own node. A new
process serves the port in which all meet, which starts now or was started ahead of a planned move;
if all go on, one of them does. Whatever else comes, all start anew.
"""

from collections.abc import Iterable
from typing import Final

from gemini_lab.log.events import DRAIN
from gemini_lab.recovery.ahead import Ahead
from gemini_lab.recovery.messages import Fenced
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats

SEVERED: Final = "link_cut"
HUNG: Final = "worker_hung"
ENDED: Final = frozenset({"worker_exited", "node_lost", DRAIN, SEVERED, HUNG})
"""Causes after which the ranks that are left are well."""


class Keeping:
    """The ranks that stand still, as a root agent hears of them.

    Args:
        ahead: Processes that were started before they are needed.

    Attributes:
        ends: Ranks that are to end at the fence under way.
    """

    def __init__(self, ahead: Ahead) -> None:
        self.ends: list[int] = []
        self._ahead = ahead
        self._new: tuple[int, ...] = ()  # ranks whose processes were started ahead
        self._standby = self._address = ""
        self._is_asked = False
        self._lost: frozenset[str] = frozenset()
        self._nodes: dict[int, str] = {}  # by rank

    def begin(
        self, state: RootState, cause: str, lost: Iterable[str], *, ends: Iterable[int] = ()
    ) -> None:
        """A fence begins; another one in the same recovery ends all workers.

        Args:
            state: As it was when training was still under way.
            cause: Of the fence.
            lost: Nodes whose ranks go elsewhere.
            ends: Ranks that may never come to the top of their loop again.
        """
        self._nodes, self._lost, self.ends = {}, frozenset(lost), sorted(ends)
        is_first = state.phase == "running" and state.story.trouble is None
        self._is_asked = is_first and cause in ENDED and state.read_settings().keep_processes
        ahead = self._ahead
        is_of_use = self._is_asked and cause == DRAIN and ahead.is_ready
        self._new = ahead.ranks if is_of_use else ()
        self._address = ahead.address if is_of_use else ""
        self._standby = ahead.standby if is_of_use else ""
        if ahead.standby and not is_of_use:
            self._lost |= {ahead.standby}
        ahead.end()

    def asks(self, node: str) -> bool:
        """Whether a node's workers may stand still at the fence under way."""
        return self._is_asked and node not in self._lost

    def hear(self, node: str, said: Fenced) -> None:
        """A node answered the fence."""
        self._nodes.update(dict.fromkeys(said.kept, node))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who stands still, and who has a process that was started ahead."""
        return tuple(sorted(self._nodes))

    @property
    def trained(self) -> tuple[int, ...]:
        """Those of them whose processes have trained already."""
        return tuple(rank for rank in self.ranks if rank not in self._new)

    @property
    def standby(self) -> str:
        """The node whose processes were started ahead, and would take a place; empty for none."""
        return self._standby

    @property
    def address(self) -> str:
        """Where all meet, if one of them serves that already; else empty."""
        return self._address if {*self._new} <= self._nodes.keys() else ""

    def fits(self, plan: RecoveryPlan, before: RootState, now: RootState) -> bool:
        """Whether those who stand still can go on by this plan; nobody stands is as well."""
        if not self._nodes:
            return True
        seats = now.seats.seated(plan.members)
        return (
            plan.tier == "memory"
            and not plan.cuts
            and seats.world_size == before.seats.world_size
            and seats.placement == before.seats.placement
            and all(seats.node_of(rank) == node for rank, node in self._nodes.items())
        )

    def hosts(self, seats: Seats) -> list[str]:
        """Return nodes, in order, one of which serves the port: those with new ranks, if any."""
        new = [rank for rank in seats.ranks if rank not in self._nodes]
        return [*dict.fromkeys(seats.node_of(rank) for rank in new or seats.ranks)]
