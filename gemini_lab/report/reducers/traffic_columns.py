"""A stretch of plain training as bars, in columns: what `Traffic.take` makes of it line by line.

Each step is told line by line in `gemini_lab.report.reducers.traffic` and
`gemini_lab.report.reducers.exposure`; tests hold both against one another, to the bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from gemini_lab.log.stretch import Called, Floats, Ints
from gemini_lab.report.pyramid.rows import ROW, Kind, Rows
from gemini_lab.report.reducers.exposure import SHORTEST_EXPOSED_S, Sending, Told

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """When training used the network, or waited; those of an owner in the order of telling.

    All columns have the shape `(spans,)`.

    Attributes:
        owner: The lane that used the network, or the rank that waited.
        line: Where it was told; -1 before the stretch.
        start_s: When it began.
        end_s: When it ended, or later.
    """

    owner: Ints
    line: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True)
class Network:
    """The collectives that matter to judging: those from before, and those of the stretch.

    Attributes:
        spans: An iteration of a rank each. Shape `(iterations,)`.
        count: Its calls; shape as before.
        begin: The place of the first one; shape as before.
        start_us: When each call began since its iteration did. Shape `(calls,)`.
        duration_us: How long it took; shape as before.
        before: Lane and calls of the first iterations: those from before.
    """

    spans: Spans
    count: Ints
    begin: Ints
    start_us: Ints
    duration_us: Ints
    before: Sequence[tuple[int, Told]]

    def told(self, row: int) -> Told:
        """One iteration's, to be remembered."""
        if row < len(self.before):
            return self.before[row][1]
        begin = int(self.begin[row])
        calls = slice(begin, begin + int(self.count[row]))
        return Told(
            float(self.spans.end_s[row]),
            float(self.spans.start_s[row]),
            tuple(self.start_us[calls].tolist()),
            tuple(self.duration_us[calls].tolist()),
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """The iterations of a stretch, in order. Shape `(iterations,)`.

    Attributes:
        line: Where it was told.
        rank: Whose it is.
        lane: Where that sits.
        start_s: When it began; what was sent by then is judged.
        keep_s: What was over by then is forgotten afterwards.
    """

    line: Ints
    rank: Ints
    lane: Ints
    start_s: Floats
    keep_s: Floats


@dataclass(frozen=True, slots=True)
class Sendings:
    """Checkpoint bytes under way; those of a rank in the order of telling. Shape `(sendings,)`."""

    line: Ints
    rank: Ints
    start_s: Floats
    end_s: Floats
    size_bytes: Floats
    version: Ints
    peer: Ints

    @classmethod
    def of(cls, told: Sequence[tuple[int, Sending]]) -> Self:
        """Those of some ranks, told before the stretch."""
        ints = [(-1, rank, one.version, one.peer) for rank, one in told]
        line, rank, version, peer = np.array(ints, np.int64).reshape(-1, 4).T
        times = [(one.start_s, one.end_s, one.size_bytes) for _, one in told]
        start_s, end_s, size_bytes = np.array(times, np.float64).reshape(-1, 3).T
        return cls(line, rank, start_s, end_s, size_bytes, version, peer)

    def followed_by(self, later: "Sendings") -> "Sendings":
        """These and later ones, which are put in order of line."""
        later = later.some(np.argsort(later.line, kind="stable"))
        columns = ((getattr(one, name) for one in (self, later)) for name in self.__slots__)
        return Sendings(*map(np.concatenate, map(tuple, columns)))

    def some(self, which: Ints | Bools) -> "Sendings":
        """Some of them."""
        return Sendings(*(getattr(self, name)[which] for name in self.__slots__))

    def each(self) -> Iterator[tuple[int, Sending]]:
        """Rank and sending, one by one."""
        names = ("rank", "start_s", "end_s", "size_bytes", "version", "peer")
        columns = (getattr(self, name).tolist() for name in names)
        for rank, start_s, end_s, size_bytes, version, peer in zip(*columns, strict=True):
            yield (
                rank,
                Sending(
                    start_s=start_s,
                    end_s=end_s,
                    size_bytes=size_bytes,
                    version=version,
                    peer=peer,
                ),
            )


@dataclass(frozen=True, slots=True)
class Exposures:
    """What of some sendings was exposed.

    Attributes:
        sendings: Those that were judged, in the order in which they were.
        step: The iteration that judged each.
        of: The sending of each time. Shape `(times,)`, as the next ones.
        start_s: When it began.
        end_s: When it ended.
    """

    sendings: Sendings
    step: Ints
    of: Ints
    start_s: Floats
    end_s: Floats

    def sizes(self) -> Floats:
        """Exposed bytes of each sending, as `exposure.Judged` has them."""
        whole_s = self.sendings.end_s - self.sendings.start_s
        exposed_s = np.bincount(self.of, self.end_s - self.start_s, len(whole_s))
        is_any = np.bincount(self.of, minlength=len(whole_s)) > 0
        size_bytes = self.sendings.size_bytes
        share = size_bytes * exposed_s / np.where(whole_s > 0, whole_s, 1.0)
        return np.where(whole_s > 0, share, np.where(is_any, size_bytes, 0.0))

    def bars(self, steps: Steps) -> "Bars":
        """Those that are drawn."""
        whole_s = (self.sendings.end_s - self.sendings.start_s)[self.of]
        took_s = self.end_s - self.start_s
        is_drawn = ~((took_s < SHORTEST_EXPOSED_S) & (whole_s > SHORTEST_EXPOSED_S))
        share = np.where(whole_s > 0, took_s / np.where(whole_s > 0, whole_s, 1.0), 1.0)
        sending, step = self.sendings.some(self.of), self.step[self.of]
        made = bars(
            Kind.EXPOSED,
            steps.line[step],
            self.start_s,
            self.end_s,
            lane=steps.lane[step],
            size_bytes=sending.size_bytes * share,
            number=sending.version,
            rank=sending.rank,
            peer=sending.peer,
        )
        return Bars(*(getattr(made, name)[is_drawn] for name in Bars.__slots__))


# -- what training did -----------------------------------------------------------------------------


def network(called: Called, lane: Ints, before: Sequence[tuple[int, Told]]) -> Network:
    """All collectives that may matter.

    Args:
        called: Those of the stretch.
        lane: Of each of its iterations.
        before: Lane and collectives of those from before.
    """
    is_any = called.count > 0
    count = called.count[is_any]
    begin = np.cumsum(count) - count
    latest_us = np.zeros(len(count), np.int64)
    if len(count):
        latest_us += np.add.reduceat(abs(called.gaps_us), begin)
        latest_us += np.maximum.reduceat(called.durations_us, begin)
    began_s, old = called.began_s[is_any], [told for _, told in before]
    spans = Spans(
        np.append(np.array([owner for owner, _ in before], np.int64), lane[is_any]),
        np.append(np.full(len(old), -1), called.line[is_any]),
        np.append([told.began_s for told in old], began_s),
        np.append([told.until_s for told in old], began_s + latest_us / 1e6),
    )
    counts = np.append(np.array([len(told.starts_us) for told in old], np.int64), count)
    return Network(
        spans,
        counts,
        np.cumsum(counts) - counts,
        np.append(_flat([told.starts_us for told in old]), starts_us(called)),
        np.append(_flat([told.durations_us for told in old]), called.durations_us),
        before,
    )


def starts_us(called: Called) -> Ints:
    """When each call began, since its iteration did. Shape `(calls,)`."""
    start_us = np.cumsum(called.gaps_us)
    before = np.cumsum(called.count) - called.count
    return np.asarray(start_us - np.repeat(np.append(0, start_us)[before], called.count))


def _flat(columns: Sequence[Sequence[int]]) -> Ints:
    return np.fromiter(chain.from_iterable(columns), np.int64)


# -- bars ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of the timeline, with where they were told and their ends to the bit."""

    line: Ints
    end_s: Floats
    rows: Rows


def bars(kind: Kind, line: Ints, start_s: Floats, end_s: Floats, **said: Ints | Floats) -> Bars:
    """Bars of a kind; what is not said of them is as in `pyramid.bars.Bars.add`."""
    rows = np.empty(len(line), ROW)
    rows["start_s"], rows["kind"] = start_s, kind
    rows["duration_s"] = np.where(end_s > start_s, end_s - start_s, 0.0)
    usual = {"size_bytes": 0.0, "new_s": 0.0, "number": -1, "part": -1, "rank": -1, "peer": -1}
    for name, value in {**usual, "lane": 0, "name": 0, **said}.items():
        rows[name] = value
    return Bars(line, end_s, rows)


def in_order(parts: Sequence[Bars]) -> tuple[Rows, Floats]:
    """All bars by line, and on a line in the order of `parts`; and their ends."""
    order = np.argsort(np.concatenate([part.line for part in parts]), kind="stable")
    rows = np.concatenate([part.rows for part in parts])
    return rows[order], np.concatenate([part.end_s for part in parts])[order]


def sending_bars(sendings: Sendings, kind: Kind, lane: Ints, span: Ints | int = -1) -> Bars:
    """A bar for each sending; `lane` is that of each line."""
    return bars(
        kind,
        sendings.line,
        sendings.start_s,
        sendings.end_s,
        lane=lane[sendings.line],
        size_bytes=sendings.size_bytes,
        number=sendings.version,
        part=np.asarray(span),
        rank=sendings.rank,
        peer=sendings.peer,
    )


def call_bars(called: Called, lane: Ints, rank: Ints, name_of: Sequence[Sequence[int]]) -> Bars:
    """A bar for each call.

    Args:
        called: Those of the stretch.
        lane: Of each iteration.
        rank: Of each iteration.
        name_of: For each list in `called.told` the names of its kinds, as numbers.
    """
    of = np.repeat(np.arange(len(called.count)), called.count)
    start_us = starts_us(called)
    began_s = called.began_s[of]
    before = np.cumsum([0, *map(len, called.told)])
    kind = called.order + before[called.kinds[of]]
    return bars(
        Kind.COLLECTIVE,
        called.line[of],
        began_s + start_us / 1e6,
        began_s + (start_us + called.durations_us) / 1e6,
        lane=lane[of],
        rank=rank[of],
        number=called.iteration[of],
        size_bytes=np.array([float(size) for each in called.told for _, size in each])[kind],
        name=np.array([name for each in name_of for name in each], np.int64)[kind],
    )
