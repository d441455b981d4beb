"""Agents that join by themselves: what names they get, who is waited for, and with what secret."""

import json
import threading

import msgspec
import pytest
from store_stand_in import StoreStandIn

from gemini_lab import Lab
from gemini_lab.errors import CapacityError, ConfigError, LaunchError
from gemini_lab.launch.join import (
    JoinOperator,
    check_name,
    find_lab,
    find_token,
    take_name,
)
from gemini_lab.node.start_config import LAB_KEY, LabRecord

TOKEN = "0123456789abcdef"
RECORD = LabRecord(identity="1", machines=3, lease_s=2.0, warm=True, threads=None)


def register(store, name, address="10.0.0.1:1"):
    store.put(f"nodes/{name}", json.dumps({"address": address}))


def operator(store, *, wait_s=0.0, said=None):
    tell = [].append if said is None else said.append
    return JoinOperator(store=store, token=TOKEN, wait_s=wait_s, tell=tell)


def test_every_machine_gets_a_name_of_its_own_whoever_asks_first():
    store = StoreStandIn()
    names = []
    threads = [
        threading.Thread(target=lambda: names.append(take_name(store, "host"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(names) == [f"node-{number}" for number in range(8)]


def test_a_name_whose_answer_was_lost_is_read_back_and_kept():
    store = StoreStandIn()
    store.lost_answers = 1
    assert take_name(store, "host") == "node-0"
    assert take_name(store, "host") == "node-1"


def test_a_machine_that_its_starter_counts_gets_that_number_once():
    store = StoreStandIn()
    assert take_name(store, "host", first=5) == "node-5"
    assert take_name(store, "host", first=5) == "node-6"


def test_those_who_have_joined_are_handed_over_once():
    store = StoreStandIn()
    for number in (0, 1, 10, 2):
        register(store, f"node-{number}", f"10.0.0.{number}:7")
    machines = operator(store)
    first = machines.bring(3)
    assert [agent.name for agent in first] == ["node-0", "node-1", "node-2"]
    assert first[1].address == "10.0.0.1:7"
    assert [agent.name for agent in machines.bring(1)] == ["node-10"]


def test_who_is_missing_is_told_and_how_long_they_are_waited_for():
    store = StoreStandIn()
    register(store, take_name(store, "host-a"))
    take_name(store, "host-b")
    said = []
    with pytest.raises(CapacityError, match="gemini-lab node"):
        operator(store, wait_s=0.3, said=said).bring(4)
    assert "1 of 4 nodes have joined (node-0 on host-a)" in said[0]
    assert "node-1 on host-b began to" in said[0]
    assert "nothing is heard of 2 more" in said[0]
    assert "waiting up to 0 s more" in said[0]


def test_a_closed_lab_waits_for_nobody():
    machines = operator(StoreStandIn(), wait_s=600)
    machines.clear()
    with pytest.raises(CapacityError):
        machines.bring(1)


def test_a_lab_that_is_not_there_yet_is_waited_for():
    store, said = StoreStandIn(), []
    threading.Timer(0.3, lambda: store.put(LAB_KEY, msgspec.json.encode(RECORD).decode())).start()
    assert find_lab(store, "exp", wait_s=30, tell=said.append) == RECORD
    assert "waiting up to 30 s for a lab 'exp'" in said[0]
    with pytest.raises(LaunchError, match="--join other"):
        find_lab(StoreStandIn(), "other", wait_s=0, tell=said.append)


def test_the_token_comes_from_the_environment_or_a_file_that_nobody_else_can_read(tmp_path):
    assert find_token(None, {"GEMINI_LAB_TOKEN": f" {TOKEN}\n"}) == TOKEN
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_token(file)
    file.chmod(0o600)
    assert find_token(file, {}) == TOKEN


@pytest.mark.parametrize(
    ("environment", "said"), [({}, "openssl rand"), ({"GEMINI_LAB_TOKEN": "abc"}, "3 characters")]
)
def test_no_token_or_a_short_one_is_refused_with_the_way_out(environment, said):
    with pytest.raises(ConfigError, match=said):
        find_token(None, environment)


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "x" * 101])
def test_a_name_that_could_be_no_key_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be a lab's name"):
        check_name(name)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"join": "a", "token": TOKEN}, "in which store"),
        ({"join": "a", "etcd": "127.0.0.1:1", "token": TOKEN, "hosts": ["h"] * 5}, "not both"),
        ({"join": "a", "etcd": "127.0.0.1:1", "token": ""}, "openssl"),
    ],
)
def test_a_lab_that_nobody_could_join_is_refused_at_once(given, said):
    def start(*_):
        raise AssertionError("it was started")

    with pytest.raises(ConfigError, match=said):
        Lab(**given, start=start)
