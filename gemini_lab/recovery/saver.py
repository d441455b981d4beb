"""Versions on their way to the persistent tier, as the root agent directs them."""

from collections.abc import Iterator
from typing import Any

from gemini_lab.log import events
from gemini_lab.recovery.protocol import Emit, Instruction, RunState, Send


class Saver:
    """Has all members write their shards of a version, then one of them the manifest.

    Args:
        last_s: When the last version was begun, or the job was submitted.

    Attributes:
        version: The one on its way; `None` if there is none.
        complete: Newest version that is whole in memory.
    """

    def __init__(self, *, last_s: float) -> None:
        self.version: int | None = None
        self.complete = 0
        self._next = 0  # the version that will be sent after `complete`
        self._last_s = last_s
        self._last_version = 0
        self._records: dict[str, list[Any]] = {}

    def note_complete(self, version: int, *, next_version: int) -> None:
        """A version is whole on some rank."""
        self.complete = max(self.complete, version)
        self._next = next_version

    def begin_if_due(self, at_s: float, *, state: RunState) -> Iterator[Instruction]:
        """Begin to save the next version, if it is time to and none is on its way."""
        settings = state.read_settings()
        if settings.persistent_url is None or not state.settings or self.version:
            return
        by_time, by_count = settings.persist_every_s, settings.persist_every_iterations
        is_due = by_time is not None and at_s - self._last_s >= by_time
        is_due |= by_count is not None and self.complete - self._last_version >= by_count
        if is_due:
            yield from self.begin(at_s, max(self.complete + 1, self._next), state=state)

    def begin_last(self, at_s: float, *, state: RunState) -> Iterator[Instruction]:
        """Training has ended: save its last version, now or after the one on its way."""
        if self.version is not None and self.version > self.complete:
            self.cancel()  # it was to come after the last one
        is_wanted = state.read_settings().persistent_url is not None
        if is_wanted and self.version is None and self.complete > self._last_version:
            yield from self.begin(at_s, self.complete, state=state)

    def begin(self, at_s: float, version: int, *, state: RunState) -> Iterator[Instruction]:
        """Have every member write its shards of a version that is whole, or about to be."""
        settings = state.read_settings()
        self.version, self._last_s, self._records = version, at_s, {}
        yield Emit(event=events.PersistStarted(version=version, url=str(settings.persistent_url)))
        for node in dict.fromkeys(state.members):
            yield Send(
                to=str(node),
                message={"op": "persist", "epoch": state.epoch, "version": version,
                         "url": settings.persistent_url, "keep": settings.keep_versions},
            )  # fmt: skip

    def hear(
        self, at_s: float, node: str, message: dict[str, Any], *, state: RunState
    ) -> Iterator[Instruction]:
        """A member speaks of the version on its way: written, failed, or the manifest too."""
        match message["op"]:
            case "persist_failed":
                yield from self.give_up(message["reason"], state=state)
            case "committed":
                yield Emit(
                    event=events.PersistFinished(
                        version=message["version"],
                        url=str(state.read_settings().persistent_url),
                        size_bytes=message["size_bytes"],
                        duration_s=at_s - self._last_s,
                    )
                )
                self._last_version = message["version"]
                self.cancel()
            case "persisted":
                self._records[node] = message["records"]
                if self._records.keys() >= set(state.members):
                    yield Send(to=node, message=self._commit_message(state))

    def give_up(self, reason: str, *, state: RunState) -> Iterator[Instruction]:
        """The version on its way does not arrive; training goes on."""
        if self.version is None:
            return
        url = str(state.read_settings().persistent_url)
        yield Emit(event=events.PersistFailed(version=self.version, url=url, reason=reason))
        self.cancel()

    def cancel(self) -> None:
        """Forget the version on its way."""
        self.version, self._records = None, {}

    def _commit_message(self, state: RunState) -> dict[str, Any]:
        settings = state.read_settings()
        return {
            "op": "commit", "epoch": state.epoch, "version": self.version,
            "url": settings.persistent_url, "keep": settings.keep_versions,
            "records": [record for records in self._records.values() for record in records],
            "meta": {"job": state.the_job["name"], "fingerprint": state.fingerprint,
                     "world_size": len(state.ranks), "settings": state.settings},
        }  # fmt: skip
