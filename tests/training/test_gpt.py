"""Claims about the model."""

import pytest
import torch

from gemini_lab.errors import ConfigError
from gemini_lab.training.gpt import GPT, SIZES, VOCABULARY, GPTConfig, named_size, parameter_count

TINY = GPTConfig(layers=2, width=32, heads=4, context=16, dropout=0.0)


def _loss(model, tokens, targets):
    return model(tokens, targets).item()


@pytest.mark.parametrize("config", [TINY, SIZES["tiny"]])
def test_the_formula_counts_the_parameters_that_are_there(config):
    built = sum(parameter.numel() for parameter in GPT(config).parameters())

    assert built == parameter_count(config)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("tiny", 0.4e6, 0.7e6), ("small", 20e6, 30e6), ("300m", 3e8, 3.3e8), ("1b", 1e9, 1.3e9)],
)
def test_a_named_size_has_about_the_parameters_its_name_promises(name, low, high):
    assert low <= parameter_count(named_size(name)) <= high


def test_an_untrained_model_guesses_evenly_among_all_bytes():
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (4, 16))

    loss = _loss(GPT(TINY), tokens, torch.randint(VOCABULARY, (4, 16)))

    assert loss == pytest.approx(torch.log(torch.tensor(float(VOCABULARY))).item(), abs=0.1)


def test_a_prediction_depends_on_the_past_only():
    """Changing the last token leaves the gradients of all earlier predictions where they were."""
    torch.manual_seed(0)
    model = GPT(TINY).eval()
    tokens = torch.randint(VOCABULARY, (1, 16))
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % VOCABULARY
    ignored = torch.full((1, 16), -100)  # cross-entropy skips these
    ignored[0, :-1] = tokens[0, 1:]

    assert _loss(model, tokens, ignored) == _loss(model, changed, ignored)


def test_a_model_learns_a_text_by_heart():
    torch.manual_seed(0)
    model = GPT(TINY)
    tokens = torch.arange(16).repeat(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = _loss(model, tokens, tokens + 1)
    for _ in range(30):
        optimizer.zero_grad()
        model(tokens, tokens + 1).backward()
        optimizer.step()

    assert _loss(model, tokens, tokens + 1) < before / 4


def test_an_impossible_shape_is_refused_with_a_way_out():
    with pytest.raises(ConfigError, match="heads=3 must divide width=128; try heads=2"):
        GPTConfig(layers=1, width=128, heads=3, context=16)
    with pytest.raises(ConfigError, match="choose from tiny, small, 300m, 1b"):
        named_size("huge")
    with pytest.raises(ConfigError, match="dropout"):
        GPTConfig(layers=1, width=8, heads=1, context=16, dropout=1.0)
