"""What nobody sane asks for is refused where it is asked: at once, in words, and without memory."""

import contextlib
import itertools
import math
import os
import resource
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.cli.dry_run import find_block
from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import COMMANDS, main
from gemini_lab.engine.arguments import MOST_VALUES
from gemini_lab.engine.iteration_log import IterationLog
from gemini_lab.engine.protection import UnprotectedLoops
from gemini_lab.errors import LONGEST, ConfigError, GeminiError, UnsupportedError, shortened, shown
from gemini_lab.injector.failures import FAILURES, BitFlip, Failure, NodesLoss, RackLoss, WrongSums
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.control import way_in
from gemini_lab.lab.lab_config import config_of
from gemini_lab.lab.run_locator import access_in
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.join import find_token
from gemini_lab.limits import END_BYTES, MOST_FILE_BYTES, read_end
from gemini_lab.log.file import require_log
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.pipeliner import plan_chunks
from gemini_lab.placement import plan_placement, propose_placement, sampled_probability
from gemini_lab.profiler.profile import IdleSpan, Profile
from gemini_lab.recovery.requests import why_no_size
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.simulator import FailureRate, plan, poisson_failures, simulate
from gemini_lab.simulator.policy import gemini
from gemini_lab.simulator.workload import paper_workload
from gemini_lab.storage.manifest import MANIFEST
from gemini_lab.storage.persistent import PersistentTier, _folder
from gemini_lab.units import check_number, parse_bandwidth, parse_bytes

MOST_TAKEN_BYTES = 256 * 2**20
LARGE = "x" * 2**20
HUGE = [2**31, 2**63, 10**18, 10**30, 10**400, 10**5000, 1e300, math.inf]
NUMBERS = [*HUGE, *(-number for number in HUGE), math.nan, -1, 0.5, True]
TEXTS = ["", "1e400", "1e400 MiB", "9" * 5000, LARGE, "a\nb", "a\0b", "[" * 100_000, "nan", "-1"]
OTHERS = [None, b"x", [], {}, object(), 1j, [10**30], {"x": LARGE}]
EXTREMES = [*NUMBERS, *TEXTS, *OTHERS]
extreme = st.sampled_from(EXTREMES)


def refused(act: Callable[[], object], *, may_pass: bool = True) -> str:
    """What stands against it, in a short error of ours; empty where it will do.

    Any other exception is a failure of the test, and so is memory that was taken before.
    """
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        act()
    except GeminiError as error:
        said = str(error)
        assert len(said) <= LONGEST
        return said
    finally:
        most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert most_bytes - before_bytes < MOST_TAKEN_BYTES
    assert may_pass
    return ""


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_a_setting_takes_no_extreme(name):
    for value in EXTREMES:
        said = refused(lambda value=value: Settings.parse({name: value}))
        assert not said or name in said
        refused(lambda value=value: Settings(**{name: value}))


@pytest.mark.parametrize("name", [one.name for one in fields(Settings) if "int" in str(one.type)])
def test_no_count_of_a_setting_is_larger_than_its_tensors_hold(name):
    for value in HUGE[1:]:
        assert refused(lambda value=value: Settings.parse({name: value}), may_pass=False)


def test_an_error_shows_what_was_asked_and_not_all_of_it():
    assert shown(10**5000) == "a whole number of 16610 bits"
    assert len(shown(LARGE)) == 80
    assert shown("short") == "'short'"
    with pytest.raises(
        ConfigError, match=r"the gemini setting chunk_bytes: a size is .*'1e400 MiB'"
    ):
        Settings.parse({"chunk_bytes": "1e400 MiB"})


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = f"the first word {LARGE} the last word"
    cut = shortened(text)
    assert len(cut) < 2_000
    assert cut.startswith("the first word")
    assert cut.endswith("the last word")
    assert shortened(cut) == cut


# -- the command line ------------------------------------------------------------------------------

NO_COUNT = [
    "-1",
    "1e3",
    "2147483648",
    str(2**63),
    str(10**30),
    "9" * 5000,
    "nan",
    "inf",
    "",
    "x\ny",
]
NO_TIME = ["-1", "nan", "inf", "1e400", "1e300", str(10**30), "", "soon"]
RUN = ["run", "--dry-run"]
ASKED = {
    "nodes": ([*RUN, "--nodes", None, "train.py"], NO_COUNT),
    "standbys": ([*RUN, "--standbys", None, "train.py"], NO_COUNT),
    "workers": ([*RUN, "--workers-per-node", None, "train.py"], NO_COUNT),
    "replicas": ([*RUN, "--replicas", None, "train.py"], NO_COUNT),
    "lease": ([*RUN, "--lease", None, "train.py"], NO_TIME),
    "wait for machines": ([*RUN, "--wait", None, "train.py"], NO_TIME),
    "notice": ([*RUN, "--notice", None, "train.py"], NO_TIME),
    "hosts": ([*RUN, "--hosts", None, "train.py"], ["", ",", " ", "a b", "h:99999999999"]),
    "hostfile": ([*RUN, "--hostfile", None, "train.py"], ["", "/dev/zero", "nowhere"]),
    "racks": ([*RUN, "--racks", None, "train.py"], ["", "a", LARGE[:100_000], "a\nb,c"]),
    "name": ([*RUN, "--name", None, "train.py"], ["a\nb", "x" * 100_000, "..", "a/b"]),
    "etcd": ([*RUN, "--etcd", None, "train.py"], ["", "h", "h:99999999999", "h:-1"]),
    "join": ([*RUN, "--etcd", "h:1", "--join", None, "train.py"], ["", "a\nb", "x" * 1000]),
    "scenario": ([*RUN, "--scenario", None, "train.py"], ["", "/dev/zero", "nowhere"]),
    "setting": (
        [*RUN, "--set", None, "train.py"],
        ["", "=1", "mu=[", "mu=NaN", "mu=1e400", "x" * 99],
    ),
    "deep setting": ([*RUN, "--set", None, "train.py"], ["mu=" + "[" * 100_000]),
    "metrics": ([*RUN, "--metrics", None, "train.py"], ["99999999", "9" * 5000, "-1", ""]),
    "torchrun's nodes": (["torchrun", "--dry-run", "--nnodes", None, "train.py"], NO_COUNT[3:]),
    "torchrun's ranks": (
        ["torchrun", "--dry-run", "--nproc-per-node", None, "train.py"],
        NO_COUNT[2:],
    ),
    "resize": (["resize", "latest", None], NO_COUNT),
    "rewind": (["rewind", "latest", None], NO_COUNT),
    "wait for it": (["rewind", "latest", "1", "--wait", None], NO_TIME),
    "shard": (["inject", "latest", "bit_flip", "node-1", "--shard", None], NO_COUNT),
    "place": (["inject", "latest", "node_loss", None], ["", "node-" + "9" * 5000, "node-1\n", "x"]),
    "check": (["check", "--nodes", None, "train.py"], NO_COUNT),
    "check's iterations": (["check", "--iterations", None, "train.py"], NO_COUNT[3:]),
    "chaos": (["chaos", "--faults", None], NO_COUNT),
    "chaos's minutes": (["chaos", "--minutes", None], NO_TIME),
    "quickstart": (["quickstart", "--nodes", None], NO_COUNT),
    "port": (["metrics", "latest", "--port", None], NO_COUNT),
    "stop": (["stop", "latest", "--notice", None], NO_TIME),
    "top": (["top", "latest", "--every", None], NO_TIME),
    "window": (
        ["report", "latest", "--html", "x", "--window", None],
        ["nan:1", "0:inf", "1:0", ""],
    ),
    "version": (["export", "latest", "--to", "x.pt", "--version", None], NO_COUNT),
    "repeats": (["bench", "copy", "--repeats", None], NO_COUNT),
    "profile": (["profile", "--iterations", None, "train.py"], NO_COUNT),
    "machine": (["node", "--etcd", "h:1", "--lab", "x", "--machine", None], ["a\nb", "x" * 201]),
    "node's wait": (["node", "--etcd", "h:1", "--lab", "x", "--wait", None], NO_TIME),
    "serve": (["serve", "latest", "--port", None], NO_COUNT),
}
"""Arguments of a command, with `None` in the place of each of some values."""


@pytest.mark.parametrize("asked", ASKED)
def test_a_command_refuses_at_once_what_is_no_number_or_name(asked, capsys, tmp_path, monkeypatch):
    """It exits with 2, and says what was asked; no run is there, and none is started."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    arguments, values = ASKED[asked]
    for value in values:
        try:
            status = main([value if one is None else one for one in arguments])
        except SystemExit as left:  # argparse's
            status = left.code
        said = capsys.readouterr().err
        assert (status, value[:40]) == (Exit.REFUSED, value[:40])
        assert 0 < len(said) < 10_000
        assert "Traceback" not in said
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_no_command_reads_a_number_by_itself():
    """Python's `int` reads a million digits, or none, and says nothing of what is allowed."""
    root = Path(__file__).parents[1]
    homes = {home.partition(":")[0].replace(".", "/") for home, _ in COMMANDS.values()}
    sources = [*(root / f"{home}.py" for home in homes), *(root / "gemini_lab/cli").glob("*.py")]
    found = [
        path.name
        for path in sources
        for word in ("type=int", "type=float")
        if word in path.read_text()
    ]
    assert found == []


def test_a_file_that_never_ends_is_not_read_to_its_end(tmp_path):
    large = tmp_path / "scenario.json"
    with large.open("wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)
    assert "more than" in refused(lambda: Scenario.load(large))
    assert "more than" in refused(lambda: config_of({"hosts": str(large)}))
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 1_000_000)
    assert "cannot read a scenario" in refused(lambda: Scenario.load(deep))


def test_a_fifo_that_nobody_writes_to_is_not_waited_for(tmp_path, monkeypatch):
    """Whatever a user names as a file is opened at once, or refused."""
    fifo = tmp_path / "events.jsonl"
    os.mkfifo(fifo)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    (tmp_path / "train.py").write_text("")
    for what, read in READERS.items():
        place = tmp_path / what if "." in what else fifo
        if place != fifo:
            os.mkfifo(place, 0o600)
        with contextlib.suppress(ConfigError):  # a configuration is looked for, and not there
            read(place)
    for read in (Scenario.load, require_log, lambda path: config_of({"hosts": str(path)})):
        assert "no regular file" in refused(lambda read=read: read(fifo))
    for option in ("--scenario", "--hostfile"):
        assert main(["run", "--dry-run", option, str(fifo), str(tmp_path / "train.py")]) == 2
    assert main(["report", str(fifo)]) == main(["list", "--folder", str(fifo)]) + 2 == 2


ENDLESS = 1 << 42  # bytes, of which the disk has none

READERS = {
    "a script": lambda path: Job(script=str(path), cwd="/").check(),
    "a configuration": lambda path: find_block(Job(script="a.py", args=[str(path)], cwd="/")),
    "a token": find_token,
    "a certificate": lambda path: EtcdAddress.parse("127.0.0.1:1", {"ETCDCTL_CACERT": str(path)}),
    "access.json": lambda path: access_in(path.parent),
    "control.json": lambda path: way_in(path.parent),
}


@pytest.mark.parametrize("what", READERS)
def test_of_what_is_read_from_outside_no_file_is_too_large_for_memory(what, tmp_path):
    path = tmp_path / (what if what.endswith(".json") else "endless.json")
    path.touch(mode=0o600)
    os.truncate(path, ENDLESS)
    assert "more than" in refused(lambda: READERS[what](path))


@pytest.mark.parametrize("text", [b"", b"[" * 100_000])
def test_a_manifest_without_end_is_one_that_cannot_be_parsed(text, tmp_path):
    tier = PersistentTier(str(tmp_path))
    manifest = tmp_path / _folder(7) / MANIFEST
    manifest.parent.mkdir()
    manifest.write_bytes(text)
    if not text:
        os.truncate(manifest, ENDLESS)
    assert "cannot be parsed" in refused(lambda: tier.manifest(7))


def test_of_a_log_of_any_size_its_end_is_read(tmp_path):
    log = tmp_path / "agent.log"
    log.touch()
    os.truncate(log, ENDLESS)
    with log.open("ab") as file:
        file.write(b"\nthe last line\n")
    assert read_end(log).splitlines()[-1] == "the last line"
    assert len(read_end(log)) == END_BYTES
    assert read_end(log, ENDLESS + 5) == "last line\n"


# -- the lab, its runs and its jobs ----------------------------------------------------------------


@given(
    name=st.sampled_from(["nodes", "standbys", "workers_per_node", "lease_s", "wait_s"]),
    value=extreme,
)
@settings(max_examples=150)
def test_a_lab_of_no_size_is_refused(name, value):
    refused(lambda: config_of({name: value}))
    refused(lambda: Seats(**{"nodes": 4, name: value}) if not name.endswith("_s") else None)


@given(
    name=st.sampled_from(["hosts", "etcd", "folder", "racks", "join", "token"]),
    value=st.sampled_from([*TEXTS, *OTHERS[1:], 10**30]),
)
@settings(max_examples=100)
def test_a_lab_with_impossible_words_is_refused(name, value):
    refused(lambda: config_of({"nodes": 1, "standbys": 0, name: value}))


def test_hosts_that_name_none_are_not_this_machine():
    for hosts in ("", [], [""], ["  "]):
        assert refused(lambda hosts=hosts: config_of({"nodes": 1, "hosts": hosts}), may_pass=False)


def test_ranks_are_bounded_although_nodes_and_workers_are():
    assert "`ranks` must be" in refused(lambda: Seats(nodes=100_000, workers_per_node=8))
    assert refused(lambda: Seats(nodes=10_000, workers_per_node=8)) == ""


@given(name=st.sampled_from(["script", "args", "name", "cwd", "env", "key"]), value=extreme)
@settings(max_examples=200)
def test_a_job_with_impossible_words_is_refused(name, value, tmp_path_factory):
    script = tmp_path_factory.getbasetemp() / "train.py"
    script.write_text("")
    given = {"script": str(script), "cwd": "/", name: value}
    if name in {"args", "env"}:
        given[name] = [value] if name == "args" else {"NAME": value}
    elif name == "key":
        given["env"] = {value: "1"} if isinstance(value, str) else {}
        del given["key"]
    refused(lambda: Job(**given).check())


def test_a_job_that_no_store_takes_is_refused_before_it_is_submitted(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    job = Job(script=str(script), args=["x" * 60_000] * 30)
    submission = Submission.checked(
        config_of({}), job, scenario=None, name=None, resume=False, settings={}
    )
    said = refused(lambda: submission.order(number=1, shared=None), may_pass=False)
    assert "takes 1,80" in said
    assert "a store takes 1,048,576" in said


def test_a_size_is_judged_without_planning_it():
    """The owner of a run is asked, on the loop on which it also answers all others."""
    for nodes in (10**9, 2**63, 10**30):
        why = why_no_size(scheme="background", replicas=2, nodes=nodes)
        assert "`nodes` must be from 1 to 100,000" in why
    assert why_no_size(scheme="background", replicas=2, nodes=100_000) == ""


# -- scenarios -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_takes_no_extreme(kind):
    names = [field.name for field in fields(FAILURES[kind])]
    usual = {"node": "node-1", "nodes": ["node-1"], "rack": "r"}
    whole = {name: usual[name] for name in names if name in usual}
    for name, value in itertools.product([*names, "surprise"], EXTREMES):
        record = {"kind": kind, **whole, name: value}
        refused(lambda record=record: Failure.from_json(record))
        entry = {**record, "iteration": 3}
        refused(lambda entry=entry: Scenario.from_json({"failures": [entry]}))


@given(
    name=st.sampled_from(["iteration", "at_s", "seed", "node", "rank", "failures"]), value=extreme
)
@settings(max_examples=200)
def test_a_scenario_of_no_moment_is_refused(name, value):
    match name:
        case "seed" | "failures":
            refused(lambda: Scenario.from_json({name: value}))
        case "node":
            refused(lambda: Scenario().lose(node=value, iteration=1))
        case "rank":
            refused(lambda: Scenario().crash(rank=value, iteration=1))
        case _:
            refused(lambda: Scenario().lose(node=1, **{name: value}))


@given(
    name=st.sampled_from(["seed", "ranks", "iterations", "mean_iterations"]),
    value=st.sampled_from(NUMBERS),
)
@settings(max_examples=80)
def test_no_scenario_is_drawn_that_nobody_survives(name, value):
    asked = {"seed": 1, "ranks": 4, "iterations": 100, "mean_iterations": 10.0, name: value}
    refused(lambda: Scenario.random(**asked))


def test_many_failures_are_read_at_once_and_too_many_are_refused():
    entry = {"kind": "node_loss", "node": "node-1", "iteration": 1}
    assert refused(lambda: Scenario.from_json({"failures": [entry] * 10_000})) == ""
    assert "10,000" in refused(lambda: Scenario.from_json({"failures": [entry] * 1_000_000}))


# -- planning and simulating -----------------------------------------------------------------------


@given(name=st.sampled_from(["nodes", "replicas", "strategy", "racks"]), value=extreme)
@settings(max_examples=150)
def test_no_placement_is_planned_that_nobody_could_hold(name, value):
    if isinstance(value, int | float | str) or name != "racks":
        refused(lambda: plan_placement(**{"nodes": 4, name: value}))
        refused(
            lambda: (
                Settings.parse({"replicas": 2}) and plan_placement(nodes=100_000, replicas=90_000)
            )
        )


@given(value=st.sampled_from(NUMBERS))
def test_no_estimate_is_made_of_more_trials_than_anybody_waits_for(value):
    refused(lambda: sampled_probability(plan_placement(nodes=4), 2, trials=value))
    refused(lambda: sampled_probability(plan_placement(nodes=4), value, trials=2))


PROPOSED = {
    "nodes": 4,
    "failures_per_node_per_day": 0.01,
    "repair_s": 60.0,
    "memory_bytes": 2**30,
    "shard_bytes": 2**20,
}


@given(name=st.sampled_from([*PROPOSED, "target", "horizon_days"]), value=st.sampled_from(NUMBERS))
@settings(max_examples=150)
def test_nothing_is_proposed_for_extremes(name, value):
    refused(lambda: propose_placement(**{**PROPOSED, name: value}))


CHUNKS = {"checkpoint_bytes": 2**20, "bandwidth_bytes_per_s": 1e9, "buffer_bytes": 2**20}


@given(
    name=st.sampled_from(
        [*CHUNKS, "replicas", "alpha_s", "copy_bytes_per_s", "sub_buffers", "mu", "max_overhead"]
    ),
    value=st.sampled_from(NUMBERS),
    scheme=st.sampled_from(["gemini", "naive", "interleaved", "blocking"]),
)
@settings(max_examples=200)
def test_no_chunks_are_planned_that_nobody_could_send(profile, name, value, scheme):
    refused(lambda: plan_chunks(profile, scheme=scheme, **{**CHUNKS, name: value}))


def test_a_buffer_of_a_byte_is_no_plan_of_a_million_chunks(profile):
    asked = {**CHUNKS, "checkpoint_bytes": 10**9, "buffer_bytes": 4, "sub_buffers": 4}
    assert "1,000,000,000 chunks" in refused(lambda: plan_chunks(profile, **asked), may_pass=False)


@pytest.fixture(scope="module")
def profile():
    span = IdleSpan(start_s=0.0, duration_s=0.5)
    return Profile(
        collectives=(),
        idle_spans=(span,),
        iteration_s=1.0,
        update_s=0.9,
        iterations=1,
        world_size=2,
    )


@given(name=st.sampled_from(["nodes", "days", "rate"]), value=st.sampled_from(NUMBERS))
@settings(max_examples=80)
def test_no_history_has_more_failures_than_anybody_draws(name, value):
    asked = {"nodes": 4, "days": 1.0, name: value}
    rate = asked.pop("rate", 0.01)
    refused(lambda: poisson_failures(rate=FailureRate(per_node_per_day=rate), **asked))


@given(
    name=st.sampled_from(["days", "iterations"]),
    value=st.sampled_from(NUMBERS),
    record=st.booleans(),
)
@settings(max_examples=60)
def test_no_simulation_is_longer_than_anybody_waits_for(name, value, record):
    workload = paper_workload(nodes=4)
    asked = {"days": 0.01, name: value}
    refused(lambda: simulate(workload, gemini(workload), (), record=record, **asked))


WHAT_IF = ("params", "nodes", "gpus_per_node", "failures_per_node_per_day", "iteration_s", "idle_s")


@given(name=st.sampled_from([*WHAT_IF, "network", "store", "standbys", "price"]), value=extreme)
@settings(max_examples=120)
def test_no_cluster_is_asked_what_if_that_cannot_be(name, value):
    usual = {"params": 1e9, "nodes": 4, "network": "100 Gbit/s", "store": "20 Gbit/s"}
    if value is not None and not isinstance(value, list | dict):
        refused(lambda: plan(**{**usual, name: value}))


# -- what a script calls ---------------------------------------------------------------------------


class Trained:
    """An engine that has done nothing yet."""

    global_steps = 0


@given(value=extreme)
@settings(max_examples=60)
def test_a_loop_of_no_number_is_refused_where_it_begins(value):
    protected = UnprotectedLoops(Trained())
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53
    for loop in (protected.steps, protected.epochs):
        assert bool(refused(lambda loop=loop: loop(value))) != is_whole


@pytest.mark.parametrize("total", ["3", 3.5, True, None, -1, 10**30])
def test_steps_says_what_it_was_given(total):
    with pytest.raises(ConfigError, match=r"`steps` must be from 0 .*a whole number .got "):
        UnprotectedLoops(Trained()).steps(total)


@pytest.mark.parametrize("steps", [1.5, "1", True, None, -1, 10**30, 2**62])
def test_no_part_of_an_iteration_is_taken_back(steps):
    with pytest.raises(ConfigError, match="`steps` must be from 0"):
        UnprotectedLoops(Trained()).rewind(steps)
    with pytest.raises(ConfigError, match="skip= is a str; give True or False"):
        UnprotectedLoops(Trained()).rewind(1, skip="no")
    with pytest.raises(UnsupportedError):
        UnprotectedLoops(Trained()).rewind(1)


@pytest.mark.parametrize("value", [None, "3", [1.0, 2.0], b"1", 1j, 10**400, {}, LARGE])
def test_what_is_no_number_is_not_logged(value):
    log = IterationLog(lambda _: None)
    for add in (log.add, lambda values: UnprotectedLoops(Trained()).log(**values)):
        with pytest.raises(ConfigError, match=r"protected.log\(loss=.*\): it has to be one number"):
            add({"loss": value})


def test_numbers_of_any_kind_are_logged():
    log = IterationLog(lambda _: None)
    log.add({"loss": math.nan, "grad": math.inf, "step": 3, "overflow": True})
    log.add({"loss": 2.0})


def test_names_and_numbers_of_values_are_bounded():
    log = IterationLog(lambda _: None)
    for name in ("x" * 101, LARGE, "a\nb"):
        with pytest.raises(ConfigError, match="a logged value's name"):
            log.add({name: 1.0})
    half = {f"a{n}": 1.0 for n in range(MOST_VALUES // 2)}
    log.add(half)
    log.add({f"b{n}": 1.0 for n in range(MOST_VALUES // 2)})
    with pytest.raises(ConfigError, match="257 values of one iteration; give 256 at most"):
        log.add({"c": 1.0})


# -- the mechanism ---------------------------------------------------------------------------------


@given(
    name=st.sampled_from(
        ["nodes", "lease_s", "days", "chunk_bytes", "anything", "network_bytes_per_s"]
    ),
    value=extreme,
    is_whole=st.booleans(),
)
def test_a_number_is_in_its_range_or_refused(name, value, is_whole):
    said = refused(lambda: check_number(name, value, is_whole=is_whole))
    if not said:
        assert 0 <= value <= 2**53
        assert value is not True
    else:
        assert f"`{name}` must be" in said


@given(value=extreme)
def test_a_size_or_a_rate_is_finite_or_refused(value):
    assert refused(lambda: parse_bytes(value)) or 0 <= parse_bytes(value) <= 2**53
    assert refused(lambda: parse_bandwidth(value)) or 0 < parse_bandwidth(value) <= 2**53


def test_one_of_several_places_is_refused_like_a_single_one():
    for act in (
        lambda: NodesLoss("node-1"),
        lambda: NodesLoss(("node-1", 3)),
        lambda: BitFlip("node-1", 2.5),
        lambda: WrongSums("node-1", lasts="no"),
        lambda: RackLoss("a\nb"),
    ):
        assert refused(act, may_pass=False)
