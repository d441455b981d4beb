"""Times as people say them."""

import pytest

from gemini_lab.units import format_seconds


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
