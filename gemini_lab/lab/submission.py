"""What a person wants to run, checked before anything is made or started for it."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.config import LabConfig
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.seats import Seats, node_name
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.storage import persistent_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job with all that belongs to it.

    Attributes:
        job: What to run.
        scenario: Failures to inject on the way.
        name: What the run's folder is to be called.
        settings: They replace those of the script.
        is_resumed: Whether it may go on from another run's versions in the persistent tier.
        identity: The run's own, 32 random bits.
    """

    job: Job
    scenario: Scenario
    name: str
    settings: Mapping[str, SettingValue]
    is_resumed: bool
    identity: int

    @classmethod
    def checked(
        cls,
        config: LabConfig,
        job: Job,
        *,
        scenario: Scenario | None,
        name: str | None,
        resume: bool,
        settings: Mapping[str, SettingValue],
    ) -> "Submission":
        """A submission that can run on such a lab; the persistent tier that it names is its own.

        Raises:
            ConfigError: The script is missing, a setting is impossible, or the tier is another
                run's.
        """
        job.check()
        scenario = scenario or Scenario()
        identity = secrets.randbits(32)
        _check(config.seats, Settings.parse(settings), scenario)
        if (url := settings.get("persistent_url")) is not None:
            persistent_tier(str(url)).claim(identity, is_resumed=resume)
        return cls(
            job=job,
            scenario=scenario,
            name=name or f"{time.strftime('%Y%m%d-%H%M%S')}-{job.title}",
            settings=settings,
            is_resumed=resume,
            identity=identity,
        )

    def order(self, seats: Seats, *, number: int, shared: Path | None) -> JobOrder:
        """What the root agent is told.

        Args:
            seats: How many nodes, standbys and workers.
            number: Counts the lab's runs.
            shared: The run's folder, if all nodes see it: a persistent tier can be there.
        """
        return JobOrder(
            number=number,
            run=self.identity,
            is_resumed=self.is_resumed,
            job=self.job,
            seats=seats,
            settings=dict(self.settings),
            defaults={} if shared is None else {"persistent_url": str(shared / "persistent")},
        )


def _check(seats: Seats, settings: Settings, scenario: Scenario) -> None:
    names = [node_name(number) for number in range(max(100, 10 * seats.nodes))]
    seats.seated(names[: seats.nodes]).placed(settings)
    scenario.check(nodes=names, ranks=seats.world_size, racks=list(seats.nodes_by_rack))
    if settings.persistent_url is not None:
        persistent_tier(settings.persistent_url).check()
