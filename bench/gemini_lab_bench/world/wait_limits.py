"""How long the waits of a simulated lab may last: the table of waits in `docs/reference/waits.md`.

What a root agent waits for counts only while it could act: its machine runs, and the store answers.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gemini_lab.log import events
from gemini_lab.node.agent_links import SILENT_S
from gemini_lab.node.membership import NODES
from gemini_lab.node.root_shell import CUT_OFF_S, FEWEST
from gemini_lab.recovery.root.agent import FENCE_LIMIT_S, INVENTORY_LIMIT_S, RootAgent
from gemini_lab.recovery.stop import what_for
from gemini_lab.settings import Settings

if TYPE_CHECKING:
    from gemini_lab_bench.world.virtual_machine import VirtualMachine
    from gemini_lab_bench.world.world import VirtualWorld

SLACK_S: Final = 10.0
"""For what a wait's end takes: messages, a look a second, a lease."""
STANDS_S: Final = Settings().idle_s + SLACK_S
"""In which a worker that does nothing at all is noticed, whatever it stands in."""
AT_HAND_S: Final = 12.0
"""In which a waiting root agent goes on from a version that it can have."""
WELL_S: Final = 20.0
"""After so long without a fault a machine is well, and counts as well."""
Wait = tuple[object, str, float]
"""What lasts: its parts, what it is called, and the longest it may last."""


class WaitLimits:
    """The waits that last now, and since when."""

    def __init__(self, world: "VirtualWorld") -> None:
        self._world = world
        self._since_s: dict[object, float] = {}
        self._touched_s: dict[str, float] = {}  # when something last was wrong with a machine
        self._alone_s: dict[str, float] = {}  # since when a machine has reached no other

    def look(self, roots: Sequence[tuple["VirtualMachine", RootAgent]]) -> Iterator[str]:
        """Yield each wait that lasts too long; called a few times a second.

        Args:
            roots: The root agent in its place.
        """
        now_s = self._world.loop.time()
        self._look_at_machines(now_s)
        waits = [*self._waits(roots)]
        self._since_s = {key: self._since_s.get(key, now_s) for key, _, _ in waits}
        for key, what, limit_s in waits:
            if now_s - self._since_s[key] > limit_s:
                yield f"{what} for more than {limit_s:g} s"

    def lost_though_well(self, lost: events.NodeLost, by: "VirtualMachine") -> bool:
        """Return whether a node counts as lost that has been well for long, and so has the root."""
        machine = self._world.named(lost.name)
        if not machine.runs or machine in self._world.drained:
            return False
        return self.is_well_for_long(machine) and self.is_well_for_long(by)

    def is_well_for_long(self, machine: "VirtualMachine") -> bool:
        """Return whether nothing has been wrong with a machine for long."""
        now_s = self._world.loop.time()
        return now_s - self._touched_s.get(machine.name, now_s) > WELL_S

    def is_alone(self, machine: "VirtualMachine") -> bool:
        """Return whether a machine has reached none of several others for some seconds."""
        self._look_at_machines(self._world.loop.time())
        now_s = self._world.loop.time()
        return now_s - self._alone_s.get(machine.name, now_s) > SLACK_S

    # -- what is so ------------------------------------------------------------------------------

    def _look_at_machines(self, now_s: float) -> None:
        world, linked = self._world, self._world.network.is_linked
        root, registered = world.root(), self._registered()
        # Over a slow network a connection may take longer than is waited for.
        are_slow = world.store.is_full or world.network.slow_s
        for machine in world.machines:
            is_well = (
                machine.runs
                and machine.net.opens
                and not machine.net.refuses
                and not are_slow
                and machine not in world.drained
                and world.store.is_reached(machine.net)
                and (root is None or linked(machine.net, root.net))
            )
            if not is_well or machine.name not in self._touched_s:
                self._touched_s[machine.name] = now_s
            if (
                not machine.runs
                or len(registered) - (machine in registered) < FEWEST
                or any(one is not machine and linked(machine.net, one.net) for one in registered)
            ):
                self._alone_s.pop(machine.name, None)
            else:
                self._alone_s.setdefault(machine.name, now_s)

    def touch(self, *names: str) -> None:
        """Note that something has befallen machines that is over at once."""
        self._touched_s |= dict.fromkeys(names, self._world.loop.time())

    def _registered(self) -> dict["VirtualMachine", None]:
        start = f"lab/{NODES}".encode()
        keys = [key for key in self._world.store.keys if key.startswith(start)]
        return {self._world.named(key.decode()): None for key in keys}

    def _waits(self, roots: Sequence[tuple["VirtualMachine", RootAgent]]) -> Iterator[Wait]:
        store = self._world.store
        for machine, root in roots:
            is_answered = store.hears(machine.net) and not (store.is_full or store.loses_answers)
            if machine.runs and is_answered and machine.net.opens:
                yield from self._of_root(machine, root)

    def _of_root(self, machine: "VirtualMachine", root: RootAgent) -> Iterator[Wait]:
        state = root.state
        key = machine.name, state.epoch, state.phase, *sorted(root.living)
        if machine.name in self._alone_s:
            limit_s = SILENT_S + CUT_OFF_S + SLACK_S
            yield (machine.name, "cut off"), f"{machine.name} is root and reaches none", limit_s
            return
        match state.phase:
            case "fencing":
                yield key, "the root waits for fenced agents", FENCE_LIMIT_S + SLACK_S
            case "inventory":
                yield key, "the root waits for inventories", INVENTORY_LIMIT_S + SLACK_S
            case "waiting" if self._is_at_hand(machine, root):
                yield key, "the root waits though the newest version is at hand", AT_HAND_S
            case "starting" | "running" if not what_for(state):
                ranks = (rank for one in self._world.machines for rank in one.ranks)
                versions = [rank.version for rank in ranks if rank.start.epoch == state.epoch]
                yield (*key, *versions), "workers stand still", STANDS_S

    def _is_at_hand(self, machine: "VirtualMachine", root: RootAgent) -> bool:
        """Return whether all that is waited for is in the memory of agents that are connected."""
        world, state = self._world, root.state
        plan = root.run.plan
        is_excused = bool(
            world.judge.flips
            or world.has_lacked
            or world.judge.has_given_up
            or state.nodes.excluded
            or {*state.nodes.silent} - {*root.living}
        )
        is_pausing = machine.wall_s() < root.lifecycle.resumes_s + AT_HAND_S
        if is_excused or is_pausing or plan is None or plan.missing or state.story.parting:
            return False
        living = [one for one in world.machines if one.name in root.living and one.runs]
        newest = world.judge.newest_in_memory(living)
        return newest >= max(1, state.reached.newest, state.tier.saved)
