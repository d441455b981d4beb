"""The notebook half of the README as a type checker reads it; nothing here runs."""

from pathlib import Path
from typing import assert_type

from gemini_lab import Job, Lab, Placement, Run, RunReport, plan_placement
from gemini_lab.injector import NodeLoss, Order, Scenario
from gemini_lab.lab.pages import ControlsHandle, DashboardHandle
from gemini_lab.profiler import Profile


def cells() -> None:
    lab = Lab(nodes=4, standbys=1)
    job = Job(script="gemini_lab.training.gpt_job", module=True, args=["--iterations", "24"])
    run = lab.train(job, scenario=Scenario(seed=7).crash(rank=1, iteration=4))
    assert_type(run, Run)
    assert_type(run.wait(until=8).inject(NodeLoss("node-2")), list[Order])
    assert_type(run.wait().report(), RunReport)
    run.progress(24)
    assert_type(run.wait(until=12), Run)
    assert_type(run.save("run.html"), Path)
    assert_type(run.controls(), ControlsHandle)
    assert_type(lab.run, Run | None)
    assert_type(lab.controls(job, total=24, replicas=2), ControlsHandle)
    assert_type(lab.dashboard(port=0), DashboardHandle)
    assert_type(lab.dashboard().url, str)
    assert_type(lab.profile(job), Profile)
    assert_type(plan_placement(nodes=4, replicas=2), Placement)
    lab.close()


def refused() -> None:
    """Each line is an error to the checker; were it none, it would say that the mark is unused."""
    Lab(nodes="4")  # type: ignore[arg-type]
    Lab(nodes=2).dashboard(port="http")  # type: ignore[arg-type]
    Lab(nodes=2).dashboard(colour="red")  # type: ignore[call-arg]
    Lab(nodes=2).run.wait()  # type: ignore[union-attr]
