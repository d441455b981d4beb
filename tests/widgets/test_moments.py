"""A run at any moment is what its log comes to up to there, from wherever one gets there."""

from dataclasses import replace
from pathlib import Path

import pytest
from gemini_lab_widgets.library import Library
from told_runs import ToldRun, with_one_loss

from gemini_lab.log.entry import encode_entry
from gemini_lab.log.file import LogFeed
from gemini_lab.report.moments import MOST_COPIES, STEP, Moments
from gemini_lab.report.reducer import FOR_DASHBOARD, RunReducer
from gemini_lab.report.tables import Tables, tables_of

AT_A_MOMENT = replace(FOR_DASHBOARD, bars=0)


def write(run: ToldRun, folder: Path) -> Path:
    folder.mkdir()
    log = folder / "events.jsonl"
    log.write_bytes(b"".join(encode_entry(entry) + b"\n" for entry in run.entries))
    return log


def there(moments: Moments, at_s: float) -> Tables:
    way = moments.way(at_s)
    while not way.go():
        pass
    return tables_of(way.run, now_s=at_s)


def until(run: ToldRun, at_s: float) -> Tables:
    reducer = RunReducer(keep=AT_A_MOMENT)
    reducer.extend(entry for entry in run.entries if entry.at_s <= at_s)
    return tables_of(reducer, now_s=at_s)


def test_every_moment_is_that_of_the_log_up_to_it_back_and_forth(tmp_path: Path) -> None:
    run = with_one_loss()
    moments = Moments(LogFeed(write(run, tmp_path / "run")))
    start_s, end_s = run.entries[0].at_s, run.entries[-1].at_s
    for share in (0.5, 0.1, 1.0, 0.0, 0.7, 0.65, 2.0):
        at_s = start_s + share * (end_s - start_s)
        assert there(moments, at_s) == until(run, at_s), share


def test_in_a_recovery_the_tables_show_the_recovery(tmp_path: Path) -> None:
    run = ToldRun().protect().train(1, 9).fail("node-2", known=9)
    failed_s = run.now_s
    run.now_s += 1
    run.plan(9, members=["node-0", "node-1", "node-4", "node-3"]).resume(9)
    status = there(Moments(LogFeed(write(run, tmp_path / "run"))), failed_s).status
    assert (status.phase, status.iteration) == ("recovering", 9)
    assert status.nodes[2].health == "lost"


@pytest.mark.timeout(120)
def test_copies_stay_few_however_long_the_run(tmp_path: Path) -> None:
    run = ToldRun(nodes=1, replicas=1).protect()
    for number in range(1, STEP * MOST_COPIES // 2 + 10):
        run.train(number, number)
    moments = Moments(LogFeed(write(run, tmp_path / "run")))
    end_s = run.entries[-1].at_s
    assert not moments.way(end_s).go(), "a long log is read bit by bit"
    early_s = run.entries[STEP].at_s
    assert there(moments, end_s) == until(run, end_s)
    assert len(moments.copies) <= MOST_COPIES
    assert there(moments, early_s) == until(run, early_s)


def test_a_way_goes_on_from_where_one_has_come_to(tmp_path: Path) -> None:
    """As a slider moves on by little: nothing is read twice."""
    run = with_one_loss()
    moments = Moments(LogFeed(write(run, tmp_path / "run")))
    start_s, end_s = run.entries[0].at_s, run.entries[-1].at_s
    way = None
    for share in (0.1, 0.4, 0.45, 0.45, 0.9, 0.2, 1.0):
        at_s = start_s + share * (end_s - start_s)
        before = way
        way = moments.way(at_s, after=before)
        while not way.go():
            pass
        assert tables_of(way.run, now_s=at_s) == until(run, at_s), share
        assert (before is not None and way.run is before.run) == (share not in {0.1, 0.2})


def test_copies_share_what_only_grows(tmp_path: Path) -> None:
    run = ToldRun(nodes=1, replicas=1).protect()
    for number in range(1, 6 * STEP):
        run.iterate(number, losses=True)
    moments = Moments(LogFeed(write(run, tmp_path / "run")))
    there(moments, run.now_s)
    pieces = [id(piece) for one in moments.copies for piece in one.pieces]
    assert len(set(pieces)) < len(pieces)


def test_a_run_that_goes_on_can_be_looked_at_where_it_has_come_to(tmp_path: Path) -> None:
    run = ToldRun().protect().train(1, 3)
    log = write(run, tmp_path / "run")
    moments = Moments(LogFeed(log))
    assert there(moments, run.now_s).status.iteration == 3
    before = len(run.entries)
    run.train(4, 6)
    with log.open("ab") as more:
        more.writelines(encode_entry(entry) + b"\n" for entry in run.entries[before:])
    assert there(moments, run.now_s).status.iteration == 6


# -- which runs there are ------------------------------------------------------------------------


def test_a_run_is_put_beside_the_newest_earlier_one_of_its_job(tmp_path: Path) -> None:
    logs = [
        write(ToldRun(start_s=start_s, nodes=nodes).protect().train(1, 2), tmp_path / name)
        for name, start_s, nodes in (
            ("oldest", 1e9, 4),
            ("old", 2e9, 4),
            ("of-another-job", 3e9, 2),
            ("mine", 4e9, 4),
            ("later", 5e9, 4),
        )
    ]
    library = Library(lambda: logs[3])
    assert library.partners(logs[3]) == [logs[1]]
    assert library.partners(logs[0]) == []
    chosen = Library(lambda: logs[3], beside=[logs[2], logs[3], logs[0]])
    assert chosen.partners(logs[3]) == [logs[2], logs[0]]


def test_of_a_run_that_is_served_alone_no_other_one_is_offered(tmp_path: Path) -> None:
    logs = [write(ToldRun(), tmp_path / name) for name in ("private", "shown", "beside")]
    library = Library(lambda: logs[1], is_open=False, beside=[logs[2]])
    assert set(library.names()) == {"shown", "beside"}
    assert set(Library(lambda: logs[1]).names()) == {"private", "shown", "beside"}
