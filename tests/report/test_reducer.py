"""One reducer: however the entries arrive, all who read a run read the same figures."""

import pickle
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import made
from told_runs import (
    RUNS,
    TRACEBACK,
    with_two_tries,
)

from gemini_lab.display import error_line, last_lines
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Call, Collectives, Inputs, IterationBegun, Transfer
from gemini_lab.report import RunReport, build_report
from gemini_lab.report.build import report_of
from gemini_lab.report.reducer import FOR_DASHBOARD, FOR_REPORT, READERS, Keep, RunReducer
from gemini_lab.report.tables import Tables, tables_of

WHOLE = Keep(bars=100_000, recoveries=None, notes=None, ranks=True)


SENT = (
    Collectives.of([Call("all_reduce", 8, 0.25, 0.5)], rank=1, epoch=1, iteration=3, began_s=1.0),
    IterationBegun(rank=1, epoch=1, iteration=3, inputs=Inputs(batch="b", random={})),
    made(Transfer, rank=1, version=2, span=0, sent_bytes=8, start_s=1.0, end_s=1.5),
)


def answers(run: RunReducer) -> tuple[RunReport, Tables, bytes, list[object]]:
    traffic = run.traffic
    bars = traffic.bars
    told = [traffic.marks, traffic.lanes, traffic.hidden_bytes, traffic.exposed_bytes]
    return report_of(run), tables_of(run), bars.packed(bars.first, bars.end), told


def reduced(entries: Sequence[Entry], *, keep: Keep = WHOLE) -> RunReducer:
    run = RunReducer(keep=keep)
    run.extend(entries)
    return run


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(RUNS)))
def test_questions_while_a_run_goes_on_change_no_answer(data: st.DataObject, name: str) -> None:
    """All at once, one by one, and in two parts with every question asked in between."""
    entries = RUNS[name]
    pause = data.draw(st.integers(2, len(entries)))
    paused = RunReducer(keep=WHOLE)
    for entry in entries[:pause]:
        paused.take(entry)
    if paused.course.job is not None:
        before = answers(paused)
        assert before == answers(reduced(entries[:pause]))
        assert before == answers(paused)
    paused.extend(entries[pause:])
    assert answers(paused) == answers(reduced(entries))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_report_and_a_dashboard_give_the_same_figures(name: str) -> None:
    report = report_of(reduced(RUNS[name], keep=FOR_REPORT))
    tables = tables_of(reduced(RUNS[name], keep=FOR_DASHBOARD))
    rows = [row for row in tables.recoveries.rows if row.origin != "model"]
    assert len(rows) == tables.recoveries.total == len(report.recoveries)
    for row, recovery in zip(rows, report.recoveries, strict=True):
        assert row.down_s == recovery.duration_s
        assert row.wasted_s == recovery.wasted_s
        assert row.lost_iterations == recovery.lost_iterations
        redone = [step for step in row.steps if step.name != "redo"]
        assert [step.name for step in redone] == [step.name for step in recovery.steps]
    assert [mark.iteration for mark in tables.iterations.marks] == [
        recovery.reached + 1 for recovery in report.recoveries
    ]
    if report.wasted is not None:
        assert tables.wasted.each_s == report.wasted.measured_s
        assert tables.wasted.rows[1].total_s == pytest.approx(report.wasted.predicted_s)
    assert (tables.status.phase == report.outcome) == (report.outcome != "unfinished")
    assert tables.status.output == report.output


@pytest.mark.parametrize("name", sorted(RUNS))
def test_nothing_of_a_sound_run_is_odd(name: str) -> None:
    assert reduced(RUNS[name]).unread == 0


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"simulated"}))
def test_entries_of_several_nodes_may_interleave(name: str) -> None:
    """Neighbours in the log that different nodes said a moment apart change places."""
    entries, places = list(RUNS[name]), random.Random(5)
    for place in range(3, len(entries) - 1):
        first, second = entries[place : place + 2]
        is_told_by_workers = {first.kind, second.kind} <= {"iteration", "version_complete"}
        if first.node != second.node and is_told_by_workers and places.random() < 0.5:
            entries[place : place + 2] = second, first
    assert build_report(entries) == build_report(RUNS[name])


# -- what a failure cost, where the root agent that tells of it was elected just now ---------------


def test_a_try_that_fell_over_loses_no_iteration_twice() -> None:
    first, second = build_report(with_two_tries().entries).recoveries
    assert (first.version, first.lost_iterations) == (5, 2)
    assert (second.version, second.lost_iterations) == (9, 0)


# -- a bug in the user's script --------------------------------------------------------------------


def test_of_a_long_output_the_end_is_kept() -> None:
    lines = list(last_lines([f"line {number}" for number in range(50)], 3))
    assert lines == ["... 47 lines before", "line 47", "line 48", "line 49"]


def test_where_a_traceback_ends_in_a_library_the_users_own_line_is_shown_too() -> None:
    """The frame that can be mended stands before those of the library that it called."""
    library = [f'  File "/env/lib/python3.11/site-packages/torch/x{n}.py"' for n in range(20)]
    output = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 9, in <module>',
        "    loss = model(batch)",
        *(f"{line}, line 1, in forward" for line in library),
        "RuntimeError: mat1 and mat2",
    ]
    assert list(last_lines(output, 2)) == [
        "... 22 lines before",
        '  File "/home/me/train.py", line 9, in <module>',
        "    loss = model(batch)",
        "...",
        f"{library[-1]}, line 1, in forward",
        "RuntimeError: mat1 and mat2",
    ]


def test_colours_of_an_output_go_and_control_characters_are_shown_escaped() -> None:
    output = ["\x1b[31mred\x1b[0m\tand\x07 loud", "", ""]
    assert list(last_lines(output)) == ["red and\\x07 loud"]


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (TRACEBACK, TRACEBACK[-1]),
        ((*TRACEBACK, "", "[rank1]: terminating"), TRACEBACK[-1]),
        (("torch.OutOfMemoryError: out of memory",), "torch.OutOfMemoryError: out of memory"),
        (("KeyboardInterrupt",), "KeyboardInterrupt"),
        (("Killed", ""), "Killed"),
        ((), ""),
    ],
)
def test_the_line_that_says_what_was_raised_is_found(output: Sequence[str], line: str) -> None:
    assert error_line(output) == line


@pytest.mark.parametrize("name", [name for name in RUNS if name != "simulated"])
def test_who_is_not_asked_about_an_entry_would_have_made_nothing_of_it(name):
    entries = RUNS[name]
    half = len(entries) // 2
    sent = [Entry(at_s=entries[half].at_s, node="node-1", event=event) for event in SENT]
    run, asked = RunReducer(keep=WHOLE), set()
    for entry in (*entries[:half], *sent, *entries[half:]):
        readers = READERS.get(type(entry.event))
        others = [] if readers is None else [take.__self__ for take in run._parts]
        for part in others:
            if type(part) not in readers:
                before = pickle.dumps(part)
                part.take(entry)
                assert pickle.dumps(part) == before, (type(part), entry)
        asked.add(type(entry.event))
        run.take(entry)
    assert asked >= READERS.keys()
