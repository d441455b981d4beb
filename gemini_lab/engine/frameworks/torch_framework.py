"""A plain PyTorch model and its optimizer as protection sees them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

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
from gemini_lab.engine.frameworks.resize_state import DataParallelGroups, Heir
from gemini_lab.engine.frameworks.stepping import StepHook
from gemini_lab.engine.frameworks.tensors import (
    Replicas,
    data_parallel_ranks,
    feed,
    is_cut_by_model,
    place_in_mesh,
    require_apart,
    whole_weights,
)
from gemini_lab.engine.frameworks.torch_engine import (
    TorchEngine,
    hook_optimizer,
    replicated_by,
    reshard,
)
from gemini_lab.engine.rank_agreement import JointOutcome, gather, jointly, word_of
from gemini_lab.errors import UnsupportedError
from gemini_lab.seats import listed
from gemini_lab.settings import SettingValue
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout, TensorSpec, WeightPiece


class ReplicaCheck:
    """Compares checksums of replicated tensors between the ranks that hold the same.

    At the start, and after update 1, 2, 4, 8 and so on from there: to read all of them costs some
    tenths of a second a GB, and so often that is nothing in the long run.

    Raises:
        UnsupportedError: Ranks differ already.
    """

    def __init__(
        self,
        # Gives this rank's replicated tensors, each with its block.
        tensors: Callable[[], Iterator[tuple[TensorBlock, torch.Tensor]]],
        *,
        most: int,  # blocks of such tensors on the rank that has most of them
        called: str,  # the word for how ranks share the model
    ) -> None:
        self._tensors, self._most, self._called = tensors, most, called
        self._updates = 0
        self._compare("when `protect` was called")

    def restart(self) -> None:
        """Count updates from here on, as ranks do that have just started."""
        self._updates = 0

    def after_update(self, number: int) -> None:
        """Compare after updates 1, 2, 4, 8 and so on; all ranks call it together.

        Raises:
            UnsupportedError: Ranks that are to hold the same differ; on all ranks.
        """
        self._updates += 1
        # Powers of two only.
        if self._updates & (self._updates - 1) == 0:
            self._compare(f"after update {number}")

    def _compare(self, when: str) -> None:
        sums: dict[int, xxhash.xxh3_64] = {}
        names: dict[int, str] = {}
        with jointly():
            for block, tensor in self._tensors():
                key = word_of((block.name, block.dtype, block.holders))
                names[key] = repr(block.name)
                feed(sums.setdefault(key, xxhash.xxh3_64()), tensor)
        words = [word for key, one in sums.items() for word in (key, one.intdigest() >> 1)]
        first: dict[int, tuple[int, int]] = {}
        # A key names the block and its holders: so each rank judges those of others as well.
        for rank, told in enumerate(gather(_padded(words, 2 * self._most))):
            for key, digest in _pairs(told):
                holder, known = first.setdefault(key, (rank, digest))
                if digest != known:
                    raise UnsupportedError(
                        f"{self._called}'s ranks differ {when}: {names.get(key, 'a tensor')} of "
                        f"rank {rank} is not rank {holder}'s, and a version keeps what they share "
                        "once; have all of them make the same updates (learning rates, clipping, "
                        "order of parameters), or shard with fully_shard"
                    )


class TorchFramework(Framework):
    """The state of a model and its torch optimizer.

    Args:
        group: The ranks that hold the same plain tensors, unless DDP says so.

    Raises:
        UnsupportedError: This PyTorch's DDP is another; says what to install.
    """

    def __init__(self, engine: TorchEngine, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(engine)
        self._engine = engine
        self.parallelism = engine.parallelism if group is None else "data parallelism"
        self._state = OptimizerState(*engine.optimizers)
        names = {id(weight): name for name, weight in self.module.named_parameters()}
        self._names = [  # an optimizer may train what is not in the model
            names.get(id(weight), f"parameter {number} of the optimizer")
            for number, weight in enumerate(self._state.weights)
        ]
        found = (replicated_by(model) for model in engine.models)
        self._ddps = [ddp for ddp in found if ddp is not None]
        self._orders = [BucketOrder(ddp) for ddp in self._ddps]
        self._trials = engine.trials
        self._replicating = [ddp.process_group for ddp in self._ddps] or (
            [] if group is None else [group]
        )
        self._replicas: dict[tuple[int, ...], Replicas] = {}
        self._kept: list[Kept]
        self._blocks: list[TensorBlock]
        self._is_shared = False  # whether ranks hold the same tensors
        self._check: ReplicaCheck | None = None

    def meet(self) -> None:
        self.uneven, self.is_pipelined = _unevenness(gather(self._what_it_holds()))
        if self.uneven:  # on all ranks
            own = data_parallel_ranks(self._engine.models, self._replicating)
            self.groups = DataParallelGroups.agreed(own)
        with jointly():
            self._kept = [*self._describe(next(iter(self._replicating), None))]
            self._blocks = lay_blocks(self._kept)
        most = self._agree_on_replicas()
        self._is_shared = most > 0  # on any rank: what follows is the same on all
        shared = {len(block.holders) for block in self._blocks}
        self.shares_updates = self._is_shared and shared == {self.world_size}
        if self._is_shared:
            self._check = ReplicaCheck(self._digested, most=most, called=self.parallelism)

    @property
    def module(self) -> nn.Module:
        return self._engine.bare

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._engine.optimizer

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return self._engine.optimizers

    @property
    def place(self) -> str:
        found = [f"{axis} {at}" for axis, at in place_in_mesh(self._state.weights).items()]
        stages = self._trials.stages
        if len(stages) > 1 or (stages and not found):
            found.append(f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}")
        return ", ".join(found)

    def settings(self) -> Mapping[str, SettingValue]:
        return self._engine.settings

    def trained(self) -> Iterator[nn.Parameter]:
        return iter(self._state.weights)

    # -- the large part --------------------------------------------------------------------------

    def forms(self) -> Sequence[Form]:
        found = list[Form]()
        for key, alike in groupby(self._blocks, lambda one: (one.name, one.dtype)):
            # A number tells them apart: a rank may hold some tensors alone, others with others.
            for number, block in enumerate(alike):
                name = ".".join([*key, *([str(number)] if number else [])])
                found.append((name, block.dtype, (block.numel,)))
        return found

    def weight_pieces(self) -> Iterator[WeightPiece]:
        """Return which weights and states this rank has parts of; others may have the same."""
        for number, block in enumerate(self._blocks):
            for segment in self._own_part(block):
                kept = self._kept[segment.kept]
                if kept.place is not None:
                    yield WeightPiece(
                        weight=self._names[kept.parameter],
                        weight_offset=kept.place + segment.start,
                        tensor=number,
                        tensor_offset=segment.at,
                        numel=segment.numel,
                        state="" if block.name == WEIGHT else block.name,
                        part=self.groups.part(kept.holders or [self.rank]) if self.groups else 0,
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
            for segment in self._own_part(block):
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
                    source = self._from(part, block, value) if block.holders else value
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
                '"replicate": "gradients" has peers make a shard\'s updates again, and where ranks '
                f"hold the same (here under {self.parallelism}) a shard is cut out of the state "
                "wherever the cut falls, so that no tensor of it has an update of its own; leave "
                'it out: "replicate": "copies" is for all, and each rank\'s part is small; or '
                "shard with fully_shard over all ranks"
            )
        found: dict[int, dict[str, FlatRun]] = {}
        for spec, block in zip(layout.tensors, self._blocks, strict=True):
            for segment in self._own_part(block):
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

    def _own_part(self, block: TensorBlock) -> Sequence[TensorSegment]:
        """Return what this rank's payload has of a block."""
        return block.parts[block.holders.index(self.rank) if block.holders else 0]

    def _from(self, part: int, block: TensorBlock, value: torch.Tensor) -> torch.Tensor:
        """Return a holder's part of a block, on all of them."""
        device, is_own = self._engine.device, block.holders[part] == self.rank
        source = torch.empty(value.shape, dtype=value.dtype, device=device)
        if is_own:
            source.copy_(value)
        # As bytes: backends know fewer types than models have.
        replicas = self._replicas[block.holders]
        replicas.broadcast(source.view(torch.uint8), source=part, rank=self.rank)
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

    def _describe(self, group: dist.ProcessGroup | None) -> Iterator[Kept]:
        """Yield all tensors of this rank's state, with the ranks that hold the same.

        Args:
            group: In which plain tensors are replicated, if they are.
        """
        peers = None if self.groups is None else self.groups.of(self.rank)
        for form, tensor in self._state.forms(peers):
            replicas = Replicas.of(tensor, group)
            if replicas is None:
                yield form
            else:
                self._replicas[replicas.ranks] = replicas
                yield replace(form, holders=replicas.ranks)

    def _agree_on_replicas(self) -> int:
        """Return how many blocks of replicated tensors the rank with most of them has.

        Raises:
            UnsupportedError: Ranks that are to hold the same hold other tensors; on all ranks.
        """
        words = list[int]()
        for holders in self._replicas:
            forms = [
                (self._names[one.parameter], one.name, one.dtype, one.numel)
                for one in self._kept
                if one.holders == holders
            ]
            words += [word_of(holders), len(holders), word_of(forms)]
        shared = sum(bool(block.holders) for block in self._blocks)
        counts = gather([len(words), shared])
        if not any(count for count, _ in counts):
            return 0
        claims: dict[int, list[tuple[int, int, int]]] = {}
        for rank, told in enumerate(gather(_padded(words, max(count for count, _ in counts)))):
            for key, size, word in zip(told[::3], told[1::3], told[2::3], strict=True):
                if size:
                    claims.setdefault(key, []).append((rank, size, word))
        for claim in claims.values():
            size, ranks = claim[0][1], [rank for rank, *_ in claim]
            if len(ranks) != size or len({word for *_, word in claim}) > 1:
                raise UnsupportedError(
                    f"{size} ranks are to hold the same tensors under {self.parallelism}, and "
                    f"ranks {listed(ranks)} of them hold tensors that differ in number, name or "
                    "type, or lack some; make the same model and optimizer on each of them, with "
                    "state for every weight"
                )
        return max(count for _, count in counts)

    def _what_it_holds(self) -> tuple[int, int, int]:
        """Return a checksum of what this rank trains, and whether it has stages or cut weights."""
        engine = self._engine
        weights = zip(self._names, self._state.weights, strict=True)
        trained = [(name, [*weight.shape], str(weight.dtype)) for name, weight in weights]
        has_stages = (
            bool(self._trials.stages) or len(engine.models) > 1 or len(engine.optimizers) > 1
        )
        return word_of(trained), int(has_stages), int(is_cut_by_model(engine.models))

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
        # DDP asks this itself; `join()` has no public sign that it is on.
        if any(ddp._join_config.enable for ddp in self._ddps):  # noqa: SLF001
            raise UnsupportedError(
                "the model trains inside DDP's join(), where ranks end one before the other, and a "
                "version is made by all of them; give every rank as many batches"
            )

    def capture(self) -> StateDict:
        return {
            "counters": {"global_steps": self._engine.global_steps},
            "optimizer": self._state.capture(self._kept),
            # As in versions of 0.1, which know one model in DDP.
            "gradients": [index for order in self._orders[:1] for index in order.indices],
            "more_gradients": [order.indices for order in self._orders[1:]],
            "syncs_buffers": all(order.syncs_buffers for order in self._orders),
            "trials": self._trials.capture(),
        }

    def restore(self, small: StateView) -> None:
        self._engine.global_steps = small["counters"]["global_steps"]
        self._state.restore(small["optimizer"])
        self._trials.restore(small.get("trials", ()))
        for order in self._orders:
            order.syncs_buffers = small.get("syncs_buffers", True)

    def put_order(self, small: StateView) -> None:
        orders = [small["gradients"], *small.get("more_gradients", ())]
        for order, indices in zip(self._orders, orders, strict=False):
            order.rehearse(indices)

    def require_fit(self, small: StateView) -> None:
        """Nothing of it is optional."""

    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        names = ("counters", "optimizer", "gradients", "more_gradients", "trials", "present")
        syncs = {"syncs_buffers": all(one.get("syncs_buffers", True) for one in smalls)}
        # Versions of 0.1 know one model, and no pipelines.
        return syncs | {
            name: heir.shared([one.get(name, []) for one in smalls], f"its {name}")
            for name in names
        }

    # -- computing again -------------------------------------------------------------------------

    def contributing(self) -> Sequence[torch.Tensor]:
        """Return the model's weights; under FSDP2 the whole ones, once it has computed."""
        if self.parallelism != "FSDP2":
            return super().contributing()
        return [weight for weight in whole_weights(self.module) if weight.requires_grad]

    # -- going on with other ranks ---------------------------------------------------------------

    def obstacle(self) -> str:
        others = (order.obstacle for order in self._orders)
        return super().obstacle() or next(filter(None, others), "")

    def begin_anew(self) -> None:
        """Without gradients, and with DDP's buckets of the start."""
        self.drop_gradients(is_computing=False)
        for order in self._orders:
            order.begin_anew()
        if self._check is not None:
            self._check.restart()

    # -- the boundaries --------------------------------------------------------------------------

    def hook(self, hook: StepHook) -> Callable[[], None]:
        return hook_optimizer(self._engine, hook, partial(self.compare_replicas, hook))

    def compare_replicas(self, hook: StepHook) -> None:
        """Compare what ranks hold alike, after an update; all ranks call it together.

        After the hook: if a machine computes wrong, it is named, and the script is not.

        Raises:
            UnsupportedError: Copies differ; on all ranks.
        """
        if self._check is None:
            return
        try:
            self._check.after_update(self.engine.global_steps)
        except UnsupportedError as error:
            if hook.counts:
                told = "".join(f"; it was told before: {one}" for one in hook.remarks)
                raise UnsupportedError(f"{error}{told}") from None

    def _digested(self) -> Iterator[tuple[TensorBlock, torch.Tensor]]:
        """Yield the tensors that others are to have alike, each with its block."""
        for block in self._blocks:
            for number in _members(block) if block.holders else ():
                flat = self._flat(self._kept[number])
                if flat is not None:
                    yield block, flat


def _unevenness(ranks: Sequence[Sequence[int]]) -> tuple[str, bool]:
    """Return why no rank could compute for another, in words, and whether the job is a pipeline."""
    trained, has_stages, is_cut = zip(*ranks, strict=True)
    is_pipelined = any(has_stages) or len({*trained}) > 1
    if is_pipelined:
        return "its ranks train different models, such as stages of a pipeline", True
    if any(is_cut):
        return "its ranks hold parts of weights that a device mesh cuts (tensor parallel)", False
    return "", False


def _members(block: TensorBlock) -> list[int]:
    return sorted({segment.kept for part in block.parts for segment in part})


def _padded(words: Sequence[int], size: int) -> list[int]:
    return [*words, *[0] * (size - len(words))]


def _pairs(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of words, without padding."""
    yield from ((key, one) for key, one in zip(words[::2], words[1::2], strict=True) if key)
