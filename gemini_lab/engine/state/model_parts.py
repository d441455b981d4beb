"""Which weights and parts a model had at first: a start after a failure makes it with these."""

from collections.abc import Collection
from itertools import islice
from typing import Final

from torch import nn

from gemini_lab.engine.frameworks.sharding import is_dtensor
from gemini_lab.errors import UnsupportedError

_SHOWN: Final = 3


class ModelParts:
    """A model's weights, and its parts that have persistent buffers, as they are now.

    A buffer may come later, to a part that is there: a version puts it back by its name.

    Args:
        module: The model, without what wraps it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._weights = dict(module.named_parameters())
        self._parts = {name for name, _ in module.named_modules()}
        self._with_buffers = _parts_with_buffers(module)

    def require_same(self) -> None:
        """Refuse a model of other parts.

        Raises:
            UnsupportedError: It has others; names them.
        """
        weights = dict(self._module.named_parameters())
        if not _are_same(self._weights, weights):
            new = [name for name, one in weights.items() if not self._had(name, one)]
            raise _refusal("weights", new, self._weights.keys() - weights.keys())
        with_buffers = _parts_with_buffers(self._module)
        added, gone = with_buffers - self._parts, self._with_buffers - with_buffers
        if added or gone:
            raise _refusal("parts with buffers", added, gone)

    def _had(self, name: str, weight: nn.Parameter) -> bool:
        return name in self._weights and _is_same(self._weights[name], weight)


def _are_same(then: dict[str, nn.Parameter], now: dict[str, nn.Parameter]) -> bool:
    """Whether these are the same weights in the same order, by the same names in their parts.

    The parts' own names do not count: `torch.compile` of a part, say, changes them alone.
    """
    return len(then) == len(now) and all(
        name.rpartition(".")[2] == name_now.rpartition(".")[2] and _is_same(one, one_now)
        for (name, one), (name_now, one_now) in zip(then.items(), now.items(), strict=True)
    )


def _is_same(then: nn.Parameter, now: nn.Parameter) -> bool:
    """FSDP2 may have a whole weight stand for its shard, after it computed without gradients."""
    return then is now or is_dtensor(then)


def _parts_with_buffers(module: nn.Module) -> set[str]:
    """By name; also those whose buffers are made, or left out, when they compute."""
    return {
        name
        for name, part in module.named_modules()
        if part._buffers.keys() - part._non_persistent_buffers_set  # noqa: SLF001 - torch's own way
    }


def _refusal(of: str, new: Collection[str], gone: Collection[str]) -> UnsupportedError:
    found = [
        f"{word} {of} {_few(names)}" for word, names in (("has new", new), ("lost", gone)) if names
    ]
    return UnsupportedError(
        f"since `protect` was called, the model {' and '.join(found)}; parts that are added, "
        "replaced or removed while it trains do not come back after a failure: make them all "
        "before `protect`, where what begins later may be frozen until then"
    )


def _few(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in islice(sorted(names), _SHOWN))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
