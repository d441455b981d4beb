"""The agent's side of the warm parent: every question gets its answer."""

import asyncio
import signal

from gemini_lab.node.host import WorkerHost

PATIENCE_S = 120.0


def a_host() -> WorkerHost:
    return WorkerHost(
        warm=False,
        on_message=lambda *_: None,
        on_output=lambda *_: None,
        on_exit=lambda *_: None,
    )


def test_two_questions_of_the_same_epoch_are_both_answered():
    """An agent is told to fence by the root, and by the state in the store, at the same time."""

    async def ask_twice() -> list[int]:
        host = a_host()
        try:
            both = (host.hold_port(host="127.0.0.1", epoch=8) for _ in range(2))
            return await asyncio.wait_for(asyncio.gather(*both), PATIENCE_S)
        finally:
            host.close()

    first, second = asyncio.run(ask_twice())
    assert first > 0
    assert second > 0


def test_a_question_that_its_warm_parent_did_not_live_to_answer_is_put_to_the_next():
    """Otherwise the agent waits for ever, and counts as one that hangs after a minute."""

    async def ask_a_dying_one() -> int:
        host = a_host()
        try:
            await host.ready()
            host.signal_all(signal.SIGSTOP)
            asking = asyncio.create_task(host.hold_port(host="127.0.0.1", epoch=8))
            await asyncio.sleep(0.1)  # it is asked, and does not answer
            host.signal_all(signal.SIGKILL)
            return await asyncio.wait_for(asking, PATIENCE_S)
        finally:
            host.close()

    assert asyncio.run(ask_a_dying_one()) > 0
