"""The ladder in a terminal: five files, attacked one by one or all."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab_course.attacks.command import LADDER, command

RING = """
from gemini_lab import plan_placement
def planner(nodes, replicas):
    return plan_placement(nodes=nodes, replicas=replicas, strategy="ring")
"""
GROUPS = RING.replace(', strategy="ring"', "")


def test_the_files_to_begin_with_are_written_once_and_answer_nothing(tmp_path, capsys):
    assert command(["--new", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.file for p in LADDER)
    (tmp_path / "placement.py").write_text("mine = 1")
    assert command(["--new", str(tmp_path)]) == 0
    assert (tmp_path / "placement.py").read_text() == "mine = 1"
    (tmp_path / "placement.py").write_text(RING)
    capsys.readouterr()
    assert command(["all", str(tmp_path), "--within", "2"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "0 of 110 points"
    assert "4 nodes, 2 replicas: lose node-0 and node-1" in said[0]
    assert all("0 of" in line for line in said[:-1])


def test_what_breaks_a_part_is_named_and_drawn_and_what_withstands_has_its_figures(
    tmp_path, capsys
):
    mine, svg = tmp_path / "mine.py", tmp_path / "found.svg"
    mine.write_text(RING)
    assert command(["3", str(mine), "--svg", str(svg), "--runs", "5"]) == 1
    said = capsys.readouterr().out
    assert "withstood in 0 of 5 runs; then it broke" in said
    assert "4 nodes, 2 replicas: lose node-0 and node-1 at once" in said
    assert svg.read_text().startswith("<svg")
    mine.write_text(GROUPS)
    assert command(["03", str(mine), "--runs", "2"]) == 0
    said = capsys.readouterr().out
    assert "withstood in 2 of 2 runs\n" in said
    assert "reference" in said


def test_a_board_has_the_most_points_first_and_figures_of_what_withstood(tmp_path, capsys):
    for name, text in (("ada", RING), ("bob", GROUPS), ("cyd", "1 / 0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "placement.py").write_text(text)
    assert command(["board", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "  1   10 points  bob"
    assert said[1].startswith("      03 placement: ")
    assert said[2:] == ["  2    0 points  ada", "  3    0 points  cyd"]
    with pytest.raises(ConfigError, match="is no folder"):
        command(["board", str(tmp_path / "nobody")])


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        (None, ["03", "MINE"], "cannot read .*mine.py: No such file"),
        ("1 / 0", ["03", "MINE"], "mine.py raised ZeroDivisionError"),
        ("x = 1", ["03", "MINE"], "has no `planner`; write def planner"),
        ("planner = 3", ["03", "MINE"], "`mine` has to be"),
        ("x = 1", ["07", "MINE"], "has no stage to attack; choose 03, 09, 04, 05, 08, or all"),
        ("x = 1", ["03"], "needs a lab and a file"),
    ],
)
def test_what_cannot_be_attacked_is_refused_with_the_way_out(tmp_path, text, arguments, why):
    mine = tmp_path / "mine.py"
    if text is not None:
        mine.write_text(text)
    with pytest.raises(ConfigError, match=why):
        command([str(mine) if each == "MINE" else each for each in arguments])
