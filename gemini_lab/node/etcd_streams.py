"""What an agent keeps open to etcd: the heartbeat of its lease, and a watch.

Both run on the agent's event loop, over one connection, so that thousands of agents in one process
cost no threads, and a heartbeat is one message and not a call of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from gemini_lab.node.etcd_address import (
    DIRECT,
    Endpoints,
    EtcdAddress,
    client_endpoints,
    tls_credentials,
)
from gemini_lab.node.etcd_store import no_answer

Result = TypeVar("Result")


class Tell(Protocol):
    """Hears of a watch."""

    def __call__(self, *, has_ended: bool) -> None:
        """Something changed, or the watch is over: nothing is told any more."""


class StoreStreams(Protocol):
    """What an agent asks of a store all the time. Calls may raise `StoreUnavailableError`."""

    async def keep_alive(self, lease: int) -> bool:
        """Renew a lease; `False` when it has already run out."""

    async def watch(self, keys: Sequence[str] | None, tell: Tell) -> None:
        """Have `tell` called whenever one of these keys changes (`None`: any key).

        It takes the place of the watch before. It ends with the connection, and says so; a change
        may be told more than once.
        """

    async def close(self) -> None:
        """Drop the connection, and with it the watch."""


class EtcdStreams:
    """`StoreStreams` on etcd v3; every key lies under `prefix`.

    A failed call drops the connection, and the next one tries the next endpoint.
    """

    def __init__(self, address: EtcdAddress, prefix: str, *, timeout_s: float = 1.0) -> None:
        self.address = address
        self.prefix = prefix.rstrip("/") + "/"
        self.timeout_s = timeout_s
        self._endpoints = Endpoints(address.endpoints)
        self._turn = asyncio.Lock()  # one question at a time: answers have no names
        self._channel: Any = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._heartbeats: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def keep_alive(self, lease: int) -> bool:
        from etcd3 import etcdrpc  # noqa: PLC0415  (gRPC's threads start with its import)

        async def renew() -> bool:
            if self._heartbeats is None:
                stub = etcdrpc.LeaseStub(self._channel)
                self._heartbeats = stub.LeaseKeepAlive(metadata=self._metadata)
            await self._heartbeats.write(etcdrpc.LeaseKeepAliveRequest(ID=lease))
            return bool((await self._heartbeats.read()).TTL > 0)

        return await self._call(renew)

    async def watch(self, keys: Sequence[str] | None, tell: Tell) -> None:
        from etcd3 import etcdrpc  # noqa: PLC0415
        from etcd3.utils import prefix_range_end  # noqa: PLC0415

        whole = self.prefix.encode()
        ranges = (
            [{"key": whole, "range_end": prefix_range_end(whole)}]
            if keys is None
            else [{"key": whole + key.encode()} for key in keys]
        )

        async def begin() -> Any:
            stream = etcdrpc.WatchStub(self._channel).Watch(metadata=self._metadata)
            for one in ranges:
                create = etcdrpc.WatchCreateRequest(**one)
                await stream.write(etcdrpc.WatchRequest(create_request=create))
            begun = 0
            while begun < len(ranges):
                answer = await stream.read()
                if answer.canceled:
                    raise ConnectionError(answer.cancel_reason)
                begun += answer.created
            return stream

        stream = await self._call(begin)
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(_listen(stream, tell))

    async def close(self) -> None:
        channel, self._channel, self._heartbeats = self._channel, None, None
        if channel is not None:
            await channel.close()  # watches end and say so

    async def _call(self, act: Callable[[], Awaitable[Result]]) -> Result:
        async with self._turn:
            try:
                async with asyncio.timeout(self.timeout_s):
                    if self._channel is None:
                        await self._connect(self._endpoints.next())
                    return await act()
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # this agent ends; else the connection was closed under the call
                await self.close()
                raise no_answer(self.address, self.timeout_s, error) from error

    async def _connect(self, endpoint: str) -> None:
        from etcd3 import etcdrpc  # noqa: PLC0415

        self._channel, self._metadata = _channel_to(endpoint, self.address), ()
        if self.address.user is not None:
            name, password = self.address.user, self.address.password
            login = etcdrpc.AuthenticateRequest(name=name, password=password)
            answer = await etcdrpc.AuthStub(self._channel).Authenticate(login)
            self._metadata = (("token", answer.token),)
        if self.address.is_followed:
            asked = etcdrpc.ClusterStub(self._channel)
            told = await asked.MemberList(etcdrpc.MemberListRequest(), metadata=self._metadata)
            self._endpoints.learn(client_endpoints(one.clientURLs for one in told.members))


def _channel_to(endpoint: str, address: EtcdAddress) -> Any:
    """A connection to one member, which begins with its first use."""
    import grpc.aio  # noqa: PLC0415

    target = endpoint.rpartition("//")[2]
    if (credentials := tls_credentials(address)) is None:
        return grpc.aio.insecure_channel(target, options=DIRECT)
    return grpc.aio.secure_channel(target, credentials, options=DIRECT)


async def _listen(stream: Any, tell: Tell) -> None:
    """Tell of every change until the watch ends, however it does."""
    import grpc.aio  # noqa: PLC0415

    try:
        while (answer := await stream.read()) is not grpc.aio.EOF and not answer.canceled:
            tell(has_ended=False)
    except grpc.RpcError:
        pass  # the connection broke
    finally:
        tell(has_ended=True)
