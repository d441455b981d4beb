"""The order in which ZeRO 3 gathers the weights of modules, which it learns in two iterations.

Until it has, it gathers each module's weights when that computes, and ranks compare the order. So
all ranks have to learn it in the same iterations, or to know the same one.
"""

from typing import Any, Final

import xxhash

from gemini_lab.engine.ranks import gather

_ORDER: Final = "_PartitionedParameterCoordinator__submodule_order"
_BITS: Final = 63
_UNKNOWN: Final = 0


def is_known_to_all(coordinator: Any) -> bool:
    """Whether every rank has learned the same order; all call it together.

    Args:
        coordinator: DeepSpeed's `PartitionedParameterCoordinator`.
    """
    orders = {order for (order,) in gather([_order(coordinator)])}
    return len(orders) == 1 and orders != {_UNKNOWN}


def forget_order(coordinator: Any) -> None:
    """Have it learned anew, as by an engine that was just made."""
    if not coordinator.is_invalid_trace():
        coordinator._invalidate_trace()  # noqa: SLF001 - as it does itself


def _order(coordinator: Any) -> int:
    """A checksum of the order; `_UNKNOWN` before it is learned, or where DeepSpeed hides it."""
    modules = getattr(coordinator, _ORDER, ())
    if not modules or not coordinator.is_complete_trace():
        return _UNKNOWN
    seen = repr([module.ds_id for module in modules]).encode()
    return xxhash.xxh3_64_intdigest(seen) >> (64 - _BITS) or 1
