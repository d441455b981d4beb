"""Placement on nodes with different amounts of memory for checkpoints."""

from collections.abc import Mapping, Sequence
from typing import Final

from gemini_lab.errors import CapacityError, ConfigError, shown
from gemini_lab.units import check_number, format_bytes

BUFFERS: Final = 2
"""A kept shard takes the complete version and the one being written (paper, section 7.1)."""


def shards_that_fit(
    *, nodes: int, memory_bytes: Sequence[int] | None, shard_bytes: int | None
) -> tuple[int, ...]:
    """Return how many shards each node has room for.

    Raises:
        ConfigError: One of the two is missing, or they do not fit the number of nodes.
        CapacityError: A node has no room for its own shard.
    """
    if memory_bytes is None or shard_bytes is None:
        raise ConfigError("`memory_bytes` and `shard_bytes` are read together; give both")
    if len(memory_bytes) != nodes or shard_bytes < 1:
        raise ConfigError(
            f"give {nodes} values of `memory_bytes` and a `shard_bytes` of at least 1 "
            f"(got {len(memory_bytes)} values, shard_bytes={shown(shard_bytes)})"
        )
    for name, value in (("shard_bytes", shard_bytes), *(("memory_bytes", m) for m in memory_bytes)):
        check_number(name, value, is_whole=True)
    fits = tuple(room // (BUFFERS * shard_bytes) for room in memory_bytes)
    if min(fits) < 1:
        node = fits.index(min(fits))
        raise CapacityError(
            f"node {node} has {format_bytes(memory_bytes[node])} for checkpoints, but its own "
            f"shard needs {format_bytes(BUFFERS * shard_bytes)} ({BUFFERS} buffers of "
            f"{format_bytes(shard_bytes)}); give it more memory or use more nodes"
        )
    return fits


def seat_guests(
    # Of the shards of the nodes in `groups`, each of which keeps m shards already.
    holders: Mapping[int, tuple[int, ...]],
    *,
    groups: Sequence[Sequence[int]],  # nodes with room for m shards or more
    fits: Sequence[int],  # room of every node, in shards
    replicas: int,  # copies of each shard, m
    racks: Sequence[str] | None,  # A guest prefers hosts outside its own rack
) -> tuple[tuple[int, ...], ...] | None:
    """Return the holders of all shards; a node without a group puts its copies into one group.

    Returns:
        Holders by node, owner first; `None` if no group has room left for some guest.
    """
    left = [count - replicas for count in fits]
    seated = dict(holders)
    for guest in range(len(fits)):
        if guest in seated:
            continue
        offers = []
        for group in groups:
            hosts = sorted(
                (racks is not None and racks[node] == racks[guest], -left[node], node)
                for node in group
                if left[node] > 0
            )[: replicas - 1]
            if len(hosts) == replicas - 1:
                offers.append(([near for near, _, _ in hosts], hosts))
        if not offers:
            return None
        _, hosts = min(offers)
        for _, _, node in hosts:
            left[node] -= 1
        seated[guest] = (guest, *(node for _, _, node in hosts))
    return tuple(seated[node] for node in range(len(fits)))


def fill_by_capacity(
    *, fits: Sequence[int], replicas: int, racks: Sequence[str] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the holders of each shard, owner first; node i keeps at most `fits[i]` shards.

    Shard by shard, the nodes with most room left take the copies; among equals those whose own
    shard still waits for its holders, then those in other racks. Taking from the fullest room finds
    a placement whenever there is one (as in Kleitman and Wang's construction of digraphs). Its time
    grows with N^2 log N.

    Raises:
        CapacityError: No placement fits.
    """
    nodes = len(fits)
    if replicas > nodes:
        raise ConfigError(f"replicas={replicas} needs at least {replicas} nodes (got {nodes})")
    left = [count - 1 for count in fits]
    holders: list[tuple[int, ...]] = []
    for owner in range(nodes):

        def preference(node: int, owner: int = owner) -> tuple[int, bool, bool, int]:
            near = racks is not None and racks[node] == racks[owner]
            return (-left[node], node < owner, near, node)

        others = sorted((node for node in range(nodes) if node != owner), key=preference)
        chosen = others[: replicas - 1]
        if any(left[node] < 1 for node in chosen):
            raise CapacityError(
                f"{replicas} replicas of {nodes} shards need room for {replicas * nodes}, on "
                f"{replicas} different nodes each; the nodes have room for {sum(fits)} "
                f"({min(fits)} to {max(fits)} each); lower `replicas` or add memory"
            )
        for node in chosen:
            left[node] -= 1
        holders.append((owner, *chosen))
    return tuple(holders)
