"""Scripts of all kinds are trained or refused; bad luck loses nothing and leaves nothing."""

import json
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from gemini_lab import Job, Lab
from gemini_lab.errors import RunFailedError
from gemini_lab.injector.failures import NodeLoss, NodesLoss, StoreFull, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.node.processes import STORE_KEEPER
from gemini_lab.training.quickstart import gpt_job

from .conftest import processes_of_labs, shell

ENDINGS = (signal.SIGINT, signal.SIGTERM)
"""From which a process can still clean up."""
TINY_SCRIPT = """
    import sys, torch, deepspeed, gemini_lab

    width = WIDTH if WIDTH else 16
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
    model = torch.nn.Sequential(*layers)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": STAGE},
              "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "gemini": GEMINI}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config)
    state = {"seen": 0}
    protected = gemini_lab.protect(engine, client_state=state)
    torch.manual_seed(100 + protected.step)
    for step in range(protected.step, STEPS):
        state["seen"] += 1
        loss = engine(torch.randn(4, 8)).pow(2).mean()
        engine.backward(loss)
        engine.step()
    assert state["seen"] == STEPS, state
    print("seen", state["seen"])
"""


def tiny_script(**values) -> str:
    defaults = {"STAGE": 1, "STEPS": 12, "GEMINI": {}, "WIDTH": 0}
    text = textwrap.dedent(TINY_SCRIPT)
    for name, value in {**defaults, **values}.items():
        text = text.replace(name, repr(value))
    return text


# -- scripts of all kinds ------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_a_users_own_script_survives_a_crash_with_its_client_state(lab, script, stage):
    path = script(tiny_script(STAGE=stage, STEPS=30))
    scenario = Scenario().add(WorkerCrash("rank-1"), iteration=5)
    run = lab.train(Job(script=str(path)), scenario=scenario, persistent_url=None).wait(200)
    assert len(run.report().recoveries) >= 1
    assert "seen 30" in (run.folder / "output" / "rank-0.log").read_text()


@pytest.mark.long
def test_long_work_between_steps_or_said_to_be_a_pause_is_no_hang(lab, script):
    """Three times as long as a worker may stand still in a step; the other ranks wait for it."""
    text = tiny_script(STEPS=12).replace(
        "    engine.step()",
        """\
    if step == 6 and engine.global_rank == 1:
        with protected.pause("evaluation"):
            time.sleep(12)
    engine.step()
    if step == 6 and engine.global_rank == 0:
        time.sleep(12)""",
    )
    path = script(f"import time\n{text}")
    run = lab.train(Job(script=str(path)), persistent_url=None, min_progress_s=4.0).wait(200)
    assert run.report().recoveries == ()


def test_a_script_that_never_calls_protect_runs_and_says_so(lab, script):
    path = script("import torch.distributed as dist; dist.init_process_group('gloo'); print(1)")
    run = lab.train(Job(script=str(path)), persistent_url=None).wait(100)
    assert '"unprotected"' in (run.folder / "events.jsonl").read_text()


def test_a_script_with_an_error_fails_the_run_with_its_traceback(lab, script):
    path = script("raise ValueError('no such layer')")
    with pytest.raises(RunFailedError, match="no such layer"):
        lab.train(Job(script=str(path)), persistent_url=None).wait(100)


REFUSED = """
    import torch, torch.distributed as dist, gemini_lab

    dist.init_process_group("gloo")
    has = dist.get_rank() == 1
    model = torch.nn.Linear(8, 1, device="meta" if has and FIRST else "cpu")
    kind = torch.optim.LBFGS if has and not FIRST else torch.optim.SGD
    try:
        gemini_lab.protect(model=model, optimizer=kind(model.parameters()))
    except Exception as error:
        print("told:", error, flush=True)
        dist.barrier()  # a rank that waits elsewhere does not come
        raise
"""


@pytest.mark.parametrize(
    ("first", "words"),
    [("True", "materialised before `protect`"), ("False", "needs no closure")],
    ids=["before all ranks meet", "afterwards"],
)
def test_what_one_rank_alone_refuses_all_of_them_refuse(pair, script, first, words):
    path = script(textwrap.dedent(REFUSED).replace("FIRST", first))
    run = pair.train(Job(script=str(path)), persistent_url=None)
    with pytest.raises(RunFailedError, match=words):
        run.wait(100)
    told = [path.read_text() for path in sorted((run.folder / "output").glob("rank-*.log"))]
    assert len(told) > 1
    assert all(words in one.partition("told: ")[2] for one in told)
    assert ["rank 1 refuses" in one for one in told] == [n != 1 for n in range(len(told))]


def test_a_model_that_changes_between_restarts_is_refused_with_what_differs(lab, script, tmp_path):
    text = tiny_script(STEPS=30).replace("width = 0 if 0 else 16", GROWING)
    path = script(text.replace("MARK", repr(str(tmp_path / "mark"))))
    scenario = Scenario().add(WorkerCrash("rank-1"), iteration=5)
    with pytest.raises(RunFailedError, match="changed since"):
        lab.train(Job(script=str(path)), scenario=scenario, persistent_url=None).wait(100)


GROWING = (
    "import os, time; width = 24 if os.path.exists(MARK) else 16; time.sleep(1); open(MARK, 'w')"
)


def test_memory_that_does_not_suffice_is_refused_with_the_numbers(lab, script):
    """A script whose shards are said to take 4 TiB each."""
    text = tiny_script(STAGE=3).replace(
        "protected = gemini_lab.protect",
        "from gemini_lab.shard.layout import ShardLayout as L\n"
        "import gemini_lab.engine.state.engine_state as E\n"
        "import dataclasses\n"
        "old = E.EngineState._lay_out\n"
        "huge = lambda s: dataclasses.replace(old(s), payload_bytes=2**42)\n"
        "E.EngineState._lay_out = huge\n"
        "protected = gemini_lab.protect",
    )
    with pytest.raises(RunFailedError, match=r"memory"):
        lab.train(Job(script=str(script(text))), persistent_url=None).wait(100)


# -- bad luck ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_full_store_disturbs_nothing_but_is_told(lab, undisturbed):
    job = gpt_job(size="tiny", iterations=16)
    scenario = Scenario().add(StoreFull(), iteration=3)
    run = lab.train(job, scenario=scenario, persist_every_iterations=2).wait(200)
    report = run.report()
    assert report.losses_match(undisturbed(iterations=16))
    assert report.traffic.persistent_failures


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_without_a_standby_the_run_waits_until_the_operator_brings_a_machine(undisturbed, tmp_path):
    with Lab(2, 0, folder=tmp_path) as small:
        scenario = Scenario().add(NodeLoss("rank-1"), iteration=5)
        run = small.train(
            gpt_job(size="tiny", iterations=16), scenario=scenario, persistent_url=None
        )
        report = run.wait(200).report()
    assert report.losses_match(undisturbed(iterations=16, nodes=2))
    assert '"recovery_waiting"' in (run.folder / "events.jsonl").read_text()


@pytest.mark.usefixtures("leaves_nothing")
def test_all_nodes_are_lost_at_once_and_new_ones_go_on_from_what_was_saved(undisturbed, tmp_path):
    """No root agent is left that would ask for machines, and nobody who knows of the dead."""
    job = gpt_job(size="tiny", iterations=16, layer_s=0.05)
    with Lab(2, 0, folder=tmp_path / "runs") as small:
        run = small.train(job, persistent_url=str(tmp_path / "tier"), persist_every_iterations=2)
        while not run.events("persist_finished"):
            reach(run, 0)
            time.sleep(0.05)
        run.inject(NodesLoss(("rank-0", "rank-1")))
        report = run.wait(200).report()
    assert "persistent" in {each.tier for each in report.recoveries}
    assert report.losses_match(undisturbed(iterations=16, nodes=2))


def reach(run, iteration: int) -> None:
    """Wait until a run has done some iterations."""
    while run.iteration < iteration:
        assert not run.is_over, run.failure
        time.sleep(0.05)


def is_etcd(process: psutil.Process, endpoint: str) -> bool:
    return process.name() == "etcd" and f"https://{endpoint}" in process.cmdline()


@pytest.mark.long
def test_etcd_that_is_away_for_seconds_does_not_stop_training(lab, undisturbed):
    job = gpt_job(size="tiny", iterations=60)
    run = lab.train(job, persistent_url=None)
    endpoint = run.events("lab_started")[0].event.etcd[0]
    etcd = next(p for p in processes_of_labs() if is_etcd(p, endpoint))
    reach(run, 5)
    etcd.suspend()
    before = run.iteration
    time.sleep(5)
    during = run.iteration
    etcd.resume()
    report = run.wait(200).report()
    assert during > before
    assert report.losses_match(undisturbed(iterations=60))


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_two_labs_run_at_once_on_one_machine(tmp_path):
    with Lab(2, 0, folder=tmp_path / "a") as one, Lab(2, 0, folder=tmp_path / "b") as other:
        runs = [
            each.train(gpt_job(size="tiny", iterations=6, seed=seed), persistent_url=None)
            for seed, each in enumerate((one, other))
        ]
        losses = [run.wait(200).report().losses for run in runs]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("deadly", "strikes_keeper"),
    [
        (signal.SIGKILL, False),
        (signal.SIGKILL, True),
        *(pytest.param(n, False, marks=pytest.mark.long) for n in ENDINGS),
    ],
)
@pytest.mark.usefixtures("leaves_nothing")
def test_a_killed_owner_leaves_no_process(tmp_path, deadly, strikes_keeper):
    code = textwrap.dedent("""
        import signal, time
        from gemini_lab import Lab
        from gemini_lab.training.quickstart import gpt_job
        signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
        lab = Lab(2, 1, folder="runs")
        run = lab.train(gpt_job(size="tiny", iterations=10000))
        while run.iteration < 3: time.sleep(0.05)
        print("trains", flush=True)
        run.wait()
    """)
    owner = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout.readline() == "trains\n"
        keepers = [p for p in psutil.Process(owner.pid).children() if STORE_KEEPER in p.cmdline()]
        for process in keepers if strikes_keeper else ():
            process.kill()  # etcd itself lives on
        owner.send_signal(deadly)
        owner.wait(30)
    finally:
        owner.kill()
    deadline = time.monotonic() + 20
    while any(str(tmp_path) in p.cwd() for p in living()) and time.monotonic() < deadline:
        time.sleep(0.2)


def living() -> list[psutil.Process]:
    found = []
    for process in processes_of_labs():
        try:
            process.cwd()
        except psutil.Error:
            continue
        found.append(process)
    return found


def test_a_shell_breaks_a_live_run_and_reports_on_it(lab):
    job = gpt_job(size="tiny", iterations=120)
    run = lab.train(job, persistent_url=None)
    reach(run, 4)
    assert (run.folder / "control.json").stat().st_mode & 0o077 == 0
    done = shell("inject", str(run.folder), "worker_crash", "rank-3")
    assert done.stdout.startswith("worker_crash on node-"), done.stderr
    wrong = shell("inject", str(run.folder), "node_loss", "node-99")
    assert wrong.returncode == 2
    assert "node-99" in wrong.stderr
    run.wait(200)
    told = shell("report", str(run.folder), "--json")
    assert len(json.loads(told.stdout)["recoveries"]) >= 1
    late = shell("inject", str(run.folder), "worker_crash", "rank-3")
    assert "no live run" in late.stderr


def test_a_run_can_be_stopped_and_the_lab_trains_on(lab):
    run = lab.train(gpt_job(size="tiny", iterations=10_000), persistent_url=None)
    reach(run, 2)
    threading.Timer(0.1, run.stop).start()
    with pytest.raises(RunFailedError, match="stopped by its owner"):
        run.wait(60)
    lab.train(gpt_job(size="tiny", iterations=3), persistent_url=None).wait(100)
