"""Times as people say them, and numbers that are none."""

import math

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.units import check_number, format_seconds, parse_bandwidth, parse_bytes


@pytest.mark.parametrize(
    ("time_s", "words"),
    [
        (0.012, "12 ms"),
        (3.44, "3.4 s"),
        (430, "7 min 10 s"),
        (7_199, "119 min 59 s"),
        (156_240, "43 h 24 min"),
        (353_753, "4 d 2 h"),
    ],
)
def test_a_time_has_two_units_at_most(time_s: float, words: str) -> None:
    assert format_seconds(time_s) == words


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -0.5, "16", None])
def test_what_is_no_number_in_its_range_is_refused(value) -> None:
    with pytest.raises(ConfigError, match=r"`days` must be from 0 (on|to 1,000,000)"):
        check_number("days", value)
    check_number("days", 0)
    with pytest.raises(ConfigError, match=r"`days` must be above zero"):
        check_number("days", 0, is_above=True)


def test_a_count_is_a_whole_number() -> None:
    check_number("nodes", 3, least=1, is_whole=True)
    with pytest.raises(ConfigError, match=r"from 1 on: a whole number \(got 2.5\)"):
        check_number("nodes", 2.5, least=1, is_whole=True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_sizes_and_rates_are_finite(value) -> None:
    with pytest.raises(ConfigError, match="number of bytes"):
        parse_bytes(value)
    with pytest.raises(ConfigError, match="finite"):
        parse_bandwidth(value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20 Gbit/s", 2.5e9),
        ("20gbit", 2.5e9),
        ("20 Gbps", 2.5e9),
        ("80 kbps", 1e4),
        ("2.5 GB/s", 2.5e9),
        ("10 MB", 1e7),
        ("10 kB/s", 1e4),
        ("1 MiB/s", 2**20),
    ],
)
def test_a_rate_is_in_bits_or_in_bytes(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["25 Gb/s", "25 gb/s", "25Gb", "8 b/s", "1 Mib/s", "2 GBps"])
def test_a_rate_that_may_mean_bits_or_bytes_is_refused(text: str) -> None:
    """One was taken for eight times the other, and every figure with it."""
    with pytest.raises(ConfigError, match="may mean bits or bytes"):
        parse_bandwidth(text)
