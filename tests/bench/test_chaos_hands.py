"""People who type anything: what they type is out of bounds, and what comes of it is heard."""

import os
import random
import subprocess
import sys

import psutil
import pytest

from gemini_lab_bench.chaos.hands import NUMBERS, VERBS, Hands, problem_of, typed_at

WAITS = [sys.executable, "-c", "input()"]
GROWS = """
taken = []
while True:
    taken.append(bytearray(1 << 26))
    taken[-1][::4096] = b"x" * (1 << 14)
"""


def test_every_verb_is_typed_with_every_number_and_never_what_could_be_meant():
    typed = {typed_at(random.Random(seed)) for seed in range(3000)}
    assert {words[0] for words in typed} == {words[0] for words in VERBS}
    assert {words[2] for words in typed if words[0] == "resize"} == set(NUMBERS)
    places = {words[3] for words in typed if words[0] == "inject" and words[2] != "bit_flip"}
    assert all(int(place.rpartition("-")[2]) >= 990 for place in places)
    assert all(float(words[3]) < 0 for words in typed if words[0] == "stop")  # refused


def test_commands_for_a_run_that_is_over_end_with_a_sentence(tmp_path):
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as owner:
        hands = Hands(tmp_path, psutil.Process(owner.pid), os.environ)
        said = hands.ask(3)
        hands.rest()
        owner.communicate(b"\n")
    assert said.count(";") == 2
    assert hands.found == []


def test_an_owner_that_takes_all_memory_is_ended_and_told_of(tmp_path):
    with subprocess.Popen([sys.executable, "-c", GROWS]) as owner:
        hands = Hands(tmp_path, psutil.Process(owner.pid), os.environ)
        hands.ask(3)
        owner.wait(120)
        hands.rest()
    assert any("the owner grew by 1" in found for found in hands.found)


@pytest.mark.parametrize(
    ("status", "said", "problem"),
    [
        (0, "run goes on", None),
        (2, "gemini-lab: it cannot have 0 nodes", None),
        (130, "", None),
        (1, "Traceback (most recent call last):\n ...\nOverflowError: no", "OverflowError: no"),
        (-9, "waiting", "did not end within"),
        (-11, "", "status -11"),
        (-2, "", "status -2"),
    ],
)
def test_what_is_wrong_with_how_a_command_ends(status, said, problem):
    found = problem_of(("resize", "RUN", "0"), status, said)
    assert (found is None) if problem is None else (problem in found)


def test_who_follows_a_run_may_end_by_the_ctrl_c_that_ends_it():
    assert problem_of(("attach", "RUN"), -2, "gemini-lab attach: interrupted") is None
