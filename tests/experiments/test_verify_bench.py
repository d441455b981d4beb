"""What the bench of wrong sums makes of its tries."""

from gemini_lab.experiments.benches.verify import Try, replays_in, tries_rows
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import SumsVerified, WrongSums


def found(*nodes):
    return WrongSums(
        iteration=5,
        work="gradient",
        ranks=(1,),
        nodes=nodes,
        suspects=(),
        replays=2,
        version=4,
        goes_back=False,
        rewinds=0,
    )


def test_a_try_counts_where_its_node_alone_was_named():
    tries = [
        Try(where="gradient", node="node-1", found=found("node-1")),
        Try(where="gradient", node="node-1", found=found("node-1", "node-2")),
        Try(where="optimizer", node="node-1", found=None),
    ]
    rows = {row.name: row.values for row in tries_rows(tries, clean=7)}
    assert rows["bit in gradient: of 2, the node was named"] == (1,)
    assert rows["bit in optimizer: of 1, the node was named"] == (0,)
    assert rows["bits without any effect on sums"] == (1,)
    assert rows["right machines that were accused"] == (1,)
    assert rows["replays until it was"] == (2, 2)


def test_the_first_iteration_is_computed_more_often_and_does_not_count():
    said = [SumsVerified(iteration=n, replays=1, duration_s=float(n)) for n in (1, 5, 10)]
    log = [Entry(at_s=0.0, node="node-0", event=one) for one in said]
    assert [*replays_in(log)] == [5.0, 10.0]
