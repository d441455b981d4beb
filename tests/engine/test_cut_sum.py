"""The checksum of frozen weights: the same however they are cut, another for other weights."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.engine.frameworks.tensors import SLICE_BYTES, cut_sum, sum_over_ranks

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.float64])
VALUES = st.lists(st.integers(-100, 100), min_size=1, max_size=60)


@given(values=VALUES, dtype=DTYPES, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_the_parts_of_any_cut_add_up_to_the_whole(values, dtype, cuts):
    whole = torch.tensor(values, dtype=dtype)
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = (cut_sum(whole[low:high], first=low) for low, high in pairwise(bounds))
    assert sum(parts) % 2**64 == cut_sum(whole, first=0)


@given(values=VALUES, dtype=DTYPES, at=st.integers(0, 59))
def test_any_other_value_makes_another_sum(values, dtype, at):
    whole = torch.tensor(values, dtype=dtype)
    other = whole.clone()
    other[at % len(values)] += 1
    assert cut_sum(whole, first=0) != cut_sum(other, first=0)


@pytest.mark.parametrize("cut", [1, 7, SLICE_BYTES - 3, SLICE_BYTES, SLICE_BYTES + 5])
def test_a_cut_may_fall_anywhere_around_a_slice(cut):
    whole = torch.arange(SLICE_BYTES + 100).to(torch.uint8)
    halves = cut_sum(whole[:cut], first=0) + cut_sum(whole[cut:], first=cut)
    assert halves % 2**64 == cut_sum(whole, first=0)


def test_values_that_change_places_or_names_make_another_sum():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    sums = [sum_over_ranks(w) for w in ({"a": a, "b": b}, {"a": b, "b": a}, {"a": a, "c": b})]
    assert len(set(sums)) == 3
    assert sum_over_ranks({"b": b, "a": a}) == sums[0]
