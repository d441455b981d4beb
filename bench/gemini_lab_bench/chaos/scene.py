"""What a campaign puts around a run so that it can be broken: tier, script, networks, clocks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemini_lab_bench.chaos.clock import NodeClocks
from gemini_lab_bench.chaos.faults import Schedule
from gemini_lab_bench.chaos.hosts import Hosts
from gemini_lab_bench.chaos.store import BreakableStore
from gemini_lab_bench.chaos.tier import BreakableTier

SCRIPT: Final = """\
import sys

import own_part
from gemini_lab.training.gpt_job import main

assert own_part.TEXT
sys.exit(main())
"""
OWN_PART: Final = 'TEXT = "the campaign\'s own"\n'
EDITED: Final = 'TEXT = "the campaign\'s own, which somebody edits while it trains"\n'
"""Other code that computes the same: what is told of it is what counts."""
SPARE: Final = 4  # hosts: one is used once, and a slow one may be left for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What stands around one run.

    Attributes:
        tier: Its persistent tier.
        script: What it trains.
        store: What stands before the tier, if anything does.
        hosts: Its nodes' networks, if they have their own.
        clocks: Its nodes' clocks, if they have their own.
    """

    tier: BreakableTier
    script: Path
    store: BreakableStore | None = None
    hosts: Hosts | None = None
    clocks: NodeClocks | None = None

    @property
    def tier_url(self) -> str:
        """The URL of the run's tier."""
        return str(self.tier.url) if self.store is None else self.store.url

    def edit(self, text: str) -> None:
        """Write another text into the module that the script imports from its folder."""
        new = self.script.with_name("own_part.new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.script.with_name("own_part.py"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the run's processes."""
        return {
            **(self.hosts.environment if self.hosts else {}),
            **(self.clocks.environment if self.clocks else {}),
            **(self.store.environment if self.store else {}),
        }


@contextmanager
def scene_of(schedule: Schedule, folder: Path) -> Iterator[Scene]:
    """Set up what a schedule's faults need, in a run's folder; take it down at the end."""
    with ExitStack() as made:
        hosts = None
        if "network" in schedule.needs:
            machines = schedule.nodes + schedule.standbys + schedule.most_lost
            hosts = made.enter_context(Hosts(folder, machines + SPARE))
        tier, store = made.enter_context(BreakableTier(folder)), None
        if "store" in schedule.needs:
            where = {} if hosts is None else {"host": hosts.campaign}
            store = made.enter_context(BreakableStore(tier.url, **where))
        script = folder / "script" / "train.py"
        script.parent.mkdir()
        script.write_text(SCRIPT, encoding="utf-8")
        scene = Scene(
            tier=tier,
            script=script,
            store=store,
            hosts=hosts,
            clocks=NodeClocks(folder) if "clock" in schedule.needs else None,
        )
        scene.edit(OWN_PART)
        yield scene
