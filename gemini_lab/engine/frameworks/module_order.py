"""The order in which ZeRO 3 gathers the weights of modules, which it learns in two iterations.

Until it has, it gathers each module's weights when that computes, and ranks compare the order. So
all ranks have to learn it in the same iterations, or to know the same one.
"""

from typing import Any, Final

import xxhash

_MODULES: Final = "_PartitionedParameterCoordinator__submodule_order"


def checksum(coordinator: Any) -> int:
    """A checksum of the order, of 63 bits; 0 before it is learned, or where DeepSpeed hides it.

    Args:
        coordinator: DeepSpeed's `PartitionedParameterCoordinator`.
    """
    modules = getattr(coordinator, _MODULES, ())
    if not modules or not coordinator.is_complete_trace():
        return 0
    seen = repr([module.ds_id for module in modules]).encode()
    return xxhash.xxh3_64_intdigest(seen) >> 1 or 1


def forget(coordinator: Any) -> None:
    """Have it learned anew, as by an engine that was just made."""
    if not coordinator.is_invalid_trace():
        coordinator._invalidate_trace()  # noqa: SLF001 - as it does itself
