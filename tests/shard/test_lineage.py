"""A lineage in one word says the same as in three numbers, and is ordered alike."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.shard.lineage import MOST_REWINDS, Lineage

LINEAGES = st.builds(
    Lineage,
    run=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**20 - 1),
    rewinds=st.integers(0, MOST_REWINDS),
)


@given(LINEAGES, LINEAGES)
def test_a_word_has_all_of_a_lineage_and_its_order(one, other):
    assert Lineage.from_word(one.word) == one
    assert 0 <= one.word < 2**64
    assert (one.word < other.word) == (one < other)
