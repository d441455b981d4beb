"""What a campaign puts around a run so that it can be broken: tier, networks, clocks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemini_lab.experiments.chaos.clock import NodeClocks
from gemini_lab.experiments.chaos.faults import Schedule
from gemini_lab.experiments.chaos.hosts import Hosts
from gemini_lab.experiments.chaos.tier import BreakableTier

SPARE: Final = 4  # hosts: one is used once, and a slow one may be left for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What stands around one run.

    Attributes:
        tier: Its persistent tier.
        hosts: Its nodes' networks, if they have their own.
        clocks: Its nodes' clocks, if they have their own.
    """

    tier: BreakableTier
    hosts: Hosts | None = None
    clocks: NodeClocks | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the run's processes are told of it."""
        return {
            **(self.hosts.environment if self.hosts else {}),
            **(self.clocks.environment if self.clocks else {}),
        }


@contextmanager
def scene_of(schedule: Schedule, folder: Path) -> Iterator[Scene]:
    """What a schedule's faults need, in a run's folder; taken down at the end."""
    with ExitStack() as made:
        hosts = None
        if "network" in schedule.needs:
            machines = schedule.nodes + schedule.standbys + schedule.most_lost
            hosts = made.enter_context(Hosts(folder, machines + SPARE))
        yield Scene(
            tier=made.enter_context(BreakableTier(folder)),
            hosts=hosts,
            clocks=NodeClocks(folder) if "clock" in schedule.needs else None,
        )
