"""The tie between a worker and its agent: who we are in the job, and whom to tell what happens."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gemini_lab.errors import CapacityError, ConfigError, GeminiError
from gemini_lab.wire.local import LocalChannel


class WorkerSession:
    """A worker's view of its job.

    Attributes:
        spec: What the agent said at the start: rank, members, plan and so on.
        store: The rendezvous store of the job, shared by all ranks.
        on_finish: Called when the script has ended, to let the last version become whole.
    """

    def __init__(self, *, spec: dict[str, Any], channel: LocalChannel, store: Any) -> None:
        self.spec = spec
        self.store = store
        self.on_finish: Callable[[], None] | None = None
        self._channel = channel
        self._lock = threading.Lock()  # the training thread and the transfer thread both speak

    def emit(self, kind: str, **data: Any) -> None:
        """Say an event (see `events.KINDS`); the agent adds the node's name."""
        with self._lock:
            self._channel.send(
                {"op": "event", "kind": kind, "at_s": time.time(), "data": {**data, **self._tag()}}
            )

    def request_slab(
        self, *, slots: list[tuple[int, int]], chunk_bytes: int, layout: dict[str, Any]
    ) -> int:
        """The descriptor of this worker's slab, made by the agent if it is not there yet.

        Args:
            slots: Shard and payload bytes of each shard that is kept here.
            chunk_bytes: What one checksum covers.
            layout: What lies where in this rank's own shard.

        Raises:
            CapacityError: The node's memory is short.
            ConfigError: The slab that is there was made for another model.
        """
        with self._lock:
            self._channel.send(
                {"op": "slab", "slots": slots, "chunk_bytes": chunk_bytes, "layout": layout}
            )
            answer = self._channel.receive()
        if answer is None:
            raise GeminiError("the node's agent is gone; it was asked for memory for checkpoints")
        message, fds = answer
        if not fds:
            kind = CapacityError if message["error"] == "CapacityError" else ConfigError
            raise kind(message["text"])
        return fds[0]

    def restore_failed(self, *, shard: int, version: int, holder: str | None, reason: str) -> None:
        """Tell the root agent that a copy could not be used, so that it plans without it."""
        with self._lock:
            self._channel.send(
                {"op": "restore_failed", "shard": shard, "version": version, "holder": holder,
                 "reason": reason}
            )  # fmt: skip

    def finish(self) -> None:
        """The script has ended: wait for the last version, or say that nothing was protected."""
        if self.on_finish is None:
            self.emit("unprotected")
        else:
            self.on_finish()

    def _tag(self) -> dict[str, Any]:
        return {"rank": self.spec["rank"], "epoch": self.spec["epoch"]}


current: WorkerSession | None = None
"""The session of this process when it is a worker of a lab, else `None`."""
