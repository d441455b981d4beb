"""Shards of N ranks cut anew for N': every byte once, padding zero, and back again the same."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.engine.blocks import WEIGHT, Kept, lay_blocks
from gemini_lab.errors import ConfigError
from gemini_lab.shard.layout import ShardLayout, WeightPiece, lay_out
from gemini_lab.shard.recut import plan_recut

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
    """Plain PyTorch's blocks; `held` gives a rank's elements, their place, and the most of any."""
    kept = []
    for number, size in enumerate(model.sizes.values()):
        for state in STATES:
            numel, place, most = held(size)
            kept.append(
                Kept(
                    parameter=number,
                    name=state or WEIGHT,
                    dtype=dtype_of(state),
                    numel=numel,
                    most=most,
                    place=place,
                )
            )
    return kept, lay_blocks(kept, ranks=ranks)


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
    laid = _blocks(model, ranks, lambda size: (size, 0, size))
    return _of_blocks(model, rank, ranks, laid, part=rank)


def _rows(model, rank, ranks):
    """FSDP2: each rank's rows; a weight of one element is on all ranks."""

    def held(size):
        if size == 1:
            return 1, 0, 1
        part = -(-size // ranks)
        return max(0, min(part, size - rank * part)), min(size, rank * part), part

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


def carried_out(plan, layout, payloads):
    """The new shard, and how often each of its bytes was written."""
    payload, times = bytearray(b"\xff" * layout.payload_bytes), [0] * layout.payload_bytes
    payload[:SMALL_BYTES] = bytes(SMALL_BYTES)
    for move in plan.moves:
        source = payloads[move.shard][move.source_bytes :][: move.size_bytes]
        payload[move.target_bytes : move.target_bytes + move.size_bytes] = source
        for n in range(move.size_bytes):
            times[move.target_bytes + n] += 1
    for start, size in plan.zeros:
        payload[start : start + size] = bytes(size)
        for n in range(size):
            times[start + n] += 1
    return bytes(payload), times


GROUPS = st.lists(st.lists(st.integers(1, 23), min_size=1, max_size=4), min_size=1, max_size=3)


@st.composite
def models(draw):
    sizes = draw(GROUPS)
    groups = tuple(
        tuple((f"{g}.{n}", size) for n, size in enumerate(group)) for g, group in enumerate(sizes)
    )
    return Model(
        groups=groups,
        frozen=draw(st.sampled_from([(), ("embedding",)])),
        stage=draw(st.sampled_from([0, 1, 2, 3, 4])),
        sub_group_size=draw(st.sampled_from([5, 10**9])),
        reverses=draw(st.booleans()),
    )


@settings(max_examples=60)
@given(model=models(), then=st.integers(1, 6), now=st.integers(1, 6))
def test_every_byte_of_every_new_shard_is_written_exactly_once(model, then, now):
    values = values_of(model)
    old, new = model.layouts(then), model.layouts(now)
    payloads = [payload_of(layout, values) for layout in old]
    made = []
    for layout in new:
        payload, times = carried_out(plan_recut(old, layout), layout, payloads)
        assert set(times[SMALL_BYTES:]) <= {1}
        assert payload == payload_of(layout, values)
        made.append(payload)
    back = [carried_out(plan_recut(new, layout), layout, made)[0] for layout in old]
    assert back == payloads


@given(model=models(), ranks=st.integers(1, 5))
def test_as_many_ranks_read_their_own_shards_alone(model, ranks):
    layouts = model.layouts(ranks)
    for layout in layouts:
        plan = plan_recut(layouts, layout, near={layout.rank})
        assert {move.shard for move in plan.moves} <= {layout.rank}
        assert all(move.source_bytes == move.target_bytes for move in plan.moves)


def test_bytes_side_by_side_move_at_once():
    model = Model(groups=((("a", 16), ("b", 32), ("c", 16)),), stage=1)
    (whole,) = model.layouts(1)
    plans = [plan_recut([whole], layout) for layout in model.layouts(2)]
    assert [len(plan.moves) for plan in plans] == [3, 3]  # master weights and two moments
    assert sum(move.size_bytes for plan in plans for move in plan.moves) == 64 * (4 + 2 + 2)


def test_what_several_shards_have_is_read_from_the_near_one():
    model = Model(groups=((("scale", 1), ("a", 8)),), stage=4)
    old = model.layouts(3)
    for near in range(3):
        layout = model.layouts(2)[0]
        scale = next(p for p in layout.pieces if (p.weight, p.state) == ("scale", ""))
        at = layout.tensors[scale.tensor].offset_bytes + 4 * scale.tensor_offset
        plan = plan_recut(old, layout, near={near})
        (move,) = (m for m in plan.moves if m.target_bytes <= at < m.target_bytes + m.size_bytes)
        assert move.shard == near


MODEL = Model(groups=((("a", 7), ("b", 9)), (("c", 3),)), frozen=("embedding",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 1}, "ZeRO stage: 3 then, 1 now"),
        ({"optimizer": "SGD"}, "optimizer: Adam then, SGD now"),
        ({"frozen": ()}, "frozen weights: .'embedding'. then, .. now"),
        ({"frozen_sum": "other"}, "sum of the frozen weights: of any then, other now"),
        ({"weights": {"a": (7,)}}, r"weight b: \[9\] then, none now"),
        ({"unplaced": ("exp_avg of a",)}, "where the elements of exp_avg of a lie .* not known"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_shards_of_another_model_are_refused_with_what_differs(change, message):
    layout = replace(MODEL.layouts(2)[0], **change)
    with pytest.raises(ConfigError, match=f"version of 3 ranks cannot be loaded by 2: .*{message}"):
        plan_recut(MODEL.layouts(3), layout)


def test_an_optimizer_that_keeps_more_is_refused():
    layout = MODEL.layouts(2)[0]
    wide = [replace(t, name=t.name.replace("exp_avg_sq", "max")) for t in layout.tensors]
    with pytest.raises(ConfigError, match="state exp_avg_sq: bfloat16 then, none now"):
        plan_recut(MODEL.layouts(3), replace(layout, tensors=tuple(wide)))


def test_shards_that_do_not_say_where_moments_lie_are_refused():
    """As those of releases before resizing was known."""
    old = [
        replace(layout, pieces=tuple(p for p in layout.pieces if not p.state))
        for layout in MODEL.layouts(3)
    ]
    assert sum(p.numel for layout in old for p in layout.pieces) == math.fsum(MODEL.sizes.values())
    with pytest.raises(ConfigError, match="do not say where elements 0 to 4 of exp_avg of a lie"):
        plan_recut(old, MODEL.layouts(2)[0])
