"""What the acting root agent says where it cannot act."""

import asyncio
from contextlib import suppress

from gemini_lab.log.events import Note
from gemini_lab.node.control_store import StoreFullError
from gemini_lab.node.membership import RootRecord
from gemini_lab.node.root_shell import RootShell


class FullStore:
    """A membership whose store takes nothing."""

    poll_s = 0.001

    def __init__(self) -> None:
        self.asked = 0

    async def write_as_root(self, _record, _values) -> bool:
        self.asked += 1
        raise StoreFullError("etcd takes nothing more")


def test_a_root_agent_says_once_that_the_store_takes_nothing_more():
    store, said = FullStore(), []

    async def act():
        shell = RootShell(
            membership=store,
            record=RootRecord(name="node-0", address="127.0.0.1:1", term=1),
            token="secret",
            emit=said.append,
            request_nodes=lambda _wanted, _reason: None,
        )
        acting = asyncio.create_task(shell.run())
        while store.asked < 3:
            await asyncio.sleep(0.001)
        acting.cancel()
        with suppress(asyncio.CancelledError):
            await acting

    asyncio.run(act())
    assert said == [Note(text="etcd takes nothing more; no failure is answered until then")]
