"""What the bench of rewinds reads out of a log."""

from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent, Iteration, Rewound
from gemini_lab_bench.benches.rewind import rewinds_in


def ended(at_s: float, iteration: int, *, rank: int = 0) -> Entry:
    event = made(Iteration, rank=rank, iteration=iteration, duration_s=1.0)
    return said(at_s, event)


def said(at_s: float, event: AnyEvent) -> Entry:
    return Entry(at_s=at_s, node="node-0", event=event)


def test_a_rewind_lasts_from_the_iteration_before_it_to_the_end_of_the_next():
    went = made(
        Rewound, iteration=5, version=4, rewinds=1, skips=True, cause="guard", duration_s=0.25
    )
    log = [
        ended(1.0, 4),
        ended(2.0, 5),
        ended(2.25, 5, rank=1),
        said(2.5, went),
        ended(3.5, 5),
        ended(4.5, 6),
    ]
    assert [*rewinds_in(log)] == [(1.5, 0.25)]
