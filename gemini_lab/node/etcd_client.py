"""The client of etcd, the small store behind membership, election and recovery state.

All clients of a process run on one event loop, in a thread of its own. `EtcdClient` is awaited on
the caller's loop; `EtcdStore` blocks the caller's thread. Values are text. Nothing on the training
path calls it.
"""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from gemini_lab.node.control_store import no_answer
from gemini_lab.node.etcd_address import DIRECT, EtcdAddress, tls_credentials
from gemini_lab.node.orphan_etcd import lack_of_room

# The tables below take the place of generated stubs. Those are 2,400 lines, bound to a release of
# protobuf's compiler, and the package that ships them collides with a namesake. Fields that are
# left out here are skipped when an answer is read.
PACKAGE: Final = "etcdserverpb"
CALLS: Final = {
    "Range": "KV",
    "Put": "KV",
    "DeleteRange": "KV",
    "Txn": "KV",
    "Watch": "Watch",
    "LeaseGrant": "Lease",
    "LeaseRevoke": "Lease",
    "LeaseKeepAlive": "Lease",
    "MemberList": "Cluster",
    "MemberAdd": "Cluster",
    "MemberRemove": "Cluster",
    "Authenticate": "Auth",
}
"""The service of each call, which takes its name + `Request`, and answers its name + `Response`."""
_FIELDS: Final = {
    "KeyValue": "bytes key 1, bytes value 5",
    "RangeRequest": "bytes key 1, bytes range_end 2, bool keys_only 8",
    "RangeResponse": "*KeyValue kvs 2",
    "PutRequest": "bytes key 1, bytes value 2, int64 lease 3",
    "PutResponse": "",
    "DeleteRangeRequest": "bytes key 1",
    "DeleteRangeResponse": "",
    "Compare": "int32 result 1, int32 target 2, bytes key 3, bytes value 7",
    "RequestOp": (
        "RangeRequest request_range 1, PutRequest request_put 2, "
        "DeleteRangeRequest request_delete_range 3"
    ),
    "ResponseOp": "RangeResponse response_range 1",
    "TxnRequest": "*Compare compare 1, *RequestOp success 2",
    "TxnResponse": "bool succeeded 2, *ResponseOp responses 3",
    "WatchCreateRequest": "bytes key 1, bytes range_end 2",
    "WatchRequest": "WatchCreateRequest create_request 1",
    "WatchResponse": "bool created 3, bool canceled 4, string cancel_reason 6",
    "LeaseGrantRequest": "int64 TTL 1",
    "LeaseGrantResponse": "int64 ID 2",
    "LeaseRevokeRequest": "int64 ID 1",
    "LeaseRevokeResponse": "",
    "LeaseKeepAliveRequest": "int64 ID 1",
    "LeaseKeepAliveResponse": "int64 TTL 3",
    "Member": "uint64 ID 1, string name 2, *string peerURLs 3, *string clientURLs 4",
    "MemberListRequest": "",
    "MemberListResponse": "*Member members 2",
    "MemberAddRequest": "*string peerURLs 1",
    "MemberAddResponse": "",
    "MemberRemoveRequest": "uint64 ID 1",
    "MemberRemoveResponse": "",
    "AuthenticateRequest": "string name 1, string password 2",
    "AuthenticateResponse": "string token 2",
}
"""Each message's fields as `type name number`; `*` marks a repeated one."""
COMPARES_CREATION: Final = 1
COMPARES_VALUE: Final = 3
Given = ParamSpec("Given")
Result = TypeVar("Result")


@cache
def _messages() -> Mapping[str, Any]:
    """Return the class of each message, by its name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(
        name="gemini_lab/etcd.proto", package=PACKAGE, syntax="proto3"
    )
    of = descriptor_pb2.FieldDescriptorProto
    for name, text in _FIELDS.items():
        message = file.message_type.add(name=name)
        for kind, field, number in (one.split() for one in text.split(", ") if one):
            plain = kind.removeprefix("*")
            added = message.field.add(name=field, number=int(number))
            added.label = of.LABEL_OPTIONAL if kind == plain else of.LABEL_REPEATED
            if plain in _FIELDS:
                added.type, added.type_name = of.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
            else:
                added.type = getattr(of, f"TYPE_{plain.upper()}")
    # A pool of our own: a script or library in this process may have loaded etcd's real stubs.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _FIELDS
    }


def _request(call: str, **fields: Any) -> Any:
    """Return the request of a call."""
    return _messages()[f"{call}Request"](**fields)


def _method(channel: Any, call: str, *, is_stream: bool = False) -> Any:
    """Return what sends a call's request over a gRPC channel."""
    kind = channel.stream_stream if is_stream else channel.unary_unary
    answer = _messages()[f"{call}Response"]
    return kind(
        f"/{PACKAGE}.{CALLS[call]}/{call}",
        request_serializer=lambda asked: asked.SerializeToString(),
        response_deserializer=answer.FromString,
    )


_starting: Final = threading.Lock()
_loops: Final[list[asyncio.AbstractEventLoop]] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all clients of this process.

    The thread has no end of its own: what the process calls last may still ask a store.
    """
    # gRPC has one queue of completions a process, and wakes every loop that ever used it. All but
    # one then read an empty socket, which asyncio prints as an error (grpc/grpc#25364). A caller's
    # own loop will not do: it may end before the process does, and a notebook's cell blocks it.
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="gemini-etcd", daemon=True).start()
        return _loops[0]


async def _on_loop(call: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the clients' loop; wait for it on the caller's."""
    if asyncio.get_running_loop() is _loop():
        return await call
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, _loop()))


class Values(Protocol):
    """Translates a lab's values to what stands in etcd, and back."""

    def written(self, key: str, value: str) -> str:
        """Return what stands in etcd for a value of this key."""

    def read(self, found: Mapping[str, bytes]) -> dict[str, str]:
        """Return the values for which these stand; a stranger may have written them."""


class Plain:
    """`Values` that stand in etcd as they are."""

    def written(self, key: str, value: str) -> str:
        del key
        return value

    def read(self, found: Mapping[str, bytes]) -> dict[str, str]:
        return {key: value.decode(errors="replace") for key, value in found.items()}


class Tell(Protocol):
    """Receives what a watch reports."""

    def __call__(self, *, has_ended: bool) -> None:
        """Note a change, or the watch's end, after which it reports nothing more."""


class ListedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as etcd lists it: one that has not started yet has no name and no client URL."""

    number: int
    name: str
    peer: str
    clients: tuple[str, ...]


class EtcdLink:
    """A connection to one member, with the stream of heartbeats on it."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.channel, self.metadata = channel, metadata
        self.heartbeats: Any = None
        self.turn = asyncio.Lock()  # one heartbeat at a time: answers have no names

    async def ask(self, call: str, **fields: Any) -> Any:
        """Send one request, and return its answer."""
        return await _method(self.channel, call)(_request(call, **fields), metadata=self.metadata)

    def stream(self, call: str) -> Any:
        """Open a stream of requests and answers."""
        return _method(self.channel, call, is_stream=True)(metadata=self.metadata)

    async def close(self) -> None:
        """Close the connection, and with it all that goes on over it."""
        await self.channel.close()


class EtcdClient:
    """A lab's part of etcd v3: every key lies under `prefix`.

    Every call may raise `StoreUnavailableError`. A failed call drops the connection, and with it
    all other calls on it; the next call tries the next endpoint. A client that waited in gRPC's
    back-off would miss its lease.
    """

    def __init__(
        self,
        address: EtcdAddress,  # where etcd is
        prefix: str,  # of all the lab's keys
        *,
        timeout_s: float = 1.0,  # for each call, with the connection that it may need
        values: Values | None = None,  # how values stand in etcd
    ) -> None:
        self.address = address
        self.prefix = prefix.rstrip("/") + "/"
        self.timeout_s = timeout_s
        self._values = Plain() if values is None else values
        self._known = address.endpoints
        self._endpoints = itertools.cycle(self._known)
        self._turn = asyncio.Lock()  # one connection is made at a time
        self._link: EtcdLink | None = None
        self._watching: asyncio.Task[None] | None = None

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease: its keys vanish if it is not kept alive for `ttl_s`."""
        return int((await self._ask("LeaseGrant", TTL=ttl_s)).ID)

    async def keep_alive(self, lease: int) -> bool:
        """Renew a lease; return `False` if it has already run out."""

        async def renew(link: EtcdLink) -> bool:
            async with link.turn:
                if link.heartbeats is None:
                    link.heartbeats = link.stream("LeaseKeepAlive")
                await link.heartbeats.write(_request("LeaseKeepAlive", ID=lease))
                return bool((await link.heartbeats.read()).TTL > 0)

        return await self._call(renew)

    async def revoke(self, lease: int) -> None:
        """End a lease and drop its keys."""
        await self._ask("LeaseRevoke", ID=lease)

    async def put(self, key: str, value: str, *, lease: int | None = None) -> None:
        """Set a key."""
        await self._ask("Put", **self._put(key, value, lease))

    async def create(self, key: str, value: str, *, lease: int | None = None) -> bool:
        """Set a key if it does not exist; return whether it was set."""
        new = {"target": COMPARES_CREATION, "key": self._full(key)}  # revision 0: there is none
        done = await self._ask(
            "Txn", compare=[new], success=[{"request_put": self._put(key, value, lease)}]
        )
        return bool(done.succeeded)

    async def put_if(self, values: Mapping[str, str], *, guard: str, held: str) -> bool:
        """Set keys, all or none, while the key `guard` still has the value `held`: fenced."""
        puts = [{"request_put": self._put(key, value)} for key, value in values.items()]
        done = await self._ask("Txn", compare=[self._holds(guard, held)], success=puts)
        return bool(done.succeeded)

    async def delete_if(self, key: str, held: str) -> bool:
        """Delete `key` only while it still has the value `held`."""
        gone = {"request_delete_range": {"key": self._full(key)}}
        done = await self._ask("Txn", compare=[self._holds(key, held)], success=[gone])
        return bool(done.succeeded)

    async def delete(self, key: str) -> None:
        """Delete a key if it exists."""
        await self._ask("DeleteRange", key=self._full(key))

    async def items(self) -> dict[str, str]:
        """Return all keys of this lab with their values, read at one revision."""
        return self._values.read(self._by_key((await self._ask("Range", **self._whole)).kvs))

    async def names(self) -> set[str]:
        """Return the names of all keys of this lab; values are not read, and may be forged."""
        return set(self._by_key((await self._ask("Range", **self._whole, keys_only=True)).kvs))

    async def get(self, keys: Sequence[str]) -> dict[str, str]:
        """Return those of these keys that exist, with their values, read at one revision."""
        wanted = [{"request_range": {"key": self._full(key)}} for key in keys]
        done = await self._ask("Txn", success=wanted)
        pairs = [pair for one in done.responses for pair in one.response_range.kvs]
        return self._values.read(self._by_key(pairs))

    async def watch(self, keys: Sequence[str] | None, tell: Tell) -> None:
        """Call `tell`, on the caller's loop, whenever one of these keys changes (`None`: any key).

        It replaces the watch before. It ends with the connection, and reports its end; a change
        may be reported more than once.
        """
        caller = asyncio.get_running_loop()

        def pass_on(*, has_ended: bool) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended before its watch
                caller.call_soon_threadsafe(partial(tell, has_ended=has_ended))

        ranges = [self._whole] if keys is None else [{"key": self._full(key)} for key in keys]

        async def begin(link: EtcdLink) -> None:
            stream = link.stream("Watch")
            for one in ranges:
                await stream.write(_request("Watch", create_request=one))
            begun = 0
            while begun < len(ranges):
                answer = await stream.read()
                if answer.canceled:
                    raise ConnectionError(answer.cancel_reason)
                begun += answer.created
            if self._watching is not None:
                self._watching.cancel()
            self._watching = asyncio.create_task(_listen(stream, pass_on))

        await self._call(begin)

    async def members(self) -> list[ListedMember]:
        """Return all members, as one of them lists them."""
        return _members(await self._ask("MemberList"))

    async def replace_member(self, lost: str, peer: str) -> list[ListedMember]:
        """Remove the member at the endpoint `lost`, and add one at `peer`; may be called again."""
        members = await self.members()
        for number in [one.number for one in members if lost in one.clients]:
            await self._ask("MemberRemove", ID=number)
        if peer not in {one.peer for one in members}:
            await self._ask("MemberAdd", peerURLs=[peer])
        return await self.members()

    async def close(self) -> None:
        """Drop the connection, and with it the watch, which reports its end."""
        if (link := self._link) is not None:
            await self.run(self._drop(link))

    async def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a call on the loop of this process's clients, and return its answer."""
        return await _on_loop(call)

    def _full(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    @property
    def _whole(self) -> dict[str, bytes]:
        """The range of all the lab's keys: up to the prefix with its last byte one higher."""
        first = self.prefix.encode()
        return {"key": first, "range_end": first[:-1] + bytes([first[-1] + 1])}

    def _put(self, key: str, value: str, lease: int | None = None) -> dict[str, Any]:
        text = self._values.written(key, value).encode()
        return {"key": self._full(key), "value": text, "lease": lease or 0}

    def _holds(self, key: str, held: str) -> dict[str, Any]:
        text = self._values.written(key, held).encode()
        return {"target": COMPARES_VALUE, "key": self._full(key), "value": text}

    def _by_key(self, found: Sequence[Any]) -> dict[str, bytes]:
        return {
            pair.key.decode(errors="replace").removeprefix(self.prefix): pair.value
            for pair in found
        }

    async def _ask(self, call: str, **fields: Any) -> Any:
        return await self._call(lambda link: link.ask(call, **fields))

    async def _call(self, act: Callable[[EtcdLink], Awaitable[Result]]) -> Result:
        return await self.run(self._try(act))

    async def _try(self, act: Callable[[EtcdLink], Awaitable[Result]]) -> Result:
        link: EtcdLink | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                link = await self._linked()
                return await act(link)
        except (Exception, asyncio.CancelledError) as error:
            if link is not None:  # a heartbeat's answer may still come, and would be the next one's
                await self._drop(link)
            # A closed channel still connects until its last call is freed. Frames hold calls, and
            # a task that keeps its error would keep the error's frames.
            link = error.__cause__ = error.__context__ = error.__traceback__ = None
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise  # the caller gives up; else another call closed the connection under this one
            lack = self.lack_of_room()
            raise no_answer(self.address, self.timeout_s, error, lack=lack) from error

    def lack_of_room(self) -> str:
        """Return that this machine's disk has no room for an etcd that died here, if so."""
        return lack_of_room(self.address.endpoints)

    async def _linked(self) -> EtcdLink:
        if self._link is not None:
            return self._link
        async with self._turn:
            if self._link is None:
                self._link = await self.connect(next(self._endpoints))
            return self._link

    async def _drop(self, link: EtcdLink) -> None:
        if self._link is link:  # else a call that failed before has dropped it already
            self._link = None
        await link.close()

    async def connect(self, endpoint: str) -> EtcdLink:
        """Return a new connection to a member."""
        link = EtcdLink(_channel_to(endpoint, self.address))
        try:
            if self.address.user is not None:
                name, password = self.address.user, self.address.password
                answer = await link.ask("Authenticate", name=name, password=password)
                link.metadata = (("token", answer.token),)
            if self.address.is_followed:
                there = _members(await link.ask("MemberList"))
                known = tuple(one.clients[0] for one in there if one.clients)
                if known and set(known) != set(self._known):  # else go on with the next one
                    self._known, self._endpoints = known, itertools.cycle(known)
        except BaseException:
            await link.close()
            raise
        return link


def _blocking(
    method: Callable[Concatenate[EtcdClient, Given], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate["EtcdStore", Given], Result]:
    """Return a method of `EtcdStore` that waits for what one of `EtcdClient` returns."""

    def call(store: "EtcdStore", /, *given: Given.args, **named: Given.kwargs) -> Result:
        return store.wait(method(store.client, *given, **named))

    return call


class EtcdStore:
    """An `EtcdClient` whose calls block until they are answered; threads may share it."""

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

    grant = _blocking(EtcdClient.grant)
    keep_alive = _blocking(EtcdClient.keep_alive)
    revoke = _blocking(EtcdClient.revoke)
    put = _blocking(EtcdClient.put)
    create = _blocking(EtcdClient.create)
    put_if = _blocking(EtcdClient.put_if)
    delete_if = _blocking(EtcdClient.delete_if)
    delete = _blocking(EtcdClient.delete)
    items = _blocking(EtcdClient.items)
    names = _blocking(EtcdClient.names)
    get = _blocking(EtcdClient.get)
    close = _blocking(EtcdClient.close)

    def wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Return a call's answer; each ends within the client's time-out."""
        future = asyncio.run_coroutine_threadsafe(call, _loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C ends the wait, and so the call
            raise


def _channel_to(endpoint: str, address: EtcdAddress) -> Any:
    """Return a connection to one member, which begins with its first use."""
    import grpc.aio  # noqa: PLC0415  (gRPC's threads start with its import)

    target = endpoint.rpartition("//")[2]
    if (credentials := tls_credentials(address)) is None:
        return grpc.aio.insecure_channel(target, options=DIRECT)
    return grpc.aio.secure_channel(target, credentials, options=DIRECT)


def _members(told: Any) -> list[ListedMember]:
    return [
        ListedMember(
            number=one.ID,
            name=one.name,
            peer=one.peerURLs[0],
            clients=tuple(urlsplit(url).netloc for url in one.clientURLs),
        )
        for one in told.members
    ]


async def _listen(stream: Any, tell: Tell) -> None:
    """Tell of every change until the watch ends, however it does."""
    import grpc.aio  # noqa: PLC0415

    try:
        while (answer := await stream.read()) is not grpc.aio.EOF and not answer.canceled:
            tell(has_ended=False)
    except (grpc.RpcError, asyncio.CancelledError):
        pass  # the connection broke or was closed; a task that raises would keep the stream
    finally:
        tell(has_ended=True)
