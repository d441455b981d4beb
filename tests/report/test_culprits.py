"""Of many ranks that end, the one that the others followed is named."""

from gemini_lab.report.recovery import (
    WorkerExit,
    culprit_of,
    culprits,
)

PEER_GONE = "RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]"


def exit_of(
    rank: int, error: str, *, at_s: float, how: str = "exit code 1", epoch: int = 1
) -> WorkerExit:
    return WorkerExit(
        at_s=at_s, node=f"node-{rank}", rank=rank, how=how, output=(error,), epoch=epoch
    )


def test_a_worker_that_was_killed_comes_before_those_that_lost_it():
    killed = exit_of(1, "", at_s=5.0, how="SIGKILL")
    assert culprit_of([exit_of(0, PEER_GONE, at_s=4.9), killed]) is killed


def test_what_a_worker_printed_says_nothing_of_a_signal_from_outside():
    warning, native = "[WARNING] scheduler called early", "terminate called: bad_alloc"
    assert str(exit_of(1, warning, at_s=1.0, how="SIGKILL")) == "rank 1 on node-1: SIGKILL"
    assert str(exit_of(1, native, at_s=1.0, how="SIGABRT")).endswith(f": SIGABRT: {native}")
    assert str(exit_of(1, "", at_s=1.0, how="exit code 3")) == "rank 1 on node-1: exit code 3"


def test_of_a_thousand_ranks_the_culprit_is_shown():
    exits = [exit_of(rank, PEER_GONE, at_s=1 + rank / 1e4) for rank in range(999)]
    table = list(culprits([*exits, exit_of(999, "ValueError: bad", at_s=2.0)]))
    assert len(table) < 20
    assert any(line.startswith("  > rank 999") and "ValueError: bad" in line for line in table)
    assert table[-1].strip() == "... and 988 more"
