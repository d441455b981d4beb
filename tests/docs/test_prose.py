"""README and docs keep to the rules of English, and the rules find what they are to find."""

import runpy
from pathlib import Path

import pytest

PROSE = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "prose"))
LONG = "The run " + "waits and " * 12 + "ends."


def test_no_page_breaks_more_rules_than_its_budget(capsys):
    status = PROSE["main"]([])
    assert status == 0, capsys.readouterr().out


def test_the_readme_can_be_read_in_five_minutes():
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1500


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LONG, "27 words"),
        (f"- {LONG}", "27 words"),
        (f"| cell | {LONG} |\n", "27 words"),
        ("All ranks start\nanew.", "anew"),
        ("Whoever waits is told.", "Whoever"),
        ("It stands beside the log.", "beside"),
    ],
)
def test_a_breach_is_found(text, found):
    assert any(found in breach for breach in PROSE["breaches"](f"# Title\n\n{text}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "```\n" + LONG + " anew\n```",
        "    " + LONG,
        "The word `anew` is code, and *whoever* is an example.",
        "The run waits. " * 12,
        "[beside the point](beside.md)".replace("beside the", "to the"),
        "It waits (" + "and waits " * 20 + ").",
    ],
)
def test_what_is_no_prose_of_ours_is_left_alone(text):
    assert PROSE["breaches"](f"# Anew\n\n{text}\n") == []


def test_a_labs_words_are_read_and_its_code_is_not():
    lab = f"# %% [markdown]\n# # A lab\n# {LONG}\n\n# %%\n# whoever\ntext = 'anew'\n"
    (found,) = PROSE["breaches"](PROSE["words_of"](lab))
    assert found.startswith("27 words")
