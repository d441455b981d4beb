"""The token bucket: shared by threads and processes, first come first served."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.transfer.collective_calls import OPERATIONS
from gemini_lab.transfer.link import SHARES, LinkBucket, group_shape, wire_bytes


def test_messages_wait_behind_one_another(tmp_path: Path) -> None:
    with LinkBucket(tmp_path / "link", bytes_per_s=1e6) as bucket:
        first_s = bucket.reserve(1e9)
        assert first_s - time.monotonic() <= 1000.0
        assert bucket.reserve(2e9) - first_s == pytest.approx(2000.0)
        assert bucket.reserve(0) == 0.0


def test_carrying_takes_at_least_the_links_time(tmp_path: Path) -> None:
    with LinkBucket(tmp_path / "link", bytes_per_s=1e6) as bucket:
        started_s = time.monotonic()
        bucket.carry(20_000)
        assert time.monotonic() - started_s >= 0.02


def test_threads_and_processes_share_one_link(tmp_path: Path) -> None:
    """Whoever reserves, the link's time adds up."""
    path = tmp_path / "link"
    program = (
        "import sys; from gemini_lab.transfer.link import LinkBucket\n"
        "b = LinkBucket(sys.argv[1], bytes_per_s=1e6)\n"
        "for _ in range(50): b.reserve(1e6)"
    )
    with LinkBucket(path, bytes_per_s=1e6) as bucket:
        started_s = bucket.reserve(1)
        children = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(bucket.reserve, [1e6] * 50))
        assert [child.wait(timeout=120) for child in children] == [0, 0]
        assert bucket.reserve(1e6) - started_s == pytest.approx(151.0, abs=1.0)


def test_what_another_user_put_in_a_links_place_is_refused(tmp_path: Path) -> None:
    """In a folder that all share: a symbolic link there would have a file of ours written to."""
    ours, path = tmp_path / "ours", tmp_path / "link"
    ours.write_text("x")
    path.symlink_to(ours)
    with pytest.raises(ConfigError, match="remove it, or name another folder"):
        LinkBucket(path, bytes_per_s=1e6)
    assert ours.read_text() == "x"
    path.unlink()
    if os.geteuid() == 0:
        path.touch()
        os.chown(path, 65534, 65534)
        with pytest.raises(ConfigError, match="it is another user's"):
            LinkBucket(path, bytes_per_s=1e6)


def test_a_link_without_a_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="above zero"):
        LinkBucket(tmp_path / "link", bytes_per_s=0.0)


@given(st.sampled_from(sorted(SHARES)), st.integers(0, 10**9))
def test_a_group_on_one_node_uses_no_link(name: str, size_bytes: int) -> None:
    assert wire_bytes(name, size_bytes, nodes=1) == 0.0


def test_every_operation_that_sends_has_its_formula() -> None:
    receiving = {"recv", "irecv", "barrier"}
    assert set(OPERATIONS) - receiving == set(SHARES)


def four_a_node(rank: int) -> int:
    return rank // 4


def test_ranks_of_a_node_share_its_part_of_the_ring() -> None:
    assert group_shape(range(8), rank=5, node_of=four_a_node) == (2, 4)
    assert group_shape([1, 5], rank=5, node_of=four_a_node) == (2, 1)
    assert group_shape([0, 1, 2, 3], rank=1, node_of=four_a_node) == (1, 4)


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("all_gather_into_tensor", 2, 0.50),
        ("all_gather_into_tensor", 4, 0.75),
        ("isend", 4, 1.00),
        ("reduce_scatter_tensor", 2, 1.00),
        ("all_reduce", 4, 1.50),
        ("reduce_scatter_tensor", 4, 1.50),
        ("broadcast", 4, 2.00),
    ],
)
def test_gloo_sends_what_was_counted_at_its_interfaces(
    name: str, nodes: int, expected: float
) -> None:
    assert wire_bytes(name, 100, nodes=nodes) == 100 * expected
