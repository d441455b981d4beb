"""Updates that another rank's optimizer makes again: what lies on which device."""

import torch

from gemini_lab.engine.verify.update_replay import _copied, count_places

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


def test_a_count_of_steps_that_came_from_another_rank_is_put_where_the_own_ones_are():
    """It comes in CPU memory, and a fused optimizer takes it on the GPU alone."""
    own = [{"step": torch.zeros((), device=ELSEWHERE), "exp_avg": torch.zeros(2), "seen": 1}]
    places = count_places(own)
    assert places == {"step": ELSEWHERE}
    assert _copied(torch.tensor(3.0), CPU, places.get("step")).device == ELSEWHERE


def test_other_counts_stay_and_tensors_of_a_weights_form_go_to_the_weights_device():
    assert _copied(torch.tensor(3.0), ELSEWHERE, None).device == CPU
    assert _copied(torch.zeros(2), ELSEWHERE, CPU).device == ELSEWHERE
    assert _copied(7, ELSEWHERE, CPU) == 7
