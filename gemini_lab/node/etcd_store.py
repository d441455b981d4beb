"""The store for callers without an event loop: a thread of this process runs the client's."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdClient, Values

Result = TypeVar("Result")
_starting: Final = threading.Lock()
_loops: Final[list[asyncio.AbstractEventLoop]] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all stores of this process.

    A notebook's cell runs inside a loop already, and cannot run another one in its thread. The
    thread has no end of its own: what the process calls last may still ask a store.
    """
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="gemini-etcd", daemon=True).start()
        return _loops[0]


class EtcdStore:
    """An `EtcdClient` whose calls wait for their answers; threads may share it."""

    def __init__(
        self,
        address: EtcdAddress,
        prefix: str,
        *,
        timeout_s: float = 1.0,
        values: Values | None = None,
    ) -> None:
        self.client = EtcdClient(address, prefix, timeout_s=timeout_s, values=values)
        self.address, self.prefix = address, self.client.prefix

    def grant(self, ttl_s: int) -> int:
        return self.wait(self.client.grant(ttl_s))

    def keep_alive(self, lease: int) -> bool:
        return self.wait(self.client.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        self.wait(self.client.revoke(lease))

    def put(self, key: str, value: str, *, lease: int | None = None) -> None:
        self.wait(self.client.put(key, value, lease=lease))

    def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        return self.wait(self.client.create(key, value, lease=lease))

    def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        return self.wait(self.client.put_if(values, guard=guard, held=held))

    def delete_if(self, key: str, held: str) -> bool:
        return self.wait(self.client.delete_if(key, held))

    def delete(self, key: str) -> None:
        self.wait(self.client.delete(key))

    def items(self) -> dict[str, str]:
        return self.wait(self.client.items())

    def names(self) -> set[str]:
        return self.wait(self.client.names())

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        return self.wait(self.client.get(keys))

    def close(self) -> None:
        self.wait(self.client.close())

    def wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Return a call's answer; each ends within the client's time-out."""
        future = asyncio.run_coroutine_threadsafe(call, _loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C ends the wait, and so the call
            raise
