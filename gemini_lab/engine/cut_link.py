"""A link between two workers is cut, as an injected failure: both shut their ends of it.

On one machine all nodes have the same address, so a worker cannot tell by itself which of its
connections lead where. Each leaves its own ends' addresses with the job's store for the other.
"""

import json
from datetime import timedelta
from typing import Final

from gemini_lab.engine.standing import rendezvous_client
from gemini_lab.transfer.sockets import own_ends, shut_those_to

OTHER_S: Final = 10.0
"""For the other worker to say where its connections end."""


def cut_link(rendezvous: str, rank: int, other: int) -> int:
    """Shut this rank's connections to another one, which calls this as well.

    Args:
        rendezvous: Address of the job's store.
        rank: This one.
        other: The one at the link's other end.

    Returns:
        How many it shut; the other end may have been first.

    Raises:
        RuntimeError: The other rank does not say where its connections end, or the store is gone.
    """
    ours, theirs = own_ends(), _key(other, rank)  # without the connection that tells of them
    store = rendezvous_client(rendezvous)
    store.set(_key(rank, other), json.dumps(ours))
    store.wait([theirs], timedelta(seconds=OTHER_S))
    ends = json.loads(store.get(theirs))
    store.delete_key(theirs)  # another cut is told anew
    return shut_those_to(ends)


def _key(rank: int, other: int) -> str:
    return f"gemini_lab/link/{rank}/{other}"
