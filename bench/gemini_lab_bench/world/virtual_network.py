"""TCP between simulated machines: delays, cuts in one or both directions, resets."""

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gemini_lab_bench.world.virtual_loop import VirtualLoop, VirtualProcess, this_process

HIGH_BYTES: Final = 64 * 2**10
"""Of what a receiver has not taken, before its sender is told to pause."""
SYN_S: Final = 127.0
"""In which Linux gives up a connection that nothing answers."""
RESETS: Final = ("at once", "in a frame", "after all has arrived", "at one end")
"""How a connection breaks. In a frame: half of what was on its way arrives. After all has
arrived: its sender does not know, and says it again. At one end: the other learns of it when it
writes, or when its kernel next asks whether the connection is alive."""


@dataclass(eq=False, slots=True)
class NetworkHost:
    """A machine as the network sees it."""

    name: str
    ip: str
    has_power: bool = True  # whether its kernel answers; without, packets to it vanish
    refuses: bool = False  # whether a firewall refuses connections to it
    opens: bool = True  # whether a descriptor is left with which to open a connection
    ports: dict[int, "_Server"] = field(default_factory=dict)  # who listens where
    next_port: int = 20000


class VirtualNetwork:
    """All connections between simulated machines.

    Args:
        loop: The world's.
        rng: Draws delays.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.hosts: dict[str, NetworkHost] = {}  # by address
        self.place_of: dict[VirtualProcess, NetworkHost] = {}
        self.slow_s = 0.0  # the most that a message takes longer than usual
        # Called with all that is written: who writes, to whom, and what.
        self.on_write: Callable[[VirtualProcess, VirtualProcess, bytes], object] | None = None
        self._cut: set[tuple[str, str]] = set()  # names, from and to
        self._ends: dict[_End, None] = {}  # in the order in which they were opened

    def add(self, name: str) -> NetworkHost:
        """Return a new machine."""
        host = NetworkHost(name=name, ip=f"10.0.0.{len(self.hosts) + 1}")
        self.hosts[host.ip] = host
        return host

    def is_open(self, sender: NetworkHost, receiver: NetworkHost) -> bool:
        """Return whether a packet arrives."""
        if not (sender.has_power and receiver.has_power):
            return False
        return sender is receiver or (sender.name, receiver.name) not in self._cut

    def is_linked(self, one: NetworkHost, other: NetworkHost) -> bool:
        """Return whether packets arrive in both directions."""
        return self.is_open(one, other) and self.is_open(other, one)

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all that goes from one machine to another."""
        self._cut.add((sender, receiver))
        self._note_silence()

    def mend(self, *names: str) -> None:
        """Carry packets again that go from or to these machines; without names, all."""
        self._cut = {c for c in self._cut if names and not {*names} & {*c}}
        for end in list(self._ends):
            end.push()

    def mend_among(self, name: str, others: set[str]) -> None:
        """Carry packets again between a machine and some others."""
        self._cut = {c for c in self._cut if not (name in c and {*c} <= others)}
        for end in list(self._ends):
            end.push()

    def power_off(self, host: NetworkHost) -> None:
        """Take a machine's power: nobody is told."""
        host.has_power = False
        self._note_silence()

    def close_all(self, process: VirtualProcess) -> None:
        """Close the connections and ports of a killed process, as its kernel does."""
        host = self.place_of[process]
        host.ports = {n: one for n, one in host.ports.items() if one.process is not process}
        for end in [one for one in self._ends if one.process is process]:
            end.vanish()

    def reset(self, first: str, second: str, how: str = RESETS[0]) -> None:
        """Break all connections between two machines, as a firewall that forgets them does.

        Args:
            first: A machine; its end breaks alone if one end is to.
            second: Another one.
            how: One of `RESETS`.
        """
        ends = [
            one for one in self._ends if {one.host.name, one.other.host.name} == {first, second}
        ]
        if how in RESETS[1:3]:
            for end in ends:
                end.flush(is_cut=how == RESETS[1])
        for end in ends:
            if how != RESETS[3] or end.host.name == first:
                error = ConnectionResetError(errno.ECONNRESET, "reset")
                self.loop.soon(end.process, end.fail, error)
            else:
                end.ask_if_alive()

    def delay_s(self) -> float:
        """Return how long a packet takes."""
        usual_s = 0.0002 + 0.002 * self.rng.random()
        return usual_s + (self.slow_s * self.rng.random() if self.slow_s else 0.0)

    # -- what a loop asks ------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.Protocol], ip: str, port: int) -> "_Server":
        """Return what listens at an address of the process that calls."""
        process = this_process()
        assert process is not None
        host = self.place_of[process]
        assert host.ip == ip, f"{process.name} listens on {ip}"
        if not port:
            host.next_port += 1
            port = host.next_port
        server = host.ports[port] = _Server(self, process, host, port, factory)
        return server

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], ip: str, port: int
    ) -> "tuple[_End, asyncio.Protocol]":
        """Open a connection from the machine of the process that calls.

        Raises:
            ConnectionRefusedError: Nothing listens there.
            TimeoutError: Nothing answers.
            OSError: The machine has no descriptor left.
        """
        process = this_process()
        assert process is not None
        here, there = self.place_of[process], self.hosts[ip]
        if not here.opens:
            raise OSError(errno.EMFILE, "Too many open files")
        began_s = self.loop.time()
        while not (self.is_open(here, there) and self.is_open(there, here)):
            if self.loop.time() - began_s > SYN_S:
                raise TimeoutError(errno.ETIMEDOUT, "nothing answers")
            await asyncio.sleep(1.0)  # the kernel asks again
        await asyncio.sleep(self.delay_s())
        server = there.ports.get(port)
        if server is None or server.process.is_gone or (there.refuses and here is not there):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
        ours, theirs = _End(self, process, here), _End(self, server.process, there)
        ours.other, theirs.other = theirs, ours
        self._ends |= {ours: None, theirs: None}
        ours.protocol = factory()
        ours.protocol.connection_made(ours)
        self.loop.soon(server.process, theirs.accept, server.factory)
        return ours, ours.protocol

    def forget(self, end: "_End") -> None:
        """Note that an end is closed."""
        self._ends.pop(end, None)

    def _note_silence(self) -> None:
        for end in list(self._ends):
            end.watch_silence()


class _Server:
    """What listens on a port."""

    def __init__(
        self,
        network: VirtualNetwork,
        process: VirtualProcess,
        host: NetworkHost,
        port: int,
        factory: Callable[[], asyncio.Protocol],
    ) -> None:
        self.process, self.factory = process, factory
        self._host, self._port = host, port
        self.sockets = [self]
        del network

    def getsockname(self) -> tuple[str, int]:
        return self._host.ip, self._port

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._host.ports.pop(self._port, None)


class _End(asyncio.Transport):
    """One end of a connection."""

    other: "_End"

    def __init__(self, network: VirtualNetwork, process: VirtualProcess, host: NetworkHost) -> None:
        super().__init__()
        self.process, self.host = process, host
        self.protocol: Any = None
        self._network = network
        self._queue: deque[bytes | None] = deque()  # on its way; `None`: the end of the stream
        self._waiting_bytes = 0  # sent, and not taken by the other end's process
        self._is_paused = self._is_closing = self._is_lost = self._has_ended = False
        self._arrives_s = 0.0
        self._silent_limit_s: float | None = None
        self._silent_since_s: float | None = None

    # -- what asyncio asks -----------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Note after how much silence the kernel is to break this connection."""
        if level == socket.IPPROTO_TCP and option == socket.TCP_USER_TIMEOUT:
            if self._is_lost:
                raise OSError(errno.EINVAL, "not connected")
            self._silent_limit_s = value / 1000
            self.watch_silence()

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """Go on: a reader that pauses takes what is on its way."""

    def resume_reading(self) -> None:
        """Go on."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if self.other._is_closing and not self.other._queue and self._hears():  # noqa: SLF001
            # The other kernel answers data for a closed end with a reset.
            reset = ConnectionResetError(errno.ECONNRESET, "the other end is closed")
            self._network.loop.after(self._network.delay_s(), self.fail, reset)
        self._waiting_bytes += len(data)
        self._queue.append(frame := bytes(data))
        if self._network.on_write is not None:
            self._network.on_write(self.process, self.other.process, frame)
        if self._waiting_bytes > HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()
        self.push()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._queue.append(None)
            self.push()
            self._lose(None)

    def abort(self) -> None:
        self.fail(None)
        if self._hears():
            self.other.fail(ConnectionResetError(errno.ECONNRESET, "aborted"))

    # -- the way ---------------------------------------------------------------------------------

    def accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Begin, at the listener's end."""
        self.protocol = factory()
        self.protocol.connection_made(self)

    def push(self) -> None:
        """Have the first message that waits arrive later, if the way is open."""
        if self._queue and self._arrives_s <= self._network.loop.time() and self._hears():
            self._arrives_s = self._network.loop.time() + self._network.delay_s()
            self._network.loop.after(
                self._arrives_s - self._network.loop.time(), self._arrive, self._arrives_s
            )

    def _arrive(self, due_s: float) -> None:
        if due_s != self._arrives_s:
            return
        self._arrives_s = 0.0
        if self._queue and self._hears():  # else it is sent again once the way is open
            if self._network.slow_s and len(first := self._queue[0] or b"") > 1:
                self._queue[0] = first[: len(first) // 2]  # a slow way carries a frame in parts
                self._queue.insert(1, first[len(first) // 2 :])
                self._give()
                self.push()
                return
            self.flush()
            if self._is_lost:
                self._network.forget(self)

    def flush(self, *, is_cut: bool = False) -> None:
        """Have all that is on its way arrive, if the way is open.

        Args:
            is_cut: Whether half of the first part arrives, and nothing more.
        """
        if is_cut and self._queue:
            self._queue = deque([(self._queue[0] or b"")[: len(self._queue[0] or b"") // 2]])
        while self._queue and self._hears():  # what was written together arrives together
            self._give()

    def _give(self) -> None:
        self._network.loop.soon(self.other.process, self.other.take, self._queue.popleft())

    def _hears(self) -> bool:
        return self._network.is_open(self.host, self.other.host)

    def take(self, data: bytes | None) -> None:
        """Receive what the other end has sent, in this end's process."""
        if data is not None:
            self.other._took(len(data))  # noqa: SLF001
        if self._is_lost or self._has_ended:
            return
        if data is not None:
            self.protocol.data_received(data)
            return
        self._has_ended = True
        if not self.protocol.eof_received():
            self.close()

    def _took(self, size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        if self._is_paused and self._waiting_bytes <= HIGH_BYTES // 4 and not self._is_lost:
            self._is_paused = False
            self._network.loop.soon(self.process, self._resume)

    def _resume(self) -> None:
        if not self._is_lost:
            self.protocol.resume_writing()

    # -- its end ---------------------------------------------------------------------------------

    def fail(self, error: Exception | None) -> None:
        """Break at this end."""
        if not self._is_lost:
            self._is_closing = True
            self._queue.clear()
            self._lose(error)

    def vanish(self) -> None:
        """Close as the kernel does for a killed process: its other end hears of it if it can."""
        self._is_lost = self._is_closing = True
        self._queue.append(None)
        self.push()

    def _lose(self, error: Exception | None) -> None:
        self._is_lost = True
        if self.protocol is not None:
            self._network.loop.soon(self.process, self.protocol.connection_lost, error)
        if not self._queue:
            self._network.forget(self)

    def ask_if_alive(self) -> None:
        """Break when the kernel next asks the other end, which is gone: see `break_after`."""
        if self._silent_limit_s is not None:
            reset = ConnectionResetError(errno.ECONNRESET, "the other end is gone")
            self._network.loop.after(self._silent_limit_s / 2, self.fail, reset)

    def watch_silence(self) -> None:
        """Break after the limit, unless the other machine answers before."""
        is_silent = not (self._hears() and self._network.is_open(self.other.host, self.host))
        if self._silent_limit_s is None or self._is_lost or not is_silent:
            return
        if self._silent_since_s is None:
            self._silent_since_s = self._network.loop.time()
            self._network.loop.after(self._silent_limit_s, self._break_if_silent)

    def _break_if_silent(self) -> None:
        self._silent_since_s = None
        if not (self._hears() and self._network.is_open(self.other.host, self.host)):
            self.fail(TimeoutError(errno.ETIMEDOUT, "the other machine is silent"))
