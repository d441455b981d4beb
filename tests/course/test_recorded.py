"""A recorded run opens as a page, with no node started."""

import pytest

pytest.importorskip("panel")

from gemini_lab.errors import ConfigError
from gemini_lab_course.recorded import command, recorded_run


def test_the_demo_is_one_file_with_the_recorded_runs_recoveries(tmp_path, capsys):
    page = tmp_path / "demo.html"
    assert command(["--save", str(page), "--no-browser"]) == 0
    text = page.read_text()
    assert "node loss on node-1" in text
    assert "in slow motion" in text
    assert str(page) in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["demo.html"]


def test_a_run_that_was_not_recorded_is_named_with_those_that_were():
    with pytest.raises(ConfigError, match="choose from four_failures, six_failures"):
        recorded_run("none")
