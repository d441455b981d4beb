"""DDP's buckets, in which gradients are added up: the same after a restart as before.

DDP adds up gradients in buckets, and lays these out anew once, in the order in which the first
iteration's gradients came. In which order an all-reduce adds an element up over the ranks depends
on where in a bucket it lies. So a job that restarts would compute one iteration in the buckets of
the start, and with more than two ranks its numbers would differ in their last bits. Therefore a
version keeps that order, and a job that restarts has DDP see it before its first iteration: with
gradients of zeros.

A script may compute gradients before `protect`, as a warm-up does. DDP has laid its buckets out
then, in the order of those gradients, and each start of the script has it do so again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gemini_lab.engine.private_names import require

_READ: Final = (
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_comm_hooks",
    "_ddp_init_helper",
    "_get_ddp_logging_data",
    "_has_rebuilt_buckets",
    "_join_config",
    "_module_parameters",
    "reducer",
)
"""What of DDP is read here, and by those who protect it, that only its own code is to."""

_BUILT_IN_HOOK: Final = "DDP has a built-in communication hook, which it does not tell again"
_HAS_COMPUTED: Final = "DDP has bucketed gradients in an order that it saw before `protect`"
_STATIC_GRAPH: Final = "a model in DDP has static_graph=True, and learns its graph but once"


class BucketOrder:
    """The order in which a model's gradients first came.

    Args:
        ddp: The model; its gradients are watched until the first iteration is over.

    Raises:
        UnsupportedError: This PyTorch's DDP is another.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # Of DDP's own parameters, as they came; empty until all have, and where DDP had seen an
        # order before.
        self.indices: list[int] = []
        self._ddp: Any = ddp
        require(ddp, *_READ, package="torch")
        # The indices of buckets are those of this list, which leaves out frozen weights.
        self._weights = [w for w in self._ddp._module_parameters if w.requires_grad]  # noqa: SLF001
        self._coming: list[int] = []
        self._handles: list[RemovableHandle] = []
        # It does the same where it computes next, if gradients have come.
        if self._ddp.reducer._rebuild_buckets():  # noqa: SLF001
            self._ddp._has_rebuilt_buckets = True  # noqa: SLF001
        self._is_settled: bool = self._ddp._has_rebuilt_buckets  # noqa: SLF001
        if not self._is_settled:
            self._watch()

    @property
    def obstacle(self) -> str:
        """Return why DDP could not go on with other ranks, in words; empty if it can."""
        if self._ddp.static_graph:
            return _STATIC_GRAPH
        if self._is_settled:
            return _HAS_COMPUTED
        # Built-in hooks live in C++, and only the logging data name them.
        told = self._ddp._get_ddp_logging_data().get("comm_hook", "")  # noqa: SLF001
        # Python's hooks are listed, and can be registered again on a new reducer.
        is_told_again = bool(self._ddp._comm_hooks)  # noqa: SLF001
        return _BUILT_IN_HOOK if told and not is_told_again else ""

    @property
    def syncs_buffers(self) -> bool:
        """Return whether the next forward pass begins with rank 0's buffers."""
        return bool(self._ddp.require_forward_param_sync)

    @syncs_buffers.setter
    def syncs_buffers(self, does: bool) -> None:
        self._ddp.require_forward_param_sync = does

    def begin_anew(self) -> None:
        """Reset DDP's buckets to those of a new instance, which knows of no iteration."""
        self._stop()
        ddp = self._ddp
        # DDP takes these steps itself when it is unpickled.
        weights, is_sparse = ddp._build_params_for_reducer()  # noqa: SLF001
        names = ddp._build_debug_param_to_name_mapping(weights)  # noqa: SLF001
        # As DDP's constructor does: a reducer cannot be reset, only made again.
        ddp._ddp_init_helper(weights, is_sparse, names, ddp.static_graph)  # noqa: SLF001
        ddp._has_rebuilt_buckets = False  # noqa: SLF001
        torch_distributed: Any = dist
        # The new reducer has none of the hooks that the script registered on the old one.
        for hook, state in ddp._comm_hooks:  # noqa: SLF001
            torch_distributed._register_comm_hook(ddp.reducer, state, hook)  # noqa: SLF001
        self.indices, self._coming = [], []
        self._watch()

    def rehearse(self, indices: Sequence[int]) -> None:
        """Show DDP this order of gradients, if it has seen none; all ranks together."""
        if not indices or self.indices or self._is_settled:
            return
        self._stop()
        kept = [(weight.grad, weight.requires_grad) for weight in self._weights]
        for weight in self._weights:
            weight.grad = None
            weight.requires_grad_(True)  # as DDP knows it: a script may freeze it on the way
        # Without it the reducer ignores the gradients that follow.
        self._ddp.reducer.prepare_for_backward([])
        sparse = self._sparse()
        for index in indices:
            weight = self._weights[index]
            zeros = _no_rows(weight) if id(weight) in sparse else torch.zeros_like(weight)
            torch.autograd.backward([weight], [zeros])
        for weight, (gradient, trains) in zip(self._weights, kept, strict=True):
            weight.grad = gradient
            weight.requires_grad_(trains)
        self.indices = [*indices]

    def _sparse(self) -> set[int]:
        """Return the identities of weights that DDP expects sparse gradients for, as embeddings."""
        weights, are_sparse = self._ddp._build_params_for_reducer()  # noqa: SLF001
        return {id(w) for w, is_sparse in zip(weights, are_sparse, strict=True) if is_sparse}

    def _watch(self) -> None:
        # DDP does not lay its buckets out again if it looks for unused weights.
        stays = self._ddp.find_unused_parameters  # as the buckets are
        if not (stays or self._ddp.static_graph):
            for index, weight in enumerate(self._weights):
                note = self._noting(index)
                self._handles.append(weight.register_post_accumulate_grad_hook(note))

    def _noting(self, index: int) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            if self._ddp.require_backward_grad_sync:
                self._coming.append(index)
                if len(self._coming) == len(self._weights):
                    self.indices = self._coming
                    self._stop()

        return note

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _no_rows(weight: torch.Tensor) -> torch.Tensor:
    first = torch.zeros((1, 1), dtype=torch.int64, device=weight.device)
    return torch.sparse_coo_tensor(first, torch.zeros_like(weight[:1]), weight.shape)
