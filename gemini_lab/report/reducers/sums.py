"""Bytes that left a node for another one, and the plans that they followed."""

from array import array
from bisect import bisect_left
from collections import Counter

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Profiled, ShardRestored, VersionComplete
from gemini_lab.report.reducers.checks import whole
from gemini_lab.report.values import TrafficPlan


class Sums:
    """What was sent.

    Memory: 8 bytes a version.

    Attributes:
        checkpoint_bytes: Replicas sent while training.
        restored_bytes: Shards that were loaded, by the tier that they came from.
        versions: Versions that were whole at some time, each once, in order.
    """

    def __init__(self) -> None:
        self.checkpoint_bytes = 0
        self.restored_bytes: Counter[str] = Counter()
        self.versions = array("q")

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case VersionComplete() as done:
                version, sent_bytes = whole(done.version), whole(done.sent_bytes)
                self.checkpoint_bytes += sent_bytes
                newest = self.versions[-1] if self.versions else -1
                if version > newest:  # nearly always
                    self.versions.append(version)
                elif version != newest:
                    place = bisect_left(self.versions, version)
                    if self.versions[place] != version:
                        self.versions.insert(place, version)
            case ShardRestored(tier=tier, size_bytes=size_bytes):
                self.restored_bytes[tier] += whole(size_bytes)

    @property
    def recovery_bytes(self) -> int:
        """Shards that came from a peer in recoveries."""
        return self.restored_bytes["peer"]


class Plans:
    """What the ranks agreed on when they had profiled the job; a few times in a run."""

    def __init__(self) -> None:
        self._told: list[TrafficPlan] = []

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case Profiled() as plan:
                self._told.append(
                    TrafficPlan(
                        at_s=entry.at_s,
                        profile=plan.profile,
                        schedule=plan.schedule,
                        calibration=plan.calibration,
                    )
                )

    def told(self) -> tuple[TrafficPlan, ...]:
        """In order of time."""
        return tuple(sorted(self._told, key=lambda plan: plan.at_s))
