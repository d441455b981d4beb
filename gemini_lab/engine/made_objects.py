"""Registry of the modules, optimizers, schedules, scalers, loaders and stages of a script.

The constructor of its own class notes each. So what stands beside a protected engine is known, and
no training process is ever searched for it. The registry keeps nothing alive.
"""

import functools
import sys
from typing import Any, Final
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_KINDS: Final[tuple[type, ...]] = (
    nn.Module,
    torch.optim.Optimizer,
    GradScaler,
    _BaseDataLoaderIter,
)
"""Classes whose constructor every subclass has to call."""
_FREE_KINDS: Final[tuple[type, ...]] = (DataLoader, LRScheduler)
"""Classes with subclasses that do without it, such as StatefulDataLoader and SequentialLR."""
_FOLLOWED: Final = "_gemini_lab_is_followed"
_made: Final = WeakValueDictionary[int, Any]()
"""By identity, in the order in which they were made: a class need not have a hash."""


def made_objects() -> list[Any]:
    """Return the objects that were made since `follow_constructors`, and are still alive.

    The constructor of some may not have returned yet, or may have failed.
    """
    return [one for held in _made.valuerefs() if (one := held()) is not None]


def follow_constructors() -> None:
    """Note from now on what this process makes; a second call does nothing."""
    for kind in _KINDS:
        _follow(kind, "__init__")
    for copied in (nn.Module, torch.optim.Optimizer):
        _follow(copied, "__setstate__")
    for kind in _FREE_KINDS:
        _follow_with_subclasses(kind)
        if "__init_subclass__" not in vars(kind):
            _follow_later_subclasses(kind)


def _follow(kind: Any, name: str) -> None:
    """Wrap a method of a class, so that it notes its object when it is done."""
    method = vars(kind)[name]
    if hasattr(method, _FOLLOWED):
        return

    # Signatures stay readable: scripts ask those of optimizers and loaders for what they take.
    @functools.wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        # torch.compile traces constructors in a model's forward pass, and could not trace this.
        if not torch.compiler.is_compiling():
            # By identity and weakly: the registry keeps no model, batch or worker alive.
            _made[id(self)] = self
            _follow_imported()

    setattr(followed, _FOLLOWED, True)
    setattr(kind, name, followed)


def _follow_with_subclasses(kind: Any) -> None:
    if "__init__" in vars(kind):
        _follow(kind, "__init__")
    for one in type.__subclasses__(kind):
        _follow_with_subclasses(one)


def _follow_later_subclasses(kind: Any) -> None:
    """Do the same for classes that are defined, or imported, later."""

    def init_subclass(cls: Any, /, **options: Any) -> None:
        super(kind, cls).__init_subclass__(**options)
        _follow_with_subclasses(cls)

    kind.__init_subclass__ = classmethod(init_subclass)


_IMPORTED_LATE: Final = (
    # Accelerate's loaders, which wrap a DataLoader and are none, and the stages of a pipeline.
    ("accelerate.data_loader", "DataLoaderAdapter"),
    ("torch.distributed.pipelining.stage", "_PipelineStageBase"),
)


def _follow_imported() -> None:
    for module, name in _IMPORTED_LATE:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and not hasattr(kind.__init__, _FOLLOWED):
            _follow(kind, "__init__")
