"""What a lab does by itself, whatever its nodes are: here they are only names."""

import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from full_disk import full_at
from lab_stand_in import ClusterStandIn, begin, lab_on, printed, tell
from waiting import until

from gemini_lab import Job, Lab, NodeLoss, Placement, Scenario, plan_placement
from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.errors import WIDE, ConfigError, LaunchError, RunFailedError
from gemini_lab.job import job_of
from gemini_lab.lab.control import CONTROL_FILE, OwnerAddress, ask, write_secret
from gemini_lab.lab.detached import RunRecord, start_detached
from gemini_lab.lab.lab_config import LabConfig, config_of
from gemini_lab.lab.run import OutputFiles
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.join import check_name
from gemini_lab.log.events import RunFinished
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.recovery.messages import InjectFailure, TakeStacks
from gemini_lab.recovery.requests import StopRun

THREE_OF_ONE = Placement(
    nodes=4, replicas=2, strategy="mine", groups=(), holders=((0, 1, 2), (1, 0), (2, 3), (3, 2))
)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").write_text("")
    return Job(script="train.py", cwd=str(tmp_path))


def threads_of_labs():
    return [thread for thread in threading.enumerate() if thread.name == "gemini-lab"]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"standbys": -1}, "at least one node"),
        ({"nodes": 2, "standbys": 1, "racks": ["a", "b"]}, "got 2 names"),
        ({"lease_s": 1}, "`lease_s` must be from 2 on"),
        ({"nodes": 2, "standbys": 0, "hosts": ["a"]}, "only 1 hosts"),
        ({"hosts": []}, "names no host"),
        ({"etcd": "nowhere"}, "host:port"),
        ({"nodes": "4"}, r"in whole numbers \(got nodes='4', workers_per_node=1"),
        ({"nodes": 2.5}, r"got nodes=2\.5"),
        ({"lease_s": "2"}, r"`lease_s` must be from 2 on: a finite number \(got '2'\)"),
        ({"wait_s": -1}, r"`wait_s` must be from 0 on: a finite number \(got -1\)"),
        ({"hosts": 3}, "hosts= is an int; give names of hosts, or a hostfile's path"),
        ({"hosts": ["a", 3]}, "hosts= names 3, which is an int"),
        ({"etcd": 2379}, "etcd= is an int; give host:port"),
        ({"folder": 3}, "folder= is an int; give a path"),
        ({"racks": 3}, "racks= is an int; give the rack of each node"),
    ],
)
def test_an_impossible_lab_starts_nothing(size, said):
    def start(*_):
        raise AssertionError("it was started")

    with pytest.raises(ConfigError, match=said):
        Lab(**size, start=start)
    assert threads_of_labs() == []


def test_a_folder_in_which_no_run_can_be_kept_is_refused_before_nodes_are_started(tmp_path):
    def start(*_):
        raise AssertionError("it was started")

    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot keep their logs in .*file.*another folder"):
        Lab(folder=tmp_path / "file" / "runs", start=start)


def test_a_lab_whose_nodes_do_not_start_leaves_no_thread():
    def start(*_):
        raise LaunchError("no machine answers")

    with pytest.raises(LaunchError, match="no machine answers"):
        Lab(start=start)
    assert threads_of_labs() == []


def test_a_job_is_submitted_with_its_settings(lab, cluster, job):
    run = lab.train(job, replicas=3)
    assert cluster.jobs[0].settings == {"replicas": 3}
    assert run.events()[-1].kind == "run_started"


def test_a_run_on_this_machine_tells_its_workers_where_to_hold(lab, cluster, job):
    cluster.is_local = True
    run = lab.train(job, hold_at=[50, 3], scenario=Scenario().lose(node=1, iteration=3))
    points = HoldingPoints.of_worker(cluster.jobs[0].job.env)
    assert run.job == job, "another start of it holds nowhere"
    assert points.iterations == (3, 50)
    assert points.next == 3
    begin(run)
    assert cluster.orders, "the scenario's failure struck"
    assert run.holds_at == 3, "and did not act in place of the user"
    run.go_on()
    assert (points.next, run.holds_at) == (50, None)
    points.wait(3)
    shutil.rmtree(run.folder)
    points.wait(50)


@pytest.mark.parametrize("wanted", [0, -1, True, 2.5, "50", [1] * 101, 2**60])
def test_where_no_run_can_hold_is_refused_in_a_sentence(lab, cluster, job, wanted):
    cluster.is_local = True
    with pytest.raises(ConfigError, match=r"hold_at=.*give an iteration such as 50"):
        lab.train(job, hold_at=wanted)
    cluster.is_local = False
    with pytest.raises(ConfigError, match="needs all nodes on this machine"):
        lab.train(job, hold_at=50)
    assert cluster.jobs == []


def test_nothing_is_submitted_that_cannot_run(lab, cluster, job):
    for settings, said in (
        ({"replicas": 9}, "9"),
        ({"colour": "red"}, "no 'colour'"),
        ({"scheme": "best"}, "no scheme"),
    ):
        with pytest.raises(ConfigError, match=said):
            lab.train(job, **settings)
    assert cluster.jobs == []
    assert lab.run is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": 5}, "a run's name is an int; give text"),
        ({"name": "latest"}, "all commands mean the newest run by it"),
        ({"name": "one\ntwo"}, "has characters that no terminal shows"),
        ({"name": "é" * 101}, r"a name of 202 bytes is too long for a run's folder \(éé"),
        ({"scenario": {"failures": []}}, "scenario= is a dict; give a Scenario"),
    ],
)
def test_what_a_run_cannot_be_called_or_suffer_is_refused(lab, cluster, job, given, said):
    with pytest.raises(ConfigError, match=said):
        lab.train(job, **given)
    assert cluster.jobs == []
    assert not lab.folder.exists()


def test_a_run_is_called_after_its_script_in_characters_that_any_store_takes(lab, tmp_path):
    (tmp_path / "mein träin skript.py").write_text("")
    run = lab.train(Job(script="mein träin skript.py", cwd=str(tmp_path)))
    assert re.fullmatch(r"\d{8}-\d{6}-mein-tr-in-skript", run.name)
    check_name(run.name)


def test_a_placement_of_ones_own_goes_with_the_job(lab, cluster, job):
    pairs = ((0, 2), (1, 3), (2, 0), (3, 1))
    mine = Placement(nodes=4, replicas=2, strategy="mine", groups=(), holders=pairs)
    lab.train(job, placement=mine, scheme="gemini")
    assert cluster.jobs[0].seats.placement == mine
    assert cluster.jobs[0].settings == {"replicas": 2, "scheme": "gemini"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"placement": plan_placement(nodes=5)}, "of 5 nodes, and 4 train"),
        ({"placement": plan_placement(nodes=4), "replicas": 3}, "replicas=3; leave the setting"),
        ({"placement": plan_placement(nodes=4), "strategy": "ring"}, "leave one of them out"),
        ({"placement": THREE_OF_ONE, "scheme": "gemini"}, "shard 0 has more than 2 copies"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_in_a_sentence(lab, cluster, job, given, said):
    with pytest.raises(ConfigError, match=said):
        lab.train(job, **given)
    assert cluster.jobs == []


def ring(nodes, replicas):
    return [[(owner + k) % nodes for k in range(replicas)] for owner in range(nodes)]


def test_a_planner_that_can_be_attacked_can_be_trained_with(lab, cluster, job):
    lab.train(job, placement=ring, replicas=3)
    placement = cluster.jobs[0].seats.placement
    assert placement.holders == tuple(map(tuple, ring(4, 3)))
    assert cluster.jobs[0].settings == {"replicas": 3}


def test_a_planner_is_called_as_it_is_attacked(lab, cluster, job):
    lab.train(job, placement=plan_placement)
    assert cluster.jobs[0].seats.placement == plan_placement(nodes=4, replicas=2)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (lambda nodes: nodes, "for 4 nodes and 2 replicas, and the answer has to be a Placement"),
        (lambda nodes: 1 // (nodes - 4), "and raised ZeroDivisionError"),
        (lambda nodes: [[0]] * nodes, "shard 0 needs 2 distinct holders"),
        (lambda nodes: plan_placement(nodes=nodes + 1), "of 5 nodes, and 4 train"),
    ],
)
def test_what_plans_no_placement_is_refused_in_a_sentence(lab, cluster, job, placement, said):
    with pytest.raises(ConfigError, match=said):
        lab.train(job, placement=placement)
    assert cluster.jobs == []


def test_neither_placement_nor_planner_is_refused_in_a_sentence(lab, job):
    asked = {"scenario": None, "name": None, "resume": False, "settings": {}}
    with pytest.raises(ConfigError, match="that plans one, and this is an int; plan_placement"):
        Submission.checked(lab.config, job, **asked, placement=3)


def test_a_scripts_path_will_do_for_a_job(lab, cluster, job):
    lab.train(str(Path(job.cwd) / job.script))
    assert cluster.jobs[0].job.title == job.title


def test_no_script_is_refused_in_a_sentence_which_is_all_that_a_notebook_shows(lab, cluster):
    with pytest.raises(ConfigError, match="a Job or a script's path, and this is an int"):
        job_of(3)
    for start in (lab.train, lab.profile):
        with pytest.raises(ConfigError, match="there is no script") as raised:
            start("no_file.py")
        (shown,) = raised.value._render_traceback_()
        assert " ".join(shown.splitlines()) == f"ConfigError: {raised.value}"
        assert max(map(len, shown.splitlines())) <= WIDE
    assert cluster.jobs == []


def test_one_run_at_a_time(lab, job):
    run = lab.train(job)
    with pytest.raises(ConfigError, match="is under way"):
        lab.train(job)
    tell(run, RunFinished(iteration=1))
    assert lab.train(job).number == run.number + 1


def test_what_workers_print_is_kept_rank_by_rank(lab, cluster, job):
    run = lab.train(job)
    printed(cluster.audience, 1, "hello")
    printed(cluster.audience, 1, "again")
    printed(cluster.audience, 1, "anew", epoch=2)
    lines = (run.folder / "output" / "rank-1.log").read_text().splitlines()
    assert lines[0].startswith("-- rank 1 on node-1, epoch 1, ")
    assert lines[1:3] == ["hello", "again"]
    assert lines[3].startswith("-- rank 1 on node-1, epoch 2, ")
    assert lines[4:] == ["anew"]


def test_what_a_worker_prints_never_fills_the_disk(tmp_path):
    files = OutputFiles(tmp_path / "output", most_bytes=100)
    for number in range(40):
        files.write(0, [f"line {number:03} " + "." * 40], node="node-0", epoch=1)
    kept = sorted((tmp_path / "output").iterdir())
    assert [file.name for file in kept] == ["rank-0.log", *(f"rank-0.log.{n}" for n in (1, 2, 3))]
    assert all(file.read_text().startswith("-- rank 0 on node-0, epoch 1") for file in kept)
    assert "line 039" in kept[0].read_text()
    assert "line 038" in kept[1].read_text()


def test_closing_a_lab_gives_the_run_up_and_ends_its_nodes(lab, cluster, job):
    run = lab.train(job)
    lab.close()
    with pytest.raises(RunFailedError, match="the lab was closed"):
        run.wait(1)
    assert cluster.is_closed
    assert threads_of_labs() == []
    with pytest.raises(ConfigError, match="closed"):
        lab.train(job)


def test_another_process_has_the_lab_act_while_the_run_is_live(lab, cluster, job):
    run = lab.train(job)
    begin(run)
    told = ask(run.folder, InjectFailure(failure=NodeLoss("node-1").to_json()))
    assert told == "node_loss on node-1"
    assert [order.node for order in cluster.orders] == ["node-1"]
    assert run.folder.name in ask(run.folder, StopRun())
    assert cluster.asked == [(run.number, StopRun())]


def test_another_process_asks_for_stacks_and_the_nodes_of_these_ranks_are_told(lab, cluster, job):
    run = lab.train(job)
    with pytest.raises(ConfigError, match="has no workers now"):
        run.stacks()
    begin(run)
    told = ask(run.folder, TakeStacks(ranks=[2, 0]))
    assert told == f"{run.name} looks at 2 of its 4 workers"
    assert cluster.looked_at == [(["node-2", "node-0"], TakeStacks(ranks=[2, 0]))]
    ask(run.folder, TakeStacks())
    assert cluster.looked_at[-1] == ([f"node-{number}" for number in range(4)], TakeStacks())
    with pytest.raises(ConfigError, match="there is no rank 4; there are 0 to 3"):
        ask(run.folder, TakeStacks(ranks=[4]))


def test_a_refusal_says_why_and_a_run_that_is_over_has_no_door(lab, job):
    run = lab.train(job)
    begin(run)
    with pytest.raises(ConfigError, match="no node 'node-9' is there"):
        ask(run.folder, InjectFailure(failure=NodeLoss("node-9").to_json()))
    assert (run.folder / CONTROL_FILE).stat().st_mode & 0o077 == 0
    assert run.folder.stat().st_mode & 0o077 == 0
    tell(run, RunFinished(iteration=1))
    with pytest.raises(ConfigError, match="no live run"):
        ask(run.folder, StopRun())


def test_a_scenario_strikes_by_the_clock_without_being_asked(lab, cluster, job):
    run = lab.train(job, scenario=Scenario().add(NodeLoss("node-1"), at_s=0.05))
    begin(run)
    until(lambda: cluster.orders)
    assert cluster.orders[0].node == "node-1"


def test_a_failure_that_came_too_late_for_its_run_is_told_of(lab, cluster, job):
    run = lab.train(job, scenario=Scenario().add(NodeLoss("node-1"), iteration=9))
    begin(run)
    tell(run, RunFinished(iteration=3), RunFinished(iteration=3))
    assert cluster.orders == []
    assert [entry.event.text for entry in run.events("note")] == [
        "node loss node-1 did not happen: training ended before iteration 9"
    ]


def test_a_lab_says_what_it_is_in_a_cell_without_markup_of_others(tmp_path):
    with lab_on(ClusterStandIn(members=("<b>node",)), tmp_path) as lab:
        assert "&lt;b&gt;node" in lab._repr_html_()
        assert repr(lab) == "<Lab: 4 nodes, 1 standbys, 1 agents>"


def test_a_run_that_cannot_keep_its_log_does_not_begin(lab, cluster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with full_at(10), pytest.raises(ConfigError, match=r"cannot keep its log in .*make room"):
        lab.train(Job(script=str(script)), name="one")
    assert cluster.jobs == []
    assert not (lab.folder / "one").exists()
    lab.train(Job(script=str(script)), name="one")
    assert len(cluster.jobs) == 1


def test_a_detached_run_that_cannot_keep_its_log_starts_nothing_and_leaves_nothing(job, tmp_path):
    nowhere = EtcdAddress(endpoints=("127.0.0.1:1",))
    config = LabConfig(nodes=2, standbys=0, folder=tmp_path / "runs", etcd=nowhere)
    wanted = Submission.checked(config, job, scenario=None, name="one", resume=False, settings={})
    with full_at(10), pytest.raises(ConfigError, match=r"cannot keep its log in .*make room"):
        start_detached(config, wanted)
    assert list(config.folder.iterdir()) == []


def test_a_secret_that_a_full_disk_does_not_take_leaves_nothing(tmp_path):
    with full_at(10), pytest.raises(OSError, match="too large"):
        write_secret(tmp_path / CONTROL_FILE, OwnerAddress(address="127.0.0.1:1", token="secret"))
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_was_lost_between_runs_is_asked_for_by_who_waits_for_all(lab, cluster, job):
    run = lab.train(job)
    with pytest.raises(TimeoutError):
        lab.wait_until_ready(timeout_s=0.1)
    assert cluster.brought == []  # a run asks by itself
    tell(run, RunFinished(iteration=3))
    with pytest.raises(TimeoutError, match=r"4 of 5 nodes are ready after 0 s: 1 is gone"):
        lab.wait_until_ready(timeout_s=0.1)
    assert cluster.brought == [5]
    cluster.living = cluster.ready = (*cluster.living, "node-5")
    lab.wait_until_ready()


@pytest.mark.parametrize(
    "more",
    [
        {"hosts": ["a", "b", "c"]},
        {"etcd": "127.0.0.1:1", "join": "x", "token": "t", "provider": "slurm --partition=gpu"},
        {"lease_s": 7.0, "warm": False, "wait_s": 3.0},
    ],
)
def test_the_owner_of_a_detached_run_has_the_description_of_its_lab(more, tmp_path):
    """It reads it in the store, on another machine."""
    asked = config_of({"nodes": 2, "workers_per_node": 2, "folder": tmp_path, **more})
    scenario = Scenario(seed=3)
    text = msgspec.json.encode(RunRecord.of(asked, scenario))
    record = msgspec.json.decode(text, type=RunRecord)
    store = SimpleNamespace(address=asked.etcd)
    assert record.config(store, asked.token, tmp_path) == asked
    assert Scenario.from_json(record.scenario) == scenario
