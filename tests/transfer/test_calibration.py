"""The calibration: the line is found again, and two ranks agree on it."""

import itertools
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.pipeliner.machine import Calibration, fit_wire
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.schedule_controller import SIZES, calibrate, paced_sizes

LINK_BYTES_PER_S = 50e6


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_alpha_and_b_of_an_exact_line_are_found(alpha_s: float, rate: float) -> None:
    fit = fit_wire([(size, alpha_s + size / rate) for size in SIZES])
    for size in (SIZES[0], SIZES[-1]):
        predicted_s = fit.alpha_s + size / fit.bandwidth_bytes_per_s
        assert predicted_s == pytest.approx(alpha_s + size / rate, rel=1e-5)
    assert fit.worst_error < 1e-5


@given(st.floats(1e6, 1e9), st.lists(st.floats(0.1e-3, 0.3e-3), min_size=3, max_size=3))
def test_an_emulated_link_is_found_though_threads_wake_late(
    rate: float, late_s: list[float]
) -> None:
    sizes = paced_sizes(rate)
    fit = fit_wire([(s, s / rate + late) for s, late in zip(sizes, late_s, strict=True)])
    assert fit.bandwidth_bytes_per_s == pytest.approx(rate, rel=0.08)
    assert 0.05e-3 < fit.alpha_s < 0.35e-3


def test_a_start_up_time_is_never_negative() -> None:
    fit = fit_wire([(1000, 0.5), (2000, 1.5), (4000, 3.6)])
    assert fit.alpha_s == 0.0
    assert fit.bandwidth_bytes_per_s == pytest.approx(1400, rel=0.2)
    assert fit.worst_error > 0.1


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "two sizes"),
        ([(8, 1.0), (8, 1.1)], "two sizes"),
        ([(8, 0.0), (16, 1.0)], "above zero"),
        ([(1, 2.0), (10**6, 1.0)], "no longer than small ones"),
    ],
)
def test_samples_that_make_no_line_are_refused(
    samples: list[tuple[int, float]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_wire(samples)


def test_both_ranks_get_the_slower_ones_wire(tmp_path: Path) -> None:
    """Over real Gloo, two threads standing for two ranks; every message is carried first."""
    carried: list[float] = []
    found: dict[int, Calibration] = {}

    def carry(size_bytes: float) -> None:
        carried.append(size_bytes)
        time.sleep(size_bytes / LINK_BYTES_PER_S)

    def rank(number: int) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = CheckpointGroup(store, rank=number, world_size=2)
        found[number] = calibrate(
            group, sizes=[1024, 4 << 20], repeats=3, carry=carry, conditions=["slow"]
        )

    threads = [threading.Thread(target=rank, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    one, other = found[0], found[1]
    assert (one.alpha_s, one.bandwidth_bytes_per_s) == (other.alpha_s, other.bandwidth_bytes_per_s)
    assert 0 < one.bandwidth_bytes_per_s < 2 * LINK_BYTES_PER_S
    assert min(one.copy_bytes_per_s, one.hash_bytes_per_s) > 0
    assert one.conditions == ("slow",)
    assert carried.count(1024) == carried.count(4 << 20)
    assert carried.count(1024) % 8 == 0, "three messages and a first one, from each of two ranks"


def test_messages_that_are_held_up_do_not_count(tmp_path: Path) -> None:
    """A machine that stalls for two turns of three; the wire is still the wire."""
    found: dict[int, Calibration] = {}

    def rank(number: int) -> None:
        turns = itertools.count()

        def carry(size_bytes: float) -> None:
            stall_s = 0.0 if next(turns) // 2 % 3 == 0 else 0.03
            time.sleep(size_bytes / LINK_BYTES_PER_S + stall_s)

        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = CheckpointGroup(store, rank=number, world_size=2)
        found[number] = calibrate(group, sizes=[50_000, 1_000_000], carry=carry)

    threads = [threading.Thread(target=rank, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found[0].alpha_s < 0.02


def test_a_stall_during_the_small_messages_is_measured_again(tmp_path: Path) -> None:
    """The first time, small messages take longer than large ones; both ranks try once more."""
    carried: list[float] = []
    found: dict[int, Calibration] = {}

    def rank(number: int) -> None:
        stalls = iter([0.05] * 2)

        def carry(size_bytes: float) -> None:
            carried.append(size_bytes)
            time.sleep(next(stalls, 0.0) if size_bytes < 2048 else 0.02)

        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = CheckpointGroup(store, rank=number, world_size=2)
        found[number] = calibrate(group, sizes=[1024, 1 << 20], repeats=1, carry=carry)

    threads = [threading.Thread(target=rank, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found[0].bandwidth_bytes_per_s == found[1].bandwidth_bytes_per_s > 0
    assert carried.count(1 << 20) >= 8, "two messages from each rank, twice"


def test_one_rank_has_no_wire(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    group = CheckpointGroup(store, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="two ranks"):
        calibrate(group)
