"""A stretch of plain training at once, in columns: `Traffic.take` for many lines.

What it makes is what the lines make one by one, to the bit, and costs half of that.
"""

from collections.abc import Mapping
from math import inf

import numpy as np

from gemini_lab.log.stretch import Done, Ints, Stretch
from gemini_lab.report.pyramid.groups import last_before, last_of
from gemini_lab.report.pyramid.rows import Kind
from gemini_lab.report.reducers import exposure_columns
from gemini_lab.report.reducers import traffic_columns as columns
from gemini_lab.report.reducers.exposure import MAX_BUSY, Busy, Told
from gemini_lab.report.reducers.traffic_state import (
    MAX_NAMES,
    SHORTEST_WAIT_S,
    Rank,
    TrafficState,
)


def takes(state: TrafficState, stretch: Stretch) -> bool:
    """Whether it is as usual: all are known and sit where they sat, and nothing is repeated."""
    lanes = [state.known_lane(node) for node in stretch.nodes]
    sitting = set(zip(stretch.rank.tolist(), stretch.node.tolist(), strict=True))
    peers = {state.nodes.node_of(peer) for peer in set(stretch.sent.peer.tolist())}
    new_names = {name for kinds in stretch.called.told for name, _ in kinds}
    return (
        state.origin_s is not None
        and len(state.names) + len(new_names) < MAX_NAMES
        and all(peer is None or state.known_lane(peer) >= 0 for peer in peers)
        and all(r in state.ranks and state.ranks[r].lane == lanes[n] for r, n in sitting)
        and not _is_too_busy(state, stretch, lanes)
        and not _is_repeated(state, stretch)
    )


def _is_too_busy(state: TrafficState, stretch: Stretch, lanes: list[int]) -> bool:
    """Whether a lane may have more collectives than are remembered."""
    called = stretch.called
    calls = np.bincount(stretch.node[called.line], called.count, len(lanes)).tolist()
    busy = [state.busy[lane].count if lane in state.busy else 0 for lane in lanes]
    return any(old + new > MAX_BUSY for old, new in zip(busy, calls, strict=True))


def _is_repeated(state: TrafficState, stretch: Stretch) -> bool:
    """Whether a rank tells an iteration twice, one after the other."""
    number, rank = stretch.done.iteration, stretch.rank[stretch.done.line]
    order = np.argsort(rank, kind="stable")
    same = (np.diff(number[order]) == 0) & (np.diff(rank[order]) == 0)
    ranks, first = np.unique(rank, return_index=True)
    told = zip(ranks.tolist(), number[first].tolist(), strict=True)
    return bool(same.any()) or any(
        state.ranks[each].done == (stretch.epoch, iteration) for each, iteration in told
    )


def take(state: TrafficState, stretch: Stretch) -> None:
    """Take in a stretch of which `takes` says that it is as usual."""
    lanes = np.array([state.known_lane(node) for node in stretch.nodes], np.int64)
    lane, line = lanes[stretch.node], stretch.done.line
    start_s = stretch.at_s[line] - stretch.done.duration_s
    keep_s = start_s - stretch.done.duration_s
    steps = columns.Steps(line, stretch.rank[line], lane[line], start_s, keep_s)
    ranks = {rank: state.ranks[rank] for rank in np.unique(stretch.rank).tolist()}
    sendings, sending_bars = _sendings(state, stretch, lane, ranks)
    waits, wait_bars = _waits(state, stretch, steps, ranks)
    busy = [(at, told) for at in lanes.tolist() if at in state.busy for told in state.busy[at].told]
    network = columns.network(stretch.called, lane[stretch.called.line], busy)
    by = exposure_columns.judged_by(sendings, steps)
    exposures = exposure_columns.judge(sendings, by, steps, network, waits)
    state.bars.extend(
        *columns.in_order(
            [
                _call_bars(state, stretch, lane),
                *sending_bars,
                exposures.bars(steps),
                _step_bars(stretch, steps),
                wait_bars,
            ]
        )
    )
    _count_all(state, exposures, steps, stretch.done)
    _remember(stretch, ranks)
    _keep_open(ranks, sendings.some(by < 0), waits, steps)
    told: dict[int, list[Told]] = {at: [] for at in lanes.tolist()}
    for row in np.flatnonzero(exposure_columns.is_kept(network.spans, steps.lane, steps)).tolist():
        told[int(network.spans.owner[row])].append(network.told(row))
    for at, kept in told.items():
        state.busy.setdefault(at, Busy()).keep(kept)
    state.newest_s = max(-inf if state.newest_s is None else state.newest_s, stretch.newest_s)


def _sendings(
    state: TrafficState, stretch: Stretch, lane: Ints, ranks: Mapping[int, Rank]
) -> tuple[columns.Sendings, list[columns.Bars]]:
    """What was under way and what is from here on, and the bars of that."""
    sent, whole = stretch.sent, stretch.whole
    sender, owner = stretch.rank[sent.line], stretch.rank[whole.line]
    peers = {peer: state.nodes.node_of(peer) for peer in set(sent.peer.tolist())}
    lane_of = {p: -1 if node is None else state.known_lane(node) for p, node in peers.items()}
    peer = np.array([lane_of[each] for each in sent.peer.tolist()], np.int64)
    before = last_before(sender, sent.line, owner, whole.line)
    told = np.array([ranks[rank].told for rank in owner.tolist()], np.int64)
    told[before >= 0] = sent.version[before[before >= 0]]
    alone = (told != whole.version) & (whole.sent_bytes > 0)
    at_s = stretch.at_s[whole.line]
    new = columns.Sendings(
        np.append(sent.line, whole.line[alone]),
        np.append(sender, owner[alone]),
        np.append(sent.start_s, (at_s - whole.duration_s)[alone]),
        np.append(sent.end_s, at_s[alone]),
        np.append(sent.sent_bytes, whole.sent_bytes[alone]).astype(np.float64),
        np.append(sent.version, whole.version[alone]),
        np.append(peer, np.full(alone.sum(), -1)),
    )
    old = [(number, each) for number, rank in ranks.items() for each in rank.open]
    made = [
        columns.sending_bars(new.some(np.arange(len(sent.line))), Kind.TRANSFER, lane, sent.span),
        columns.sending_bars(
            new.some(np.arange(len(sent.line), len(new.line))), Kind.VERSION, lane
        ),
        columns.bars(
            Kind.COMPLETE,
            whole.line,
            at_s,
            at_s,
            lane=lane[whole.line],
            size_bytes=whole.sent_bytes.astype(np.float64),
            number=whole.version,
            rank=owner,
        ),
    ]
    return columns.Sendings.of(old).followed_by(new), made


def _waits(
    state: TrafficState, stretch: Stretch, steps: columns.Steps, ranks: Mapping[int, Rank]
) -> tuple[columns.Spans, columns.Bars]:
    """When ranks waited, and the bars of that."""
    done, whole = stretch.done, stretch.whole
    owner, at_s = stretch.rank[whole.line], stretch.at_s[whole.line]
    before = last_before(owner, whole.line, steps.rank, steps.line)
    whole_s = np.array([ranks[rank].whole_s for rank in steps.rank.tolist()], np.float64)
    whole_s[before >= 0] = at_s[before[before >= 0]]
    ended_s = stretch.at_s[steps.line]
    end_s = np.where((steps.start_s <= whole_s) & (whole_s <= ended_s), whole_s, ended_s)
    start_s = end_s - done.waited_s
    is_any, is_seen = done.waited_s > 0, done.waited_s >= SHORTEST_WAIT_S
    old = [(number, *wait) for number, rank in ranks.items() for wait in rank.waits]
    blocked = np.full(len(whole.line), state.is_blocking)
    new_line = np.append(steps.line[is_any], whole.line[blocked])
    order = np.argsort(new_line, kind="stable")
    waits = columns.Spans(
        np.append(
            np.array([number for number, _, _ in old], np.int64),
            np.append(steps.rank[is_any], owner[blocked])[order],
        ),
        np.append(np.full(len(old), -1), new_line[order]),
        np.append(
            [start for _, start, _ in old],
            np.append(start_s[is_any], (at_s - whole.duration_s)[blocked])[order],
        ),
        np.append([end for _, _, end in old], np.append(end_s[is_any], at_s[blocked])[order]),
    )
    seen = columns.bars(
        Kind.WAIT,
        steps.line[is_seen],
        start_s[is_seen],
        end_s[is_seen],
        lane=steps.lane[is_seen],
        number=done.iteration[is_seen],
        rank=steps.rank[is_seen],
    )
    return waits, seen


def _call_bars(state: TrafficState, stretch: Stretch, lane: Ints) -> columns.Bars:
    called = stretch.called
    names = [[0] * len(kinds) for kinds in called.told]
    for which in dict.fromkeys(called.kinds[called.count > 0].tolist()):
        names[which] = [state.name(name) for name, _ in called.told[which]]
    if len(called.line):
        state.judge_by_collectives()
    return columns.call_bars(called, lane[called.line], stretch.rank[called.line], names)


def _count_all(
    state: TrafficState, exposures: columns.Exposures, steps: columns.Steps, done: Done
) -> None:
    """Count what was exposed and hidden, and what training felt, in the order of telling."""
    sizes = zip(exposures.sendings.size_bytes.tolist(), exposures.sizes().tolist(), strict=True)
    for size_bytes, exposed_bytes in sizes:
        state.exposed_bytes += exposed_bytes
        state.hidden_bytes += size_bytes - exposed_bytes
    waited = np.flatnonzero(done.waited_s > 0)
    step = np.append(exposures.step[exposures.of], waited)
    order = np.argsort(step, kind="stable")
    felt_s = np.append(exposures.end_s - exposures.start_s, done.waited_s[waited])
    costs_s = np.array(state.costs_s)
    np.add.at(costs_s, steps.lane[step[order]], felt_s[order])
    state.costs_s[:] = costs_s.tolist()


def _remember(stretch: Stretch, ranks: Mapping[int, Rank]) -> None:
    """Know of each rank what it told last."""
    sent, whole, done = stretch.sent, stretch.whole, stretch.done
    for rank, row in zip(*last_of(stretch.rank[sent.line]), strict=True):
        ranks[rank].told = int(sent.version[row])
    for rank, row in zip(*last_of(stretch.rank[whole.line]), strict=True):
        ranks[rank].whole_s = float(stretch.at_s[whole.line[row]])
    for rank, row in zip(*last_of(stretch.rank[done.line]), strict=True):
        ranks[rank].done = stretch.epoch, int(done.iteration[row])


def _keep_open(
    ranks: Mapping[int, Rank],
    unjudged: columns.Sendings,
    waits: columns.Spans,
    steps: columns.Steps,
) -> None:
    """Leave with each rank what later iterations will judge, and the waits that this needs."""
    for rank in ranks.values():
        rank.open, rank.waits = [], []
    for number, sending in unjudged.each():
        ranks[number].open.append(sending)
    for row in np.flatnonzero(exposure_columns.is_kept(waits, steps.rank, steps)).tolist():
        wait = float(waits.start_s[row]), float(waits.end_s[row])
        ranks[int(waits.owner[row])].waits.append(wait)


def _step_bars(stretch: Stretch, steps: columns.Steps) -> columns.Bars:
    waited_us = np.rint(stretch.done.waited_s * 1e6)
    return columns.bars(
        Kind.ITERATION,
        steps.line,
        steps.start_s,
        stretch.at_s[steps.line],
        lane=steps.lane,
        number=stretch.done.iteration,
        rank=steps.rank,
        part=np.minimum(waited_us, 2**31 - 1).astype(np.int64),
    )
