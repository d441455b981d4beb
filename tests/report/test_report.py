"""Claims about reports, made of logs that are written by hand."""

import json
import random

import msgspec
import pytest
from told_runs import ToldRun

from gemini_lab.cli.report_command import command
from gemini_lab.errors import ConfigError
from gemini_lab.lab.progress_bars import describe
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import find_log, find_run
from gemini_lab.report import build_report, load_report, save_events
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.recoveries import losses as losses_of
from gemini_lab.report.tables.recoveries import recoveries
from gemini_lab.report.text import ASCII, BLOCKS, WIDTH, ink_for, render
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.policy import gemini


def changed(entry, **fields):
    event = msgspec.structs.replace(entry.event, **fields)
    return Entry(at_s=entry.at_s, node=entry.node, event=event)


def test_redone_iterations_replace_the_lost_ones(steady, failing):
    report = build_report(failing)

    assert [(i.number, i.rank) for i in report.iterations] == [
        (number, rank) for number in (1, 2, 3, 4) for rank in (0, 1)
    ]
    assert 99.0 not in report.losses.values()
    assert report.losses_match(build_report(steady))
    assert str(report.losses_match(build_report(steady))).startswith("bit-identical: 8 losses")


def test_a_loss_that_is_off_by_its_last_bit_is_found(steady):
    log = [
        changed(e, values={"loss": e.event.value("loss") * (1 + 2**-52)})
        if e.kind == "iteration" and (e.event.iteration, e.event.rank) == (3, 1)
        else e
        for e in steady
    ]

    comparison = build_report(log).losses_match(build_report(steady))

    assert not comparison
    assert comparison.first_difference is not None
    assert comparison.first_difference.startswith("iteration 3, rank 1: 0x1.")


def test_a_missing_loss_is_a_difference_and_no_losses_are_no_match(steady):
    shorter = [e for e in steady if e.kind != "iteration" or e.event.iteration != 4]
    silent = [e for e in steady if e.kind != "iteration"]

    comparison = build_report(shorter).losses_match(build_report(steady))
    assert not comparison
    assert "iteration 4, rank 0: no loss and 0x1." in str(comparison)
    assert "nothing to compare" in str(build_report(silent).losses_match(build_report(silent)))
    assert not build_report(silent).losses_match(build_report(silent))


def test_a_log_gives_the_same_report_in_any_order_of_arrival(failing):
    """Lines of several nodes interleave as the network likes."""
    shuffled = failing.copy()
    random.Random(3).shuffle(shuffled)
    ordered, mixed = build_report(failing), build_report(shuffled)

    assert mixed.losses == ordered.losses
    assert mixed.recoveries[0].duration_s == ordered.recoveries[0].duration_s


def test_iterations_that_are_lost_and_never_redone_do_not_count(failing):
    until_plan = failing[: [e.kind for e in failing].index("recovery_planned") + 1]
    report = build_report(until_plan)

    assert max(i.number for i in report.iterations) == 2
    assert report.outcome == "unfinished"
    assert report.recoveries[0].duration_s is None
    assert report.wasted is None
    assert "has not ended" in render(report)


def test_a_failure_of_the_worlds_own_begins_with_its_detection(failing):
    (recovery,) = build_report([e for e in failing if e.kind != "injected"]).recoveries

    assert recovery.steps[0].name == "fence"
    assert recovery.duration_s == pytest.approx(2.5)
    assert "node lost (node-1)" in render(
        build_report([e for e in failing if e.kind != "injected"])
    )


def test_an_injection_that_needs_no_recovery_causes_none(failing, make_event):
    flip = make_event("injected", 4.0, "node-0", failure="bit_flip")
    report = build_report([*failing, flip])

    assert len(report.injections) == 2
    assert [i.kind for i in report.recoveries[0].injections] == ["node_loss"]


@pytest.mark.parametrize(("cause", "struck"), [("drain", []), ("worker_exited", ["node_loss"])])
def test_what_was_asked_for_was_not_caused_by_what_struck_before(failing, cause, struck):
    began = [changed(e, cause=cause) if e.kind == "recovery_started" else e for e in failing]
    (recovery,) = build_report(began).recoveries
    assert [one.kind for one in recovery.injections] == struck


def test_a_recovery_ends_with_its_last_step_not_when_that_was_written_down(failing):
    log = [
        Entry(at_s=e.at_s + 0.25, node=e.node, event=e.event)
        if e.kind == "recovery_finished"
        else e
        for e in failing
    ]
    report = build_report(log)
    (recovery,) = report.recoveries
    assert recovery.duration_s == pytest.approx(7.6 - 5.0)
    text = render(report)
    assert "training again after 2.6 s" in text
    assert "in all            2.600 s" in text


def test_receipts_say_from_which_tier_each_shard_came(failing):
    (recovery,) = build_report(failing).recoveries

    assert [(r.shard, r.tier, r.holder) for r in recovery.receipts] == [
        (0, "local", "node-0"),
        (1, "peer", "node-0"),
    ]
    assert recovery.retrieval_s == pytest.approx(0.3)  # the slower shard's


def test_a_version_counts_as_whole_when_a_recovery_can_use_it_not_when_all_have_heard(failing):
    """All had ended at 1.5 n s and said at 0.5 s later that all know; whole it was 0.3 s before."""
    log = [changed(e, whole_s=0.2) if e.kind == "version_complete" else e for e in failing]
    wasted = build_report(log).wasted

    assert wasted is not None
    assert wasted.checkpoint_s == pytest.approx(0.2)
    random.Random(1).shuffle(log)
    assert build_report(log).wasted == wasted


def test_a_version_that_the_others_bring_about_after_the_failure_costs_no_progress(failing):
    """Rank 1 is struck when it has ended iteration 2 and before rank 0 has said so."""
    log = [
        Entry(at_s=e.at_s + 2.2, node=e.node, event=e.event)
        if e.kind == "iteration" and (e.event.iteration, e.event.rank) == (2, 0)
        else e
        for e in failing
        if (e.kind, getattr(e.event, "iteration", 0), e.event.epoch if e.kind == "iteration" else 1)
        != ("iteration", 3, 1)
    ]
    (recovery,) = build_report(log).recoveries

    assert (recovery.version, recovery.lost_progress_s) == (2, 0.0)


def test_a_start_from_nothing_wastes_all_that_was_trained(failing):
    log = [
        changed(e, version=None, tier="start") if e.kind == "recovery_planned" else e
        for e in failing
    ]
    (recovery,) = build_report(log).recoveries

    assert recovery.version == 0
    assert recovery.lost_progress_s == pytest.approx(5.0)


def test_a_report_fits_a_terminal_in_blocks_and_in_ascii(failing):
    report = build_report(failing)
    for ink in (BLOCKS, ASCII):
        text = render(report, ink=ink)
        assert max(map(len, text.splitlines())) <= WIDTH
    assert render(report, ink=ASCII).isascii()
    assert ink_for("utf-8") == BLOCKS
    assert ink_for("latin-1") == ASCII
    assert ink_for(None) == ASCII


def test_json_keeps_every_bit_of_a_loss(failing):
    record = json.loads(json.dumps(build_report(failing).to_json()))

    for i in record["iterations"]:
        assert float.fromhex(i["loss_hex"]) == i["loss"]
    assert record["recoveries"][0]["wasted_s"] == pytest.approx(2.3)


def test_the_command_prints_compares_and_writes(save, steady, failing, capsys, monkeypatch):
    folder = save("one", failing)
    save("steady", steady)
    monkeypatch.chdir(folder.parent.parent)
    trace = folder / "trace.json"

    assert command(["one", "--compare", "steady", "--chrome-trace", str(trace)]) == 0
    printed = capsys.readouterr()
    assert "Recovery 1" in printed.out
    assert "bit-identical: 8 losses" in printed.err
    assert json.loads(trace.read_text())["traceEvents"]

    assert command([str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "finished"


def test_what_cannot_be_read_or_written_is_said_alone(save, steady, tmp_path, capsys):
    folder = str(save("one", steady))
    with pytest.raises(ConfigError, match="'other' is no run"):
        command([folder, "--compare", "other"])
    with pytest.raises(FileNotFoundError, match=r"trace\.json"):
        command([folder, "--chrome-trace", str(tmp_path / "missing" / "trace.json")])
    assert not capsys.readouterr().out


def test_the_command_fails_where_losses_differ(save, steady, monkeypatch):
    folder = save("whole", steady)
    save("short", steady[:-6])
    monkeypatch.chdir(folder.parent.parent)

    assert command(["whole", "--compare", "short"]) == 1


def test_the_latest_run_is_the_one_written_to_last(save, steady, monkeypatch):
    import os

    first, second = save("b", steady), save("a", steady)
    os.utime(first / "events.jsonl", (1, 1))
    monkeypatch.chdir(first.parent.parent)

    assert find_run("latest").absolute() == second
    assert load_report(find_run("b")).name == "b"


def test_a_run_is_found_by_its_log_and_a_saved_log_by_its_own_name(save, steady, tmp_path):
    folder = save("a", steady)
    log = folder / "events.jsonl"
    assert find_run(str(log)) == folder
    assert find_run("a/events.jsonl", below=folder.parent) == folder
    assert find_log(str(folder)) == find_log(str(log)) == log
    saved = log.rename(tmp_path / "saved.jsonl")
    assert find_log(str(saved)) == saved
    assert load_report(saved).name == "saved"
    with pytest.raises(ConfigError, match=f"no events.jsonl in {folder} or"):
        find_log(str(log))


def test_what_is_no_run_is_refused(tmp_path, monkeypatch, make_event):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="no run is in"):
        find_run("latest")
    with pytest.raises(ConfigError, match="is no run"):
        find_run("absent")
    with pytest.raises(ConfigError, match="no run_started"):
        build_report([make_event("note", 1.0, text="hello")])


def plan(make_event, epoch, at_s, *members):
    told = {"tier": "memory", "sources": (), "transfers": (), "reason": ""}
    return make_event("recovery_planned", at_s, epoch=epoch, version=2, members=members, **told)


def test_a_standby_that_was_given_ranks_and_is_lost_in_the_same_recovery_is_told(
    failing, make_event
):
    at = [e.kind for e in failing].index("recovery_finished")
    lost = make_event("node_lost", 7.0, "node-0", name="node-2", cause="dead")
    idle = make_event("node_lost", 7.1, "node-0", name="node-4", cause="dead")
    again = plan(make_event, 3, 7.2, "node-0", "node-3")
    report = build_report([*failing[:at], lost, idle, again, *failing[at:]])
    assert report.recoveries[0].lost_nodes == ("node-1", "node-2")
    assert report.lost_standbys == ("node-4",)


def ready(make_event, name, at_s):
    told = {"address": "127.0.0.1", "interface": "lo", "bytes_per_s": 0.0, "faster": ()}
    return make_event("node_ready", at_s, name, name=name, import_s=4.0, network=told)


def test_a_restart_that_waited_for_a_nodes_imports_says_so(failing, make_event):
    """Its rank can start only then; nothing else tells why a restart took so long."""
    at = [e.kind for e in failing].index("recovery_planned") + 1
    late = ready(make_event, "node-2", 5.7)
    idle = ready(make_event, "node-3", 5.75)
    log = [*failing[:at], late, idle, *failing[at:]]
    run = build_report(log)
    (recovery,) = run.recoveries
    assert [(one.node, one.import_s) for one in recovery.importing] == [("node-2", 4.0)]
    assert recovery.importing[0].waited_s == pytest.approx(0.4)
    said = str(recovery.importing[0])
    assert said.startswith("400 ms of the restart until node-2, which had just joined, had")
    assert said in " ".join(render(run).split())
    reducer = RunReducer()
    reducer.extend(log)
    assert recoveries(losses_of(reducer)).notes[0] == f"recovery 1: {said}"


def test_a_node_that_was_ready_before_its_ranks_were_told_to_start_kept_nobody_waiting(
    failing, make_event
):
    at = [e.kind for e in failing].index("recovery_planned")
    early = ready(make_event, "node-2", 5.25)
    (recovery,) = build_report([*failing[:at], early, *failing[at:]]).recoveries
    assert recovery.importing == ()


def test_a_standby_that_waited_and_was_lost_is_told_unless_it_came_back(failing, make_event):
    lost = [
        make_event("node_lost", 9.5, "node-0", name=name, cause="lease")
        for name in ("node-3", "node-4", "node-5")
    ]
    back = make_event("node_joined", 9.6, "node-0", name="node-4")
    report = build_report([*failing, *lost, back])
    assert "  standbys lost: node-3, node-5\n" in render(report)
    assert "standby" not in render(build_report(failing))


def test_a_resumed_run_says_from_which_version_on_the_terminal_and_in_its_report():
    run = ToldRun().plan(21, tier="persistent").protect().train(22, 24)
    said = "began from version 21 of the persistent tier"
    assert said in render(build_report(run.entries))
    assert said not in render(build_report(ToldRun().plan(None, tier="start").protect().entries))
    planned = [one for one in run.entries if isinstance(one.event, events.RecoveryPlanned)]
    assert [describe(one) for one in planned] == [
        "    training begins from version 21 of the persistent tier"
    ]


def test_a_report_that_is_printed_is_one_line(failing):
    report = build_report(failing)
    assert str(report) == f"run {report.name}: finished, 4 iterations, 1 recovery"


def test_a_simulated_run_that_was_saved_is_reported_with_names_and_one_count(tmp_path):
    workload = paper_workload()
    outages = [
        Outage(at_s=900.0, positions=(1,), kind="hardware"),
        Outage(at_s=7150.0, positions=(3, 6), kind="hardware"),
    ]
    policy = gemini(workload)
    outcome = simulate(workload, policy, outages, days=2 / 24, record=True)
    log = save_events(outcome.events, str(tmp_path / "simulated"))
    assert log == tmp_path / "simulated" / "events.jsonl"
    text = render(load_report(str(tmp_path / "simulated")))
    assert "  What did failures cost? 2 x " in text
    assert ", and the newest recovery has not ended" in " ".join(text.split())
    assert "Recovery 1: hardware failure (node-1), training again after" in text
    assert "Recovery 2: hardware failure (node-3, node-6), has not ended" in text
    assert "  1 iteration done again; the log has no values of them to compare\n" in text
    with pytest.raises(ConfigError, match="has the log of a run already"):
        save_events(outcome.events, tmp_path / "simulated")
    with pytest.raises(ConfigError, match="keeps those of its run"):
        save_events(simulate(workload, policy, outages, days=2 / 24).events, tmp_path / "none")


def test_ranks_that_differ_are_told_by_their_place_and_alike_ones_are_not():
    places = [f"pp {rank // 10}, dp {rank % 10}" for rank in range(20)]
    text = render(build_report(ToldRun(nodes=20).protect(places).train(1, 2).entries))
    text = " ".join(text.split())
    assert "rank 0 is pp 0, dp 0; rank 1 is pp 0, dp 1; " in text
    assert "rank 15 is pp 1, dp 5; and 4 more" in text
    assert " is pp" not in render(build_report(ToldRun().protect().train(1, 2).entries))
