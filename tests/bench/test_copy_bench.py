"""The `copy` bench measures what it names, at a small size."""

import pytest

from gemini_lab.units import MIB
from gemini_lab_bench.benches.copy import LINK_BYTES_PER_S, memory_rows, wire_rows


def test_memory_is_measured_beside_plain_memcpy() -> None:
    rows = {row.name: row for row in memory_rows(3, payload_bytes=MIB, chunk_bytes=MIB // 4)}
    assert {"memcpy", "slab", "slab with checksums", "checksum"} < set(rows)
    assert all(len(row.values) == 3 and min(row.values) > 0 for row in rows.values())
    ratio = rows["slab"].values[0] / rows["memcpy"].values[0]
    assert rows["slab / memcpy"].values[0] == pytest.approx(ratio)


def test_the_wire_is_measured_beside_bare_gloo() -> None:
    rows = {row.name: row for row in wire_rows(2, payload_bytes=MIB, chunk_bytes=MIB // 4)}
    beside = {
        "a version": ["bare Gloo", "memcpy, checksums, bare Gloo"],
        "paced, a version": ["paced, bare Gloo"],
    }
    for ours, floors in beside.items():
        for floor in floors:
            ratio = rows[ours].values[1] / rows[floor].values[1]
            assert rows[f"{ours} / {floor}"].values[1] == pytest.approx(ratio)
    assert len(rows) == 8
    assert rows["paced, bare Gloo"].values[1] * MIB <= LINK_BYTES_PER_S
