"""Of many ranks that end, the one that the others followed is named."""

from gemini_lab.report.recovery import (
    Injection,
    Recovery,
    WorkerExit,
    blamed_for,
    culprit_of,
    culprits,
    part_of,
)

PEER_GONE = "RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]"


def exit_of(
    rank: int, error: str, *, at_s: float, how: str = "exit code 1", epoch: int = 1
) -> WorkerExit:
    return WorkerExit(
        at_s=at_s, node=f"node-{rank}", rank=rank, how=how, output=(error,), epoch=epoch
    )


def recovery_of(*exits: WorkerExit, injections: tuple[Injection, ...] = ()) -> Recovery:
    return Recovery(
        number=1,
        cause="worker_exited",
        injections=injections,
        exits=exits,
        lost_nodes=(),
        failed_at_s=5.0,
        resumed_at_s=7.0,
        version=4,
        tier="memory",
        reason="version 4 is whole in memory",
        steps=(),
        receipts=(),
        rejected=(),
        reached=4,
        lost_iterations=0,
        lost_by_any=0,
        lost_progress_s=None,
    )


def test_an_error_of_the_scripts_own_comes_before_those_that_follow_from_it():
    """Clocks and agents differ by fractions of a second: who was heard first is not who failed."""
    follower = exit_of(0, PEER_GONE, at_s=1.0)
    culprit = exit_of(2, "ValueError: batch 7 is empty", at_s=1.2)
    assert culprit_of([follower, culprit]) is culprit
    assert (part_of(follower), part_of(culprit)) == ("lost its peers", "raised")


def test_a_worker_that_was_killed_comes_before_those_that_lost_it():
    killed = exit_of(1, "", at_s=5.0, how="SIGKILL")
    assert culprit_of([exit_of(0, PEER_GONE, at_s=4.9), killed]) is killed


def test_nobody_is_blamed_for_the_loss_of_a_node_with_its_rank():
    """The ranks that are left may say that their connections broke before the node is missed."""
    followers = exit_of(0, PEER_GONE, at_s=5.1), exit_of(1, PEER_GONE, at_s=5.2)
    loss = Injection(at_s=5.0, kind="node_loss", node="node-2", rank=None)
    assert blamed_for(recovery_of(*followers, injections=(loss,))) is None
    assert blamed_for(recovery_of(*followers)) is followers[0]
    raised = exit_of(2, "ValueError: batch 7 is empty", at_s=5.3)
    assert blamed_for(recovery_of(*followers, raised, injections=(loss,))) is raised


def test_what_a_worker_printed_says_nothing_of_a_signal_from_outside():
    warning, native = "[WARNING] scheduler called early", "terminate called: bad_alloc"
    assert str(exit_of(1, warning, at_s=1.0, how="SIGKILL")) == "rank 1 on node-1: SIGKILL"
    assert str(exit_of(1, native, at_s=1.0, how="SIGABRT")).endswith(f": SIGABRT: {native}")
    assert str(exit_of(1, "", at_s=1.0, how="exit code 3")) == "rank 1 on node-1: exit code 3"


def test_of_several_that_raised_the_first_is_marked():
    first = exit_of(3, "KeyError: 'a'", at_s=1.0)
    table = list(culprits([exit_of(1, "KeyError: 'a'", at_s=1.1), first]))
    assert [line.strip()[0] for line in table[1:]] == [">", "r"]
    assert "rank 3 on node-3" in table[1]


def test_each_try_has_its_own_culprit():
    tries = [exit_of(epoch, "KeyError: 'a'", at_s=float(epoch), epoch=epoch) for epoch in (1, 2)]
    assert [line.strip()[0] for line in culprits(tries)] == [">", ">"]


def test_of_a_thousand_ranks_the_culprit_is_shown():
    exits = [exit_of(rank, PEER_GONE, at_s=1 + rank / 1e4) for rank in range(999)]
    table = list(culprits([*exits, exit_of(999, "ValueError: bad", at_s=2.0)]))
    assert len(table) < 20
    assert any(line.startswith("  > rank 999") and "ValueError: bad" in line for line in table)
    assert table[-1].strip() == "... and 988 more"
