"""Claims about the cost of a failure."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.recovery.wasted_time import (
    checkpoint_bytes,
    checkpoint_every,
    saturated_wasted_time_s,
    shortest_interval_s,
    wasted_time_s,
)
from gemini_lab.simulator.catalog import MACHINES, MODELS, model_named, transformer_params

STORE = 20e9 / 8


@pytest.mark.parametrize(
    ("name", "terabytes", "checkpoint_min", "wasted_min"),
    [("Gopher", 3.36, 22.4, 56.0), ("MT-NLG", 6.36, 42.4, 106.0), ("PaLM", 6.48, 43.2, 108.0)],
)
def test_large_models_waste_about_an_hour_or_two_a_failure(
    name, terabytes, checkpoint_min, wasted_min
):
    """Section 2.2 and the slides, which round: 3.4 TB, 23 min, 57 min and so on."""
    size = MODELS[name].checkpoint_bytes
    assert size == pytest.approx(terabytes * 1e12, rel=1e-9)
    assert size / STORE / 60 == pytest.approx(checkpoint_min, abs=0.05)
    assert saturated_wasted_time_s(size / STORE) / 60 == pytest.approx(wasted_min, abs=0.05)


def test_mt_nlg_wastes_105_minutes_with_the_papers_rounded_42():
    """Section 2.2."""
    assert saturated_wasted_time_s(42 * 60) == 105 * 60


def test_local_recovery_wastes_one_and_a_half_iterations():
    """Section 7.2: 1.5 T_iter; with 62 s that is the 1.55 min of Fig. 10."""
    wasted = wasted_time_s(checkpoint_s=62, interval_s=62, retrieval_s=0)
    assert wasted == 1.5 * 62
    assert wasted / 60 == pytest.approx(1.55)


def test_strawman_wastes_106_minutes_by_eq_1_where_fig_10_shows_98():
    """Eq. (1) has t_ckpt and t_rtvl of 8 minutes each around half of 3 hours."""
    wasted = wasted_time_s(checkpoint_s=480, interval_s=10800, retrieval_s=480)
    assert wasted / 60 == 106
    assert (wasted - 480) / 60 == 98


@pytest.mark.parametrize(
    ("checkpoint_s", "interval_s", "minutes"), [(480, 9 * 62, 20.65), (554, 554, 23.1)]
)
def test_highfreq_wastes_20_to_23_minutes(checkpoint_s, interval_s, minutes):
    """Fig. 10 shows 23.1, which takes t_ckpt = 554 s; 480 s and nine iterations give 20.65."""
    wasted = wasted_time_s(
        checkpoint_s=checkpoint_s, interval_s=interval_s, retrieval_s=checkpoint_s
    )
    assert wasted / 60 == pytest.approx(minutes, abs=0.05)


def test_highfreq_checkpoints_every_eight_iterations():
    """ceil(480 / 62); the paper's text says nine."""
    assert checkpoint_every(checkpoint_s=480, iteration_s=62) == 8
    assert checkpoint_every(checkpoint_s=3, iteration_s=62) == 1


@pytest.mark.parametrize(
    ("name", "billions"), [("10B", 9.9), ("20B", 20.4), ("40B", 40.5), ("100B", 100.3)]
)
def test_table_2_has_the_parameters_of_its_names(name, billions):
    assert MODELS[f"GPT-2 {name}"].params / 1e9 == pytest.approx(billions, abs=0.05)


def test_the_printed_10b_row_of_table_2_is_a_slip():
    params = transformer_params(hidden=2560, intermediate=10240, layers=46)
    assert params / 1e9 == pytest.approx(3.75, abs=0.005)


def test_a_gpu_of_128_holds_9_4_gb_of_the_100b_checkpoint():
    """Section 5.2."""
    assert MODELS["GPT-2 100B"].checkpoint_bytes / 128 / 1e9 == pytest.approx(9.4, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gigabits"), [("100B", 602), ("40B", 243), ("20B", 122), ("10B", 59)]
)
def test_an_instance_of_16_has_so_many_gigabits_of_checkpoint(name, gigabits):
    size = MODELS[f"GPT-2 {name}"].checkpoint_bytes / 16
    assert size * 8 / 1e9 == pytest.approx(gigabits, abs=0.6)


def test_two_replicas_in_two_buffers_fit_the_papers_machines():
    """Table 1: 301 GB of a p4d for 100 B, 122 GB of a p3dn for 40 B."""
    for model, machine, gigabytes in [
        ("GPT-2 100B", "p4d.24xlarge", 301),
        ("GPT-2 40B", "p3dn.24xlarge", 122),
    ]:
        need = 2 * 2 * MODELS[model].checkpoint_bytes / 16
        assert need / 1e9 == pytest.approx(gigabytes, abs=0.6)
        assert need < MACHINES[machine].cpu_memory_bytes


def test_models_can_be_named_by_size():
    assert model_named("70B").params == 70e9
    assert model_named("350m").params == 350e6
    with pytest.raises(ConfigError, match="'many'"):
        model_named("many")


def test_the_interval_is_at_least_the_checkpoint_and_the_iteration():
    """Eq. (2)."""
    assert shortest_interval_s(checkpoint_s=480, iteration_s=62) == 480
    assert shortest_interval_s(checkpoint_s=3, iteration_s=62) == 62
    with pytest.raises(ConfigError, match=r"480 s cannot start every 62 s \(Eq. 2\)"):
        wasted_time_s(checkpoint_s=480, interval_s=62, retrieval_s=0)
    with pytest.raises(ConfigError, match="-1"):
        wasted_time_s(checkpoint_s=-1, interval_s=62, retrieval_s=0)
    with pytest.raises(ConfigError, match="0"):
        checkpoint_bytes(0)
