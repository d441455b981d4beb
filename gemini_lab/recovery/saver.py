"""Versions on their way to the persistent tier, as the root agent directs them."""

from collections.abc import Iterator, Mapping
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Persist,
    Persisted,
    SaveFailed,
    VersionMeta,
)
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.recovery.progress import Slowest
from gemini_lab.recovery.protocol import Emit, Instruction, Send
from gemini_lab.recovery.root_state import RootState

FIRST_PAUSE_S: Final = 1.0  # after a second version that did not arrive; twice as long after each
LONGEST_PAUSE_S: Final = 300.0


class Saver:
    """The order of a save: all members write their shards of a version, then one the manifest.

    Args:
        last_s: When the newest version that is there was begun, or the job was submitted.
        last_version: Which that is.
        is_behind: As the attribute.

    Attributes:
        version: The one on its way; `None` if there is none.
        complete: Newest version that is whole in memory.
        is_held: Whether no version is to be saved for now: its state may make no numbers.
        is_behind: Whether training went back behind what is there, and nothing was saved since.
    """

    def __init__(self, *, last_s: float, last_version: int = 0, is_behind: bool = False) -> None:
        self.version: int | None = None
        self.complete = 0
        self.is_held = False
        self.is_behind = is_behind
        self._next = 0  # the version that will be sent after `complete`
        self._failed: int | None = None  # the version that did not arrive last
        self._failures = 0  # in a row
        self._rests_until_s = 0.0  # after them, so that a broken store is not tried all the time
        self._reason = ""  # of the last of them
        self._is_wanted = False  # by a person, now
        self.asked = 0  # number of the request of that person
        self._began_s = self._last_s = last_s
        self._last_version = last_version
        self._number = 0  # of tries
        self._orders: dict[str, Persist | Commit] = {}  # that are not answered yet, by node
        self._records: dict[str, Persisted] = {}
        self._whole = Slowest()  # by rank, the newest version that is whole there

    @property
    def last(self) -> tuple[int, float]:
        """The newest saved version, and when its save began."""
        return self._last_version, self._last_s

    def note_complete(self, rank: int, version: int, *, next_version: int) -> None:
        """Note that a version is whole on a rank."""
        self._whole.note(rank, version)
        self.complete = max(self.complete, version)
        self._next = next_version

    def note_restored(self, ranks: range, plan: RecoveryPlan) -> None:
        """Note that a recovery has brought a version to all its holders, or starts anew."""
        version = plan.version or 0
        self.complete = version
        self._next, self._failed = 0, None
        self._whole = Slowest(dict.fromkeys(ranks, version))
        if plan.tier == "persistent":
            self._last_version = version

    def note_stored(self, version: int) -> None:
        """Note a version in the tier that no root agent of this run knew of."""
        self._last_version = max(self._last_version, version)

    def let_go(self, version: int) -> None:
        """Forget later versions in the tier: they do not load, and a user gave them up."""
        self._last_version = min(self._last_version, version)

    def note_rewound(self, rank: int, version: int) -> None:
        """Note that a rank went back to a whole version, as all ranks do."""
        self._whole.note(rank, version)
        self.complete = max(self._whole.of.values())
        self._next = 0
        self._failed = None

    def newest_whole(self, ranks: range) -> int:
        """Return the newest version that is whole on every rank; 0 before all have reported one."""
        if len(self._whole) < len(ranks):
            return 0
        return self._whole.number

    @property
    def has_failed_last(self) -> bool:
        """Whether the newest version that is whole was tried last, and did not arrive."""
        return self.version is None and self._failed == self.complete > self._last_version

    def lacks(self, state: RootState) -> bool:
        """Whether there is a persistent tier, and it lacks a version that is whole in memory."""
        has_tier = state.read_settings().persistent_url is not None
        return has_tier and not self.is_held and state.reached.newest > self._last_version

    def way_on(self) -> Iterator[str]:
        """Yield what another run would go on from, for the end of one that failed."""
        if self._failures:
            yield f"its newest version could not be saved ({self._reason})"
        if self._last_version:
            yield f"--resume goes on from version {self._last_version}"

    def want(self, number: int) -> None:
        """Save the next version, as this request asks, however new the last saved one is."""
        self.asked, self._is_wanted = number, True

    def begin_if_due(self, at_s: float, *, state: RootState) -> Iterator[Instruction]:
        """Start a save if one is due and none is under way."""
        settings = state.read_settings()
        if settings.persistent_url is None or state.setup.settings is None or self.version:
            return
        rests = self.is_held or at_s < self._rests_until_s
        if rests and not self._is_wanted:  # a person's word counts for more
            return
        by_time, by_count = settings.persist_every_s, settings.persist_every_iterations
        is_due = by_time is not None and at_s - self._last_s >= by_time
        coming = self._due()
        is_due |= by_count is not None and coming - self._last_version >= by_count
        is_due |= self._is_wanted or (self.is_behind and self.complete > 0)
        if is_due and coming != self._failed:  # the same once more would only fail once more
            yield from self.begin(at_s, coming, state=state)

    def _due(self) -> int:
        """Return the version that is sent next, or the one that training just went back to.

        All that is there may have been left behind, and a run that is lost would have nothing.
        """
        stands = self.is_behind and 0 < self.complete == self._last_version != self._failed
        return self.complete if stands else max(self.complete + 1, self._next)

    def begin_last(self, at_s: float, *, state: RootState) -> Iterator[Instruction]:
        """Save the last version after training has ended, now or after the save under way."""
        if self.version is not None and self.version > self.complete:
            self.cancel()  # it was to come after the last one
        is_wanted = state.read_settings().persistent_url is not None and not self.is_held
        if is_wanted and self.version is None and self.complete > self._last_version:
            yield from self.begin(at_s, self.complete, state=state)

    def begin(self, at_s: float, version: int, *, state: RootState) -> Iterator[Instruction]:
        """Order every member to write its shards of a version that is whole, or soon will be."""
        order = Persist(
            epoch=state.epoch, version=version, url=_url(state), number=self._next_number()
        )
        orders = {str(node): order for node in state.members}
        yield from self._send(at_s, version, orders, state=state)

    def begin_from_memory(
        self, at_s: float, plan: RecoveryPlan, *, state: RootState
    ) -> Iterator[Instruction]:
        """Save what a plan would load while machines for it are missing: more may be lost.

        Whoever has a shard writes it, for some owners are gone. Once is enough, unless a person
        wants it.
        """
        version = plan.version
        if version is None or plan.tier != "memory" or self.version is not None:
            return
        if plan.cuts or len(plan.sources) != state.seats.world_size:
            return  # its manifest would say that another number of ranks made it
        if state.read_settings().persistent_url is None or version == self._failed:
            return
        if not self._is_wanted and (self.is_held or version <= self._last_version):
            return
        orders, number = dict[str, Persist](), self._next_number()
        for source in plan.sources:
            node = str(source.holder)
            known = orders.get(node)
            orders[node] = Persist(
                epoch=state.epoch,
                version=version,
                url=_url(state),
                shards=[*([] if known is None else known.shards), source.shard],
                lineage=plan.lineage,
                number=number,
            )
        yield from self._send(at_s, version, orders, state=state)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _send(
        self, at_s: float, version: int, orders: Mapping[str, Persist], *, state: RootState
    ) -> Iterator[Instruction]:
        self.version, self._began_s = version, at_s
        self._records, self._orders = {}, {**orders}
        yield Emit(event=events.PersistStarted(version=version, url=_url(state)))
        for node, order in orders.items():
            yield Send(to=node, order=order)

    def ask_again(self, node: str) -> Iterator[Instruction]:
        """Send again what a node has not answered, because its connection broke."""
        if (order := self._orders.get(node)) is not None:
            yield Send(to=node, order=order)

    def hear(
        self,
        at_s: float,
        node: str,
        said: Persisted | SaveFailed | Committed,
        *,
        state: RootState,
    ) -> Iterator[Instruction]:
        """Act on a member's report of the save under way."""
        match said:
            case SaveFailed():
                yield from self.give_up(at_s, said.reason, state=state)
            case Committed():
                if self._failures:
                    yield self._works_again(said.version, state)
                yield Emit(
                    event=events.PersistFinished(
                        version=said.version,
                        url=_url(state),
                        size_bytes=said.size_bytes,
                        duration_s=at_s - self._began_s,
                    )
                )
                self._last_version, self._last_s = said.version, self._began_s
                self._is_wanted = self.is_behind = False
                self._failures, self._rests_until_s = 0, 0.0
                self._forget()
            case Persisted():
                self._records[node] = said
                self._orders.pop(node, None)
                if self._orders:
                    return
                lineages = {one.lineage for one in self._records.values()}
                if len(lineages) > 1:
                    reason = "its shards are of several histories"
                    yield from self.give_up(at_s, reason, state=state)
                else:
                    self._orders[node] = order = self._commit_order(said, state)
                    yield Send(to=node, order=order)

    def give_up(self, at_s: float, reason: str, *, state: RootState) -> Iterator[Instruction]:
        """Give up the save under way; another version is tried later."""
        self._failures += 1
        if self._failures > 1:  # one may come too late: training may have passed it
            pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 2), LONGEST_PAUSE_S)
            self._rests_until_s = at_s + pause_s
        self._reason = reason
        yield from self._drop(reason, state=state, in_a_row=self._failures)

    def _drop(self, reason: str, *, state: RootState, in_a_row: int = 1) -> Iterator[Instruction]:
        if self.version is not None:
            yield Emit(
                event=events.PersistFailed(
                    version=self.version, url=_url(state), reason=reason, in_a_row=in_a_row
                )
            )
        self._failed = self.version
        self._forget()

    def _works_again(self, version: int, state: RootState) -> Emit:
        text = f"{_url(state)} takes versions again: {version} is there, after {self._failures}"
        return Emit(event=events.Note(text=f"{text} that did not arrive"))

    def end(self, *, state: RootState) -> Iterator[Instruction]:
        """Emit a note if the run ends without its last version in the tier."""
        if self.has_failed_last:
            text = f"version {self.complete}, the run's last one, is not in {_url(state)}"
            yield Emit(event=events.Note(text=f"{text}: {self._reason}"))

    def give_up_if_late(self, at_s: float, *, state: RootState) -> Iterator[Instruction]:
        """Give up a save that takes too long, so that later versions can be saved."""
        if self.version is None:
            return
        limit_s = state.read_settings().persist_limit_s
        if at_s - self._began_s > limit_s:
            reason = f"the persistent tier took longer than {limit_s:.0f} s"
            yield from self.give_up(at_s, reason, state=state)

    def hold(self, reason: str, *, since: int, state: RootState) -> Iterator[Instruction]:
        """Save nothing until `is_held` is reset; drop a save of `since` or later."""
        self.is_held = True
        if self.version is not None and self.version >= since:
            yield from self._drop(reason, state=state)

    def forget_left(self, version: int, *, state: RootState) -> Iterator[Instruction]:
        """Drop the save of a version that a rewind left behind."""
        if self.version is not None and self.version > version:
            yield from self._drop("training went back to before it", state=state)
            self._failed = None
        for rank, newest in [*self._whole.of.items()]:  # others say so, too, but not yet
            self._whole.note(rank, min(newest, version))
        self.complete, self._next = min(self.complete, version), 0

    def leave(self, version: int) -> None:
        """Note that later versions in the tier count no more, so that another save is due."""
        if self._last_version > version:
            self._last_version, self.is_behind = version, True

    def cancel(self) -> None:
        """Forget the save under way and the ranks' versions, because of a fence."""
        self._failed = None
        self._forget()
        self._whole = Slowest()

    def _forget(self) -> None:
        self.version, self._records, self._orders = None, {}, {}

    def _commit_order(self, said: Persisted, state: RootState) -> Commit:
        settings = state.read_settings()
        return Commit(
            epoch=state.epoch,
            number=self._number,
            version=said.version,
            url=_url(state),
            keep=settings.keep_versions,
            records=[record for one in self._records.values() for record in one.records],
            meta=VersionMeta(
                job=state.job.job.title,
                lineage=said.lineage,
                fingerprint=state.setup.fingerprint,
                world_size=state.seats.world_size,
                settings=settings.to_json(),
                left=[*state.discarded.left],
                code=state.digests,
            ),
        )


def _url(state: RootState) -> str:
    """Return the URL of the persistent tier; saves start only if there is one."""
    url = state.read_settings().persistent_url
    assert url is not None
    return url
