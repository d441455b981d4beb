"""What failures threw away of training: every moment once, for the first failure that lost it."""

from collections.abc import Sequence

from gemini_lab.report.reducers.exposure import Interval
from gemini_lab.report.reducers.pace import Pace
from gemini_lab.report.reducers.spans import Outage


def lost_training(outages: Sequence[Outage], pace: Pace) -> dict[int, list[Interval]]:
    """From when to when training was for nothing, by recovery, newest first.

    That is the time since the version that was loaded had been reached, or from the first iteration
    on where there was none, up to the failure. Earlier recoveries in between do not count, up to
    the end of their first iteration, nor does what the failures before them had lost already.

    Args:
        outages: In their order.
        pace: When which iteration ended.

    Returns:
        None for a recovery of which nobody knows when its version was reached, or whether there
        is one.
    """
    reached_s = pace.reached()
    starts_s, _, _ = pace.spans()
    began_s = float(starts_s.min(initial=float("inf")))  # in whichever try
    found: dict[int, list[Interval]] = {}
    gone: list[Interval] = []  # apart from one another, in order
    for outage in outages:
        since_s = began_s if outage.version == 0 else None
        if outage.version:  # ranks that were not struck may bring it about after the failure
            since_s = reached_s(outage.version, outage.resumed_s)
        edge_s = outage.failed_s
        from_s = edge_s if since_s is None else min(since_s, edge_s)
        lost = []
        while gone and gone[-1][1] > from_s:
            start_s, end_s = gone.pop()
            if end_s < edge_s:
                lost.append((end_s, edge_s))
            edge_s = min(edge_s, start_s)
        if from_s < edge_s:
            lost.append((from_s, edge_s))
        gone.append((min(from_s, edge_s), outage.resumed_s))
        if since_s is not None:
            found[outage.recovery] = lost
    return found
