"""Recoveries and wasted time: the same figures as the run's report, beside Eq. (1)."""

import pytest
from told_runs import ToldRun

from gemini_lab.recovery.wasted_time import wasted_time_s
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables import Tables, tables_of
from gemini_lab.report.tables.recoveries import RecoveryRow
from gemini_lab.report.tables.recoveries import losses as losses_of


def tables(run: ToldRun, *earlier: RunReducer) -> Tables:
    return tables_of(reduced(run), earlier=[(one, losses_of(one)) for one in earlier])


def reduced(run: ToldRun, *, name: str = "") -> RunReducer:
    reducer = RunReducer(name=name)
    reducer.extend(run.entries)
    return reducer


def steps(row: RecoveryRow) -> list[str]:
    return [step.label for step in row.steps]


def test_a_recovery_under_way_has_no_end_yet() -> None:
    run = ToldRun().protect().train(1, 5).fail("node-2", known=5).step("fence", 0.1)
    table = tables(run).recoveries
    assert table.rows[0].down_s is None
    assert steps(table.rows[0]) == ["detection", "fencing"]
    assert tables(run).status.wasted_s == 0


def test_the_persistent_baseline_is_eq_1_with_what_the_run_wrote() -> None:
    run = ToldRun().protect()
    for version in (4, 8, 12):
        run.train(version - 3, version).persist(version, duration_s=3.0)
    run.fail("node-2", known=12)
    run.plan(12, members=["node-0", "node-1", "node-4", "node-3"]).resume(12)
    expected_s = wasted_time_s(checkpoint_s=3.0, interval_s=4 * 1.125, retrieval_s=3.0)
    baseline = tables(run).recoveries.rows[-1]
    assert baseline.origin == "model"
    assert baseline.wasted_s == pytest.approx(expected_s)
    took_s = {step.label: step.end_s - step.start_s for step in baseline.steps}
    assert took_s["retrieval"] == pytest.approx(3.0)
    assert took_s["warm-up"] == pytest.approx(1.5)
    assert tables(run).wasted.rows[-1].total_s == pytest.approx(expected_s)


def test_of_many_recoveries_the_newest_are_shown() -> None:
    run = ToldRun().protect()
    for number in range(1, 151):
        run.train(number, number).fail(run.members[2], known=number)
        members = [*run.members[:2], f"new-{number}", run.members[3]]
        run.plan(number, members=members).resume(number)
    table = tables(run).recoveries
    assert table.total == 150
    assert [row.label for row in table.rows][-1] == "recovery 150"
    assert len(table.rows) == 12
    assert "the newest 12 of 150 recoveries" in table.notes
