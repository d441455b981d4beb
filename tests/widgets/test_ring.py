"""Names around the replica map's ring."""

import math
from itertools import pairwise

import pytest
from gemini_lab_widgets.views.ring import label, places

TEXT = 0.1
"""The height of a name, in the ring's own lengths."""


@pytest.mark.parametrize("nodes", [17, 24, 32])
def test_names_of_neighbours_do_not_cover_each_other_however_long_they_are(nodes):
    pairs = [range(first, min(first + 2, nodes)) for first in range(0, nodes, 2)]
    where = places(pairs, nodes)
    for one, other in pairwise(label(where[position], nodes) for position in range(nodes)):
        if (one.align, one.angle) == (other.align, other.angle):  # others grow apart
            along = other.x - one.x, other.y - one.y
            apart = along[0] * math.sin(one.angle) - along[1] * math.cos(one.angle)
            assert abs(apart) >= TEXT
