"""Shards of N ranks cut again for N': every byte once, padding zero, and back again the same."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.shard.recut import plan_recut
from tests.shard.cut_models import (
    SMALL_BYTES,
    Model,
    payload_of,
    values_of,
)


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


def test_ranks_that_hold_different_models_are_refused_by_name():
    """Their weights may have the same names."""
    model = Model(groups=((("a", 7), ("b", 5)),))
    old, new = model.layouts(2), replace(model.layouts(3)[0], uneven="its ranks are stages")
    words = "a version of 2 ranks cannot be loaded by 3: its ranks are stages, and nothing tells"
    with pytest.raises(ConfigError, match=words):
        plan_recut(old, new)


def test_parts_of_a_weight_that_have_one_name_do_not_mix():
    """Two tensor parallel ranks have a part of each weight; their data-parallel groups shard it."""
    model = Model(groups=((("a", 12), ("b", 6)),), stage=4)

    def cut(ranks, size):
        for rank in range(ranks * size):
            layout = replace(model.layouts(ranks)[rank // size], rank=rank, world_size=ranks * size)
            part = rank % size
            pieces = tuple(replace(piece, part=part) for piece in layout.pieces)
            yield replace(
                layout,
                pieces=pieces,
                uneven="it is cut",
                model_parallel_size=size,
                model_parallel_rank=part,
            )

    old = [*cut(2, 2)]
    for new in cut(3, 2):
        moves = plan_recut(old, new).moves
        assert {old[move.shard].model_parallel_rank for move in moves} == {new.model_parallel_rank}
    other = next(cut(3, 1))
    with pytest.raises(ConfigError, match="model-parallel size: 2 then, 1 now"):
        plan_recut(old, other)
