"""`gemini-lab run`: what it decides, what it ends with, and what it does when told to end."""

import dataclasses
import json
import os
import re
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest
from lab_stand_in import begin, run_in, tell

from gemini_lab.cli.exits import EXIT_OF, Exit
from gemini_lab.cli.main import main
from gemini_lab.cli.run_command import follow, setting_of
from gemini_lab.errors import ConfigError
from gemini_lab.lab.followed import NOTHING_YET, save_within
from gemini_lab.log.events import (
    FailureCause,
    PersistFailed,
    PersistFinished,
    PersistStarted,
    RunFailed,
    RunFinished,
)
from gemini_lab.settings import Settings
from gemini_lab.storage.persistent import PersistentTier

GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
TIER = "file:///tier"


# -- the dry run -----------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a script and its configuration, as in the README."""
    (tmp_path / "train.py").write_text('deepspeed.initialize(config="ds_config.json")')
    block = {"replicas": 2, "persistent_url": str(tmp_path / "tier"), "persist_every_s": 60}
    (tmp_path / "ds_config.json").write_text(json.dumps({"gemini": block}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def origin(text: str, name: str) -> tuple[str, str]:
    """A setting's value, and who said it."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"  {name} "))
    found = re.fullmatch(r"  \w+ +(\w+(?: \w+)?)  +(.+)", line)
    return found[2], found[1]


def test_a_dry_run_says_each_setting_with_its_origin_and_starts_nothing(project, capsys):
    options = ["--nodes", "2", "--standbys", "1", "--replicas", "1", "--set", "mu=0.5"]
    assert main(["run", "--dry-run", "--all", *options, "train.py", "--lr", "1"]) == 0
    text = capsys.readouterr().out
    assert origin(text, "replicas") == ("1", "command line")
    assert origin(text, "mu") == ("0.5", "command line")
    assert origin(text, "persist_every_s") == ("60.0 s", "config block")
    assert origin(text, "idle_s") == ("5 min 0 s", "default")
    assert "NO node may be lost" in text
    assert "if short  waits for a machine" in text
    assert "ds_config.json, which train.py names" in text
    assert not (project / "gemini-runs").exists()


@pytest.mark.usefixtures("project")
def test_a_dry_run_names_the_settings_that_somebody_chose_and_how_many_it_leaves_out(capsys):
    assert main(["run", "--dry-run", "--nodes", "2", "--set", "mu=0.5", "train.py"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    settings = said[next(n for n, line in enumerate(said) if line.startswith("  replicas ")) :]
    assert all(" default " not in line for line in settings)
    names = [line.split()[0] for line in settings]
    assert {"replicas", "persistent_url", "persist_every_s", "mu"} <= {*names}
    assert settings[-1].endswith("more settings have their defaults; --all lists them")
    assert len(names) - 1 + int(names[-1]) == len(dataclasses.fields(Settings))


def test_a_setting_that_is_said_twice_is_refused(project, capsys):
    assert project.is_dir()
    asked = ["--replicas", "1", "--set", "replicas=2"]
    assert main(["run", "--dry-run", "--nodes", "2", *asked, "train.py"]) == Exit.REFUSED
    assert "replicas is given twice, by --set and by an option" in capsys.readouterr().err


def test_a_dry_run_says_that_copies_are_to_follow_the_risk(project, capsys):
    assert project.is_dir()
    assert main(["run", "--dry-run", "--nodes", "4", "--replicas", "auto", "train.py"]) == 0
    text = capsys.readouterr().out
    assert "2 copies of each shard at least, if shards fit" in text
    assert origin(text, "adapt_replicas") == ("True", "command line")


def test_the_config_block_counts_for_more_than_the_labs_own_folder(project, capsys):
    """And where the script says nothing, the lab's folder is the tier on one machine."""
    assert main(["run", "--dry-run", "train.py"]) == 0
    url = (str(project / "tier"), "config block")
    assert origin(capsys.readouterr().out, "persistent_url") == url
    (project / "ds_config.json").unlink()
    assert main(["run", "--dry-run", "train.py"]) == 0
    text = capsys.readouterr().out
    value, said = origin(text, "persistent_url")
    assert value.startswith(str(project / "gemini-runs"))
    assert said == "lab"
    assert "not seen from here" in text


def test_a_dry_run_writes_nothing(project, capsys):
    before = sorted(project.rglob("*"))
    asked = ["--persistent-url", str(project / "far" / "tier"), "--folder", "runs", "--resume"]
    assert main(["run", "--dry-run", "--nodes", "2", *asked, "train.py"]) == 0
    assert "no version is there yet" in capsys.readouterr().out
    assert sorted(project.rglob("*")) == before


def test_a_dry_run_refuses_a_tier_that_the_run_would_refuse(project, capsys):
    tier = project / "another"
    PersistentTier(str(tier)).claim(7)
    for url, said in {
        tier: "belongs to another run",
        project / "train.py" / "x": "is a file",
    }.items():
        asked = ["--nodes", "2", "--persistent-url", str(url)]
        assert main(["run", "--dry-run", *asked, "train.py"]) == Exit.REFUSED
        assert said in capsys.readouterr().err


def test_a_dry_run_looks_at_a_tier_that_the_scripts_configuration_alone_names(project, capsys):
    PersistentTier(str(project / "tier")).claim(7)
    assert main(["run", "--dry-run", "--nodes", "2", "train.py"]) == Exit.REFUSED
    assert "belongs to another run" in capsys.readouterr().err
    assert main(["run", "--dry-run", "--resume", "--nodes", "2", "train.py"]) == Exit.FINISHED
    given = ["--persistent-url", str(project / "other")]
    assert main(["run", "--dry-run", "--nodes", "2", *given, "train.py"]) == Exit.FINISHED


@pytest.mark.usefixtures("project")
def test_an_impossible_lab_is_told_of_as_it_was_asked_for(capsys):
    asked = ["--nodes", "0", "--standbys", "3"]
    assert main(["run", "--dry-run", *asked, "train.py"]) == Exit.REFUSED
    assert "standbys=3" in capsys.readouterr().err


def test_a_configuration_that_the_arguments_name_is_found(project, capsys):
    (project / "train.py").write_text("")
    for given in (["--deepspeed_config", "ds_config.json"], ["--config=ds_config.json"]):
        assert main(["run", "--dry-run", "train.py", *given]) == 0
        assert origin(capsys.readouterr().out, "persist_every_s") == ("60.0 s", "config block")


def test_an_impossible_setting_in_the_block_is_found_before_anything_starts(project, capsys):
    (project / "ds_config.json").write_text('{"gemini": {"scheme": "fast"}}')
    assert main(["run", "--dry-run", "train.py"]) == Exit.REFUSED
    assert "no scheme 'fast'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"gemini": {"replicas": 2,}}', "is no JSON: "),
        ('{"gemini": [2]}', "has to be an object"),
        ('{"gemini": {"log_collectives": "no"}}', "it has to be true or false"),
        ('{"gemini": {"replicas": 2.5}}', "it has to be a whole number"),
    ],
)
def test_a_block_that_nobody_can_read_is_refused_and_not_passed_over(project, capsys, text, said):
    (project / "ds_config.json").write_text(text)
    assert main(["run", "--dry-run", "--nodes", "2", "train.py"]) == Exit.REFUSED
    assert said in capsys.readouterr().err


def test_another_file_that_is_no_json_is_none_of_our_business(project, capsys):
    (project / "ds_config.json").write_text("[1, 2,")
    assert main(["run", "--dry-run", "--nodes", "2", "train.py"]) == Exit.FINISHED
    assert "not seen from here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        (["--metrics", "influx:host"], "write PORT, ADDRESS:PORT, otlp"),
        (["--metrics", "65536"], "write PORT, ADDRESS:PORT, otlp"),
        (["--metrics", "9408", "--metrics", "otlp:host:1"], "such as otlp:http://collector:4318"),
        (["--metrics", "9408", "--detach"], "start `gemini-lab metrics RUN` next to the run"),
    ],
)
def test_where_metrics_cannot_go_is_said_before_anything_starts(project, capsys, options, way_out):
    assert main(["run", *options, "--nodes", "2", "train.py"]) == Exit.REFUSED
    assert way_out in capsys.readouterr().err
    assert sorted(path.name for path in project.iterdir()) == ["ds_config.json", "train.py"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replicas", "x", "train.py"], "'x' is no whole number; give a number, or \"auto\""),
        ([], "arguments are required: script\n"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused_in_a_persons_words(capsys, given, said):
    with pytest.raises(SystemExit, match="2"):
        main(["run", *given])
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_a_certificate_that_is_not_there_is_no_etcd_that_is_away(capsys, monkeypatch):
    monkeypatch.setenv("ETCDCTL_CACERT", "/nowhere.pem")
    assert main(["run", "--etcd", "127.0.0.1:1", "train.py"]) == Exit.REFUSED
    assert "ETCDCTL_CACERT names /nowhere.pem, which cannot be read" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_no_retry_is_asked_for_where_there_is_no_etcd(capsys, monkeypatch):
    """A batch system would start it again and again."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["run", "--nodes", "2", "train.py"]) == Exit.REFUSED
    assert "pip install 'gemini-lab[embedded]'" in capsys.readouterr().err


@pytest.mark.usefixtures("project")
def test_no_retry_is_asked_for_where_nobody_knows_the_host(capsys):
    with pytest.raises(socket.gaierror) as known:
        socket.getaddrinfo("no-such-host.invalid", 22)
    if known.value.errno != socket.EAI_NONAME:
        pytest.skip("there is no name service here")
    hosts = "localhost,no-such-host.invalid"
    command = ["run", "--nodes", "2", "--standbys", "0", "--hosts", hosts, "train.py"]
    assert main(command) == Exit.REFUSED
    assert "no-such-host.invalid is not known here" in capsys.readouterr().err


def test_a_port_that_is_taken_is_found_before_anything_starts(project, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", "--metrics", str(port), "--nodes", "2", "train.py"]) == Exit.AGAIN
    assert "choose another port" in capsys.readouterr().err
    assert not (project / "gemini-runs").exists()


@pytest.mark.parametrize("name", ["a/b", "../b", "..", "b/"])
@pytest.mark.parametrize("how", ["--dry-run", "--detach", "--resume"])
def test_a_path_is_no_name_of_a_run(project, capsys, name, how):
    assert main(["run", how, "--name", name, "--nodes", "2", "train.py"]) == Exit.REFUSED
    assert f"'{name}' cannot be a run's name, as it is a path" in capsys.readouterr().err
    assert not (project / "gemini-runs").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_name_that_no_store_can_have_leaves_no_folder(project, capsys, more):
    asked = ["run", "--detach", *more, "--name", "two words", "--nodes", "2", "train.py"]
    assert main(asked) == Exit.REFUSED
    assert "use up to 100 letters" in capsys.readouterr().err
    assert not (project / "gemini-runs").exists()


@pytest.mark.usefixtures("project")
def test_a_dry_run_says_with_how_many_nodes_a_run_goes_on_that_is_short(capsys):
    shrinks = ["--set", "when_short=shrink"]
    assert main(["run", "--dry-run", "--nodes", "4", *shrinks, "train.py"]) == 0
    said = "if short  after 30.0 s continues with those that are left: 3, 2 nodes"
    assert said in capsys.readouterr().out
    few = ["--nodes", "2", "--replicas", "2"]
    assert main(["run", "--dry-run", *few, *shrinks, "train.py"]) == 0
    assert "if short  WAITS for a machine: with replicas=2" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
def test_a_dry_run_says_which_node_is_on_which_host(capsys):
    options = ["--nodes", "2", "--standbys", "1", "--hosts", "a,b,c,d"]
    assert main(["run", "--dry-run", *options, "train.py"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"node-1 +on b +rank 1, keeps shards 0 1", text)
    assert re.search(r"node-2 +on c +standby", text)
    assert "4 hosts, 1 of them spare" in text


@pytest.mark.usefixtures("project")
def test_racks_that_are_named_are_kept_apart(capsys):
    options = ["--nodes", "4", "--standbys", "0", "--racks", "left,left,right,right"]
    assert main(["run", "--dry-run", *options, "train.py"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"node-0 +rank 0, keeps shards 0 [23], in rack left", text)
    assert main(["run", "--dry-run", "--racks", "left", "train.py"]) == Exit.REFUSED
    assert "racks must name one rack for each" in capsys.readouterr().err


def test_a_setting_is_read_as_json_or_as_a_word():
    assert setting_of("mu=0.5") == ("mu", 0.5)
    assert setting_of("scheme=gemini") == ("scheme", "gemini")
    assert setting_of("chunk_bytes=4 MiB") == ("chunk_bytes", "4 MiB")
    assert setting_of("persist_every_s=null") == ("persist_every_s", None)
    for bad in ("mu", "=1", 'mu={"a": 1}'):
        with pytest.raises(ConfigError):
            setting_of(bad)


# -- how it ends -----------------------------------------------------------------------------------


def test_every_cause_has_an_exit_code_and_the_guide_has_them_all():
    assert set(EXIT_OF) == set(get_args(FailureCause))
    table = re.findall(r"^\| (\d+) \|", GUIDE.read_text(), re.MULTILINE)
    assert [int(code) for code in table] == sorted(Exit)


@pytest.fixture(autouse=True)
def _signals():
    """A process that was told to end minds SIGUSR1 and SIGHUP no more."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(tmp_path):
    run = run_in(tmp_path / "run")
    begin(run)
    run.course.settings["persistent_url"] = TIER
    return run


@pytest.mark.parametrize("cause", get_args(FailureCause))
def test_a_run_that_was_given_up_ends_with_the_code_of_its_cause(run, cause, capsys):
    tell(run, RunFailed(reason="so it was", cause=cause))
    assert follow(run, 1.0) == EXIT_OF[cause]
    assert "so it was" in capsys.readouterr().err


def test_a_run_that_finished_ends_with_0(run):
    tell(run, RunFinished(iteration=3))
    assert follow(run, 1.0) == Exit.FINISHED


def told_to_end(run, number, *events, after_s=0.2):
    """Signal this process; when the run has then been asked to save, it says these events."""

    def play():
        os.kill(os.getpid(), number)
        while not run._owner.asked:
            threading.Event().wait(0.01)
        tell(run, *events)

    threading.Timer(after_s, play).start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_run_that_is_told_to_end_saves_a_version_first(run, number, capsys):
    done = PersistFinished(version=9, url=TIER, size_bytes=1, duration_s=0.1)
    told_to_end(run, number, PersistStarted(version=9, url=TIER), done)
    assert follow(run, 20.0) == Exit.AGAIN
    said = capsys.readouterr().err
    assert f"version 9 is whole in {TIER}" in said
    assert "--resume" in said
    assert (run.cause, run.is_over) == ("notice", True)


def interrupted(run, *events):
    """Ctrl-C at the run, after these events; what its command is to say then."""
    tell(run, *events)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as told:
        follow(run, 20.0)
    return str(told.value)


def test_ctrl_c_says_what_was_saved_and_how_to_go_on(run, capsys):
    said = interrupted(run, PersistFinished(version=9, url=TIER, size_bytes=1, duration_s=0.1))
    assert f"ending {run.name} and its nodes" in capsys.readouterr().err
    assert str(run.folder) in said
    assert f"version 9 is whole in {TIER}" in said
    assert "--resume goes on from version 9" in said


def test_ctrl_c_does_not_speak_of_resuming_where_nothing_was_saved(run):
    assert f"no version of it has reached {TIER}" in (said := interrupted(run))
    assert "SIGTERM, in place of Ctrl-C" in said
    assert "--resume" not in said
    run.course.settings["persistent_url"] = None
    assert "no persistent tier" in (said := interrupted(run))
    assert "--resume" not in said
    del run.course.settings["persistent_url"]
    assert "had not called protect yet" in (said := interrupted(run))
    assert "no persistent tier" not in said


def test_a_batch_system_that_says_it_again_does_not_end_the_save(run):
    def play():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            threading.Event().wait(0.2)
        tell(run, PersistStarted(version=9, url=TIER))
        tell(run, PersistFinished(version=9, url=TIER, size_bytes=1, duration_s=0.1))

    threading.Timer(0.2, play).start()
    assert follow(run, 20.0) == Exit.AGAIN


def test_a_version_that_was_on_its_way_already_is_not_waited_for_alone(run, capsys):
    """A newer one follows; it is the one to go on from."""
    events = [
        PersistFinished(version=4, url=TIER, size_bytes=1, duration_s=0.1),
        PersistStarted(version=9, url=TIER),
        PersistFinished(version=9, url=TIER, size_bytes=1, duration_s=0.1),
    ]
    told_to_end(run, signal.SIGTERM, *events)
    assert follow(run, 20.0) == Exit.AGAIN
    assert "version 9 is whole" in capsys.readouterr().err


def test_a_notice_that_is_too_short_is_said(run, capsys):
    failed = PersistFailed(version=9, url=TIER, reason="the disk is full")
    told_to_end(run, signal.SIGTERM, PersistStarted(version=9, url=TIER), failed)
    assert follow(run, 0.5) == Exit.TERMINATED
    assert "no version was saved: the disk is full" in capsys.readouterr().err


def test_without_a_persistent_tier_nothing_is_waited_for(run, capsys):
    run.course.settings["persistent_url"] = None
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert follow(run, 1000.0) == Exit.TERMINATED
    assert "the run has no persistent tier" in capsys.readouterr().err
    assert run._owner.asked == []


def test_before_the_script_has_told_its_tier_it_is_not_said_to_have_none(run):
    del run.course.settings["persistent_url"]
    assert run.iteration
    assert save_within(run, 1000.0).reason == NOTHING_YET


def test_a_run_that_finishes_during_its_notice_has_finished(run):
    told_to_end(run, signal.SIGTERM, RunFinished(iteration=4))
    assert follow(run, 20.0) == Exit.FINISHED
