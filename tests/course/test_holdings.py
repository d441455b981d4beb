"""What ranks hold is read from their job's log, and compared."""

from types import SimpleNamespace

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration
from gemini_lab_course import holdings

DIFFERENT = [
    {"weights": {"e": 2, str(rank): 1}, "moments": {str(rank): 1}, "generator": {"g": 1}, "data": d}
    for rank, d in enumerate([{"d": 1}, {}, {}, {"d": 1}])
]


def log_of(*told):
    """A log in which each rank logged these values in its second iteration, and a loss."""
    said = [
        Iteration(
            rank=rank,
            epoch=1,
            iteration=2,
            duration_s=1,
            waited_s=0,
            values={"loss": 1.0, **values},
        )
        for rank, values in enumerate(told)
    ]
    entries = [Entry(at_s=1.0, node="node-0", event=event) for event in said]
    return SimpleNamespace(events=lambda *_: entries)


def test_a_log_has_the_pieces_of_each_rank_by_their_checksums():
    one = {"weights 0 bytes": 12.0, "weights 0 sum": 2.0**52 - 1, "data 0 bytes": 3.0}
    run = log_of(one | {"data 0 sum": 10.0}, {"weights 0 bytes": 12.0, "weights 0 sum": 7.0})
    first, second = holdings.held_in(run)
    assert first["weights"] == {"fffffffffffff": 12}
    assert first["data"] == {"000000000000a": 3}
    assert second == {"weights": {"0000000000007": 12}, "moments": {}, "generator": {}, "data": {}}
    with pytest.raises(ConfigError, match=r"train job_of\(way, steps=...\)"):
        holdings.held_in(log_of({}, {}))


def test_ranks_hold_the_same_their_own_or_something_between():
    marks = [holdings.mark_of(DIFFERENT, kind) for kind in holdings.KINDS]
    assert marks == ["mixed", "own", "same", "mixed"]
    assert holdings.as_drawn({"PP": DIFFERENT}) == "PP: mixed own same mixed"
    letters = [holdings.letters_of(DIFFERENT, kind) for kind in holdings.KINDS]
    assert letters == ["ABCD", "ABCD", "AAAA", "ABBA"]


def test_what_others_hold_outlives_a_rank():
    left = holdings.left_shares(DIFFERENT, lost=3)
    assert left == {"weights": 2 / 3, "moments": 0, "generator": 1, "data": 1}


def test_bars_add_up_to_what_a_rank_holds():
    import matplotlib.pyplot as plt

    holdings.show_held({"PP": DIFFERENT, "again": DIFFERENT})
    panels = plt.gcf().axes
    assert [axes.get_title() for axes in panels] == [*holdings.KINDS, *[""] * 4]
    weights = panels[0]
    assert [bars.get_label() for bars in weights.containers] == [
        "on all",
        "on some",
        "on this alone",
    ]
    assert [[bar.get_height() for bar in bars] for bars in weights.containers] == [
        *([2] * 4, [0] * 4, [1] * 4)
    ]
    plt.close("all")
