"""Claims about the bench."""

import importlib
import json
import random
import statistics
import time

import pytest

from gemini_lab_bench import command as bench
from gemini_lab_bench.rows import (
    Row,
    bootstrap_interval,
    growth,
    spread_of,
    table,
)


def test_every_bench_in_the_table_can_be_loaded():
    for name, text in bench.BENCHES.items():
        home = bench.HOMES.get(name, f"benches.{name}")
        assert callable(importlib.import_module(f"gemini_lab_bench.{home}").bench)
        assert text


def test_the_interval_holds_the_median_and_narrows_with_more_values():
    few, many = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0] * 40
    low, high = bootstrap_interval(few)
    assert low <= 3.0 <= high
    tight_low, tight_high = bootstrap_interval(many)
    assert tight_high - tight_low < high - low


def test_few_values_are_told_by_their_mean_with_student_ts_interval():
    """Student-t is 4.3027 at three values, and their standard error is 1 / sqrt(3)."""
    row = Row("few", (1.0, 2.0, 3.0))
    half = 4.3027 / 3**0.5
    assert (row.value, row.interval) == (2.0, pytest.approx((2 - half, 2 + half)))
    assert spread_of(row.to_json(), ".1f") == "2.0 (-0.5 to 4.5)"


def test_the_interval_of_few_values_holds_their_mean_19_times_in_20():
    draw = random.Random(1)
    rows = [Row("", tuple(draw.gauss(5, 1) for _ in range(3))) for _ in range(2000)]
    held = sum(low <= 5 <= high for low, high in (row.interval for row in rows))
    assert held / len(rows) == pytest.approx(0.95, abs=0.02)


def test_one_value_alone_has_no_interval():
    row = Row("once", (1.5,))
    assert "low_95" not in row.to_json()
    assert spread_of(row.to_json(), ".1f") == "1.5"
    assert "1.5 to" not in table([row])


def test_growth_finds_the_exponent():
    assert growth([1, 10, 100], [2, 200, 20_000]) == pytest.approx(2)


def test_a_bench_writes_every_value_with_the_machine_it_was_measured_on(tmp_path, capsys):
    path = tmp_path / "a" / "b.json"
    assert bench.command(["log", "--lines", "500", "--repeats", "4", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    values = record["rows"][0]["values"]
    assert len(values) == 4
    assert record["rows"][0]["median"] == statistics.median(values)
    assert record["machine"]["cores"] >= 1
    assert {"gemini-lab", "python", "torch", "deepspeed", "numpy"} <= set(record["made_with"])
    assert (record["repeats"], record["seed"]) == (4, None)
    assert time.strptime(record["at"], "%Y-%m-%dT%H:%M:%S%z")
    assert record["rows"][0]["name"] in capsys.readouterr().out


def test_no_repeats_are_refused():
    with pytest.raises(SystemExit, match="2"):
        bench.command(["log", "--repeats", "0"])


def test_a_table_fits_a_terminal_whatever_its_rows_were_measured_with():
    refused = {"size": "tiny", "link_bytes_per_s": 4e7, "refused": "one piece is too large; " * 20}
    rows = [
        Row("a name of no less than fifty characters, as some are", (1.5, 2.5)),
        Row("naive", (1e-6, 12345678.9), unit="MiB/s", settings=refused),
        Row("the same", (1.0,), settings=dict(refused)),
        Row("a peer", (), why_not="it needs what is not here " * 10),
    ]
    text = table(rows)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("link 38.1 MiB/s") == 1
    assert "no value: it needs" in text


def test_large_values_are_written_out():
    lines = table([Row("memcpy", (23003.4, 23003.4), unit="MiB/s")])
    assert "23003  23003 to 23003 MiB/s" in lines


def test_the_list_keeps_names_and_words_apart_and_a_benchs_own_help_has_its_options_alone(capsys):
    for arguments in (["--help"], ["drain", "--help"], ["--help", "control"]):
        with pytest.raises(SystemExit):
            bench.command(arguments)
    said = capsys.readouterr().out
    every, drain, control = (part for part in said.split("usage: ") if part)
    assert all(f"  {name} " in every for name in bench.BENCHES)
    assert "--only {kept,anew}" in drain
    assert "--lines" not in drain
    assert "--agents" in control
