"""Results of a set-up are played to a rank that comes later, or the record says why not."""

import pytest
import torch

from gemini_lab.kept.record import SMALL_BYTES, RecordError, SetUpRecord, results_of

WORLD = "0"


def record(*calls, group=WORLD):
    """A record of collectives: names, arguments, and what they put there."""
    made = SetUpRecord()
    for name, args, values in calls:
        entry = made.next(group, name, args)
        for tensor, value in zip(results_of(name, args), values, strict=True):
            tensor.fill_(value)
        made.fill(entry, results_of(name, args))
    return made


def played(made, group=WORLD):
    """The record of a process to which this one is played."""
    later = SetUpRecord()
    later.learn(group, made.encode(group))
    return later


def test_a_later_rank_gets_what_the_others_got():
    total, gathered = torch.zeros(1, dtype=torch.int64), [torch.zeros(2) for _ in range(3)]
    made = record(
        ("allreduce", ([total], None), [2048]),
        ("allgather", ([gathered], [torch.zeros(2)], None), [1.5, 2.5, 3.5]),
        ("barrier", (None,), []),
    )
    made.close()
    assert made.flaw == ""
    later = played(made)
    ours, theirs = torch.zeros(1, dtype=torch.int64), [torch.zeros(2) for _ in range(3)]
    later.play(WORLD, "allreduce", ([ours], None))
    later.play(WORLD, "allgather", ([theirs], [torch.zeros(2)], None))
    later.play(WORLD, "barrier", (None,))
    later.close()
    assert ours.item() == 2048
    assert [one.tolist() for one in theirs] == [[1.5, 1.5], [2.5, 2.5], [3.5, 3.5]]


def test_what_a_script_made_of_a_result_is_not_taken_for_it_where_it_is_waited_for_again():
    total, made = torch.ones(1), SetUpRecord()
    args = ([total], None)
    entry = made.next(WORLD, "allreduce", args)
    made.fill(entry, results_of("allreduce", args))
    total /= 4
    made.fill(entry, results_of("allreduce", args))
    made.close()
    played(made).play(WORLD, "allreduce", ([again := torch.zeros(1)], None))
    assert again.item() == 1


def test_a_weight_that_a_script_sends_round_itself_is_played_as_any_other_result():
    """Autograd does not see a collective write to it."""
    made = record(("broadcast", ([torch.zeros(3)], None), [2]))
    weight = torch.nn.Parameter(torch.zeros(3))
    played(made).play(WORLD, "broadcast", ([weight], None))
    assert weight.tolist() == [2, 2, 2]


def test_a_result_that_was_recorded_can_still_be_resized():
    buffer = torch.ones(3)
    record(("broadcast", ([buffer], None), [1]))
    buffer.resize_(5)
    assert buffer.shape == (5,)


def test_a_set_up_that_asks_for_something_else_is_refused():
    made = record(("allreduce", ([torch.zeros(1)], None), [1]))
    other_size, other_name, more = (played(made) for _ in range(3))
    with pytest.raises(RecordError, match="of the others was allreduce of"):
        other_size.play(WORLD, "allreduce", ([torch.zeros(2)], None))
    with pytest.raises(RecordError, match="of the others was allreduce of"):
        other_name.play(WORLD, "broadcast", ([torch.zeros(1)], None))
    more.play(WORLD, "allreduce", ([torch.zeros(1)], None))
    with pytest.raises(RecordError, match="nothing more"):
        more.play(WORLD, "barrier", (None,))


def test_a_set_up_that_ends_sooner_is_refused():
    made = record(("barrier", (None,), []))
    with pytest.raises(RecordError, match="made 0 collectives, that of the others 1"):
        played(made).close()


@pytest.mark.parametrize("name", ["reduce_scatter", "recv", "alltoall_base", "send"])
def test_what_is_not_the_same_on_all_ranks_spoils_the_record(name):
    made = record((name, ([torch.zeros(1)], None), []))
    assert name in made.flaw


def test_what_is_large_and_the_scripts_own_spoils_the_record():
    large = torch.zeros(SMALL_BYTES // 4 + 1)
    made = record(("broadcast", ([large], None), [1]))
    assert "64.0 KiB are kept" in made.flaw


def test_a_collective_that_is_never_waited_for_spoils_the_record():
    made = SetUpRecord()
    made.next(WORLD, "allreduce", ([torch.zeros(1)], None))
    made.close()
    assert "begins a collective before its loop" in made.flaw


def test_what_all_ranks_do_together_whenever_one_starts_is_not_recorded():
    made = SetUpRecord()
    with made.restoring():
        assert made.next(WORLD, "scatter", ([torch.zeros(1)], None)) is None
    assert made.next(WORLD, "barrier", (None,)) is not None


def test_after_the_set_up_nothing_is_recorded():
    made = record(("barrier", (None,), []))
    made.close()
    assert made.next(WORLD, "scatter", ([torch.zeros(1)], None)) is None
    assert made.flaw == ""


def test_a_script_that_trains_before_its_loop_is_recorded_no_further():
    made = record(("barrier", (None,), []))
    made.abandon()
    assert made.next(WORLD, "allreduce", ([torch.zeros(1)], None)) is None
    assert "trains before its loop" in made.flaw


def test_each_group_has_its_own_order():
    """A process is in groups of which some were kept and others lost as a whole."""
    made = record(("allreduce", ([torch.zeros(1)], None), [5]), group="pair")
    entry = made.next(WORLD, "broadcast", ([two := torch.tensor([2.0])], None))
    made.fill(entry, [two])
    later = SetUpRecord()
    later.learn(WORLD, made.encode(WORLD))
    assert later.next(WORLD, "broadcast", ([torch.zeros(1)], None)) is None
    mine = later.next("pair", "allreduce", ([one := torch.ones(1)], None))
    later.fill(mine, [one])
    later.play(WORLD, "broadcast", ([got := torch.zeros(1)], None))
    later.close()
    assert (got.item(), later.flaw) == (2.0, "")
    assert [made.encode(WORLD), later.encode("pair")] == [
        later.encode(WORLD),
        record(("allreduce", ([torch.zeros(1)], None), [1]), group="pair").encode("pair"),
    ]


@pytest.mark.parametrize(("name", "is_spoiled"), [("broadcast", False), ("allgather", True)])
def test_large_results_of_dtensor_are_left_out_only_where_it_distributes_weights(name, is_spoiled):
    """A script that looks at a whole weight makes something of its values."""
    made, large = SetUpRecord(), torch.zeros(SMALL_BYTES // 4 + 1)
    there = {"__name__": "torch.distributed.tensor._api"}
    exec("def call(record, *args): return record.next(*args)", there)
    there["call"](made, WORLD, name, ([large], None))
    assert bool(made.flaw) == is_spoiled


def test_a_part_that_a_script_scatters_itself_spoils_the_record():
    assert "scatter" in record(("scatter", ([torch.zeros(4)], None), [1])).flaw
