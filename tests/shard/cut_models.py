"""Models as ranks of any number have them, in all ways to share them, with bytes to tell apart."""

from dataclasses import dataclass

import numpy as np

from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, Kept, lay_blocks
from gemini_lab.shard.layout import ShardLayout, WeightPiece, lay_out

SMALL_BYTES = 96
STATES = ("", "exp_avg", "exp_avg_sq")
MOMENT_DTYPE = "bfloat16"  # of another size than the weights, as some optimizers keep them


@dataclass(frozen=True)
class Model:
    """Weights by name and size, in parameter groups; some names may be frozen or aliases."""

    groups: tuple[tuple[tuple[str, int], ...], ...]
    frozen: tuple[str, ...] = ()
    stage: int = 3
    sub_group_size: int = 10**9
    reverses: bool = False  # a cut may order weights by the number of ranks (round robin)

    def layouts(self, ranks):
        """How each of so many ranks has it."""
        cut = {0: _replicated, 1: _flat, 2: _flat, 3: _each, 4: _rows}[self.stage]
        return [cut(self, rank, ranks) for rank in range(ranks)]

    @property
    def sizes(self):
        return dict(weight for group in self.groups for weight in group)


def dtype_of(state):
    return MOMENT_DTYPE if state else "float32"


def layout_of(model, rank, ranks, partitions):
    """Partitions as their numbers of elements, and pieces (weight, offset, at, numel)."""
    forms, pieces = [], []
    for number, (numel, held) in enumerate(partitions):
        for state in STATES:
            for weight, offset, at, count in held:
                pieces.append(
                    WeightPiece(
                        weight=weight,
                        weight_offset=offset,
                        tensor=len(forms),
                        tensor_offset=at,
                        numel=count,
                        state=state,
                    )
                )
            forms.append((f"{number}.{state or 'master'}", dtype_of(state), (numel,)))
    return whole_layout(model, rank, ranks, forms, pieces)


def whole_layout(model, rank, ranks, forms, pieces):
    tensors = lay_out(forms, start_bytes=SMALL_BYTES)
    return ShardLayout(
        rank=rank,
        world_size=ranks,
        stage=model.stage,
        optimizer="Adam",
        tensors=tensors,
        small_offset_bytes=0,
        small_capacity_bytes=SMALL_BYTES,
        payload_bytes=max((t.offset_bytes + t.size_bytes for t in tensors), default=SMALL_BYTES),
        weights={name: (size,) for name, size in model.sizes.items()},
        pieces=tuple(pieces),
        aliases={"again": next(iter(model.sizes))},
        frozen=model.frozen,
        frozen_digest=f"of {ranks} ranks",
        frozen_sum="of any",
    )


def _flat(model, rank, ranks):
    """ZeRO stages 1 and 2: a group is one flat tensor, padded, and cut into equal parts."""
    partitions = []
    for group in model.groups:
        weights = group[::-1] if model.reverses and ranks % 2 else group
        total = sum(size for _, size in weights)
        part = -(-total // (2 * ranks)) * 2
        held, offset = [], 0
        for name, size in weights:
            start, end = max(offset, rank * part), min(offset + size, (rank + 1) * part)
            if start < end:
                held.append((name, start - offset, start - rank * part, end - start))
            offset += size
        partitions.append((part, held))
    return layout_of(model, rank, ranks, partitions)


def _each(model, rank, ranks):
    """ZeRO stage 3: each weight is cut; sub-groups are as large as a rank's parts make them."""
    partitions = []
    for group in model.groups:
        held, at = [], 0
        for name, size in group:
            part = -(-size // ranks)
            count = max(0, min(part, size - rank * part))
            if count:
                held.append((name, rank * part, at, count))
            at += part
            if at >= model.sub_group_size:
                partitions.append((at, held))
                held, at = [], 0
        if at:
            partitions.append((at, held))
    return layout_of(model, rank, ranks, partitions)


def _blocks(model, ranks, held):
    """Plain PyTorch's blocks; `held` gives a rank's elements and their place."""
    kept = []
    for number, size in enumerate(model.sizes.values()):
        for state in STATES:
            numel, place = held(size)
            kept.append(
                Kept(
                    parameter=number,
                    name=state or WEIGHT,
                    dtype=dtype_of(state),
                    numel=numel,
                    holders=tuple(range(ranks)) if ranks > 1 else (),
                    place=place,
                )
            )
    return kept, lay_blocks(kept)


def _of_blocks(model, rank, ranks, laid, *, part):
    (kept, blocks), names = laid, [*model.sizes]
    pieces = [
        WeightPiece(
            weight=names[kept[segment.kept].parameter],
            weight_offset=(kept[segment.kept].place or 0) + segment.start,
            tensor=number,
            tensor_offset=segment.at,
            numel=segment.numel,
            state="" if block.name == WEIGHT else block.name,
        )
        for number, block in enumerate(blocks)
        for segment in block.parts[part]
    ]
    forms = [(f"{b.name}.{b.dtype}", b.dtype, (b.numel,)) for b in blocks]
    return whole_layout(model, rank, ranks, forms, pieces)


def _replicated(model, rank, ranks):
    """DDP: what all ranks have is kept once, in equal parts."""
    laid = _blocks(model, ranks, lambda size: (size, 0))
    return _of_blocks(model, rank, ranks, laid, part=rank)


def _rows(model, rank, ranks):
    """FSDP2: each rank's rows; a weight of one element is on all ranks."""

    def held(size):
        if size == 1:
            return 1, 0
        part = -(-size // ranks)
        return max(0, min(part, size - rank * part)), min(size, rank * part)

    return _of_blocks(model, rank, ranks, _blocks(model, 1, held), part=0)


def values_of(model):
    """Bytes of every weight and state, none of them zero."""
    drawn = np.random.default_rng(5)
    return {
        (name, state): drawn.integers(
            1, 256, size * {"": 4}.get(state, 2), dtype=np.uint8
        ).tobytes()
        for name, size in model.sizes.items()
        for state in STATES
    }


def payload_of(layout, values):
    """A shard as a rank has it; padding is zero."""
    payload = bytearray(layout.payload_bytes)
    for piece in layout.pieces:
        spec = layout.tensors[piece.tensor]
        itemsize = 2 if piece.state else 4
        source = values[piece.weight, piece.state][piece.weight_offset * itemsize :]
        at = spec.offset_bytes + piece.tensor_offset * itemsize
        payload[at : at + piece.numel * itemsize] = source[: piece.numel * itemsize]
    return bytes(payload)
