"""Claims about simulations with measured times."""

import random
from dataclasses import replace

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.injector import Scenario
from gemini_lab.simulator import (
    Measured,
    Spread,
    Steps,
    Times,
    Workload,
    outages_of,
    paper_workload,
    replay,
    simulate,
)
from gemini_lab.simulator.interval import mean_interval, student_t
from gemini_lab.simulator.policy import gemini_lab


def spread(*samples_s):
    return Spread(samples_s=samples_s)


CRASH = Steps(detect_s=0.1, fence_s=0.2, start_s=3.0, retrieve_s=0.1, warm_up_s=0.5)
LOSS = Steps(detect_s=2.0, fence_s=0.4, start_s=5.0, retrieve_s=0.3, warm_up_s=0.7)
TIMES = Times(
    iteration=spread(1.0),
    waited=spread(0.0),
    version=spread(0.4),
    first_start=spread(20.0),
    recoveries={"worker_crash": (CRASH,), "node_loss": (LOSS,)},
    source="a log",
)
MEASURED = Measured(
    times=TIMES, nodes=4, standbys=2, gpus_per_node=1, replicas=2, checkpoint_bytes=4800
)
WORKLOAD = Workload.from_log(MEASURED)


def test_a_workload_from_a_log_has_the_logs_job_and_times():
    assert (WORKLOAD.nodes, WORKLOAD.standbys, WORKLOAD.shard_bytes) == (4, 2, 1200)
    assert WORKLOAD.network_bytes_per_s == pytest.approx(1200 / 0.4)
    assert WORKLOAD.detection_s == pytest.approx((0.1 + 2.0) / 2)
    assert Workload.from_log(MEASURED, standbys=0).standbys == 0
    assert gemini_lab(WORKLOAD).times == TIMES


def test_machines_take_as_long_to_come_as_those_that_came():
    """Two machines are lost and no standby waits: each order takes 3 or 5 s."""
    came = replace(MEASURED, times=replace(TIMES, replacement=spread(3.0, 5.0)))
    workload = Workload.from_log(came, standbys=0)
    assert workload.replacement_s == (3.0, 5.0)
    assert not workload.assumed
    outages = outages_of(Scenario().lose(node=2, iteration=5).lose(node=1, iteration=10), workload)
    played = replay(workload, outages, iterations=20, replays=50)
    assert played.parts["reserve"].mean == pytest.approx(8.0)
    assert played.parts["reserve"].half_width > 0
    given = Workload.from_log(came, standbys=0, replacement_s=(100.0, 100.0))
    assert replay(given, outages, iterations=20, replays=2).parts["reserve"].mean == 200.0


def test_where_no_machine_came_the_default_is_said_to_be_one():
    assert WORKLOAD.replacement_s == (240.0, 420.0)
    [text] = WORKLOAD.assumed
    assert "240 to 420 s" in text
    assert text in gemini_lab(WORKLOAD).assumptions
    assert replay(WORKLOAD, (), iterations=2, replays=2).assumed == (text,)


def test_a_run_without_recoveries_does_not_teach_how_long_they_take():
    calm = replace(MEASURED, times=replace(TIMES, recoveries={}))
    with pytest.raises(ConfigError, match=r"no recovery.*give `detection_s` and `warm_up_s`"):
        Workload.from_log(calm)
    given = Workload.from_log(calm, detection_s=1.0, warm_up_s=2.0)
    assert (given.detection_s, given.warm_up_s, given.times) == (1.0, 2.0, None)
    with pytest.raises(ConfigError, match="tells detection and warm-up"):
        Workload.from_log(MEASURED, detection_s=1.0)


def test_each_kind_of_failure_takes_the_steps_that_were_measured_for_it():
    """Version 4 is not whole as iteration 5 ends, version 9 was when half of 11 was done."""
    scenario = Scenario().crash(rank=1, iteration=5).lose(node=2, iteration=10)
    [crash, loss] = outages_of(scenario, WORKLOAD)
    outages = [crash, replace(loss, iteration=10.5)]
    played = replay(WORKLOAD, outages, iterations=20, replays=20)
    assert played.parts["training"].mean == pytest.approx(20.0)
    assert played.parts["redo"].mean == pytest.approx(1.0 + 0.5)
    for step in ("detect", "fence", "start", "retrieve", "warm_up"):
        expected = getattr(CRASH, f"{step}_s") + getattr(LOSS, f"{step}_s")
        assert played.parts[step].mean == pytest.approx(expected)
    assert played.total.mean == pytest.approx(sum(part.mean for part in played.parts.values()))
    assert played.total.half_width == pytest.approx(0.0, abs=1e-9)  # measured once: as it is


def test_a_failure_nobody_has_seen_takes_the_steps_of_any():
    assert TIMES.steps("node_freeze", "hardware") == (CRASH, LOSS)
    assert TIMES.spread("start", "node_loss").mean_s == 5.0
    with pytest.raises(ConfigError, match="no recovery to learn from"):
        replace(TIMES, recoveries={}).steps("node_loss")


def test_95_percent_of_new_sums_lie_in_the_predicted_interval():
    """Five times are known of a normal law; the sum of three more is predicted."""
    draw = random.Random(11)
    inside = 0
    for _ in range(150):
        known = spread(*[draw.gauss(30.0, 4.0) for _ in range(5)])
        laws = [known.law(draw) for _ in range(80)]
        sums = sorted(sum(law.draw(draw) for _ in range(3)) for law in laws)
        inside += sums[2] <= sum(draw.gauss(30.0, 4.0) for _ in range(3)) <= sums[-3]
    assert inside / 150 == pytest.approx(75 / 81, abs=0.07)  # between the ranks 3 and 78 of 80


def test_a_measured_run_begins_with_its_first_start_and_ends_with_its_last_iteration():
    outcome = simulate(WORKLOAD, gemini_lab(WORKLOAD), (), days=1, iterations=7)
    assert outcome.wall_s == pytest.approx(20.0 + 7.0)
    assert outcome.down_s == {"first_start": 20.0}
    assert outcome.versions == 7


def test_without_measured_times_there_is_nothing_to_replay():
    with pytest.raises(ConfigError, match=r"Workload\.from_log"):
        replay(paper_workload(), (), iterations=3)


def test_student_t_covers_the_mean_of_three_values_95_percent_of_the_time():
    """With 1.96 in place of 4.30 it would be 81 %."""
    draw = random.Random(2)
    hits = sum(0.0 in mean_interval([draw.gauss() for _ in range(3)]) for _ in range(2000))
    assert hits / 2000 == pytest.approx(0.95, abs=0.017)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (9, 2.262), (40, 2.021), (120, 1.980)])
def test_students_t_is_that_of_the_tables(freedom, value):
    assert student_t(freedom) == pytest.approx(value, abs=5e-4)


def test_a_time_that_was_measured_once_is_taken_as_it_is():
    draw = random.Random(1)
    assert spread(3.0).law(draw).draw(draw) == 3.0
    with pytest.raises(ConfigError, match="at least 0 s"):
        spread(-1.0)
