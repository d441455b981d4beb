"""Asking the lab of a live run to act, from another process: what `gemini-lab inject` does.

A file in the run's folder, which its owner alone can read, tells where the lab listens and what
proves the asker. It is gone when the run is over.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Final, Self

import msgspec

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.lab.loop import LoopThread
from gemini_lab.recovery.messages import (
    ControlHello,
    Done,
    GiveUpProgress,
    InjectFailure,
    Message,
    Refused,
    StopRun,
)
from gemini_lab.wire.tcp import Channel, connect, serve

Request = StopRun | GiveUpProgress | InjectFailure

CONTROL_FILE: Final = "control.json"
"""The file in a live run's folder."""
ANSWER_S: Final = 5.0
LISTEN_S: Final = 30.0


class _Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says."""

    address: str
    token: str


class ControlServer:
    """Carries out requests for the run under way, for as long as the `with` block lasts.

    Args:
        loop: Where it listens.
        act: Does what is asked, and says what it did.
    """

    def __init__(self, loop: LoopThread, act: Callable[[Request], str]) -> None:
        self._loop, self._act = loop, act
        self._token = token_hex(16)

    def __enter__(self) -> Self:
        self._server, port = self._loop.finish(
            serve("127.0.0.1", self._token, self._serve), timeout_s=LISTEN_S
        )
        self._way = _Way(address=f"127.0.0.1:{port}", token=self._token)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._server.close)

    def open_to(self, folder: Path) -> None:
        """Leave the way to this lab in a run's folder, for its owner alone."""
        path = folder / CONTROL_FILE
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self._way))

    async def _serve(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            channel.send(self._answer(message))

    def _answer(self, message: Message) -> Message:
        try:
            if isinstance(message, Request):
                return Done(text=self._act(message))
            raise ConfigError(f"a lab cannot be asked for {type(message).__name__}")
        except GeminiError as error:
            return Refused.of(error)


def close_control(folder: Path) -> None:
    """Take the way to the lab out of a run's folder: the run is over."""
    (folder / CONTROL_FILE).unlink(missing_ok=True)


def ask(folder: Path, request: Request) -> str:
    """Have the lab of the live run in `folder` do something; returns what it did.

    Raises:
        ConfigError: No live run is there, or the lab refuses.
    """
    try:
        way = msgspec.json.decode((folder / CONTROL_FILE).read_bytes(), type=_Way)
        answer = asyncio.run(_ask(way, request))
    except (OSError, EOFError, TimeoutError) as error:
        raise ConfigError(
            f"no live run is in {folder} ({type(error).__name__}); give the folder of one that is "
            "under way"
        ) from error
    match answer:
        case Done():
            return answer.text
        case Refused():
            raise answer.to_error()
    raise ConfigError(f"the lab of {folder} is closing")


async def _ask(way: _Way, request: Request) -> Message | None:
    channel = await connect(way.address, way.token, ControlHello(), timeout_s=ANSWER_S)
    channel.send(request)
    answer = await asyncio.wait_for(channel.receive(), ANSWER_S)
    channel.close()
    return answer
