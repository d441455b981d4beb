"""etcd as agents see it, and what goes wrong with leases, watches and transactions."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from gemini_lab.node.control_store import QUOTA_REACHED
from gemini_lab.node.etcd_client import COMPARES_CREATION, EtcdClient, EtcdLink
from gemini_lab_bench.world.virtual_loop import VirtualProcess, this_process
from gemini_lab_bench.world.virtual_network import NetworkHost, VirtualNetwork

Result = TypeVar("Result")
LATE_LEASE_S: Final = 0.5
"""So much later than it says a lease runs out, at most: etcd looks twice a second."""


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    until_s: float
    keys: set[bytes] = field(default_factory=set)


class VirtualStore:
    """The content of an etcd, and who watches it.

    Args:
        network: Between it and its clients.
        rng: Draws delays.

    Attributes:
        is_up: Whether it answers; while it does not, it keeps what it has.
        keys: Each key with its value and lease.
        loses_answers: The part of transactions whose answer never comes, though they are done.
        watch_delay_s: The most by which a watch is late.
        late_s: By which leases run out later than they say.
        is_full: Whether it takes nothing more.
        asked: How often clients asked for each kind of call.
    """

    def __init__(self, network: VirtualNetwork, rng: random.Random) -> None:
        self.loop, self.network, self.rng = network.loop, network, rng
        self.host = network.add("store")
        self.is_up = True
        self.is_full = False
        self.asked: Counter[str] = Counter()
        self.loses_answers = self.watch_delay_s = self.late_s = 0.0
        self.keys: dict[bytes, tuple[bytes, int]] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._watches: list[_Watch] = []
        self.on_write: Callable[[bytes], None] = lambda _: None
        self._look()

    def hears(self, host: NetworkHost) -> bool:
        """Return whether a client on this machine is answered."""
        both = self.network.is_open(host, self.host) and self.network.is_open(self.host, host)
        return self.is_up and both

    def come_back(self, *, keeps_leases: bool) -> None:
        """Answer again; a new leader gives every lease its whole time, others counted on."""
        self.is_up = True
        if keeps_leases:
            for lease in self._leases.values():
                lease.until_s = self.loop.time() + lease.ttl_s

    def _look(self) -> None:
        """Let leases run out."""
        self.loop.after(LATE_LEASE_S, self._look)
        if self.is_up:
            now_s = self.loop.time()
            for number in [
                n for n, one in self._leases.items() if one.until_s + self.late_s < now_s
            ]:
                self.revoke(number)

    def revoke(self, number: int) -> None:
        """End a lease, and delete its keys."""
        lease = self._leases.pop(number, None)
        for key in () if lease is None else sorted(lease.keys):
            self._delete(key)

    def do(self, call: str, fields: dict[str, Any]) -> Any:
        """Do what a client asks, and return its answer."""
        self.asked[call] += 1
        adds = "request_put" in [kind for one in fields.get("success", []) for kind in one]
        if self.is_full and (adds or call in {"Put", "LeaseGrant"}):
            raise ConnectionError(f"etcdserver: mvcc: {QUOTA_REACHED}")
        match call:
            case "LeaseGrant":
                self._last_lease += 1
                ttl_s = fields["TTL"]
                self._leases[self._last_lease] = _Lease(ttl_s, self.loop.time() + ttl_s)
                return SimpleNamespace(ID=self._last_lease)
            case "LeaseRevoke":
                return self.revoke(fields["ID"])
            case "LeaseKeepAlive":
                lease = self._leases.get(fields["ID"])
                if lease is not None:
                    lease.until_s = self.loop.time() + lease.ttl_s
                return SimpleNamespace(TTL=0 if lease is None else lease.ttl_s)
            case "Put":
                return self._put(**fields)
            case "DeleteRange":
                return self._delete(fields["key"])
            case "Range":
                found = self._range(fields["key"], fields.get("range_end", b""))
                return SimpleNamespace(kvs=found)
            case "Txn":
                return self._transact(fields.get("compare", []), fields["success"])
            case _:
                raise NotImplementedError(call)

    def _transact(self, compares: list[dict[str, Any]], success: list[dict[str, Any]]) -> Any:
        for one in compares:
            held = self.keys.get(one["key"])
            if one["target"] == COMPARES_CREATION:
                is_so = held is None
            else:
                is_so = held is not None and held[0] == one["value"]
            if not is_so:
                return SimpleNamespace(succeeded=False, responses=[])
        answers = []
        for asked in success:
            ((kind, fields),) = asked.items()
            match kind:
                case "request_put":
                    self._put(**fields)
                case "request_delete_range":
                    self._delete(fields["key"])
                case "request_range":
                    found = self._range(fields["key"], b"")
                    answers.append(SimpleNamespace(response_range=SimpleNamespace(kvs=found)))
        return SimpleNamespace(succeeded=True, responses=answers)

    def _range(self, key: bytes, end: bytes) -> list[Any]:
        if end:
            found = sorted(k for k in self.keys if key <= k < end)
        else:
            found = [key] if key in self.keys else []
        return [SimpleNamespace(key=k, value=self.keys[k][0]) for k in found]

    def _put(self, key: bytes, value: bytes, lease: int = 0) -> None:
        if lease and lease not in self._leases:
            raise ConnectionError("etcdserver: requested lease not found")
        self._unlease(key)
        self.keys[key] = (value, lease)
        self.on_write(key)
        if lease:
            self._leases[lease].keys.add(key)
        self._tell(key)

    def _delete(self, key: bytes) -> None:
        if key in self.keys:
            self._unlease(key)
            del self.keys[key]
            self._tell(key)

    def _unlease(self, key: bytes) -> None:
        _, lease = self.keys.get(key, (b"", 0))
        if lease in self._leases:
            self._leases[lease].keys.discard(key)

    def watch(self, stream: "_Watch") -> None:
        """Tell a stream of changes."""
        if stream not in self._watches:
            self._watches.append(stream)

    def unwatch(self, stream: "_Watch") -> None:
        """Tell a stream nothing more."""
        if stream in self._watches:
            self._watches.remove(stream)

    def compact(self) -> None:
        """Forget what was before: streams that follow it end."""
        for stream in [*self._watches]:
            self.loop.soon(stream.process, stream.end)

    def _tell(self, key: bytes) -> None:
        for stream in self._watches:
            if any(start <= key < end if end else key == start for start, end in stream.ranges):
                late_s = self.watch_delay_s * self.rng.random()
                self.loop.after(self.network.delay_s() + late_s, stream.ring)


class VirtualClient(EtcdClient):
    """A client of the world's store; all but the connection is the real one's."""

    store: VirtualStore

    async def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return await call

    def lack_of_room(self) -> str:
        return ""

    async def connect(self, endpoint: str) -> EtcdLink:
        del endpoint
        process = this_process()
        assert process is not None
        link = _StoreLink(self.store, process)
        await link.travel()
        return link


class _StoreLink(EtcdLink):
    """A connection to the world's store."""

    def __init__(self, store: VirtualStore, process: VirtualProcess) -> None:
        super().__init__(None)
        self.store, self.process = store, process
        self.host = store.network.place_of[process]
        self.is_closed = False
        self._watches: list[_Watch] = []

    async def travel(self) -> None:
        """Wait for as long as a message takes, and until the way is open."""
        await asyncio.sleep(self.store.network.delay_s())
        while not self.store.hears(self.host):
            await asyncio.sleep(0.2)

    async def ask(self, call: str, **fields: Any) -> Any:
        await self.travel()
        answer = self.store.do(call, fields)
        if call == "Txn" and self.store.rng.random() < self.store.loses_answers:
            await asyncio.Event().wait()
        await self.travel()
        if self.is_closed:
            raise ConnectionError("the connection was closed")
        return answer

    def stream(self, call: str) -> Any:
        if call == "LeaseKeepAlive":
            return _Heartbeats(self)
        self._watches.append(_Watch(self))
        return self._watches[-1]

    async def close(self) -> None:
        self.is_closed = True
        for one in self._watches:
            one.end()


class _Heartbeats:
    def __init__(self, link: _StoreLink) -> None:
        self._link, self._lease = link, 0

    async def write(self, request: Any) -> None:
        self._lease = request.ID

    async def read(self) -> Any:
        return await self._link.ask("LeaseKeepAlive", ID=self._lease)


class _Watch:
    """One client's watch; it rings in the client's process."""

    def __init__(self, link: _StoreLink) -> None:
        self._link = link
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.ranges: list[tuple[bytes, bytes]] = []

    async def write(self, request: Any) -> None:
        await self._link.travel()
        one = request.create_request
        self.ranges.append((one.key, one.range_end))
        self._link.store.watch(self)
        self._say(created=True)

    async def read(self) -> Any:
        return await self._answers.get()

    @property
    def process(self) -> VirtualProcess:
        """The client's."""
        return self._link.process

    def ring(self) -> None:
        """Report a change, unless the way is cut; then the client's kernel breaks the stream."""
        if self._link.process.is_gone or self._link.is_closed:
            self._link.store.unwatch(self)
        elif self._link.store.hears(self._link.host):
            self._link.store.loop.soon(self._link.process, self._say)
        else:
            self._link.store.unwatch(self)
            self._link.store.loop.soon(self._link.process, self.end)

    def end(self) -> None:
        """Report its end."""
        self._link.store.unwatch(self)
        self._say(canceled=True)

    def _say(self, *, created: bool = False, canceled: bool = False) -> None:
        said = SimpleNamespace(created=created, canceled=canceled, cancel_reason="")
        self._answers.put_nowait(said)
