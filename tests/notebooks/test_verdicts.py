"""What each check says of no answer, of wrong ones and of the solution."""

import contextlib
import io
import re
from functools import cache
from typing import Any

import pytest
from editions import SOURCES, tagged
from labs_without_nodes import edition_of, names_of

from gemini_lab_course import Verdict, WrongAnswerError

LABS = [f"lab_{source.stem[:2]}" for source in SOURCES]
EXERCISES = [
    (lab, number)
    for lab in LABS
    for number in range(1, len(tagged(edition_of(lab), "exercise")) + 1)
]
each_exercise = pytest.mark.parametrize(("lab", "number"), EXERCISES)

ANYTHING = (
    "'seven'",
    "True",
    "object()",
    "[None]",
    "{}",
    "{'a': 1}",
    "float('nan')",
    "-1",
    "1e300",
    "abs",
    "int",
    "1 + 2j",
    "Unspeakable()",
)
"""Answers to anything and right for nothing."""

UNSPEAKABLE = """
class Unspeakable:
    def __repr__(self): raise ValueError("not even this")
    __eq__ = __lt__ = __len__ = __iter__ = __float__ = __call__ = __repr__
"""

MORE = ((0, 1, 2), (1, 0, 2), (2, 3), (3, 2), (4, 0))
"""A third copy of two shards."""

ANEW = """
def start_anew(members, **_):
    nothing = {"version": None, "sources": (), "transfers": ()}
    return RecoveryPlan(**nothing, tier="start", members=members, reason="the safest")
"""

PLACED = """
import numpy as np
def placed(holders): return Placement(nodes=5, replicas=2, strategy="", groups=(), holders=holders)
"""
"""What the right answers below use."""

HASTY = """
def decide(state, event, cluster):
    match event:
        case Failed():
            return [Fence(), Ask()]
        case Told(copies=copies) if copies:
            return Start(max(copy.version for copy in copies))
"""

DRAWN = "layout = {{'weights': '{0}', 'moments': 'ABCD', 'generator': '{1}', 'data': 'AABB'}}"
SMALL_ONLY = """
from gemini_lab_course.attacks.divisions import divided
def divide(held):
    return [{piece: min(size, 500_000) for piece, size in one.items()} for one in divided(held)]
"""

KNOWN = """
from gemini_lab_course import lab_08
lab_08._withstood.append(mine)
"""
"""It is not attacked again."""

WRONG = [
    ("lab_00", 1, "answer = Scenario()", "no failure is in `answer` yet"),
    ("lab_00", 1, "answer = Scenario().add(NodeLoss('rank-1'), iteration=5)", "the log has 1"),
    (
        "lab_00",
        1,
        "answer = Scenario().add(NodesLoss(('rank-2', 'rank-3')), iteration=5)",
        "memory was not enough; the log says: ",
    ),
    (
        "lab_00",
        1,
        "answer = Scenario().crash(rank=1, iteration=5).crash(rank=2, iteration=5)",
        "two nodes have to die at once, and the log has 0",
    ),
    (
        "lab_00",
        1,
        "answer = Scenario().lose(node=1, iteration=5).lose(node=2, iteration=6)",
        "the log has 1",
    ),
    (
        "lab_00",
        1,
        "answer = Scenario().add(NodesLoss(('rank-1', 'rank-9')), iteration=5)",
        "names 'rank-9', which is not there",
    ),
    ("lab_01", 1, "def cases(c, i, r): return c + i + r, c + r", "worse than its worst"),
    ("lab_01", 1, "def cases(c, i, r): return c, c + i + r", "gives 480 s at best"),
    ("lab_01", 1, "def cases(c, i, r): return c + r, c + r + i / 2", "gives 1240 s at worst"),
    ("lab_01", 1, "def cases(c, i, r): return c + r", "has to return a pair of numbers"),
    ("lab_01", 1, "def cases(c, i, r): return 'short', 'long'", "has to be a pair of numbers"),
    ("lab_01", 1, "def cases(c, i, r): return c / r, i", "gives 1 s at best"),
    (
        "lab_01",
        1,
        "def cases(c, i, r): return c / (r - 480), i",
        "`cases(480, 560, 480)` raised ZeroDivisionError: division by zero",
    ),
    ("lab_01", 1, "def cases(c): return c, c", "raised TypeError: cases() takes 1 positional"),
    ("lab_01", 1, "def cases(c, i, r): return retrieval", "raised NameError: "),
    ("lab_01", 1, "def cases(*_): exit(1)", "raised SystemExit"),
    ("lab_01", 1, "def cases(*a): return cases(*a)", "raised RecursionError"),
    ("lab_01", 1, "def cases(c, i, r): return {c + r, c + r + i}", "has to return a pair"),
    ("lab_01", 2, "store_gbit_per_s = 20", "with 20 Gbit/s a failure wastes"),
    ("lab_01", 2, "store_gbit_per_s = 256", "with 256 Gbit/s a failure wastes"),
    ("lab_01", 2, "store_gbit_per_s = 0", "above 0"),
    ("lab_02", 1, "bytes_per_parameter = 8", "the profile has more than 8"),
    ("lab_02", 1, "bytes_per_parameter = 16", "the profile has less than 16"),
    ("lab_02", 1, "bytes_per_parameter = 0", "an iteration sends something"),
    ("lab_02", 2, "other_job = job", "the same collectives in the same order"),
    (
        "lab_02",
        2,
        "other_job = gpt_job(size='tiny', iterations=1000, batch=8, zero=AS_IF_LARGE)",
        "the same collectives in the same order",
    ),
    ("lab_02", 2, "other_job = gpt_job(size='small', iterations=1000)", "has another model"),
    (
        "lab_02",
        2,
        "other_job = replace(job, args=[*job.args, '--size', 'small'])",
        "has another model",
    ),
    ("lab_03", 1, "five = plan_placement(nodes=5, strategy='ring')", "5 pairs are fatal: "),
    ("lab_03", 1, "five = plan_placement(nodes=5)", "4 pairs are fatal: "),
    ("lab_03", 1, "five = plan_placement(nodes=6)", "five nodes and two replicas"),
    ("lab_03", 1, "five = plan_placement(nodes=5, replicas=3)", "five nodes and two replicas"),
    (
        "lab_03",
        1,
        "five = Placement(nodes=5, replicas=2, strategy='', groups=(), holders=MORE)",
        "two copies of each shard",
    ),
    ("lab_03", 2, "deficit = 0.667", "what the bounds say"),
    ("lab_03", 2, "deficit = 0.4", "not 0.4: all 1,820 sets of four machines"),
    ("lab_03", 2, "deficit = 40", "a share between 0 and 1"),
    (
        "lab_03",
        3,
        "tough = plan_placement(nodes=16)",
        "6 of the 6 pairs of racks are fatal: [(0, 1), ",
    ),
    ("lab_03", 3, "tough = plan_placement(nodes=16, replicas=3)", "pairs of racks are fatal"),
    ("lab_03", 3, "tough = plan_placement(nodes=8, replicas=3)", "sixteen machines"),
    (
        "lab_03",
        3,
        "tough = plan_placement(nodes=16, replicas=4, racks=sorted('abcd' * 4))",
        "it can be done with fewer",
    ),
    (
        "lab_03",
        4,
        "def planner(**asked): return plan_placement(**asked, strategy='ring')",
        "4 nodes, 2 replicas: lose node-0 and node-1 at once",
    ),
    ("lab_03", 4, "def planner(nodes, replicas): return nodes", "the answer has to be a Placement"),
    ("lab_03", 4, "planner = plan_placement(nodes=5)", "a function of `nodes` and `replicas`, and"),
    ("lab_04", 1, "smallest_bytes = 900 * KIB", "are accepted, but so is a KiB less"),
    ("lab_04", 1, "smallest_bytes = 300", "is refused, also with a KiB more"),
    ("lab_04", 1, "smallest_bytes = 0", "above 0"),
    ("lab_04", 1, "smallest_bytes = 10**400", "has to be a number of bytes, and yours is inf"),
    ("lab_04", 1, "smallest_bytes = 1e18", "a buffer of petabytes is more than there is"),
    ("lab_04", 2, "def planner(**_): return []", "0 of the 1 bytes are sent"),
    ("lab_04", 2, "def planner(profile): raise KeyError('span')", "it raises KeyError: 'span'"),
    ("lab_05", 1, "tiers = ['local'] * 4", "something else for 1 of the 4 ranks"),
    ("lab_05", 1, "tiers = ['peer'] * 4", "something else for 3 of the 4 ranks"),
    ("lab_05", 1, "tiers = ['local'] * 3", "yours has 3"),
    ("lab_05", 1, "tiers = ['?', '?', '?', '?']", "yours has '?'"),
    ("lab_05", 2, "better = {'strategy': 'ring'}", "memory was not enough: "),
    ("lab_05", 2, "better = {'copies': 3}", "copies"),
    ("lab_05", 2, "better = {'replicas': 'three'}", "has the wrong type"),
    ("lab_05", 2, "better = {3: 'replicas'}", "could not be tried: TypeError"),
    (
        "lab_05",
        3,
        f"{ANEW}\nplanner = start_anew",
        "1 node, 1 replica, no node lost: training starts over",
    ),
    ("lab_05", 3, "def planner(**_): return 7", "has to be a RecoveryPlan, and it is an int"),
    ("lab_06", 1, "iterations = 1", "over a point more is possible"),
    ("lab_06", 1, "iterations = 400", "over a point more is possible"),
    ("lab_06", 1, "iterations = 0", "1 is the least"),
    ("lab_06", 1, "iterations = 12.5", "has to be a whole number, and yours is 12.5"),
    ("lab_06", 2, "enough = 1", "of the time is spent waiting"),
    ("lab_06", 2, "enough = 3", "3 are enough, but so are fewer"),
    ("lab_06", 2, "enough = 10**6", "between 0 and 1000"),
    ("lab_07", 1, "slowest = 400", "are free, but so is a slower link"),
    ("lab_07", 1, "slowest = 50", "make an iteration 0.34 s longer"),
    ("lab_07", 1, "slowest = 0", "above 0"),
    (
        "lab_08",
        1,
        HASTY,
        "not yet: with 2 nodes and 1 standby; node-0 loses its worker: your function starts",
    ),
    (
        "lab_08",
        1,
        "decide = lambda state, event, cluster: Fence",
        "and it is the class Fence itself",
    ),
    ("lab_08", 1, "decide = lambda state, event, cluster: 1 / 0", "it raised ZeroDivisionError"),
    (
        "lab_08",
        2,
        HASTY.replace("decide", "mine"),
        "not yet: with 2 nodes and 1 standby; node-0 loses its worker: your function starts",
    ),
    (
        "lab_08",
        2,
        f"{HASTY.replace('decide', 'mine')}\n{KNOWN}",
        "not yet: the run did not finish: with-mine failed: ",
    ),
    ("lab_09", 1, DRAWN.format("ABAB", "AABB"), "the log has something else for weights"),
    ("lab_09", 1, DRAWN.format("ABCD", "ABCD"), "the log has something else for generator"),
    ("lab_09", 1, DRAWN.format("ABC", "AABB"), "of the weights, 3 ranks have a letter, and 4"),
    ("lab_09", 1, DRAWN.format("????", "AABB"), "`layout` has a `?` for the weights"),
    ("lab_09", 1, "layout = {'weights': 4}", "has to be letters: a text, and yours is an int"),
    ("lab_09", 1, "layout = {'weights': 'ABCD'}", "says nothing of the moments"),
    ("lab_09", 2, "def divide(held): return held", "2 ranks, a (12 bytes) on ranks 0, 1: a has"),
    ("lab_09", 2, "def divide(ranks): return ranks", "it wants `ranks`, and is called with held"),
    ("lab_09", 2, SMALL_ONLY, "under DP rank 0 keeps "),
]


@cache
def before(lab: str) -> dict[str, Any]:
    return names_of(lab)


def judged(lab: str, number: int, answer: str) -> tuple[str, dict[str, Any]]:
    """What the check cell says below this answer, and the variables after it.

    An error that is no verdict is raised: in a notebook it would be a traceback.
    """
    names = {**before(lab), "MORE": MORE}
    check = tagged(edition_of(lab), "check")[number - 1].source
    exec(answer, names)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            exec(check, names)
        except WrongAnswerError as error:
            assert said.getvalue() == ""
            return str(error), names
    return said.getvalue().strip(), names


@cache
def solved(lab: str, number: int) -> tuple[str, Any]:
    """What the check says below the solution, and the right answer."""
    cells = tagged(edition_of(lab, with_solutions=True), "exercise")[:number]
    assert "### BEGIN SOLUTION" in cells[-1].source
    said, names = judged(lab, number, "\n".join(cell.source for cell in cells))
    return said, names[answer_name(lab, number)]


def answer_name(lab: str, number: int) -> str:
    """The variable that holds the answer."""
    check = tagged(edition_of(lab), "check")[number - 1].source
    return re.search(rf"exercise_{number}\((\w+)", check)[1]


def spellings(answer: object) -> list[str]:
    """How a sentence would give an answer away."""
    if isinstance(answer, float):
        return [f"{answer:.3g}", f"{answer:.2f}", f"{answer:.1%}"]
    if hasattr(answer, "holders"):
        return [str(answer.holders), repr(answer)]
    return [str(answer)]


@each_exercise
def test_the_solution_is_right(lab, number):
    said, _ = solved(lab, number)
    verdict, *figures = said.splitlines()
    assert verdict.startswith("right: ")
    assert not figures or figures[0].split() == ["yours", "reference", "bound"]


@each_exercise
def test_without_an_answer_a_check_asks_for_one(lab, number):
    blank = tagged(edition_of(lab), "exercise")[number - 1].source
    said, _ = judged(lab, number, blank)
    assert said.startswith("no answer yet: ")
    assert f"`{answer_name(lab, number)}`" in said


@each_exercise
def test_a_check_that_runs_before_its_exercise_asks_for_an_answer(lab, number):
    said, _ = judged(lab, number, "")
    assert said.startswith(f"no answer yet: there is no `{answer_name(lab, number)}`; ")


@each_exercise
def test_no_kind_of_answer_brings_a_traceback(lab, number):
    for answer in ANYTHING:
        said, _ = judged(lab, number, f"{UNSPEAKABLE}\n{answer_name(lab, number)} = {answer}")
        assert said
        assert not said.startswith("right"), answer
        assert "\n" not in said


@pytest.mark.parametrize(("lab", "number", "answer", "why"), WRONG)
def test_a_wrong_answer_is_told_why_and_not_what_is_right(lab, number, answer, why):
    said, names = judged(lab, number, answer)
    assert why in said
    assert not said.startswith("right")
    assert "\n" not in said
    right = solved(lab, number)[1]
    assert names[answer_name(lab, number)] != right
    for spelling in spellings(right):
        assert not re.search(rf"(?<![\w.]){re.escape(spelling)}(?![\w.])", said)


def test_each_exercise_has_wrong_answers():
    assert {(lab, number) for lab, number, _, _ in WRONG} == set(EXERCISES)


def test_an_interrupt_is_no_verdict():
    with pytest.raises(KeyboardInterrupt), Verdict():
        raise KeyboardInterrupt


RACK_BY_RACK = """
holders = tuple(tuple((n + 4 * k) % 16 for k in range(3)) for n in range(16))
tough = Placement(nodes=16, replicas=3, strategy="", groups=(), holders=holders)
"""

IN_NUMPY = """
def planner(nodes, replicas):
    for n in range(nodes):
        first = min(n // replicas, nodes // replicas - 1) * replicas
        many = replicas if first + 2 * replicas <= nodes else nodes - first
        yield first + (n - first + np.arange(replicas)) % many
"""

OTHERWISE = [
    ("lab_01", 1, "def cases(c, i, r): return np.array([c + r, c + i + r])"),
    ("lab_01", 1, "def cases(c, i, r):\n    yield c + r + i / 2 - i / 2\n    yield c + i + r"),
    ("lab_01", 1, "cases = lambda c, i, r: [np.int64(c + r), float(c + i + r)]"),
    ("lab_01", 2, "store_gbit_per_s = round(workload.checkpoint_bytes * 16e-9 / 62)"),
    ("lab_02", 1, "bytes_per_parameter = np.float32(12)"),
    (
        "lab_03",
        1,
        "H = [[0, 3], [1, 2], [2, 1], [3, 0], [4, 2]]\nfive = placed(tuple(map(tuple, H)))",
    ),
    ("lab_03", 1, "five = placed([[0, 3], [1, 2], [2, 1], [3, 0], [4, np.int64(2)]])"),
    ("lab_03", 2, "deficit = 0.41"),
    ("lab_03", 2, "deficit = np.round(0.4107, 3)"),
    ("lab_03", 2, "from fractions import Fraction\ndeficit = Fraction(411, 1000)"),
    ("lab_03", 3, RACK_BY_RACK),
    ("lab_03", 4, IN_NUMPY),
    ("lab_04", 1, "smallest_bytes = 300.0 * KIB - 200"),
    ("lab_05", 1, "tiers = ('local', 'local', 'local', 'peer')"),
    ("lab_05", 1, "tiers = np.array(['local', 'local', 'local', 'peer'])"),
    ("lab_05", 2, "better = dict(replicas=4)"),
    ("lab_06", 1, "iterations = np.int64(14)"),
    ("lab_06", 1, "iterations = 13.0"),
    (
        "lab_07",
        1,
        "slowest = next(r for r in range(1, 1000) if third_copy_s(r) < job.iteration_s / 1e3)",
    ),
]
"""Right answers that are written otherwise than the solution."""


@pytest.mark.parametrize(("lab", "number", "answer"), OTHERWISE)
def test_a_right_answer_in_another_form_is_right(lab, number, answer):
    said, _ = judged(lab, number, f"{PLACED}\n{answer}")
    assert said.startswith("right: ")
