"""A report carries the profile, the schedule and the calibration that its run was planned with."""

from made import made

from gemini_lab.log.entry import Entry, decode_entry, encode_entry
from gemini_lab.log.events import Profiled, RunStarted
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.planning import plan_chunks
from gemini_lab.profiler.profile import Profile
from gemini_lab.report import build_report

PROFILE = Profile.synthetic(iteration_s=2.0, idle_spans_s=[0.3, 0.1], world_size=2)
WIRE = Calibration(
    alpha_s=1e-4,
    bandwidth_bytes_per_s=4e7,
    copy_bytes_per_s=1e10,
    hash_bytes_per_s=2e10,
    worst_error=0.02,
    conditions=("each node on a link paced to 38.1 MiB/s",),
)
SCHEDULE = plan_chunks(
    PROFILE, checkpoint_bytes=10**7, bandwidth_bytes_per_s=4e7, buffer_bytes=2**19
)


def profiled(at_s: float) -> Entry:
    event = made(Profiled, profile=PROFILE, schedule=SCHEDULE, calibration=WIRE)
    said = Entry(at_s=at_s, node="node-0", event=event)
    return decode_entry(encode_entry(said))  # as it comes back from a log


def run_log(*more: Entry) -> list[Entry]:
    start = Entry(at_s=1.0, node="lab", event=RunStarted(name="a", nodes=2, script="a.py"))
    return [start, *more]


def test_a_job_that_is_profiled_again_has_both_plans_in_order_of_time() -> None:
    report = build_report(run_log(profiled(9.0), profiled(5.0)))
    assert [plan.at_s for plan in report.plans] == [5.0, 9.0]
