"""What of a stretch's sendings was exposed, in columns: `exposure.judge` for many iterations.

`Traffic` judges at each iteration's end by what was told until then and not let go. Here all lines
are there at once, so each judging looks only at what stands before its line.
"""

from typing import Final, Literal

import numpy as np

from gemini_lab.log.stretch import Floats, Ints
from gemini_lab.report.pyramid.groups import is_in, keys, places, running, spread
from gemini_lab.report.reducers.traffic_columns import (
    Bools,
    Exposures,
    Network,
    Sendings,
    Spans,
    Steps,
)

SLACK_S: Final = 1.0
"""More than a moment can be rounded by."""

During = tuple[Floats, Floats]
"""When a time of each begins, and when it ends."""


def is_kept(spans: Spans, owner: Ints, steps: Steps) -> Bools:
    """Which spans no iteration of their owner has let go; `owner` is that of each iteration."""
    end = np.full(len(spans.line), np.iinfo(np.int32).max)
    return ~_is_gone(spans, spans.line, end, owner, steps)


def _is_gone(spans: Spans, from_line: Ints, to_line: Ints, owner: Ints, steps: Steps) -> Bools:
    """Whether an iteration of its owner that was told between two lines let each span go."""
    order = np.lexsort((steps.line, owner))
    key = keys(owner[order], steps.line[order])
    first = np.searchsorted(key, keys(spans.owner, from_line), side="right")
    count = np.searchsorted(key, keys(spans.owner, to_line)) - first
    row, part = spread(np.maximum(count, 0))
    is_over = steps.keep_s[order[first[row] + part]] >= spans.end_s[row]
    return np.asarray(np.bincount(row[is_over], minlength=len(count)) > 0)


def judged_by(sendings: Sendings, steps: Steps) -> Ints:
    """The iteration that judges each sending; -1 while none does."""
    order = np.lexsort((steps.line, steps.rank))
    key = keys(steps.rank[order], steps.line[order])
    place = np.searchsorted(key, keys(sendings.rank, sendings.line), side="right")
    while True:
        there = is_in(key, place, sendings.rank)
        early = there.copy()
        early[there] = steps.start_s[order[place[there]]] < sendings.end_s[there]
        if not early.any():
            break
        place[early] += 1
    return np.where(there, order[np.where(there, place, 0)] if len(order) else -1, -1)


def judge(sendings: Sendings, by: Ints, steps: Steps, network: Network, waits: Spans) -> Exposures:
    """Hold sendings against the times in which training used the network or waited.

    Args:
        sendings: All of them.
        by: Which iteration judges each; -1 for none.
        steps: The iterations.
        network: By lanes.
        waits: By ranks.
    """
    which = np.flatnonzero(by >= 0)
    which = which[np.argsort(by[which], kind="stable")]
    ready, step = sendings.some(which), by[which]
    judging, first, of = np.unique(step, return_index=True, return_inverse=True)
    if not len(judging):
        none = np.empty(0, np.int64)
        return Exposures(ready, step, none, none.astype(float), none.astype(float))
    from_s, to_s = (
        np.minimum.reduceat(ready.start_s, first),
        np.maximum.reduceat(ready.end_s, first),
    )
    asked = Steps(*(getattr(steps, name)[judging] for name in Steps.__slots__))
    calls = _calls_near(network, asked, (from_s, to_s), steps)
    paused, row = _near(waits, "rank", asked, (from_s, to_s), steps)
    group, start_s, end_s = _merged(
        np.append(calls[0], paused),
        np.append(calls[1], waits.start_s[row]),
        np.append(calls[2], waits.end_s[row]),
    )
    begin, end = (np.searchsorted(group, of, side=side) for side in ("left", "right"))
    sending, part = spread(end - begin)
    part += begin[sending]
    start_s, end_s = start_s[part], end_s[part]
    sent_s, over_s = ready.start_s[sending], ready.end_s[sending]
    is_moment = sent_s == over_s
    is_met = np.where(is_moment, start_s <= sent_s, start_s < over_s) & (end_s > sent_s)
    return Exposures(
        ready,
        step,
        sending[is_met],
        np.maximum(start_s, sent_s)[is_met],
        np.minimum(end_s, over_s)[is_met],
    )


def _near(
    spans: Spans, by: Literal["lane", "rank"], asked: Steps, during_s: During, steps: Steps
) -> tuple[Ints, Ints]:
    """Which of the asked looks at which span: of its owner, told, not let go, and near its time.

    Args:
        spans: They.
        by: What owns them.
        asked: Those that look.
        during_s: When the time of each begins and ends.
        steps: All iterations.
    """
    owner, (from_s, to_s) = getattr(asked, by), during_s
    order = np.lexsort((spans.start_s, spans.owner))
    longest_s = float((spans.end_s - spans.start_s).max(initial=0.0)) + SLACK_S
    of, start_s = spans.owner[order], spans.start_s[order]
    first = places(of, start_s, owner, from_s - longest_s)
    end = places(of, start_s, owner, to_s, after=True)
    asking, part = spread(np.maximum(end - first, 0))
    row = order[first[asking] + part]
    is_met = (spans.end_s[row] >= from_s[asking]) & (spans.line[row] < asked.line[asking])
    asking, row = asking[is_met], row[is_met]
    met = Spans(*(getattr(spans, name)[row] for name in Spans.__slots__))
    is_left = ~_is_gone(met, met.line, asked.line[asking], getattr(steps, by), steps)
    return asking[is_left], row[is_left]


def _calls_near(
    network: Network, asked: Steps, during_s: During, steps: Steps
) -> tuple[Ints, Floats, Floats]:
    """The calls that each of the asked looks at: who looks, when the call began and ended."""
    asking, row = _near(network.spans, "lane", asked, during_s, steps)
    from_s, to_s = during_s
    pair, part = spread(network.count[row])
    asking, row = asking[pair], row[pair]
    call = network.begin[row] + part
    began_s, start_us = network.spans.start_s[row], network.start_us[call]
    end_us = start_us + network.duration_us[call]
    is_met = (start_us <= 1e6 * (to_s[asking] - began_s)) & (
        end_us >= 1e6 * (from_s[asking] - began_s)
    )
    start_s, end_s = began_s + start_us / 1e6, began_s + end_us / 1e6
    return asking[is_met], start_s[is_met], end_s[is_met]


def _merged(group: Ints, start_s: Floats, end_s: Floats) -> tuple[Ints, Floats, Floats]:
    """The union of each group's intervals, in order of groups and time."""
    order = np.lexsort((end_s, start_s, group))
    group, start_s, end_s = group[order], start_s[order], end_s[order]
    until_s = running(group, end_s)
    is_new = np.append(True, (np.diff(group) > 0) | (start_s[1:] > until_s[:-1]))[: len(group)]
    begin = np.flatnonzero(is_new)
    last = np.append(begin[1:], len(group))[: len(begin)] - 1
    return group[begin], start_s[begin], until_s[last]
