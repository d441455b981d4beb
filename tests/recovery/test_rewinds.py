"""What a rewind left is known by lineage and version, and stays so however many follow."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.log.events import Rewound
from gemini_lab.recovery.discarded_versions import left_of
from gemini_lab.recovery.plan import MOST_KEPT, VersionId, is_left, joined
from gemini_lab.shard.lineage import Lineage

RUN = 7


def cut(version: int, epoch: int, rewinds: int = 0) -> VersionId:
    return VersionId(version=version, lineage=Lineage(RUN, epoch, rewinds))


def test_what_was_made_before_it_beyond_its_version_is_left_and_nothing_else():
    said = Rewound(
        rank=0,
        epoch=3,
        iteration=100,
        version=98,
        rewinds=2,
        skips=True,
        cause="guard",
        duration_s=0.1,
    )
    left = [left_of(said, run=RUN)]
    for version, epoch, rewinds in [(99, 3, 1), (100, 3, 0), (120, 2, 5)]:
        assert is_left(version, Lineage(RUN, epoch, rewinds), left)
    for version, epoch, rewinds in [(98, 3, 1), (99, 3, 2), (100, 4, 0)]:
        assert not is_left(version, Lineage(RUN, epoch, rewinds), left)
    assert not is_left(100, Lineage(RUN + 1, 3, 0), left)


CUTS = st.lists(st.builds(cut, st.integers(0, 20), st.integers(0, 4), st.integers(0, 3)))


@given(CUTS, CUTS, st.integers(0, 21), st.integers(0, 5), st.integers(0, 4))
def test_joining_them_forgets_nothing_that_is_left(some, more, version, epoch, rewinds):
    lineage = Lineage(RUN, epoch, rewinds)
    once = joined(joined((), some), more)
    assert is_left(version, lineage, once) == is_left(version, lineage, [*some, *more])
    assert once == joined(once, some)


def test_no_more_are_kept_than_can_matter():
    left = joined((), [cut(number, 1, number) for number in range(3 * MOST_KEPT)])
    assert len(left) == MOST_KEPT
    assert left[-1].version == 3 * MOST_KEPT - 1
