"""What a script keeps by itself is named from its source; what it hands over is not."""

import ast
from textwrap import dedent, indent

import pytest

from gemini_lab.job import Job
from gemini_lab.lab.script_source import carried_names, hints_of, made_in_loops_alone

START = """
import random, torch
import numpy as np
protected = gemini_lab.protect(engine, client_state=counts, also={"own": given})
"""
LOOP = "for step in protected.steps(9):\n"


def named(before, body, after=""):
    """Names in a script whose loop has that body."""
    script = "\n".join([START, dedent(before), LOOP + indent(dedent(body), "    "), dedent(after)])
    return {text.split()[0] for text in carried_names(ast.parse(script))}


STORIES = {
    "patience": (
        "best, bad = 9.0, 0",
        "loss = train()\nbest, bad = (loss, 0) if loss < best else (best, bad + 1)",
        {"best", "bad"},
    ),
    "global": (
        """
        scale = 1.0
        def decay():
            global scale
            scale = scale * 0.9
        """,
        "decay()",
        {"scale"},
    ),
    "nonlocal": (
        """
        def make():
            calls = 0
            def decay():
                nonlocal calls
                calls += 1
            return decay
        decay = make()
        """,
        "decay()",
        {"calls"},
    ),
    "a list around a hook": (
        """
        count, window, losses = [0], [1.0], []
        def hook():
            count[0] += 1
            window.append(1.0 / count[0])
            losses.append(window[-1])
        """,
        "hook()",
        {"count", "window"},
    ),
    "a dict": ("totals = {}", "totals['loss'] = totals.get('loss', 0) * 0.9 + train()", {"totals"}),
    "an average": ("mean = {}", "mean = {name: 0.9 * one for name, one in mean.items()}", {"mean"}),
    "in place": ("mean = torch.zeros(2)", "mean.mul_(0.9).add_(train())", {"mean"}),
    "a recurrent state": ("hidden = 0", "hidden = cell(train(), hidden)", {"hidden"}),
    "a batch ahead": ("batch = draw()", "loss = train(batch)\nbatch = draw()", {"batch"}),
    "generators": (
        "own, other = torch.Generator().manual_seed(1), 1\nrng = np.random.default_rng(1)",
        "train(rng.random())",
        {"rng"},
    ),
    "a generator function": (
        """
        def endless():
            epoch = 0
            while True:
                yield epoch
                epoch += 1
        batches = endless()
        """,
        "next(batches)",
        {"epoch"},
    ),
    "an object": (
        """
        class Stopper:
            def __init__(self):
                self.bad = self.last = 0
                self.losses = []
            def see(self, loss):
                self.bad += 1
                self.last = loss
                self.losses.append(loss)
        """,
        "stopper.see(train())",
        {"self.bad"},
    ),
    "one method sets, another reads": (
        """
        class Curriculum:
            def advance(self, loss):
                self.level = level_of(loss)
            def batch(self):
                return draw(self.level)
        """,
        "it.advance(train(it.batch()))",
        {"self.level"},
    ),
    "a history that another function reads": (
        """
        norms = []
        def largest():
            return max(norms)
        """,
        "norms.append(train())\nlargest()",
        {"norms"},
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_a_script_carries_by_itself_is_named(story):
    before, body, names = STORIES[story]
    assert named(before, body) == names


def test_what_is_handed_over_told_or_made_in_each_pass_is_not_named():
    assert not named(
        "history, told = [], {}\nbuffer = counts['buffer']",
        """
        counts["seen"] += 1
        given.random()
        buffer.append(1)
        max(buffer)
        total = 0
        for part in range(3):
            loss = train(part)
            total = loss + 1
        history.append(total)
        told[total] = step
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        largest = max(one for one in (1, 2) if one)
        """,
        "print(history)\n",
    )


def test_a_line_is_told_and_a_container_that_is_handed_over_by_name_counts():
    script = """
        kept = {"meter": meter}
        protected = gemini_lab.protect(engine, also=kept)
        for step in protected.steps(9):
            meter += train()
            other += train()
    """
    assert carried_names(ast.parse(dedent(script))) == ["other (line 6)"]


PHASES = """
{before}
for epoch in protected.epochs(2):
    for batch in loader:
        loss = train(batch)
{between}
for step in protected.steps(9):
    loss = train(draw())
print(loss)
"""


@pytest.mark.parametrize(
    ("before", "between", "told"),
    [
        ("", "print(loss)", ["loss (line 6)"]),
        ("", "", []),
        ("loss = None", "print(loss)", []),
        ("", "loss = 0\nprint(loss)", []),
        ("", "log(epoch, loss)", ["epoch (line 6)", "loss (line 6)"]),
    ],
)
def test_what_only_an_earlier_loop_makes_is_told_if_it_is_read_after_it(before, between, told):
    script = PHASES.format(before=before, between=between)
    assert made_in_loops_alone(ast.parse(script)) == told
    inside = "def main():\n" + indent(script, "    ")
    assert len(made_in_loops_alone(ast.parse(inside))) == len(told)


def test_a_hint_says_the_way_out_and_what_is_kept_is_told_only_if_runs_differ(tmp_path):
    (tmp_path / "train.py").write_text(
        PHASES.format(before="rate = 1", between="print(loss, rate)")
    )
    job = Job(script="train.py", cwd=str(tmp_path))
    (alone,) = hints_of(job, differs=False)
    assert alone.startswith("loss (line 6): ")
    assert "give it a value before the loop" in alone
    (tmp_path / "train.py").write_text(LOOP + "    scale *= train(scale)\n")
    assert [*hints_of(job, differs=False)] == []
    (kept,) = hints_of(job, differs=True)
    assert kept.startswith("scale (line 2): ")
    assert "client_state or also" in kept
    assert [*hints_of(Job(script="train", module=True), differs=True)] == []
