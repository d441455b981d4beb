"""What a campaign breaks breaks; the log tells it whom to strike, and when."""

import os
import re
import subprocess
import sys

import pytest
from test_chaos_oracles import LOG

from gemini_lab.cli.main import main
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.experiments.chaos.campaign import Plan, Result, campaign
from gemini_lab.experiments.chaos.faults import KINDS, Fault, Schedule
from gemini_lab.experiments.chaos.oracles import Aftermath
from gemini_lab.experiments.chaos.strikes import Mends, Strikes
from gemini_lab.experiments.chaos.tier import BreakableTier, can_be_full
from gemini_lab.experiments.chaos.told import Told
from gemini_lab.experiments.chaos.turn import Struck, Suffered
from gemini_lab.experiments.chaos.victims import MARK, marked
from gemini_lab.log.file import EventLog
from gemini_lab.storage.persistent import MANIFEST, PersistentTier


@pytest.fixture
def tier(tmp_path):
    with BreakableTier(tmp_path) as opened:
        version = opened.url / "version-000000000008"
        version.mkdir()
        (version / "shard-0000-abc.safetensors").write_bytes(bytes(100))
        (version / MANIFEST).write_bytes(b"{" + b" " * 8 + b"}")
        yield opened


def test_a_tier_that_is_away_is_an_error_and_never_an_empty_folder(tier):
    reader = PersistentTier(str(tier.url))
    assert reader.stored() == []
    tier.go_away()
    with pytest.raises(GeminiError, match="could not list"):
        reader.stored()
    with pytest.raises(GeminiError, match="could not write"):
        reader.check()
    tier.come_back()
    reader.check()


@pytest.mark.skipif(not can_be_full(), reason="a disk of its own needs root")
def test_a_full_tier_takes_nothing_until_it_is_emptied(tier):
    reader = PersistentTier(str(tier.url))
    tier.fill()
    with pytest.raises(GeminiError, match="full"):
        reader.check()
    tier.empty()
    reader.check()


def test_one_bit_of_the_newest_shard_turns(tier):
    (tier.url / "version-000000000016").mkdir()  # not whole yet: no manifest
    assert tier.flip(8 * 30 + 3) == "byte 30 of version-000000000008/shard-0000-abc.safetensors"
    (shard,) = tier.url.glob("*/shard-*")
    assert shard.read_bytes() == bytes(30) + b"\x08" + bytes(69)


def test_a_torn_manifest_is_cut_in_half(tier):
    assert tier.tear() == f"version-000000000008/{MANIFEST}"
    assert (tier.url / tier.tear()).read_bytes() == b"{ "  # and torn once more


def test_an_empty_tier_cannot_be_torn(tmp_path):
    with BreakableTier(tmp_path) as empty, pytest.raises(ConfigError, match="no version"):
        empty.tear()


def test_processes_are_known_by_their_mark_and_no_others():
    asleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    pids = []
    try:
        for mark in ("ours", "ours-too"):
            process = subprocess.Popen(
                asleep, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
            )
            pids.append(process)
            process.stdout.readline()
        assert [process.pid for process in marked("ours")] == [pids[0].pid]
    finally:
        for process in pids:
            process.kill()
            process.communicate()


WRITER = """
import sys
log = open(sys.argv[1], "ab", buffering=0)
for line in sys.stdin.buffer:
    try:
        log.write(line)
        print("taken", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_a_full_log_is_one_that_its_owner_cannot_write_for_a_while(tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"begun\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER, log], **pipes) as owner:

        def add() -> bytes:
            owner.stdin.write(b"line\n")
            owner.stdin.flush()
            return owner.stdout.readline()

        assert add() == b"taken\n"
        strikes = Strikes(mark="", folder=tmp_path, owner=owner, tier=None, told=None)
        hit, mend = strikes.strike(Fault(kind="log_full", lasts_s=1.0))
        assert (hit, add()) == ("the log", b"File too large\n")
        mend()
        assert add() == b"taken\n"
        owner.stdin.close()
    mend()  # of an owner that is gone: nothing to do


def test_what_is_mended_later_is_mended_once():
    done = []
    mends = Mends()
    mends.add(lambda: done.append("soon"), after_s=0.0)
    mends.add(lambda: done.append("late"), after_s=60.0)
    assert mends.do()
    assert not mends.do()
    assert mends
    assert mends.do(all_of_them=True)
    assert not mends
    assert done == ["soon", "late"]


def test_the_log_tells_who_is_root_who_sits_where_and_how_training_goes(tmp_path):
    folder = tmp_path / "run"
    told = Told(folder, iterations=4)
    told.poll()  # before there is a folder
    log = EventLog(folder / "events.jsonl")
    for entry in LOG[:6]:
        log.append(entry)
    told.poll()
    assert (told.root, told.progress) == ("node-0", 1)
    assert told.keepers_of(1) == ["node-0"]  # whose agent said so; there is no placement yet
    assert list(told.since_s) == ["plan"]  # of the start
    for entry in LOG[6:]:
        log.append(entry)
    told.poll()
    assert (told.root, told.is_over) == ("node-2", True)
    assert told.progress == 4
    assert list(told.since_s) == ["plan", "fence", "end"]
    log.close()


# -- the campaign ----------------------------------------------------------------------------------


def suffered(tmp_path, *struck, hang=""):
    faults = tuple(one.fault for one in struck)
    schedule = Schedule(seed=1, number=0, nodes=2, standbys=1, iterations=4, faults=faults)
    aftermath = Aftermath(entries=LOG, undisturbed={}, iterations=4, hang=hang)
    return Suffered(schedule=schedule, struck=struck, aftermath=aftermath, folder=tmp_path)


def test_the_table_has_a_line_a_kind_with_median_worst_and_verdict(tmp_path):
    kill, stop = Fault(kind="node_kill"), Fault(kind="etcd_stop", lasts_s=1.0)
    result = Result()
    result.add(
        suffered(
            tmp_path,
            Struck(fault=kill, at_s=2.5, until_s=9.0, hit="node-1"),
            Struck(fault=stop, at_s=9.0, hit="no such process", happened=False),
        ),
        [],
    )
    result.add(suffered(tmp_path, Struck(fault=kill, at_s=1.0, hit="node-1")), ["no luck"])
    head, *lines = str(result).splitlines()
    assert head.split() == ["kind", "struck", "stood", "still:", "median", "worst", "verdict"]
    assert lines[0].split()[:6] == ["node_kill", "2", "5.5", "s", "5.5", "s"]
    assert lines[0].endswith("1 in runs that did not hold")
    assert lines[1].split() == ["etcd_stop", "0", "it", "never", "happened"]
    assert result.to_json()["failures"][0]["problems"] == ["no luck"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kinds", "sneeze"], "sneeze.*worker_kill"),
        (["--faults", "0"], r"--faults must be above zero \(got 0\)"),
        (["--replay", "nowhere.json"], "cannot read a schedule from nowhere.json"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, said, capsys):
    assert main(["chaos", *arguments]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_campaign_draws_as_many_faults_as_it_was_asked_for(tmp_path):
    plan = Plan(
        faults=30,
        seed=5,
        kinds=tuple(kind for kind in KINDS if not KINDS[kind].ends_run),
        nodes=3,
        standbys=1,
        a_run=12,
        limit_s=60.0,
        load=0,
        tries=0,
        folder=tmp_path,
    )
    assert [len(schedule.faults) for schedule in plan.schedules()] == [12, 12, 6]
    assert len({schedule.iterations for schedule in plan.schedules()}) == 1  # one undisturbed run
    assert str(campaign(plan, schedules=[])).startswith("kind")
