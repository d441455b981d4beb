"""A chunk schedule: which chunk goes into which idle span, and what that costs an iteration."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from matplotlib.axes import Axes

from gemini_lab.errors import ConfigError
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.profiler.profile import Profile
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import RIGHT, WIDTH, Board, bytes_axis, rows
from gemini_lab_widgets.pictures.iteration import network, pixel_s
from gemini_lab_widgets.pictures.picture import Picture, Table

SPANS: Final = 40
"""Spans in the table, at most."""


def draw(schedule: ChunkSchedule, *, profile: Profile | None = None) -> Picture:
    """Return the picture of a chunk schedule; with its profile, on the iteration's time line.

    Raises:
        ConfigError: The profile is of another job.
    """
    spans = _spans(schedule)
    board = Board(
        title=f"{schedule.scheme}: {len(schedule.chunks)} chunks, "
        f"{format_bytes(schedule.sent_bytes)} in {len(spans)} idle "
        f"span{'' if len(spans) == 1 else 's'}",
        beside=f"{_fit(schedule)}; at most "
        f"{format_bytes(schedule.buffer_bytes)} in {schedule.sub_buffers} sub-buffers at once",
        description=repr(schedule),
    )
    if profile is None:
        _in_columns(board, schedule)
    else:
        _in_time(board, schedule, profile)
    _delay(board, schedule)
    board.notes(schedule.notes)
    return board.picture(tables=[_table(schedule)], plain=repr(schedule))


def _in_time(board: Board, schedule: ChunkSchedule, profile: Profile) -> None:
    """Draw the profile's line with chunks below it; the fullest span is drawn full."""
    if profile.fingerprint != schedule.fingerprint:
        raise ConfigError(
            f"the schedule was planned with profile {schedule.fingerprint}, this one is "
            f"{profile.fingerprint}; draw it with its own"
        )
    end_s = max(profile.iteration_s, schedule.predicted_iteration_s)
    panel = network(board, profile, end_s=end_s, more=("chunks",))
    row = len(panel.get_yticks()) - 1
    per_byte_s = 1 / _fullest_bytes_per_s(schedule, profile)
    for number, span in enumerate(profile.idle_spans):
        start_s = span.start_s
        for size_bytes, colour, tip in _blocks(schedule.in_span(number), most=40):
            length_s = size_bytes * per_byte_s
            is_wide = length_s > 3 * pixel_s(panel)
            bar = panel.barh(
                row,
                length_s,
                left=start_s,
                height=1.0,
                color=colour,
                edgecolor=palette.LIGHT.paper,
                linewidth=0.8 if is_wide else 0,
            )
            board.tip(bar[0], tip)
            start_s += length_s
    _replica_legend(board, schedule)
    board.notes(
        ["A chunk's width shows its bytes; the span with most bytes a second is drawn full."]
    )


def _fullest_bytes_per_s(schedule: ChunkSchedule, profile: Profile) -> float:
    rates = [
        sum(chunk.size_bytes for chunk in schedule.in_span(number)) / span.duration_s
        for number, span in enumerate(profile.idle_spans)
        if span.duration_s > 0
    ]
    return max(rates, default=1.0) or 1.0


def _in_columns(board: Board, schedule: ChunkSchedule) -> None:
    """Draw a column for each span that carries chunks, and one for what is left over."""
    columns: list[int | None] = [*_spans(schedule)]
    if schedule.leftover:
        columns.append(None)
    if not columns:
        board.notes(["nothing is sent"])
        return
    width = min(RIGHT - 90, 90.0 * len(columns))
    panel = board.axes(150, left=90, right=90 + width, above=26, below=46)
    panel.set_title("bytes in each idle span")
    for x, column in enumerate(columns):
        _column(board, panel, x, schedule.in_span(column))
    every = -(-len(columns) * 26 // int(width))
    ticks = [x for x, c in enumerate(columns) if x % every == 0 or c is None]
    names = ["rest" if columns[x] is None else str(columns[x]) for x in ticks]
    panel.set_xticks(ticks, names)
    panel.set_xlim(-0.6, len(columns) - 0.4)
    panel.set_xlabel("idle span")
    bytes_axis(panel, max(sum(c.size_bytes for c in schedule.in_span(each)) for each in columns))
    _replica_legend(board, schedule)


def _column(board: Board, panel: Axes, x: int, chunks: Sequence[Chunk]) -> None:
    blocks = list(_blocks(chunks, most=20))
    bottom = 0
    for size_bytes, colour, tip in blocks:
        bar = panel.bar(
            x,
            size_bytes,
            0.84,
            bottom=bottom,
            color=colour,
            edgecolor=palette.LIGHT.paper,
            linewidth=0.8,
        )
        board.tip(bar[0], tip)
        bottom += size_bytes


def _blocks(chunks: Sequence[Chunk], *, most: int) -> Iterator[tuple[int, str, str]]:
    """Give bytes, colour and words of each chunk, or of each replica's if there are too many."""
    if len(chunks) <= most:
        for chunk in chunks:
            yield chunk.size_bytes, _colour(chunk), _tip(chunk)
        return
    for replica, group in itertools.groupby(chunks, key=lambda chunk: chunk.replica):
        ones = list(group)
        size_bytes = sum(chunk.size_bytes for chunk in ones)
        tip = f"{len(ones)} chunks of replica {replica}, {format_bytes(size_bytes)}"
        yield size_bytes, _colour(ones[0]), tip


def _replica_legend(board: Board, schedule: ChunkSchedule) -> None:
    firsts = {c.replica: c for c in reversed(schedule.chunks) if c.span is not None}
    entries = [(_colour(firsts[r]), f"replica {r}") for r in sorted(firsts)[:8]]
    if schedule.leftover:
        size = format_bytes(schedule.leftover_bytes)
        entries.append((palette.FELT, f"left over: {size}, training waits for it"))
    board.legend(entries)


def _delay(board: Board, schedule: ChunkSchedule) -> None:
    """Draw an iteration without and one with a version, to scale."""
    panel = board.axes(56, above=14, below=8, right=WIDTH - 240)
    rows(panel, ["iteration", "with a version"])
    plain_s = min(schedule.iteration_s, schedule.predicted_iteration_s)
    lengths_s = [schedule.iteration_s, schedule.predicted_iteration_s]
    panel.barh(0, schedule.iteration_s, height=0.7, color=palette.TRAINING)
    panel.barh(1, plain_s, height=0.7, color=palette.TRAINING)
    panel.barh(1, max(0.0, lengths_s[1] - plain_s), left=plain_s, height=0.7, color=palette.FELT)
    panel.set(xlim=(0, max(*lengths_s, 1e-12)), xticks=[])
    predicted = f" (predicted, {_more(schedule)})"
    for row, (length_s, said) in enumerate(zip(lengths_s, ("", predicted), strict=True)):
        panel.annotate(
            format_seconds(length_s) + said,
            (length_s, row),
            (8, 0),
            weight="bold",
            textcoords="offset points",
            va="center_baseline",
        )


def _fit(schedule: ChunkSchedule) -> str:
    if schedule.leftover:
        return f"{format_bytes(schedule.leftover_bytes)} fit no span"
    return "everything fits" if schedule.fits else "not everything fits"


def _more(schedule: ChunkSchedule) -> str:
    if not schedule.iteration_s:
        return f"+{format_seconds(schedule.delay_s)}"
    if schedule.delay_s < 5e-4 * schedule.iteration_s:
        return "no delay"
    return f"{schedule.delay_s / schedule.iteration_s:+.1%}"


def _spans(schedule: ChunkSchedule) -> list[int]:
    return sorted({chunk.span for chunk in schedule.chunks if chunk.span is not None})


def _table(schedule: ChunkSchedule) -> Table:
    return Table(head=("span", "chunks", "bytes"), rows=list(_span_rows(schedule)))


def _span_rows(schedule: ChunkSchedule) -> Iterator[tuple[str, str, str]]:
    spans = _spans(schedule)
    shown: list[int | None] = [*spans[:SPANS], *([None] if schedule.leftover else [])]
    for span in shown:
        chunks = schedule.in_span(span)
        name = "left over" if span is None else str(span)
        yield name, str(len(chunks)), format_bytes(sum(c.size_bytes for c in chunks))
    if len(spans) > SPANS:
        yield f"{len(spans) - SPANS} further spans", "", ""


def _colour(chunk: Chunk) -> str:
    if chunk.span is None:
        return palette.FELT
    return palette.REPLICAS[(chunk.replica - 1) % len(palette.REPLICAS)]


def _tip(chunk: Chunk) -> str:
    where = "fits no span" if chunk.span is None else f"span {chunk.span}"
    return (
        f"replica {chunk.replica}, {format_bytes(chunk.size_bytes)} from byte "
        f"{chunk.offset_bytes}, {where}"
    )
