"""etcd as agents see it, and what goes wrong with its members, leases, watches and transactions."""

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
ELECTION_S: Final = (1.0, 2.0)
"""In which members elect another leader, by etcd's own settings."""


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    until_s: float
    keys: set[bytes] = field(default_factory=set)


class VirtualStore:
    """The content of an etcd, and who watches it.

    Its members agree at once on what their leader does; only who is answered differs.

    Args:
        network: Between its members, and to its clients.
        rng: Draws delays.
        members: How many there are.

    Attributes:
        is_up: Whether it answers; while it does not, it keeps what it has.
        hosts: The machines of its members.
        down: Members that do not run.
        keys: Each key with its value and lease.
        loses_answers: The part of transactions whose answer never comes, though they are done.
        watch_delay_s: The most by which a watch is late.
        late_s: By which leases run out later than they say.
        is_full: Whether it takes nothing more.
        asked: How often clients asked for each kind of call.
    """

    def __init__(self, network: VirtualNetwork, rng: random.Random, members: int = 1) -> None:
        self.loop, self.network, self.rng = network.loop, network, rng
        self.hosts = [network.add(f"store-{number}") for number in range(members)]
        self.down: set[int] = set()
        self._leader, self._elects_until_s = 0, 0.0
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

    def hears(self, host: NetworkHost, member: int | None = None) -> bool:
        """Return whether a client on this machine is answered, by any member or by this one."""
        has_leader = self.is_up and self.loop.time() >= self._elects_until_s
        return has_leader and self.is_reached(host, member)

    def is_reached(self, host: NetworkHost, member: int | None = None) -> bool:
        """Return whether a way leads from a machine to a member that follows the leader."""
        if len(self.hosts) == 1 and not self.down:
            return self.network.is_linked(host, self.hosts[0])
        asked = range(len(self.hosts)) if member is None else [member]
        linked = (n for n in asked if self.network.is_linked(host, self.hosts[n]))
        return self._has_most(self._leader) and any(
            self._are_linked(number, self._leader) for number in linked
        )

    def _are_linked(self, one: int, other: int) -> bool:
        is_cut = not self.network.is_linked(self.hosts[one], self.hosts[other])
        return not (is_cut or {one, other} & self.down)

    def _has_most(self, member: int) -> bool:
        members = range(len(self.hosts))
        return 2 * sum(self._are_linked(member, other) for other in members) > len(self.hosts)

    def _elect(self) -> None:
        """Have another leader once this one is gone, if most members reach each other."""
        able = [number for number in range(len(self.hosts)) if self._has_most(number)]
        if able and self._leader not in able:
            self._leader = self.rng.choice(able)
            self._elects_until_s = self.loop.time() + self.rng.uniform(*ELECTION_S)
            self._prolong_leases()

    def recover(self) -> None:
        """Have all members run, and reach each other."""
        self.down.clear()
        names = {host.name for host in self.hosts}
        for name in names:
            self.network.mend_among(name, names)

    def come_back(self, *, keeps_leases: bool) -> None:
        """Answer again; a new leader gives every lease its whole time, others counted on."""
        self.is_up = True
        if keeps_leases:
            self._prolong_leases()

    def _prolong_leases(self) -> None:
        for lease in self._leases.values():
            lease.until_s = self.loop.time() + lease.ttl_s

    def _look(self) -> None:
        """Let leases run out, and a leader be elected."""
        self.loop.after(LATE_LEASE_S, self._look)
        self._elect()
        if self.hears(self.hosts[self._leader]):
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
        process = this_process()
        assert process is not None
        link = _StoreLink(self.store, process, self.address.endpoints.index(endpoint))
        await link.travel()
        return link


class _StoreLink(EtcdLink):
    """A connection to a member of the world's store."""

    def __init__(self, store: VirtualStore, process: VirtualProcess, member: int) -> None:
        super().__init__(None)
        self.store, self.process, self._member = store, process, member
        self.host = store.network.place_of[process]
        self.is_closed = False
        self._watches: list[_Watch] = []

    async def travel(self) -> None:
        """Wait for as long as a message takes, and until the way is open."""
        await asyncio.sleep(self.store.network.delay_s())
        while not self.is_answered:
            await asyncio.sleep(0.2)

    @property
    def is_answered(self) -> bool:
        """Whether its member answers."""
        return self.store.hears(self.host, self._member)

    @property
    def is_open(self) -> bool:
        """Whether its member runs, and is reached; it may have lost the others."""
        member = self.store.hosts[self._member]
        is_down = not self.store.is_up or self._member in self.store.down
        return self.store.network.is_linked(self.host, member) and not is_down

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
        """Report a change, unless the way is cut; then the client's kernel breaks the stream.

        A member that has lost the others reports nothing until it follows a leader again.
        """
        if self._link.process.is_gone or self._link.is_closed:
            self._link.store.unwatch(self)
        elif self._link.is_answered:
            self._link.store.loop.soon(self._link.process, self._say)
        elif self._link.is_open:
            self._link.store.loop.after(LATE_LEASE_S, self.ring)
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
