"""The link of one node of a running job, found by all workers of the node."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from gemini_lab.transfer.link import LinkBucket


def node_link(
    *, job: str, node: str, bytes_per_s: float, barrier: Callable[[], None]
) -> LinkBucket:
    """The bucket that all workers of a node share; its file is gone when this returns.

    Args:
        job: What tells this job, and this start of it, from others on the machine, such as the
            address of its rendezvous.
        node: The node's name.
        bytes_per_s: The link's rate.
        barrier: Returns when every worker has come to it.

    Raises:
        ConfigError: The rate is not above zero.
    """
    name = "".join(c if c.isalnum() else "-" for c in f"gemini-link-{job}-{node}")
    path = Path(tempfile.gettempdir()) / name
    bucket = LinkBucket(path, bytes_per_s=bytes_per_s)
    barrier()
    path.unlink(missing_ok=True)
    return bucket


def own_link(bytes_per_s: float) -> LinkBucket:
    """A bucket that only this process uses, such as for the bus between device and CPU memory."""
    with tempfile.NamedTemporaryFile(prefix="gemini-bus-") as file:
        return LinkBucket(file.name, bytes_per_s=bytes_per_s)
