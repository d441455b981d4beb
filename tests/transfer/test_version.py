"""Ranks that seal a version at different places of their script are refused."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.transfer.version import NOWHERE, SealPlace, require_together


@pytest.mark.parametrize(
    "places",
    [
        [SealPlace(1, 0, 1)] * 3,
        [SealPlace(0, 0, 1), SealPlace(0, 1, 1)],  # each begins its pass at its own time
        [SealPlace(0, 0, 3), SealPlace(0, 0, 1)],  # sends and receives count, too
        [SealPlace(0, -1, -1), SealPlace(0, 1, 2)],  # of one nobody knows
        [NOWHERE] * 2,
    ],
)
def test_ranks_at_one_place_go_on(places):
    require_together(places, 11)


def test_a_rank_in_another_epoch_is_named():
    with pytest.raises(ConfigError, match=r"after iteration 11 rank 2 is in epoch 1 .* in epoch 0"):
        require_together([SealPlace(0, 0, 1), SealPlace(0, 0, 1), SealPlace(1, 0, 1)], 11)


def test_a_rank_that_began_a_pass_and_called_more_is_named():
    with pytest.raises(ConfigError, match=r"rank 1 has begun 1 passes .* 2 collectives"):
        require_together([SealPlace(0, 0, 1), SealPlace(0, 1, 2)], 11)
