"""What a node has for a recovery: copies in memory, the persistent tier's list, its workers' words.

To read all that takes minutes, for which no fence waits.
"""

import asyncio
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.keeper import MemoryKeeper
from gemini_lab.node.remembered import Remembered
from gemini_lab.recovery.messages import Inventory, ListVersions, TakeInventory, VersionsListed

STORAGE_S: Final = 30.0  # for the persistent tier to say which versions it has


async def take_inventory(
    order: TakeInventory, *, keeper: MemoryKeeper, bulk: BulkProcesses, remembered: Remembered
) -> Inventory:
    """What this node has of the run that `order` names.

    Args:
        order: The root agent's.
        keeper: Has the node's memory.
        bulk: Asks the persistent tier.
        remembered: What the node's workers said.

    Raises:
        GeminiError: The memory cannot be read.
        OSError: The same.
    """
    found = await keeper.inventory(order.run)
    stored, unread = VersionsListed(), ""
    if order.persistent_url is not None:
        stored, unread = await _stored_versions(bulk, order.persistent_url)
    is_asked = order.asks_settings and (found.copies or found.damaged)
    return Inventory(
        epoch=order.epoch,
        copies=found.copies,
        damaged=found.damaged,
        persistent=stored.versions,
        unclear=stored.unclear,
        unread=unread,
        disowned=stored.disowned,
        left=[*remembered.left],
        iterations=remembered.iterations(order.run),
        protected=remembered.protected if is_asked else None,
        code=remembered.code(order.run),
    )


async def _stored_versions(bulk: BulkProcesses, url: str) -> tuple[VersionsListed, str]:
    """What the persistent tier has, or why it cannot be read: that is not the same as empty."""
    try:
        async with asyncio.timeout(STORAGE_S):
            answer, _ = await bulk.ask(ListVersions(url=url), VersionsListed)
    except TimeoutError:
        return VersionsListed(), f"it did not answer within {STORAGE_S:.0f} s"
    except (GeminiError, OSError) as error:
        return VersionsListed(), str(error)
    return answer, ""
