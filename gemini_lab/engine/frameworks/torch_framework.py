"""A plain PyTorch model and its optimizer as protection sees them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.ddp_buckets import BucketOrder
from gemini_lab.engine.frameworks.framework import Form, Framework, Pieces
from gemini_lab.engine.frameworks.optimizer_state import OptimizerState, flat_part, local_part
from gemini_lab.engine.frameworks.payload_blocks import (
    WEIGHT,
    FlatRun,
    Kept,
    TensorBlock,
    TensorSegment,
    lay_blocks,
)
from gemini_lab.engine.frameworks.resize_state import Heir
from gemini_lab.engine.frameworks.stepping import StepHook
from gemini_lab.engine.frameworks.tensors import feed, require_apart, whole_weights
from gemini_lab.engine.frameworks.torch_engine import (
    TorchEngine,
    hook_optimizer,
    replicated_by,
    reshard,
)
from gemini_lab.engine.rank_agreement import JointOutcome, gather
from gemini_lab.errors import UnsupportedError
from gemini_lab.settings import SettingValue
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout, TensorSpec, WeightPiece


class ReplicaCheck:
    """Compares checksums of replicated tensors between ranks.

    At the start, and after update 1, 2, 4, 8 and so on from there: to read all of them costs some
    tenths of a second a GB, and so often that is nothing in the long run.

    Args:
        tensors: Gives what is to be the same on all ranks, by name; several may have one name.

    Raises:
        UnsupportedError: The ranks differ already.
    """

    def __init__(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]) -> None:
        self._tensors = tensors
        self._updates = 0
        self._compare("when `protect` was called")

    def restart(self) -> None:
        """Count updates from here on, as ranks do that have just started."""
        self._updates = 0

    def after_update(self, number: int) -> None:
        """Compare after updates 1, 2, 4, 8 and so on; all ranks call it together.

        Raises:
            UnsupportedError: The ranks differ.
        """
        self._updates += 1
        # Powers of two only.
        if self._updates & (self._updates - 1) == 0:
            self._compare(f"after update {number}")

    def _compare(self, when: str) -> None:
        sums: dict[str, xxhash.xxh3_64] = {}
        for name, tensor in self._tensors():
            feed(sums.setdefault(name, xxhash.xxh3_64()), tensor)
        found = gather([one.intdigest() >> 1 for one in sums.values()])
        for place, name in enumerate(sums):
            for rank, words in enumerate(found):
                if words[place] != found[0][place]:
                    raise UnsupportedError(
                        f"DDP's ranks differ {when}: {name!r} of rank {rank} is not rank 0's, and "
                        "a version keeps what they share once; have all ranks make the same "
                        "updates (learning rates, clipping, order of parameters), or shard with "
                        "fully_shard"
                    )


class TorchFramework(Framework):
    """The state of a model and its torch optimizer.

    Raises:
        UnsupportedError: The optimizer's state cannot be kept, or the ranks differ in what they
            are to share; says what to change.
    """

    def __init__(self, engine: TorchEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self.parallelism = engine.parallelism
        self._state = OptimizerState(engine.optimizer)
        self._kept = self._describe()
        names = {id(weight): name for name, weight in self.module.named_parameters()}
        self._names = [  # an optimizer may train what is not in the model
            names.get(id(weight), f"parameter {number} of the optimizer")
            for number, weight in enumerate(self._state.weights)
        ]
        self._is_shared = engine.parallelism == "DDP" and self.world_size > 1
        self.shares_updates = self._is_shared
        ranks = self.world_size if self._is_shared else 1
        self._blocks = lay_blocks(self._kept, ranks=ranks)
        self._part = self.rank if self._is_shared else 0
        ddp = replicated_by(engine.module)
        self._order = None if ddp is None else BucketOrder(ddp)
        self._check = ReplicaCheck(self._digested) if self._is_shared else None

    @property
    def module(self) -> nn.Module:
        return self._engine.bare

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._engine.optimizer

    def settings(self) -> Mapping[str, SettingValue]:
        return self._engine.settings

    def trained(self) -> Iterator[nn.Parameter]:
        return iter(self._state.weights)

    # -- the large part --------------------------------------------------------------------------

    def forms(self) -> Sequence[Form]:
        return [(f"{b.name}.{b.dtype}", b.dtype, (b.numel,)) for b in self._blocks]

    def weight_pieces(self) -> Iterator[WeightPiece]:
        """Return which weights and states this rank has parts of; others may have the same."""
        for number, block in enumerate(self._blocks):
            for segment in block.parts[self._part]:
                kept = self._kept[segment.kept]
                if kept.place is not None:
                    yield WeightPiece(
                        weight=self._names[kept.parameter],
                        weight_offset=kept.place + segment.start,
                        tensor=number,
                        tensor_offset=segment.at,
                        numel=segment.numel,
                        state="" if block.name == WEIGHT else block.name,
                    )

    def unplaced(self) -> list[str]:
        """Return what is sharded along other dimensions than the first."""
        return [
            f"{one.name} of {self._names[one.parameter]}"
            for one in self._kept
            if one.place is None and one.numel
        ]

    def present(self) -> list[bool]:
        state = self._state
        return [state.tensor(one.parameter, one.name) is not None for one in self._kept]

    def pieces(self, specs: Sequence[TensorSpec]) -> Pieces:
        self._state.require_unchanged()
        found = []
        for spec, block in zip(specs, self._blocks, strict=True):
            itemsize = DTYPE_BYTES[block.dtype]
            for segment in block.parts[self._part]:
                flat = self._flat(self._kept[segment.kept])
                if flat is not None:
                    run = flat[segment.start : segment.start + segment.numel]
                    found.append((spec.offset_bytes + segment.at * itemsize, run))
        return found

    def load(self, values: Sequence[torch.Tensor], present: Sequence[bool]) -> None:
        """Copy them over the live tensors, which are made or dropped as they were then."""
        verdict = JointOutcome()
        # FSDP2 may hold whole weights of an evaluation, in whose place shards are to be put.
        reshard(self._engine.bare)
        with verdict.withheld():
            self._state.make([one for one, there in zip(self._kept, present, strict=True) if there])
        with torch.no_grad():
            for block, value in zip(self._blocks, values, strict=True):
                for part, segments in enumerate(block.parts):
                    source = self._from(part, value) if self._is_shared else value
                    for segment in segments:
                        if present[segment.kept]:
                            with verdict.withheld():
                                self._put(segment, source)
        verdict.end()

    def updated_tensors(
        self, layout: ShardLayout
    ) -> Sequence[tuple[torch.Tensor, Mapping[str, FlatRun]]]:
        if self._is_shared:
            raise UnsupportedError(
                '"replicate": "gradients" has peers make a shard\'s updates again, and under DDP a '
                "shard is cut out of the state wherever the cut falls, so that no tensor of it has "
                'an update of its own; leave it out: "replicate": "copies" is for all, and each '
                "rank's part is small; or shard with fully_shard"
            )
        found: dict[int, dict[str, FlatRun]] = {}
        for spec, block in zip(layout.tensors, self._blocks, strict=True):
            for segment in block.parts[self._part]:
                kept = self._kept[segment.kept]
                found.setdefault(kept.parameter, {})[kept.name] = FlatRun(
                    offset_bytes=spec.offset_bytes + segment.at * DTYPE_BYTES[block.dtype],
                    numel=segment.numel,
                    dtype=block.dtype,
                )
        weights = self._state.weights
        if any(not local_part(weights[number]).is_contiguous() for number in found):
            raise UnsupportedError(
                '"replicate": "gradients" has peers make updates again on flat tensors, and a '
                "weight lies in another order (such as channels_last); leave it out: "
                '"replicate": "copies" is for all'
            )
        return [(weights[number], runs) for number, runs in sorted(found.items())]

    def drop_gradients(self, *, is_computing: bool) -> None:
        del is_computing
        for weight in self._state.weights:
            weight.grad = None

    def _from(self, part: int, value: torch.Tensor) -> torch.Tensor:
        """Return a rank's part of a block, on all of them."""
        device = self._engine.device
        source = value.to(device, copy=True) if part == self.rank else None
        if source is None:
            source = torch.empty(value.shape, dtype=value.dtype, device=device)
        # As bytes: backends know fewer types than models have.
        dist.broadcast(source.view(torch.uint8), src=part)
        return source

    def _put(self, segment: TensorSegment, part: torch.Tensor) -> None:
        """Copy a segment from a block's part into its tensor, in whatever order that lies."""
        one = self._kept[segment.kept]
        tensor = self._tensor(one)
        if tensor is not None:
            require_apart(tensor, f"{one.name} of {self._names[one.parameter]}")
            whole = flat_part(tensor)
            source = part[segment.at : segment.at + segment.numel]
            whole[segment.start : segment.start + segment.numel].copy_(source)
            if not tensor.is_contiguous():
                tensor.copy_(whole.view(tensor.shape))

    def _describe(self) -> list[Kept]:
        """Return all tensors of the state; their sizes are agreed upon with the other ranks."""
        forms = list(self._state.forms())
        known = gather([len(forms), *_word(forms)])
        if len({tuple(one) for one in known}) > 1:
            raise UnsupportedError(
                "the ranks train different parameters: they keep "
                f"{[one[0] for one in known]} tensors, or of other types; make the same model and "
                "optimizer on every rank, with state for every weight on each (stages of a "
                "pipeline that differ, and an optimizer that shares its state out over ranks, "
                "cannot be protected; fully_shard can)"
            )
        sizes = gather([form.numel for form in forms])
        return [
            replace(form, most=max(size[number] for size in sizes))
            for number, form in enumerate(forms)
        ]

    def _tensor(self, one: Kept) -> torch.Tensor | None:
        tensor = self._state.tensor(one.parameter, one.name)
        return None if tensor is None else local_part(tensor)

    def _flat(self, one: Kept) -> torch.Tensor | None:
        tensor = self._tensor(one)
        if tensor is None:
            return None
        if (tensor.numel(), str(tensor.dtype)) != (one.numel, f"torch.{one.dtype}"):
            raise UnsupportedError(
                f"{one.name} of parameter {one.parameter} became {tensor.dtype} of "
                f"{tensor.numel()} elements, but was laid out as {one.dtype} of {one.numel}; "
                "change model and optimizer before `protect`, not after"
            )
        return flat_part(tensor)

    # -- the small part --------------------------------------------------------------------------

    def require_boundary(self) -> None:
        """Refuse DDP's `join()`: uneven ranks make different versions."""
        ddp = replicated_by(self._engine.module)
        # DDP asks this itself; `join()` has no public sign that it is on.
        if ddp is not None and ddp._join_config.enable:  # noqa: SLF001
            raise UnsupportedError(
                "the model trains inside DDP's join(), where ranks end one before the other, and a "
                "version is made by all of them; give every rank as many batches"
            )

    def capture(self) -> StateDict:
        return {
            "counters": {"global_steps": self._engine.global_steps},
            "optimizer": self._state.capture(self._kept),
            "gradients": [] if self._order is None else self._order.indices,
            "syncs_buffers": self._order is None or self._order.syncs_buffers,
        }

    def restore(self, small: StateView) -> None:
        self._engine.global_steps = small["counters"]["global_steps"]
        self._state.restore(small["optimizer"])
        if self._order is not None:
            self._order.syncs_buffers = small.get("syncs_buffers", True)

    def put_order(self, small: StateView) -> None:
        if self._order is not None:
            self._order.rehearse(small["gradients"])

    def require_fit(self, small: StateView) -> None:
        """Nothing of it is optional."""

    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        names = ("counters", "optimizer", "gradients", "present")
        syncs = {"syncs_buffers": all(one.get("syncs_buffers", True) for one in smalls)}
        return syncs | {
            name: heir.shared([one[name] for one in smalls], f"its {name}") for name in names
        }

    # -- computing again -------------------------------------------------------------------------

    def contributing(self) -> Sequence[torch.Tensor]:
        """Return the model's weights; under FSDP2 the whole ones, once it has computed."""
        if self.parallelism != "FSDP2":
            return super().contributing()
        return [weight for weight in whole_weights(self.module) if weight.requires_grad]

    # -- going on with other ranks ---------------------------------------------------------------

    def obstacle(self) -> str:
        return "" if self._order is None else self._order.obstacle

    def begin_anew(self) -> None:
        """Without gradients, and with DDP's buckets of the start."""
        self.drop_gradients(is_computing=False)
        if self._order is not None:
            self._order.begin_anew()
        if self._check is not None:
            self._check.restart()

    # -- the boundaries --------------------------------------------------------------------------

    def hook(self, hook: StepHook) -> Callable[[], None]:
        unhook = hook_optimizer(self._engine, hook)
        if self._check is not None:
            then, check = self._engine.after_update, self._check
            self._engine.after_update = self._checked(then, check, hook)
        return unhook

    def _checked(
        self, then: Callable[[], None], check: ReplicaCheck, hook: StepHook
    ) -> Callable[[], None]:
        def after_update() -> None:
            then()  # first: where a machine computes wrong, it is named, and the script is not
            try:
                check.after_update(self._engine.global_steps)
            except UnsupportedError as error:
                if hook.counts:
                    told = "".join(f"; it was told before: {one}" for one in hook.remarks)
                    raise UnsupportedError(f"{error}{told}") from None

        return after_update

    def _digested(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that DDP's ranks are to have alike, each with its block's name."""
        for block in self._blocks:
            for number in _members(block):
                flat = self._flat(self._kept[number])
                if flat is not None:
                    yield block.name, flat


def _members(block: TensorBlock) -> list[int]:
    return sorted({segment.kept for part in block.parts for segment in part})


def _word(forms: Sequence[Kept]) -> list[int]:
    text = repr([(form.parameter, form.name, form.dtype) for form in forms])
    return [xxhash.xxh3_64_intdigest(text.encode()) >> 1]
