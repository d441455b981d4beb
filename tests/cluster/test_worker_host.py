"""The agent's side of the warm parent: every question gets its answer."""

import asyncio

from gemini_lab.node.host import WorkerHost

PATIENCE_S = 120.0


def test_two_questions_of_the_same_epoch_are_both_answered():
    """An agent is told to fence by the root, and by the state in the store, at the same time."""

    async def ask_twice() -> list[int]:
        host = WorkerHost(
            warm=False,
            on_message=lambda *_: None,
            on_output=lambda *_: None,
            on_exit=lambda *_: None,
        )
        try:
            both = (host.hold_port(host="127.0.0.1", epoch=8) for _ in range(2))
            return await asyncio.wait_for(asyncio.gather(*both), PATIENCE_S)
        finally:
            host.close()

    first, second = asyncio.run(ask_twice())
    assert first > 0
    assert second > 0
