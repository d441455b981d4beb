"""What DDP replicates is cut so that each element is kept by exactly one rank, evenly."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, Kept, lay_blocks

SIZES = st.lists(st.tuples(st.sampled_from([WEIGHT, "exp_avg"]), st.integers(0, 40)), max_size=12)


@given(sizes=SIZES, ranks=st.integers(1, 9))
def test_each_element_lies_in_one_part_and_all_parts_are_of_one_size(sizes, ranks):
    kept = [
        Kept(parameter=n, name=name, dtype="float32", numel=size, holders=tuple(range(ranks)))
        for n, (name, size) in enumerate(sizes)
    ]
    seen = set()
    for block in lay_blocks(kept):
        total = sum(one.numel for one in kept if one.name == block.name)
        assert block.numel == -(-total // ranks)
        for part in block.parts:
            places = [at for s in part for at in range(s.at, s.at + s.numel)]
            assert places == sorted(set(places))
            assert not places or places[-1] < block.numel
            for segment in part:
                assert kept[segment.kept].name == block.name
                new = {(segment.kept, segment.start + n) for n in range(segment.numel)}
                assert not new & seen
                seen |= new
    assert len(seen) == sum(one.numel for one in kept)


@given(sizes=SIZES, alone=st.sets(st.integers(0, 11)))
def test_what_a_rank_holds_alone_lies_apart_from_what_others_hold_too(sizes, alone):
    kept = [
        Kept(
            parameter=n,
            name=name,
            dtype="float32",
            numel=size,
            holders=() if n in alone else (0, 3),
        )
        for n, (name, size) in enumerate(sizes)
    ]
    for block in lay_blocks(kept):
        assert len(block.parts) == max(1, len(block.holders))
        assert {kept[s.kept].holders for part in block.parts for s in part} <= {block.holders}
        if not block.holders:
            assert block.numel == sum(s.numel for s in block.parts[0])
