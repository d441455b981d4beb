"""Whether a plan throws progress away that waiting might save.

Starting anew, or from a version that is older than one that was whole, is never automatic while
what is newer may still come back: the run waits, says for what, and tries again, until a person or
a setting decides otherwise.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gemini_lab.recovery.plan import Copy, RecoveryPlan, Unclear, VersionId
from gemini_lab.seats import in_order, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopes:
    """The known versions that are newer than those at hand."""

    newest: int  # the newest version that is known to have been whole; 0 for none
    # The newest that is known to have been saved to the persistent tier, and that nobody let go; 0
    # for none.
    saved: int = 0
    stored: Collection[int] = ()  # the versions that the tier shows, where it was asked
    unclear: Collection[Unclear] = ()  # those of it that were saved and are not whole as it shows
    silent: Collection[str] = ()  # nodes that went without a sign that their memory is gone
    unheard: Collection[str] = ()  # those of them that may have versions of which no root has heard
    unread: str = ""  # why the persistent tier cannot be read; empty if it can, or there is none
    # Whether a node is there that took part until now: its memory shows how far training came. One
    # that only stands by may have an old version, whole.
    is_witnessed: bool = True
    # Iterations that were done, at least, where a root agent and nodes were lost together and
    # nobody may know how many versions with them; else 0.
    unknown: int = 0
    is_resumed: bool = False  # whether the tier has what the run is to go on from at its very start


def reason_to_wait(plan: RecoveryPlan, hopes: Hopes) -> str | None:
    """Return what the run waits for; `None` if the plan loses nothing.

    A version in memory that is lost for certain is not waited for: if every node that kept it is
    known to be dead, the newest persistent version is the best there will ever be. A version that
    was saved is waited for until a person lets it go, whatever its store shows of it now.
    """
    reached = plan.version or 0
    instead = f"version {reached}" if reached else "the start"
    if hopes.unheard and not (plan.tier == "memory" and hopes.is_witnessed):
        nodes = listed(in_order(hopes.unheard))
        return (
            f"{nodes} fell silent together with the root agent, and may come back with newer "
            f"versions in memory than {instead}"
        )
    if hopes.unread and hopes.is_resumed and plan.tier == "start":
        return f"the persistent tier, from which to resume, cannot be read ({hopes.unread})"
    if hopes.unread and plan.tier == "memory" and not hopes.is_witnessed:
        return (
            f"the persistent tier cannot be read ({hopes.unread}), and may have newer versions "
            f"than {instead}, which none but nodes that stood by have in memory"
        )
    unclear = max(hopes.unclear, key=lambda one: one.version, default=Unclear(version=0, seen=""))
    newest = max(hopes.newest, unclear.version, hopes.unknown if plan.tier == "start" else 0)
    if reached >= newest:
        return None
    count = f"{newest - reached} iterations" + (" at least" if hopes.unknown else "")
    lost = f"going on from {instead} would lose {count}"
    if hopes.unread:
        return f"the persistent tier cannot be read ({hopes.unread}); {lost}"
    if hopes.silent:
        nodes = listed(in_order(hopes.silent))
        return f"{nodes} fell silent with version {newest} in memory and may come back; {lost}"
    if unclear.version > reached:
        return f"{unclear.seen}; it may be whole when it is read again, and {lost}"
    if hopes.saved > reached:
        shown = f"shows {listed(sorted(hopes.stored))}" if hopes.stored else "shows none"
        return (
            f"version {hopes.saved} was saved to the persistent tier, which {shown} now, and may "
            f"show it later; {lost}"
        )
    if plan.tier == "start":
        return f"no copy of version {newest} is left anywhere; {lost}"
    return None


def newest_seen(copies: Collection[Copy]) -> int:
    """Return the newest version that must have been whole, judged by all memory.

    A version is begun when the one before it is whole everywhere: so of the versions seen, the
    newest may never have become whole, but the one before it was.
    """
    if not copies:
        return 0
    line = max(copy.lineage for copy in copies)  # those of older ones were left behind
    top = max(copy.version for copy in copies if copy.lineage == line)
    return max((copy.version for copy in copies if copy.version < top), default=0)


FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPause:
    """A version in the persistent tier that did not load, and when it is tried again."""

    version: VersionId  # which
    reason: str  # what a worker saw
    until_s: float  # when it is tried again
    pause_s: float = FIRST_PAUSE_S  # for how long it rests; twice as long after each try

    @classmethod
    def after(
        cls, last: "TierPause | None", version: VersionId, reason: str, *, at_s: float
    ) -> "TierPause":
        """Return the pause after one more try that failed."""
        is_again = last is not None and last.version == version
        pause_s = min(2 * last.pause_s, LONGEST_PAUSE_S) if last and is_again else FIRST_PAUSE_S
        return cls(version=version, reason=reason, until_s=at_s + pause_s, pause_s=pause_s)

    def reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        """Return why a plan is not carried out yet; empty if it is due, or needs not this."""
        if not self.concerns(plan) or at_s >= self.until_s:
            return ""
        return (
            f"version {plan.version} in the persistent tier did not load ({self.reason}); it is "
            f"tried again after {self.pause_s:g} s"
        )

    def concerns(self, plan: RecoveryPlan) -> bool:
        """Return whether a plan loads that version from there."""
        wanted = VersionId(version=plan.version or 0, lineage=plan.lineage)
        return plan.tier == "persistent" and self.version == wanted
