"""README and the guide name the same other systems in the same versions."""

import re
from pathlib import Path

import pytest

from gemini_lab_bench.peers.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "evidence" / "peers.md").read_text(encoding="utf-8")
BESIDE = README.partition("## Compared with others")[2].partition("\n## ")[0]
HAVE = GUIDE.partition("## What they have")[2].partition("\n## ")[0]


def of_the_guide() -> dict[str, str]:
    """Version by name, of the table of what each has."""
    cells = [line.split("|")[1:3] for line in HAVE.splitlines() if line.startswith("| ")]
    plain = [(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", name), version) for name, version in cells]
    return {name.partition(",")[0].strip(): version.strip() for name, version in plain[1:]}


@pytest.mark.parametrize(("name", "version"), of_the_guide().items())
def test_the_readme_names_each_system_of_the_guide_in_its_version(name, version):
    text = " ".join(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", BESIDE).split())
    assert f"{name} {version}" in text


@pytest.mark.parametrize("name", ["HyperPod", "multi-tier"])
def test_both_tell_what_was_not_measured(name):
    assert name in BESIDE
    assert name in HAVE


def test_pinned_versions_are_those_that_were_measured():
    pins = [pin for entry in CATALOG.values() for pin in entry.requirements if "==" in pin]
    assert [pin for pin in pins if f" {pin.partition('==')[2]} |" not in GUIDE] == []
