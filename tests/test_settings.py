"""Settings are checked at the door."""

from dataclasses import fields

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.settings import GROUPS, Settings, origins


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
        ({"preload": "numpy, os.system('x')"}, "preload must be names of modules with commas"),
        ({"preload": "torch..nn"}, "preload must be names of modules with commas"),
    ],
)
def test_an_impossible_setting_is_refused(block, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.parse(block)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("replicas", 2.5, "a whole number"),
        ("replicas", "two", "a whole number"),
        ("replicas", True, "a whole number"),
        ("keep_processes", "no", "true or false"),
        ("log_collectives", "no", "true or false or null"),
        ("persist_every_s", "soon", "a number or null"),
        ("strategy", None, "text"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(name, value, words):
    with pytest.raises(ConfigError, match=f"{name}={value!r} has the wrong type.* {words}$"):
        Settings.parse({name: value})


def test_an_unknown_name_is_answered_by_the_nearest_and_not_by_all():
    with pytest.raises(ConfigError, match="no 'replica'; the nearest: replicas, ") as refused:
        Settings.parse({"replica": 3})
    assert len(str(refused.value)) < 150
    with pytest.raises(ConfigError, match=r"no 'zzz'; help\(gemini_lab.Settings\) has all"):
        Settings.parse({"zzz": 3})


def test_whole_numbers_will_do_where_any_number_does():
    assert Settings.parse({"persist_every_s": 60, "mu": 1}).persist_every_s == 60


def test_of_two_who_say_a_setting_the_later_one_is_heard():
    lab = {"persistent_url": "/lab", "mu": 0.1}
    block = {"persistent_url": "/block", "replicas": 3}
    told = {"replicas": 1}
    settings = Settings.layered(lab, block, told)
    assert (settings.persistent_url, settings.replicas, settings.mu) == ("/block", 1, 0.1)
    found = origins(lab, block, told)
    assert found["persistent_url"] == "config block"
    assert found["replicas"] == "command line"
    assert (found["mu"], found["idle_s"]) == ("lab", "default")


def test_whoever_says_that_there_is_no_tier_is_heard_too():
    assert (
        Settings.layered({"persistent_url": "/lab"}, {"persistent_url": None}).persistent_url
        is None
    )


def test_replicas_may_follow_the_risk_with_two_copies_at_least():
    auto = Settings.parse({"replicas": "auto"})
    assert (auto.replicas, auto.adapt_replicas) == (2, True)
    assert Settings.parse(auto.to_json()) == auto
    fixed = auto.updated({"replicas": 3})  # who says a number later wants that
    assert (fixed.replicas, fixed.adapt_replicas) == (3, False)
    more = Settings.parse({"replicas": 3, "adapt_replicas": True})
    assert (more.replicas, more.adapt_replicas) == (3, True)


def test_what_is_said_of_nodes_holds_for_all_or_for_some():
    settings = Settings.parse(
        {"failures_per_day": "0.02, node-3: 0.5", "replica_memory": "node-1: 2 KiB"}
    )
    assert settings.expected_failures.of("node-0") == 0.02
    assert settings.expected_failures.of("node-3") == 0.5
    assert settings.room_for_replicas.usual is None
    assert settings.room_for_replicas.of("node-1") == 2048


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"replicas": "auto", "scheme": "gemini"}, "plans for as many of each.*background"),
        ({"replicas": "auto", "scheme": "none"}, "or none"),
        ({"replicas": "auto", "strategy": "ring"}, "strategy='ring' too; leave one of them out"),
        ({"survival_target": 1.0}, "a chance below 1 .got 1.0."),
        ({"survival_days": 0}, "survival_days must be above zero"),
        ({"adapt_pause_s": -1}, "adapt_pause_s must be 0 or more .got -1."),
        ({"failures_per_day": "often"}, "'often' is no number of at least 0.*write it like"),
        ({"failures_per_day": "0.1, node-2: -1"}, "'node-2: -1' is no number"),
        ({"replica_memory": "8 GiB, : 2 GiB"}, "': 2 GiB' is no number"),
    ],
)
def test_what_does_not_go_with_copies_that_follow_the_risk_is_refused(block, said):
    with pytest.raises(ConfigError, match=said):
        Settings.parse(block)


def test_settings_are_in_few_groups_each_with_few_and_all_in_the_help():
    named = [one.name for group in GROUPS for one in fields(group)]
    assert named == [one.name for one in fields(Settings)]
    assert len(named) == len(set(named))
    assert len(GROUPS) <= 12
    assert max(len(fields(group)) for group in GROUPS) <= 12
    for group in (*GROUPS, Settings):
        for one in fields(group):
            assert f"    {one.name}: " in group.__doc__
