"""Settings are checked at the door."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.settings import Settings


def test_sizes_and_rates_may_be_written_as_people_write_them() -> None:
    settings = Settings.parse({"buffer_bytes": "1 MiB", "link_bytes_per_s": "8 Mbit/s"})
    assert (settings.buffer_bytes, settings.link_bytes_per_s) == (2**20, 1e6)
    assert Settings.parse(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"scheme": "fast"}, "no scheme 'fast'.*gemini"),
        ({"mu": 1.5}, "mu must be above 0 and at most 1"),
        ({"buffer_bytes": 2, "sub_buffers": 4}, "leaves nothing"),
        ({"profile_iterations": 0}, "profile_iterations must be above zero"),
        ({"link_bytes_per_s": 0}, "above zero"),
        ({"max_overhead": -0.1}, "max_overhead must be above zero"),
    ],
)
def test_an_impossible_setting_is_refused(block, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.parse(block)
