"""Stages of a pipeline go on, bit by bit, with the numbers of a run that never stopped."""

import pytest

SCHEDULES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)
CASES = [
    *[{"schedule": name} for name in SCHEDULES],
    {"schedule": "Schedule1F1B", "sharded": 2, "ranks": 4},
    {"schedule": "Schedule1F1B", "sharded": 3, "ranks": 8},
    {"schedule": "Schedule1F1B", "sharded": 2, "copied": True, "ranks": 4},
    {"schedule": "Schedule1F1B", "tied": True},
    {"schedule": "Schedule1F1B", "evaluates": True},
]


@pytest.fixture
def run(server, tmp_path):
    """Trains on two ranks, or as many as a case says; what each found."""

    def request(*, case, once=False, **more):
        run = server.run_once if once else server.run
        return run(tmp_path, case=case, plain=True, ranks=case.get("ranks", 2), **more)

    return request


def named(case):
    return "-".join(str(value) for value in case.values())


@pytest.mark.parametrize("case", CASES, ids=named)
def test_restored_stages_go_on_with_the_numbers_of_stages_that_never_stopped(run, case):
    """And these are the numbers of the same script without protection."""
    plain = run(case={**case, "unprotected": True})
    whole = run(case=case, wanted=[3], once=True)
    resumed = run(case=case, seed=50, load=3)
    for alone, before, after in zip(plain, whole, resumed, strict=True):
        assert before["losses"] == alone["losses"]
        assert len(before["losses"]) == 7
        assert after["losses"] == {n: loss for n, loss in before["losses"].items() if int(n) > 3}
        assert before["remarks"] == after["remarks"] == []
        assert after["inputs"] == [one for one in before["inputs"] if one[0] > 3]
        assert "stages of a pipeline" in before["uneven"]
        assert before["tables"] == after["tables"] == whole[0]["tables"]


@pytest.mark.parametrize(
    ("case", "places"),
    [
        (
            {"schedule": "Schedule1F1B", "sharded": 2, "ranks": 4},
            [f"stages {stage}, data {column}" for stage in (0, 1) for column in (0, 1)],
        ),
        ({"schedule": "Schedule1F1B"}, ["stage 0", "stage 1"]),
        ({"schedule": "ScheduleZBVZeroBubble"}, ["stages 0 and 3", "stages 1 and 2"]),
    ],
    ids=["mesh", "stage", "two stages"],
)
def test_a_rank_knows_its_place(run, case, places):
    assert [one["place"] for one in run(case=case, wanted=[3], once=True)] == places


def test_a_version_from_before_the_first_update_has_no_trial_behind_it(run):
    case = {"schedule": "Schedule1F1B"}
    whole = run(case=case, wanted=[0])
    resumed = run(case=case, seed=50, load=0)
    assert [one["losses"] for one in resumed] == [one["losses"] for one in whole]


def test_a_loop_that_does_not_tell_its_top_is_refused_on_all_ranks(run):
    with pytest.raises(RuntimeError) as caught:
        run(case={"schedule": "Schedule1F1B", "untold": True})
    assert str(caught.value).count("UnsupportedError: the ranks of this job train") == 2 * 2


def test_an_optimizer_that_leaves_a_step_out_is_refused_by_name(run):
    case = {"schedule": "ScheduleInterleaved1F1B", "skips": True}
    with pytest.raises(RuntimeError, match="a AdamW of optimizer= makes its second step, and 1 of"):
        run(case=case)
