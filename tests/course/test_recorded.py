"""A recorded run opens as a page, with no node started."""

import pytest

pytest.importorskip("panel")

from gemini_lab_course.recorded import command


def test_the_demo_is_one_file_with_the_recorded_runs_recoveries(tmp_path, capsys):
    page = tmp_path / "demo.html"
    assert command(["--save", str(page), "--no-browser"]) == 0
    text = page.read_text()
    assert "node loss on node-1" in text
    assert "in slow motion" in text
    assert str(page) in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["demo.html"]
