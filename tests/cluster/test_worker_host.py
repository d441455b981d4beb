"""The agent's side of the warm parent: every question gets its answer."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gemini_lab.node.host import ANSWER_S, CLOSE_S, WorkerHost

PATIENCE_S = 120.0


@asynccontextmanager
async def a_host(notes: list[str], answer_s: float = ANSWER_S) -> AsyncIterator[WorkerHost]:
    host = WorkerHost(
        warm=False,
        on_message=lambda *_: None,
        on_output=lambda *_: None,
        on_exit=lambda *_: None,
        on_note=notes.append,
        answer_s=answer_s,
    )
    try:
        yield host
    finally:
        host.close()


def test_two_questions_of_the_same_epoch_are_both_answered():
    """An agent is told to fence by the root, and by the state in the store, at the same time."""

    async def ask_twice() -> list[int]:
        async with a_host([]) as host:
            both = (host.hold_port(host="127.0.0.1", epoch=8) for _ in range(2))
            return await asyncio.wait_for(asyncio.gather(*both), PATIENCE_S)

    first, second = asyncio.run(ask_twice())
    assert first > 0
    assert second > 0


def test_a_warm_parent_that_stands_still_is_replaced_aloud():
    notes: list[str] = []

    async def ask() -> int:
        async with a_host(notes, answer_s=1.0) as host:
            await host.ready()
            host.signal_all(signal.SIGSTOP)
            return await asyncio.wait_for(host.hold_port(host="127.0.0.1", epoch=8), PATIENCE_S)

    assert asyncio.run(ask()) > 0
    (told,) = notes
    assert "does not answer: it is ended with its workers" in told


def test_an_agent_ends_though_its_warm_parent_stands_still():
    async def leave() -> None:
        async with a_host([]) as host:
            await host.ready()
            host.signal_all(signal.SIGSTOP)

    began_s = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began_s < CLOSE_S + PATIENCE_S
