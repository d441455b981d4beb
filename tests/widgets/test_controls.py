"""The owner's buttons: they do what they say, and only when it can be done."""

import time

import pytest
from waiting import until

pytest.importorskip("ipywidgets")

from gemini_lab_widgets.controls import (
    DRAIN,
    LINES,
    RESIZE,
    REWIND,
    STACKS,
    Controls,
    Layout,
    places,
    sight,
)
from lab_stand_in import NODES, ClusterStandIn, begin, entry, lab_on, run_in, seated, step, tell
from made import made
from msgspec.structs import replace

from gemini_lab.errors import ConfigError
from gemini_lab.job import Job
from gemini_lab.log.events import (
    Note,
    Protected,
    RecoveryFinished,
    RecoveryStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    StacksTaken,
)
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.requests import DrainNode, ResizeRun, RewindRun, StopRun
from gemini_lab.settings import Settings

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").write_text("")
    return Job(script="train.py", cwd=str(tmp_path))


@pytest.fixture
def cluster():
    return ClusterStandIn()


@pytest.fixture
def lab(tmp_path, cluster):
    with lab_on(cluster, tmp_path / "runs") as lab:
        yield lab


def protected(*, replicas):
    placement = plan_placement(nodes=len(NODES), replicas=replicas)
    return made(Protected, shard_bytes=8, fingerprint="f", settings=Settings(), placement=placement)


def test_start_starts_the_job_with_its_settings_and_then_waits_for_its_end(lab, cluster, job):
    panel = Controls(lab, job, total=10, replicas=3)
    assert not panel.start_button.disabled
    panel.start_button.click()
    assert lab.run.job is job
    assert cluster.jobs[0].settings == {"replicas": 3}
    assert panel.start_button.disabled
    tell(lab.run, RunFinished(iteration=10))
    panel.refresh()
    assert not panel.start_button.disabled
    panel.close()


def test_fail_breaks_what_was_chosen(lab, cluster, job):
    panel = lab.controls(job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    panel.kind.value, panel.place.value = "node_loss", "node-1"
    panel.fail_button.click()
    (order,) = cluster.orders
    assert (order.node, order.action.kind) == ("node-1", "node_loss")
    panel.close()


def test_a_failure_of_no_one_node_wants_no_place(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    panel.kind.value = "root_loss"
    assert panel.place.disabled
    panel.fail_button.click()
    assert cluster.orders[0].node == "node-0"
    panel.close()


def test_every_failure_that_the_panel_offers_can_happen(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    for _, kind in panel.kind.options:
        before = len(cluster.orders)
        panel.kind.value = kind
        panel.fail_button.click()
        assert len(cluster.orders) > before, kind
    panel.close()


def test_a_group_and_a_rack_are_offered_where_the_run_has_them(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    assert not {"nodes_loss", "rack_loss"} & {kind for _, kind in panel.kind.options}
    tell(lab.run, protected(replicas=2))
    panel.refresh()
    panel.kind.value = "nodes_loss"
    assert [place for _, place in panel.place.options] == ["node-0 + node-1", "node-2 + node-3"]
    panel.place.value = "node-2 + node-3"
    panel.fail_button.click()
    assert sorted(order.node for order in cluster.orders) == ["node-2", "node-3"]
    panel.close()


def test_the_racks_that_can_be_lost_are_those_that_the_log_names():
    layout = Layout()
    started = RunStarted(name="j", script="train.py", nodes=4, racks=("a", "a", "b c", "b c"))
    layout.take(entry(started))
    assert places(NODES, layout)["rack_loss"] == ("a", "b c")


def test_a_second_run_begins_with_no_lines_of_the_first(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    tell(lab.run, Note(text="of the first"), RunFinished(iteration=3))
    panel.refresh()
    assert "of the first" in panel.log.value
    panel.start_button.click()
    panel.refresh()
    assert "of the first" not in panel.log.value
    panel.close()


def test_an_error_of_ours_becomes_a_line(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    panel.fail_button.click()
    assert "! nothing can fail now" in panel.log.value
    assert cluster.orders == []
    panel.close()


@pytest.mark.parametrize(
    "wanted",
    [
        (DRAIN, {"node": "node-2"}, DrainNode(node="node-2")),
        (REWIND, {"count": 2}, RewindRun(steps=2)),
        (RESIZE, {"count": 3}, ResizeRun(nodes=3)),
    ],
)
def test_what_is_asked_for_reaches_the_run(lab, cluster, job, wanted):
    what, chosen, heard = wanted
    panel = Controls(lab, job)
    panel.start_button.click()
    assert panel.asking.button.disabled
    begin(lab.run)
    panel.refresh()
    panel.asking.what.value = what
    for box, value in chosen.items():
        getattr(panel.asking, box).value = value
    panel.asking.button.click()
    assert cluster.asked == [(1, heard)]
    panel.close()


def test_the_stacks_of_a_rank_are_asked_of_its_node_and_shown(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    panel.asking.what.value = STACKS
    assert panel.asking.count.value == 0
    panel.asking.count.value = 2
    panel.asking.button.click()
    ((nodes, order),) = cluster.looked_at
    assert (nodes, order.ranks) == ([NODES[2]], [2])
    lines = ("thread MainThread", f'File "{HOSTILE}", line 3 in load')
    tell(lab.run, StacksTaken(rank=2, epoch=1, pid=7, how="by its own thread", lines=lines))
    panel.refresh()
    assert "rank 2, by its own thread" in panel.log.value
    assert "line 3 in load" in panel.log.value
    assert HOSTILE not in panel.log.value
    panel.close()


def test_a_size_that_cannot_be_becomes_a_line(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    tell(lab.run, protected(replicas=2))
    panel.refresh()
    panel.asking.what.value = RESIZE
    assert panel.asking.count.value == len(NODES)
    panel.asking.count.value = 1
    panel.asking.button.click()
    assert "! " in panel.log.value
    assert "cannot have 1 nodes" in panel.log.value
    panel.close()


def test_stop_ends_the_run_and_not_the_lab(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    panel.stop_button.click()
    assert cluster.asked == [(lab.run.number, StopRun())]
    assert not lab.is_closed
    panel.close()


def test_the_strip_shows_nodes_loss_and_the_recovery_under_way(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    for number, loss in enumerate((5.5, 4.25), start=4):
        tell(lab.run, replace(step(0, number), values={"loss": loss}))
    panel.refresh()
    assert "loss 4.25" in panel.strip.value
    assert panel.strip.value.count(": alive") == len(NODES)
    lost = {"lost": ("node-1",), "cause": "node_lost", "failed_at_s": time.time()}
    began = RecoveryStarted(recovery=1, epoch=2, iteration=3, **lost)
    tell(lab.run, began)
    panel.refresh()
    assert "node-1: lost" in panel.strip.value
    assert "node-2: stopped" in panel.strip.value
    assert "a failure was detected" in panel.strip.value
    done = made(RecoveryFinished, epoch=2, version=3, iteration=4, duration_s=1.5)
    tell(lab.run, seated("node-0", HOSTILE, "node-2", "node-3"), done)
    panel.refresh()
    assert "last recovery: 1.5 s" in panel.strip.value
    assert ": lost" not in panel.strip.value
    assert "<img" not in panel.strip.value
    panel.close()


def test_a_button_closes_the_lab_and_then_nothing_can_be_pressed(lab, cluster, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    panel.close_button.click()
    assert (lab.is_closed, cluster.is_closed) == (True, True)
    buttons = (panel.start_button, panel.fail_button, panel.stop_button, panel.close_button)
    assert all(button.disabled for button in buttons)
    assert panel.status.value.endswith("the lab is closed")
    panel.close()


def test_a_runs_own_panel_closes_no_lab(tmp_path):
    panel = Controls(run_in(tmp_path / "run"))
    assert panel.close_button.disabled
    panel.close()


def test_nothing_can_be_pressed_when_the_lab_is_closed(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.follow()
    lab.close()
    until(lambda: "the lab is closed" in panel.status.value)
    until(lambda: not lab.run or lab.run.phase in panel.status.value)
    for button in (panel.start_button, panel.fail_button, panel.stop_button):
        assert button.disabled
    panel.close()


def test_the_button_starts_the_job_with_a_root_agent_of_ones_own(lab, cluster, job):
    def mine(state, event, cluster):  # noqa: ARG001 - it answers nothing
        return None

    panel = Controls(lab, job, root=mine)
    panel.start_button.click()
    assert cluster.jobs[0].root
    panel.close()


def test_a_panel_of_a_lab_that_is_over_stays_as_text(lab, job, capsys):
    """Its buttons would do nothing, and a saved notebook has no widget any more."""
    panel = Controls(lab, job, total=10).follow()
    panel._ipython_display_()  # which prints where there is no notebook
    assert "no run yet" in capsys.readouterr().out
    lab.close()
    told = []
    until(lambda: told.append(capsys.readouterr().out) or "the lab is closed" in "".join(told))
    assert "widget-view" not in "".join(told)


def test_a_panel_without_a_run_says_that_its_lab_is_closed(lab, job):
    panel = Controls(lab, job).follow()
    lab.close()
    until(lambda: "the lab is closed" in panel.status.value)
    assert panel.start_button.disabled
    panel.close()


def test_a_runs_own_panel_starts_nothing(tmp_path, job):
    run = run_in(tmp_path / "run", job)
    panel = run.controls()
    assert panel.start_button.disabled
    with pytest.raises(ConfigError, match="nothing to start"):
        panel.start()
    panel.close()


def test_a_paused_view_stands_still_and_catches_up(lab, job):
    panel = Controls(lab, job, total=10)
    panel.start_button.click()
    begin(lab.run)
    panel.pause.value = True
    tell(lab.run, *(step(rank, 4) for rank in range(len(NODES))))
    panel.refresh()
    assert panel.bar.value == 3
    assert lab.run.iteration == 4
    panel.pause.value = False
    assert panel.bar.value == 4
    panel.close()


def test_the_panel_follows_without_being_asked(lab, job):
    panel = Controls(lab, job).follow()
    lab.train(job)  # not by the button
    begin(lab.run)
    until(lambda: "iteration 3" in panel.status.value)
    until(lambda: ("node-1", "node-1") in panel.place.options)
    panel.close()


def test_a_chosen_node_stays_chosen_until_it_is_gone(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    begin(lab.run)
    panel.refresh()
    panel.place.value = "node-1"
    tell(lab.run, seated("node-1", "node-5", *NODES[2:]))
    panel.refresh()
    assert panel.place.value == "node-1"
    tell(lab.run, seated("node-5", "node-6", *NODES[2:]))
    panel.refresh()
    assert panel.place.value == "node-5"
    panel.close()


def test_what_happened_is_told_in_few_lines_without_markup(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    for _ in range(2 * LINES):
        tell(lab.run, Note(text=HOSTILE))
    panel.refresh()
    assert panel.log.value.count("onerror") == LINES
    assert "<img" not in panel.log.value
    panel.close()


def test_a_hostile_name_stays_text_in_the_panel(tmp_path, job):
    run = run_in(tmp_path / HOSTILE.replace("/", ""), job)
    begin(run, members=[HOSTILE, *NODES[1:]])
    panel = Controls(run)
    assert "<img" not in panel.status.value
    assert "&lt;img" in panel.status.value
    panel.close()


def test_a_closed_panel_hears_nothing_more(lab, job):
    panel = Controls(lab, job)
    panel.start_button.click()
    panel.close()
    tell(lab.run, Note(text="later"))
    assert "later" not in panel.log.value
    assert lab.run._watchers == []


def test_the_bar_is_there_where_its_length_is_known(lab, job):
    with_bar, without = Controls(lab, job, total=10), Controls(lab, job)
    assert (with_bar.bar.layout.display, without.bar.layout.display) == (None, "none")
    assert without.status.layout.display is None
    with_bar.close()
    without.close()


def test_without_a_run_the_panel_says_how_to_get_one():
    assert "lab.controls(job)" in sight(None, has_job=False).text


def test_a_run_that_was_given_up_says_why(tmp_path, job):
    run = run_in(tmp_path / "run", job)
    tell(run, RunFailed(reason="no such script"))
    seen = sight(run, has_job=True)
    assert "no such script" in seen.text
    assert (seen.can_start, seen.can_fail, seen.can_stop) == (True, False, False)
