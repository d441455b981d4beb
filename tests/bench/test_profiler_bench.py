"""The `profiler` bench measures the same collectives bare and watched."""

from gemini_lab_bench.benches.profiler import bench


def test_each_kind_is_measured_bare_watched_and_counted() -> None:
    rows = bench(1)
    assert [row.name.split(", ") for row in rows] == [
        [kind, how]
        for kind in ("synchronous", "asynchronous")
        for how in ("bare", "watched", "counted only")
    ]
    assert all(row.unit == "us" and row.median > 0 for row in rows)
