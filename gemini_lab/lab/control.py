"""Asking the owner of a live run to act, or for its log, from another process.

A file in the run's folder, which its user alone can read, tells where the owner listens and what
proves the asker. It is gone when the run is over.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol, Self

import msgspec

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.lab.loop import LoopThread
from gemini_lab.limits import read_bytes
from gemini_lab.recovery.messages import (
    Ask,
    ControlHello,
    DescribeRun,
    Done,
    FollowLog,
    InjectFailure,
    LogSaid,
    Message,
    OutputSaid,
    Refused,
    RunDescribed,
    TakeStacks,
)
from gemini_lab.recovery.requests import AnyRequest
from gemini_lab.wire.tcp import Channel, connect, serve

Asked = Ask | InjectFailure | TakeStacks
"""What a command has a lab do to the run under way."""
CONTROL_FILE: Final = "control.json"
"""The file in a live run's folder."""
ANSWER_S: Final = 5.0
LISTEN_S: Final = 30.0
LISTENS_S: Final = 1.0
LOOK_S: Final = 0.1
BLOCK_BYTES: Final = 1 << 20


class OwnerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way to a run's owner: what the file says."""

    address: str
    token: str


class LoggedRun(Protocol):
    """A run with a log, and listeners to what its workers print: a `Run`."""

    log: Path

    def describe(self) -> RunDescribed:
        """Return how it is now."""

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints; gives what ends this."""


class RunGoneError(ConfigError):
    """The run is over."""


class OwnerAwayError(ConfigError):
    """The run has no owner at this moment: it begins, or its owner was lost with its machine."""


class ControlServer:
    """Carries out requests for the run under way, for as long as the `with` block lasts."""

    def __init__(
        self,
        loop: LoopThread,  # where it listens
        act: Callable[[Asked], str],  # does what is asked, and says what it did
        # The run whose log is sent to those who follow it, and that is described.
        newest: Callable[[], LoggedRun | None],
        *,
        host: str = "127.0.0.1",  # the address on which it listens
        token: str = "",  # what proves the asker; by default a new one
    ) -> None:
        self._loop, self._act, self._newest, self._host = loop, act, newest, host
        self._token = token or token_hex(16)
        self._channels: set[Channel] = set()
        self._followers = 0

    def __enter__(self) -> Self:
        self._server, port = self._loop.finish(
            serve(self._host, self._token, self._serve), timeout_s=LISTEN_S
        )
        self.address = f"{self._host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.finish(self._hang_up(), timeout_s=LISTEN_S)

    async def _hang_up(self) -> None:
        self._server.close()
        for channel in self._channels:
            channel.close()
        await asyncio.sleep(0)  # for the connections to be closed before the loop ends

    def open_to(self, folder: Path) -> None:
        """Leave the way to this lab in a run's folder, for its user alone."""
        write_secret(folder / CONTROL_FILE, OwnerAddress(address=self.address, token=self._token))

    def see_off(self, timeout_s: float) -> None:
        """Wait until those who follow the log have hung up, but not longer than `timeout_s`."""
        give_up_s = time.monotonic() + timeout_s
        while self._followers and time.monotonic() < give_up_s:
            time.sleep(LOOK_S)

    async def _serve(self, channel: Channel) -> None:
        self._channels.add(channel)
        try:
            while (message := await channel.receive()) is not None:
                run = self._newest()
                if isinstance(message, FollowLog) and run is not None:
                    await self._send_log(channel, run, message.from_bytes)
                elif isinstance(message, DescribeRun) and run is not None:
                    channel.send(run.describe())
                else:
                    channel.send(self._answer(message))
        finally:
            self._channels.discard(channel)

    async def _send_log(self, channel: Channel, run: LoggedRun, from_bytes: int) -> None:
        """Send whole lines as they come, until the follower hangs up."""
        self._followers += 1
        forget = run.listen(
            lambda rank, lines: channel.send(OutputSaid(rank=rank, epoch=0, lines=lines))
        )
        gone = asyncio.ensure_future(channel.receive())
        was_more = True
        try:
            while not gone.done():
                lines = read_lines(run.log, from_bytes)
                from_bytes += len(lines)
                if lines or was_more:  # that there is no more for now is told once
                    channel.send(LogSaid(lines=lines.decode()))
                    await channel.drain()
                if not lines:
                    await asyncio.wait([gone], timeout=LOOK_S)
                was_more = bool(lines)
        finally:
            gone.cancel()
            forget()
            self._followers -= 1

    def _answer(self, message: Message) -> Message:
        try:
            if isinstance(message, Asked):
                return Done(text=self._act(message))
            raise ConfigError(f"a lab cannot be asked for {type(message).__name__}")
        except GeminiError as error:
            return Refused.of(error)


def close_control(folder: Path) -> None:
    """Take the way to the lab out of a run's folder: the run is over."""
    (folder / CONTROL_FILE).unlink(missing_ok=True)


def read_lines(log: Path, from_bytes: int) -> bytes:
    """Return the next whole lines of a log from a byte on, a megabyte at most."""
    with log.open("rb") as file:
        file.seek(from_bytes)
        block = file.read(BLOCK_BYTES)
        if len(block) == BLOCK_BYTES and b"\n" not in block:
            block += file.readline()
    return block[: block.rfind(b"\n") + 1]


def write_secret(path: Path, value: msgspec.Struct) -> None:
    """Write what only this user may read, in one go.

    Raises:
        OSError: The disk does not take it; nothing of it is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        draft.write_bytes(msgspec.json.encode(value))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def way_in(folder: Path) -> OwnerAddress:
    """Return the way to the owner of the live run in `folder`.

    Raises:
        RunGoneError: No live run is there, or it is another user's.
    """
    try:
        return msgspec.json.decode(read_bytes(folder / CONTROL_FILE), type=OwnerAddress)
    except FileNotFoundError as error:
        raise RunGoneError(
            f"no live run is in {folder}: it has finished, or its owner is gone; `gemini-lab "
            f"status {folder}` shows its last state"
        ) from error
    except OSError as error:
        raise RunGoneError(
            f"no live run is in {folder} ({error.strerror}); give the folder of one that is under "
            "way"
        ) from error


def owner_listens(way: OwnerAddress) -> bool:
    """Return whether an owner listens there, as far as is seen: a killed one leaves its file."""
    host, _, port = way.address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LISTENS_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass
    return True


def ask(folder: Path, request: AnyRequest | InjectFailure | TakeStacks) -> str:
    """Send a request to the lab of the live run in `folder`; return the answer.

    Raises:
        ConfigError: No live run is there, or the lab refuses.
    """
    return ask_by(way_in(folder), request)


def ask_by(way: OwnerAddress, request: AnyRequest | InjectFailure | TakeStacks) -> str:
    """Send a request to the owner at this address; return the answer.

    Raises:
        ConfigError: No owner answers there, or it refuses.
    """
    asked = request if isinstance(request, Message) else Ask(request=request)
    match _answer_to(way, asked):
        case Done(text=text):
            return text
        case Refused() as refused:
            raise refused.to_error()
    raise ConfigError(f"the lab at {way.address} is closing")


def described(way: OwnerAddress) -> RunDescribed | None:
    """Return how the run is whose owner is at the end of `way`; `None` if it does not tell.

    Raises:
        ConfigError: No owner answers there.
    """
    answer = _answer_to(way, DescribeRun())
    return answer if isinstance(answer, RunDescribed) else None


def _answer_to(way: OwnerAddress, request: Message) -> Message | None:
    try:
        return asyncio.run(_ask(way, request))
    except (OSError, EOFError, TimeoutError) as error:
        raise ConfigError(
            f"no live run's owner answers at {way.address} ({type(error).__name__}); is the run "
            "over, or its owner being replaced? try again in some seconds"
        ) from error


async def _ask(way: OwnerAddress, request: Message) -> Message | None:
    channel = await connect(way.address, way.token, ControlHello(), timeout_s=ANSWER_S)
    channel.send(request)
    async with asyncio.timeout(ANSWER_S):
        answer = await channel.receive()
    channel.close()
    return answer
