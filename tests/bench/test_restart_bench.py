"""What the restart bench says, of times that are given."""

import sys

from gemini_lab_bench.benches.restart import (
    FAILURES,
    PEER_WAYS,
    WAYS,
    nvrx_python,
    rows_of,
)
from gemini_lab_bench.rows import table

OURS = {(failure, how): [1.0, 2.0] for failure in FAILURES for how in WAYS}


def test_another_systems_restart_stands_beside_the_same_failure_and_against_the_same_cold_start():
    (first, *_) = PEER_WAYS
    measured = OURS | {("worker crash", "cold"): [8.0, 10.0], ("worker crash", first): [4.0, 2.0]}
    rows = {row.name: row.values for row in rows_of(measured)}
    assert rows[f"worker crash, {first}"] == (4.0, 2.0)
    assert rows[f"worker crash, {first} / cold"] == (0.5, 0.2)
    assert rows["worker crash, kept / cold"] == (0.125, 0.2)
    assert {name for name in rows if "NVRx" in name and "worker crash" not in name} == set()


def test_a_system_that_is_not_there_is_left_out_with_the_reason():
    python, why_not = nvrx_python([f"nvrx={sys.executable}"], None)
    if python is None:  # as it is where the tests run
        assert "--install DIR" in why_not
        text = table(rows_of(OURS, why_not))
        assert text.count("no value: not installed") == len(PEER_WAYS)
        assert "NVRx as it comes / cold" not in text
