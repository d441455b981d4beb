"""What DDP replicates is cut so that each element is kept by exactly one rank, evenly."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, Kept, lay_blocks

SIZES = st.lists(st.tuples(st.sampled_from([WEIGHT, "exp_avg"]), st.integers(0, 40)), max_size=12)


@given(sizes=SIZES, ranks=st.integers(1, 9))
def test_each_element_lies_in_one_part_and_all_parts_are_of_one_size(sizes, ranks):
    kept = [
        Kept(parameter=n, name=name, dtype="float32", numel=size, most=size)
        for n, (name, size) in enumerate(sizes)
    ]
    seen = set()
    for block in lay_blocks(kept, ranks=ranks):
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


@given(sizes=SIZES, extra=st.integers(0, 3))
def test_a_rank_with_less_than_others_leaves_room(sizes, extra):
    kept = [
        Kept(parameter=n, name=name, dtype="float32", numel=size, most=size + extra)
        for n, (name, size) in enumerate(sizes)
    ]
    for block in lay_blocks(kept, ranks=1):
        members = [one for one in kept if one.name == block.name]
        assert block.numel == sum(one.most for one in members)
        assert sum(s.numel for s in block.parts[0]) == sum(one.numel for one in members)
