"""An iteration's network: when it is busy, and which chunk goes into which idle span."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.profiler.profile import Collective, Profile
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.drawings.canvas import WIDTH, Canvas, Picture, Table, TimeAxis, fit

LEFT: Final = 200.0
RIGHT: Final = WIDTH - 34.0
LANE: Final = 26.0
KINDS: Final = 4
"""Lanes of collectives; the rarer ones share the last."""
REPLICA_COLOURS: Final = ("orange", "pink", "yellow", "sky")


def draw_profile(profile: Profile) -> Picture:
    """The picture of a profile."""
    title = (
        f"One iteration: {format_seconds(profile.iteration_s)}, network idle for "
        f"{format_seconds(profile.idle_s)} in {len(profile.idle_spans)} spans"
    )
    canvas = Canvas(title=title, description=f"{profile!r}. {profile.verdict}")
    made = f"mean of {profile.iterations} iterations" if profile.iterations else "synthetic"
    traffic = f", {format_bytes(profile.traffic_bytes)} each" if profile.traffic_bytes else ""
    beside = f"seen from one of {profile.world_size} ranks; {made}{traffic}"
    top = 8 + canvas.heading(title, beside)
    axis = TimeAxis(left=LEFT, right=RIGHT, low_s=0.0, high_s=profile.iteration_s)
    bottom = _network(canvas, profile, axis, top)
    _update(canvas, axis.x(profile.update_s), top, bottom)
    y = axis.draw(canvas, top=top, bottom=bottom)
    sign, colour = ("✓", "green") if profile.steady else ("!", "red")
    y = canvas.notes(y + 26, [f"{sign} {profile.verdict}"], colour=colour)
    canvas.notes(y, [f"made with {condition}" for condition in profile.conditions])
    return Picture(canvas=canvas, table=_profile_table(profile), plain=repr(profile))


def draw_schedule(schedule: ChunkSchedule, *, profile: Profile | None = None) -> Picture:
    """The picture of a chunk schedule; with its profile, on the iteration's time line.

    Raises:
        ConfigError: The profile is of another job.
    """
    spans = len({chunk.span for chunk in schedule.chunks} - {None})
    title = (
        f"{schedule.scheme}: {len(schedule.chunks)} chunks, {format_bytes(schedule.sent_bytes)} "
        f"in {spans} idle span{'' if spans == 1 else 's'}"
    )
    canvas = Canvas(title=title, description=repr(schedule))
    left = schedule.leftover_bytes
    beside = f"{format_bytes(left)} fit no span" if left else "everything fits"
    top = 8 + canvas.heading(title, f"{beside}; at most {format_bytes(schedule.buffer_bytes)} in "
                         f"{schedule.sub_buffers} sub-buffers at once")  # fmt: skip
    if profile is None:
        y = _spans_as_bars(canvas, schedule, top)
    else:
        y = _spans_in_time(canvas, schedule, profile, top)
    y = _delay(canvas, schedule, y + 30)
    canvas.notes(y + 24, schedule.notes)
    return Picture(canvas=canvas, table=_schedule_table(schedule), plain=repr(schedule))


def _network(canvas: Canvas, profile: Profile, axis: TimeAxis, top: float) -> float:
    """A lane for each kind of collective and one for idle spans; gives where they end."""
    lanes = _lanes(profile.collectives)
    for number, (name, collectives) in enumerate(lanes):
        y = top + number * LANE
        canvas.text(12, y + 16, name, size=13, within=LEFT - 20)
        canvas.rect(LEFT, y + 3, RIGHT - LEFT, LANE - 6, fill="pale")
        for each in collectives:
            tip = (
                f"{each.name}, {format_bytes(each.size_bytes)}, "
                f"{format_seconds(each.duration_s)} at {format_seconds(each.start_s)}"
            )
            x = axis.x(each.start_s)
            width = max(1.0, axis.x(each.end_s) - x)
            canvas.rect(x, y + 3, width, LANE - 6, fill="blue", tip=tip)
    y = top + len(lanes) * LANE
    canvas.text(12, y + 18, "idle", size=13, bold=True)
    for number, span in enumerate(profile.idle_spans):
        x, end = axis.x(span.start_s), axis.x(span.end_s)
        colour = "green" if span.before_update else "grey"
        tip = (
            f"idle span {number}: {format_seconds(span.duration_s)} ± "
            f"{format_seconds(span.std_s)}"
            + ("" if span.before_update else ", after the update began: no checkpoint uses it")
        )
        canvas.rect(x, y + 3, end - x - 0.5, LANE + 2, fill=colour, opacity=0.85, tip=tip)
        label = format_seconds(span.duration_s)
        if fit(label, end - x - 6, size=13) == label:
            canvas.text((x + end) / 2, y + 21, label, size=13, anchor="middle", fill="paper")
    return y + LANE + 8


def _lanes(collectives: Sequence[Collective]) -> list[tuple[str, list[Collective]]]:
    """The collectives by name, those that hold the network longest first."""
    by_name: dict[str, list[Collective]] = {}
    for each in collectives:
        by_name.setdefault(each.name, []).append(each)
    ordered = sorted(by_name.items(), key=lambda pair: -sum(c.duration_s for c in pair[1]))
    if len(ordered) > KINDS:
        rest = [each for _, ones in ordered[KINDS - 1 :] for each in ones]
        ordered = [*ordered[: KINDS - 1], (f"{len(ordered) - KINDS + 1} other kinds", rest)]
    return ordered


def _update(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    canvas.line([(x, top - 2), (x, bottom)], stroke="red", thick=2, dash="5 3")
    is_right = x > WIDTH - 120
    canvas.text(x + (-5 if is_right else 5), top - 5, "update", size=13, fill="red",
                anchor="end" if is_right else "start")  # fmt: skip


def _spans_in_time(canvas: Canvas, schedule: ChunkSchedule, profile: Profile, top: float) -> float:
    """The profile's line with chunks below it; the fullest span is drawn full."""
    if profile.fingerprint != schedule.fingerprint:
        raise ConfigError(
            f"the schedule was planned with profile {schedule.fingerprint}, this one is "
            f"{profile.fingerprint}; draw it with its own"
        )
    end_s = max(profile.iteration_s, schedule.predicted_iteration_s)
    axis = TimeAxis(left=LEFT, right=RIGHT, low_s=0.0, high_s=end_s)
    bottom = _network(canvas, profile, axis, top)
    canvas.text(12, bottom + 18, "chunks", size=13, bold=True)
    for number, span in enumerate(profile.idle_spans):
        chunks = schedule.in_span(number)
        if chunks:
            x, width = axis.x(span.start_s), axis.x(span.end_s) - axis.x(span.start_s)
            rate = _fullest(schedule, profile) * span.duration_s
            _row_of_chunks(canvas, chunks, x, width / rate, bottom + 3)
    _update(canvas, axis.x(profile.update_s), top, bottom + LANE + 6)
    y = axis.draw(canvas, top=top, bottom=bottom + LANE + 8)
    y = _replica_legend(canvas, schedule, y + 26)
    said = "Widths of chunks are bytes; the span that carries most a second is drawn full."
    return canvas.notes(y + 24, [said]) - 19


def _fullest(schedule: ChunkSchedule, profile: Profile) -> float:
    """Bytes per second of the span that is filled most."""
    rates = [
        sum(chunk.size_bytes for chunk in schedule.in_span(number)) / span.duration_s
        for number, span in enumerate(profile.idle_spans)
        if span.duration_s > 0
    ]
    return max(rates, default=1.0) or 1.0


def _row_of_chunks(
    canvas: Canvas, chunks: Sequence[Chunk], x: float, per_byte: float, y: float
) -> None:
    for size_bytes, colour, tip in _blocks(chunks, most=40):
        width = size_bytes * per_byte
        canvas.rect(x, y, max(0.8, width - 0.7), LANE + 2, fill=colour, tip=tip)
        x += width


def _blocks(chunks: Sequence[Chunk], *, most: int) -> Iterator[tuple[int, str, str]]:
    """Bytes, colour and words of each chunk; of each replica's where there are too many."""
    if len(chunks) <= most:
        for chunk in chunks:
            yield chunk.size_bytes, _colour(chunk), _tip(chunk)
        return
    for replica, group in itertools.groupby(chunks, key=lambda chunk: chunk.replica):
        ones = list(group)
        size_bytes = sum(chunk.size_bytes for chunk in ones)
        tip = f"{len(ones)} chunks of replica {replica}, {format_bytes(size_bytes)}"
        yield size_bytes, _colour(ones[0]), tip


def _spans_as_bars(canvas: Canvas, schedule: ChunkSchedule, top: float) -> float:
    """A column for each span that carries chunks, and one for what is left over."""
    spans = sorted({chunk.span for chunk in schedule.chunks if chunk.span is not None})
    columns: list[int | None] = [*spans, *([None] if schedule.leftover else [])]
    if not columns:
        canvas.text(12, top + 16, "nothing is sent", fill="dim")
        return top + 20
    totals = {c: sum(chunk.size_bytes for chunk in schedule.in_span(c)) for c in columns}
    high, bottom = max(totals.values()), top + 130
    step = min(64.0, (RIGHT - 80) / len(columns))
    canvas.text(12, top + 12, format_bytes(high), size=13, fill="dim")
    canvas.line([(80, top), (80, bottom), (RIGHT, bottom)], thick=1)
    every = -(-len(columns) * 26 // int(RIGHT - 80)) if step < 26 else 1
    for number, column in enumerate(columns):
        x, y = 84 + number * step, bottom
        for size_bytes, colour, tip in _blocks(schedule.in_span(column), most=20):
            height = size_bytes / high * 122
            y -= height
            seam = 0.7 if height > 4 else 0.0
            canvas.rect(x, y, max(0.8, step - 4), height - seam, fill=colour, tip=tip)
        if number % every == 0 or column is None:
            canvas.text(x + step / 2 - 2, bottom + 17, "rest" if column is None else column,
                        size=13, anchor="middle", fill="dim")  # fmt: skip
    canvas.text(12, bottom + 17, "idle span", size=13, fill="dim")
    return _replica_legend(canvas, schedule, bottom + 42)


def _replica_legend(canvas: Canvas, schedule: ChunkSchedule, y: float) -> float:
    firsts = {c.replica: c for c in reversed(schedule.chunks) if c.span is not None}
    entries = [(_colour(firsts[r]), f"replica {r}") for r in sorted(firsts)[:8]]
    if schedule.leftover:
        size = format_bytes(schedule.leftover_bytes)
        entries.append(("red", f"left over: {size}, training waits for it"))
    return canvas.legend(12, y, entries)


def _delay(canvas: Canvas, schedule: ChunkSchedule, y: float) -> float:
    """An iteration without and one with a version, to scale; gives where they end."""
    longest_s = max(schedule.iteration_s, schedule.predicted_iteration_s, 1e-12)
    scale = (RIGHT - 220 - LEFT) / longest_s
    for name, length_s in (("iteration", schedule.iteration_s),
                           ("with a version", schedule.predicted_iteration_s)):  # fmt: skip
        canvas.text(12, y + 14, name, size=13)
        plain_s = min(length_s, schedule.iteration_s)
        canvas.rect(LEFT, y, plain_s * scale, 18, fill="grey")
        canvas.rect(LEFT + plain_s * scale, y, (length_s - plain_s) * scale, 18, fill="red")
        said = format_seconds(length_s)
        if name != "iteration":
            said += f" (predicted, {_more(schedule)})"
        canvas.text(LEFT + length_s * scale + 8, y + 14, said, size=13, bold=True)
        y += 26
    return y


def _more(schedule: ChunkSchedule) -> str:
    if not schedule.iteration_s:
        return f"+{format_seconds(schedule.delay_s)}"
    if schedule.delay_s < 5e-4 * schedule.iteration_s:
        return "no delay"
    return f"{schedule.delay_s / schedule.iteration_s:+.1%}"


def _profile_table(profile: Profile) -> Table:
    rows = [
        (
            name,
            f"{len(ones)} calls",
            format_bytes(sum(each.size_bytes for each in ones)),
            format_seconds(sum(each.duration_s for each in ones)),
        )
        for name, ones in _lanes(profile.collectives)
    ]
    usable = [span for span in profile.idle_spans if span.before_update]
    rows.append(("idle before the update", f"{len(usable)} spans", "",
                 format_seconds(sum(span.duration_s for span in usable))))  # fmt: skip
    return Table(head=("on the network", "how often", "bytes", "time"), rows=rows)


def _schedule_table(schedule: ChunkSchedule) -> Table:
    spans = sorted({chunk.span for chunk in schedule.chunks if chunk.span is not None})
    return Table(head=("span", "chunks", "bytes"), rows=list(_span_rows(schedule, spans)))


def _span_rows(schedule: ChunkSchedule, spans: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    shown: list[int | None] = [*spans[:40], *([None] if schedule.leftover else [])]
    for span in shown:
        chunks = schedule.in_span(span)
        name = "left over" if span is None else str(span)
        yield name, str(len(chunks)), format_bytes(sum(c.size_bytes for c in chunks))
    if len(spans) > 40:
        yield f"{len(spans) - 40} further spans", "", ""


def _colour(chunk: Chunk) -> str:
    if chunk.span is None:
        return "red"
    return REPLICA_COLOURS[(chunk.replica - 1) % len(REPLICA_COLOURS)]


def _tip(chunk: Chunk) -> str:
    where = "fits no span" if chunk.span is None else f"span {chunk.span}"
    return (
        f"replica {chunk.replica}, {format_bytes(chunk.size_bytes)} from byte "
        f"{chunk.offset_bytes}, {where}"
    )
