"""Claims about the `peers` bench."""

import argparse
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.units import KIB, MIB
from gemini_lab_bench.peers import bench as peers_bench
from gemini_lab_bench.peers import one_turn
from gemini_lab_bench.peers.bench import take_turns
from gemini_lab_bench.peers.catalog import CATALOG, FLOOR, OURS
from gemini_lab_bench.peers.contract import (
    TENSORS,
    Findings,
    are_equal,
    flip,
    make_state,
)
from gemini_lab_bench.peers.environments import find_python, parse_environments
from gemini_lab_bench.peers.one_turn import (
    Conditions,
    PeerTurn,
    collect,
    combine,
    folder_bytes,
    run_turn,
)
from gemini_lab_bench.peers.table import GLOO, PeerRecord, rows_of, table

CONDITIONS = Conditions(size_bytes=256 * KIB, ranks=2, iteration_s=0.0)


def found(**values):
    return PeerTurn(findings=Findings(**values), peak_bytes=MIB)


# -- flipped bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 7, 8 * 10 - 1, 8 * 10, 8 * 14 - 1])
def test_one_bit_of_file_and_memory_is_flipped_and_flipped_back(tmp_path, bit):
    path = tmp_path / "stored"
    path.write_bytes(bytes(10))
    regions = [path, np.zeros(4, np.uint8)]

    def bits():
        return np.unpackbits(np.frombuffer(path.read_bytes() + regions[1].tobytes(), np.uint8))

    flip(regions, bit)
    assert bits().sum() == 1
    assert np.flatnonzero(bits())[0] // 8 == bit // 8
    flip(regions, bit)
    assert bits().sum() == 0


def test_a_bit_beyond_what_is_stored_is_refused():
    with pytest.raises(IndexError, match="the 4 stored bytes"):
        flip([np.zeros(4, np.uint8)], 32)


def test_every_rank_has_other_tensors_and_always_the_same():
    one, again, other = make_state(0, 64 * KIB), make_state(0, 64 * KIB), make_state(1, 64 * KIB)
    assert len(one) == TENSORS
    assert sum(tensor.nbytes for tensor in one.values()) == 64 * KIB
    assert are_equal(one, again)
    assert not are_equal(one, other)
    assert not are_equal(one, {**again, "more": torch.zeros(1)})


# -- ranks and turns ---------------------------------------------------------------------------


def test_the_slowest_rank_is_what_training_feels():
    ranks = [
        Findings(held_up_s=0.1, peer_copy_s=0.5, details={"a": 1.0}, flips={"silent": 2}),
        Findings(held_up_s=0.3, peer_copy_s=0.4, restore_s=0.2, details={"a": 3.0}),
    ]
    both = combine(ranks)
    assert (both.held_up_s, both.peer_copy_s, both.restore_s) == (0.3, 0.5, 0.2)
    assert (both.details, both.flips, both.error) == ({"a": 3.0}, {"silent": 2}, "")


def test_what_no_rank_offers_stays_unknown():
    assert combine([Findings(), Findings()]).peer_copy_s is None


def test_the_rank_with_an_error_is_named_not_the_one_that_waited_for_it(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "log-0").write_text("waiting")
    (tmp_path / "log-1").write_text("boom")
    assert "rank 0 ended" in combine(collect(tmp_path / "data", 2)).error
    (tmp_path / "data" / "rank-1.json").write_text(json.dumps({"error": "TypeError: boom"}))
    assert combine(collect(tmp_path / "data", 2)).error == "TypeError: boom"


def test_peers_take_turns_and_one_that_fails_twice_is_not_asked_again():
    asked = []

    def run(peer, flips, seed):
        asked.append((peer, flips, seed))
        is_bad = peer == "nvrx" and seed == 1
        return found(held_up_s=1.0, error="RuntimeError: no" if is_bad else "")

    records = [PeerRecord(peer=peer) for peer in (OURS, "nvrx")]
    take_turns(records, run, repeats=3, flips=100)
    assert [peer for peer, *_ in asked] == [OURS, "nvrx", OURS, "nvrx", "nvrx", OURS]
    assert sum(flips for peer, flips, _ in asked if peer == OURS) == 100
    assert [len(record.turns) for record in records] == [3, 1]
    assert [record.why_not for record in records] == ["", "RuntimeError: no"]


def test_a_turn_that_fails_once_is_repeated_and_the_table_says_so():
    errors = ["TimeoutError: late", ""]
    record = PeerRecord(peer="dlrover")
    take_turns([record], lambda *_: found(error=errors.pop(0)), repeats=1, flips=0)
    assert (len(record.turns), record.why_not) == (1, "")
    assert "repeated: TimeoutError: late" in table(rows_of([record], CONDITIONS))


@pytest.mark.parametrize(
    ("peer", "way_out"),
    [("dlrover", "--install DIR"), ("ml_flashpoint", "source distribution")],
)
def test_a_missing_package_is_reported_with_the_way_out(peer, way_out):
    record = PeerRecord(peer=peer)
    error = f"ModuleNotFoundError: No module named {peer!r}"
    take_turns([record], lambda *_: found(error=error), repeats=2, flips=0)
    assert way_out in record.why_not
    assert f"--env {peer}=PYTHON" in record.why_not
    rows = rows_of([record], CONDITIONS)
    assert [row.values for row in rows] == [()]
    assert "not measured: not installed" in table(rows)
    assert rows[0].to_json()["why_not"] == record.why_not


# -- the table -----------------------------------------------------------------------------------


def cells(text, peer):
    """The cells of a peer's line in each of the two tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"{peer} ")]
    return [[cell.strip() for cell in line.split("  ") if cell][1:] for line in lines]


def test_what_a_peer_does_not_offer_is_a_dash_never_a_zero():
    record = PeerRecord(peer="dlrover", turns=[found(held_up_s=0.04, restore_s=0.005)])
    assert cells(table(rows_of([record], CONDITIONS)), "dlrover") == [
        ["40 ms", "-", "-", "5 ms", "-"],
        ["-", "-", "-", "-", "1 MiB"],
    ]


def test_a_mean_stands_in_its_interval_and_one_value_has_none():
    record = PeerRecord(peer="dcp", turns=[found(held_up_s=s) for s in (0.01, 0.02, 0.04)])
    (row,) = (row for row in rows_of([record], CONDITIONS) if row.settings["measure"] == "held up")
    assert row.mean == pytest.approx(0.02)
    assert row.interval == pytest.approx((0.02 / 5.596, 0.02 * 5.596), rel=1e-3)  # t = 4.3027
    record.turns = record.turns[:1]
    (row,) = (row for row in rows_of([record], CONDITIONS) if row.settings["measure"] == "held up")
    assert "low_95" not in row.to_json()


def test_every_peer_is_compared_with_ours_turn_by_turn():
    ours = PeerRecord(peer=OURS, turns=[found(peer_copy_s=s) for s in (0.1, 0.4)])
    other = PeerRecord(peer="nvrx", turns=[found(peer_copy_s=s) for s in (0.2, 0.8)])
    floor = PeerRecord(
        peer=FLOOR, turns=[found(peer_copy_s=s, details={GLOO: s / 2}) for s in (0.1, 0.4)]
    )
    rows = {row.name: row for row in rows_of([floor, ours, other], CONDITIONS)}
    assert rows["nvrx, peer copy whole / gemini_lab's"].values == (2.0, 2.0)
    assert rows["gemini_lab, a version's speed / bare Gloo's"].values == (0.5, 0.5)


def test_a_restore_counts_as_verified_when_it_refused_all_flips_that_mattered():
    good = PeerRecord(
        peer=OURS, turns=[found(restore_s=1.0, flips={"silent": 0, "refused": 3, "harmless": 1})]
    )
    blind = PeerRecord(
        peer="dcp", turns=[found(restore_s=1.0, flips={"silent": 1, "refused": 3, "harmless": 0})]
    )
    text = table(rows_of([good, blind], CONDITIONS))
    assert [cells(text, peer)[0][3] for peer in (OURS, "dcp")] == ["1000 ms *", "1000 ms"]


def test_torn_tensors_a_refusal_and_a_killed_peer_are_told_apart():
    torn = PeerRecord(peer="dcp", turns=[found(guarded_torn=0, torn=64)])
    proud = PeerRecord(peer=OURS, turns=[found(guarded_torn=0, refuses_torn=True, lost_saves=1)])
    text = table(rows_of([torn, proud], CONDITIONS))
    assert cells(text, "dcp")[1][1:4] == ["0 of 64", "64 of 64", "-"]
    assert cells(text, OURS)[1][1:4] == ["0 of 64", "refused", "1 save behind"]


def test_silent_loads_of_all_turns_are_added_up():
    turns = [
        found(flips={"silent": 3, "refused": 1, "harmless": 0}),
        found(flips={"silent": 4, "refused": 0, "harmless": 2}),
    ]
    rows = rows_of([PeerRecord(peer="dcp", turns=turns)], CONDITIONS)
    row = next(row for row in rows if row.settings["measure"] == "silent loads")
    assert (row.values, row.settings["flips"], row.settings["harmless"]) == ((7.0,), 10, 2)
    assert "7 of 10" in table(rows)
    assert "1 loads refused, 2 bits harmless" in table(rows)


def test_the_floor_is_no_peer_that_could_hold_training_up():
    rows = rows_of(
        [PeerRecord(peer=FLOOR, turns=[found(held_up_s=1.0, peer_copy_s=1.0)])], CONDITIONS
    )
    assert "held up" not in [row.settings["measure"] for row in rows]


def test_every_way_of_measuring_stands_in_the_table():
    text = table(rows_of([PeerRecord(peer=name, why_not="no") for name in CATALOG], CONDITIONS))
    assert all(entry.how in text for entry in CATALOG.values())


# -- options -------------------------------------------------------------------------------------


def test_options_reach_the_bench_by_name():
    parser = argparse.ArgumentParser()
    peers_bench.add_options(parser)
    options = parser.parse_args(["--size", "1 MiB", "--peers", "dcp,nvrx", "--env", "nvrx=/x"])
    assert (options.size_bytes, options.peers, options.environments) == (
        MIB,
        ["dcp", "nvrx"],
        ["nvrx=/x"],
    )
    assert parser.parse_args([]).size_bytes == 256 * MIB


@pytest.mark.parametrize(("peers", "ranks"), [(["nobody"], 2), ([OURS], 3), ([OURS], 0)])
def test_unknown_peers_and_odd_ranks_are_refused(peers, ranks):
    with pytest.raises(ConfigError):
        peers_bench.require(peers, ranks)


def test_an_environment_is_a_peer_and_a_python():
    assert parse_environments([f"nvrx={sys.executable}"]) == {"nvrx": Path(sys.executable)}
    for text in ("nvrx", "nvrx=/no/such/python", f"nobody={sys.executable}"):
        with pytest.raises(ConfigError, match="PEER=PYTHON"):
            parse_environments([text])


def test_a_peer_that_comes_with_us_runs_on_this_python(tmp_path):
    assert find_python("dcp", {}, tmp_path) == Path(sys.executable)
    assert find_python("nvrx", {}, None) == Path(sys.executable)
    assert find_python("nvrx", {"nvrx": tmp_path}, None) == tmp_path
    assert folder_bytes(tmp_path) == 0


# -- real processes --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch):
    """Ranks that hang are to be told with their last words, before the test's own time is over."""
    monkeypatch.setattr(one_turn, "PATIENCE_S", 200.0)


def test_ours_keeps_a_copy_on_the_peer_and_loads_no_flipped_bit():
    turn = run_turn(OURS, Path(sys.executable), CONDITIONS, flips=5, seed=1)
    assert turn.findings.error == ""
    assert turn.findings.flips == {"silent": 0, "refused": 5, "harmless": 0}
    assert turn.findings.peer_copy_s is not None
    assert turn.findings.restore_s is not None
    assert turn.findings.guarded_torn == 0
    # It is not refused where all ranks had their copies before the update.
    assert turn.findings.refuses_torn or turn.findings.torn == 0
    assert turn.findings.lost_saves in {0, 1}
    assert turn.peak_bytes > 4 * 2 * CONDITIONS.size_bytes


def test_a_peer_that_checks_nothing_loads_flipped_bits_silently():
    turn = run_turn("replication_stager", Path(sys.executable), CONDITIONS, flips=5, seed=1)
    assert turn.findings.error == ""
    assert turn.findings.flips["silent"] > 0
    assert turn.findings.peer_copy_s is not None


def test_folders_that_are_renamed_while_they_are_measured_are_no_error(tmp_path):
    """As a peer does that writes into a folder of another name first."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"12345")
    ended = threading.Event()

    def rename() -> None:
        while not ended.is_set():
            (tmp_path / "a").rename(tmp_path / "c")
            (tmp_path / "c").rename(tmp_path / "a")

    thread = threading.Thread(target=rename)
    thread.start()
    seen = {folder_bytes(tmp_path) for _ in range(3000)}
    ended.set()
    thread.join()
    assert seen <= {0, 5, 10}
    assert folder_bytes(tmp_path) == 5
