"""What runs under a check say of themselves: where they are killed next, and what differs."""

from itertools import pairwise

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.log.witnessed import (
    ORDER_VARIABLE,
    PLACES,
    Kill,
    PlaceSeen,
    Records,
    StateSeen,
    WitnessOrder,
    append,
    choose_kills,
    compare_states,
    differing_anywhere,
    read,
    records_file,
)


def seen(place: str, *versions: int, rank: int = 1) -> list[PlaceSeen]:
    return [PlaceSeen(place=place, version=one, rank=rank, epoch=1) for one in versions]


def steps(total: int, *, rank: int = 1) -> list[PlaceSeen]:
    """A loop of one rank."""
    return [*seen("forward", *range(total), rank=rank), *seen("update", *range(total), rank=rank)]


def places(kills) -> list[tuple[str, int]]:
    return [(kill.place, kill.version) for kill in kills]


def test_each_kind_of_place_of_a_run_is_killed_at_in_the_order_in_which_it_comes():
    log = [
        *steps(24),
        *seen("second pass", *range(24)),
        *seen("between steps", *range(24)),
        *seen("batches over", 8, 16, 24),
        *seen("evaluation", 8, 16, 24, rank=0),
        *seen("loop over", 24),
        *seen("script over", 24),
    ]
    kills = choose_kills(log, iterations=24, most=12)
    assert {place for place, _ in places(kills)} == {*PLACES} - {"loop begins"}
    assert [kill.version for kill in kills] == sorted(kill.version for kill in kills)
    assert [kill.number for kill in kills] == list(range(1, len(kills) + 1))
    assert places(kills)[0] == ("update", 0)  # right after `protect`
    middles = [kill.version for kill in kills if kill.place == "forward"]
    assert 8 < middles[0] < 16  # in the second epoch
    nodes = [kill for kill in kills if kill.loses_node]
    assert [kill.place for kill in nodes] == ["between steps", "forward", "forward"]
    assert [kill.is_at_root for kill in nodes] == [False, True, False]
    assert ("update", 23) in places(kills)
    # Where an epoch ends and where it is evaluated are proven in epochs of their own.
    ends = dict(places(kills))
    assert ends["batches over"] != ends["evaluation"]
    (evaluated,) = [kill for kill in kills if kill.place == "evaluation"]
    assert evaluated.rank == 0  # which alone evaluates


@pytest.mark.parametrize("iterations", range(6, 25))
def test_two_nodes_are_never_killed_at_neighbouring_versions(iterations):
    """A rank may be an iteration ahead: both nodes could be gone at once, and a shard with them."""
    log = [*steps(iterations), *seen("between steps", *range(iterations))]
    kills = choose_kills(log, iterations=iterations, most=12)
    lost = [kill.version for kill in kills if kill.loses_node]
    assert len(lost) >= 2
    assert all(later - former > 1 for former, later in pairwise(lost))


def test_ranks_take_turns_and_a_pipelines_last_stage_is_killed_amid_its_schedule():
    log = [one for rank in range(4) for one in steps(14, rank=rank)]
    log += [one for rank in range(4) for one in seen("second pass", *range(14), rank=rank)]
    log += [*seen("batches over", 8, rank=0), *seen("script over", 14, rank=1)]
    kills = choose_kills(log, iterations=14, most=12)
    assert {kill.rank for kill in kills} == {*range(4)}
    assert [kill.rank for kill in kills if kill.place == "second pass"] == [3]
    assert [kill.rank for kill in kills if kill.place == "batches over"] == [0]


def test_a_second_loop_has_a_kill_before_it_begins():
    log = [*steps(16), *seen("loop over", 8, 16), *seen("loop begins", 8)]
    assert ("loop begins", 8) in places(choose_kills(log, iterations=16, most=8))


def test_few_kills_are_those_that_prove_most():
    log = [*steps(24), *seen("evaluation", 8), *seen("batches over", 8), *seen("loop begins", 8)]
    first = choose_kills(log, iterations=24, most=1)
    assert places(first) == [("update", 0)]
    assert {place for place, _ in places(choose_kills(log, iterations=24, most=4))} == {
        "update",
        "forward",
        "evaluation",
        "batches over",
    }


def test_what_lies_behind_the_last_iteration_is_no_place_to_kill():
    log = [*steps(30), *seen("script over", 30), *seen("evaluation", 28)]
    kills = choose_kills(log, iterations=10, most=8)
    assert max(kill.version for kill in kills) < 10


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "rank 2 killed between two optimizers' steps of iteration 6"),
        ({"loses_node": True}, "node of rank 2 killed between"),
        ({"loses_node": True, "is_at_root": True}, "the root agent's node killed between"),
    ],
    ids=["rank", "node", "root"],
)
def test_a_kill_says_what_is_killed_and_where(more, said):
    kill = Kill(number=1, place="between steps", version=5, rank=2, **more)
    assert str(kill).startswith(said)


def test_nothing_is_killed_where_nothing_trains():
    assert choose_kills(seen("script over", 0), iterations=10, most=8) == ()


def state(version: int, *, rank: int = 0, epoch: int = 1, **digests: str) -> StateSeen:
    told = {name.replace("_", " "): value for name, value in digests.items()}
    return StateSeen(version=version, rank=rank, epoch=epoch, digests=told)


def test_the_first_state_that_differs_is_named_with_all_its_pieces():
    one = [state(n, weight="w", buffer="b", moment="m") for n in range(4)]
    other = [*one[:2], state(2, epoch=3, weight="x", buffer="b", moment="y"), one[3]]
    found = compare_states(one, other)
    assert (found.states, found.pieces) == (4, 3)
    assert (found.first.version, found.first.epoch) == (2, 3)
    assert found.first.pieces == ("weight", "moment")


def test_of_a_state_that_was_made_twice_the_newest_try_counts():
    one = [state(0, weight="w"), state(1, weight="w")]
    wrong = state(1, weight="x")
    assert compare_states(one, [wrong, *one]).first is None
    assert compare_states(one, [*one, wrong]).first.version == 1


def test_a_piece_that_is_not_there_once_differs_and_one_that_never_is_counts_for_nothing():
    one = [state(1, weight="w", moment="m"), state(2, weight="w", moment="m")]
    other = [state(1, weight="w", moment="m"), state(2, weight="w")]
    assert compare_states(one, other).first.pieces == ("moment",)
    assert compare_states(one, [state(n, weight="w") for n in (1, 2)]).first is None


def test_what_differs_in_each_run_by_itself_is_left_out():
    one, again, killed = (
        [state(n, weight="w", log=f"{run}{n}") for n in range(3)] for run in ("a", "b", "c")
    )
    assert compare_states(one, killed).first.pieces == ("log",)
    unsteady = differing_anywhere(one, again)
    assert unsteady == {"log"}
    assert compare_states(one, killed, unsteady=unsteady).first is None
    killed[2] = state(2, weight="x", log="c2")
    assert compare_states(one, killed, unsteady=unsteady).first.pieces == ("weight",)


def test_a_generator_that_was_never_seeded_counts_for_nothing():
    one = [state(n, generator_python="p", generator_torch="t") for n in range(3)]
    other = [state(n, generator_python="q", generator_torch="t") for n in range(3)]
    assert compare_states(one, other).first is None
    other[2] = state(2, generator_python="q", generator_torch="u")
    assert compare_states(one, other).first.pieces == ("generator torch",)


def test_records_are_read_as_they_grow_and_a_line_that_is_not_whole_is_none(tmp_path):
    records = Records(tmp_path, ranks=2)
    assert records.news() == []
    first, second = state(1, weight="w"), PlaceSeen(place="update", version=1, rank=0, epoch=1)
    append(records_file(tmp_path, 0), first)
    assert records.news() == [first]
    append(records_file(tmp_path, 0), second)
    with records_file(tmp_path, 0).open("ab") as file:
        file.write(b'{"kind":"str')
    assert records.news() == [second]
    assert records.all == read(records_file(tmp_path, 0)) == [first, second]


def test_an_order_comes_back_from_the_environment():
    kill = Kill(number=1, place="evaluation", version=8, rank=0, loses_node=True)
    order = WitnessOrder(folder="/somewhere", iterations=24, kills=(kill,))
    assert WitnessOrder.of(order.to_variable()) == order
    assert WitnessOrder.of({}) is None
    with pytest.raises(ConfigError, match=f"{ORDER_VARIABLE} is no order .* unset it"):
        WitnessOrder.of({ORDER_VARIABLE: "1"})
