"""The map of tiers names tests that there are, and the fast one has each way to recover."""

from pathlib import Path

import pytest

from tests.conftest import TIERS, is_slow

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", [*TIERS["full"], *TIERS["fast"]])
def test_a_name_is_that_of_a_folder_a_file_or_a_test(name):
    path, _, case = name.partition("::")
    assert (HERE / path).exists()
    assert not case or f"def {case.partition('[')[0]}(" in (HERE / path).read_text()


def test_the_longest_name_decides():
    assert is_slow("tests/cluster/test_drains.py::test_another")
    assert not is_slow(
        "tests/cluster/test_failures.py::test_a_flipped_bit_is_stepped_over_at_the_next_recovery"
    )
    assert not is_slow(
        "tests/cluster/test_schemes.py::test_every_scheme_gives_the_same_losses[gemini None]"
    )
    assert is_slow("tests/cluster/test_schemes.py::test_every_scheme_gives_the_same_losses[naive]")
    assert not is_slow("tests/units/test_cluster.py::test_one")
