"""The site builds without a warning, holds every public name, and all its links lead somewhere."""

import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gemini_lab
from gemini_lab.cli.main import COMMANDS
from gemini_lab.log.events import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = [
    *sorted(page for page in DOCS.rglob("*.md") if "made" not in page.parts),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder with the built site; any warning fails."""
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install 'gemini-lab[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", DOCS, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_each_test_that_shows_what_is_claimed_of_security_is_there():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    files = re.findall(r"`([a-z_]+/test_[a-z_]+\.py)`", text)
    tests = "".join((ROOT / "tests" / file).read_text(encoding="utf-8") for file in files)
    named = re.findall(r"`(test_[a-z0-9_]+)`", text)
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in tests] == []


@pytest.fixture
def own_modules(monkeypatch):
    """`docs/` on the path, as it is while the site is built."""
    monkeypatch.syspath_prepend(str(DOCS))


class Links(HTMLParser):
    """The ids, links and things that a page loads."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in {"script", "link", "img"}:
            self.loaded += [values[key] for key in ("src", "href") if values.get(key)]


def pages(site):
    return {page.relative_to(site).as_posix(): Links(page) for page in site.rglob("*.html")}


def test_every_internal_link_leads_somewhere(site):
    found = pages(site)
    astray = []
    for name, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            path = target.resolve().relative_to(site.resolve()).as_posix()
            is_there = (site / path).is_file()
            if not is_there or (
                parts.fragment and path in found and unquote(parts.fragment) not in found[path].ids
            ):
                astray.append(f"{name}: {link}")
    assert not astray


def test_a_page_loads_nothing_from_elsewhere(site):
    foreign = {
        (name, url)
        for name, page in pages(site).items()
        for url in page.loaded
        if urlsplit(url).netloc
    }
    assert not foreign


def test_every_public_name_is_described(site, own_modules):
    del own_modules
    homes = importlib.import_module("reference").public_names()
    ids = {anchor for page in pages(site).values() for anchor in page.ids}
    assert set(homes) == set(gemini_lab.__all__)
    assert [home for home in homes.values() if home not in ids] == []


@pytest.mark.parametrize("stage", ["profiler", "placement", "pipeliner", "injector", "simulator"])
def test_every_name_of_a_stage_is_described(site, stage):
    ids = Links(site / "reference" / "made" / f"{stage}.html").ids
    package = importlib.import_module(f"gemini_lab.{stage}")
    assert [name for name in package.__all__ if f"{package.__name__}.{name}" not in ids] == []


def test_every_command_and_setting_has_a_place_in_the_reference(site):
    made = site / "reference" / "made"
    assert {f"gemini-lab-{name}" for name in COMMANDS} <= Links(made / "commands.html").ids
    page = (made / "settings.html").read_text(encoding="utf-8")
    names = [field.name for field in dataclasses.fields(gemini_lab.Settings)]
    assert [name for name in names if page.count(f">{name}</span></code></p></td>") != 1] == []


CALM = {"unread", "recovery_step", "node_leaving", "loss_finite", "rewound", "link_cut"}
"""Events that sound like trouble, and ask nobody for anything."""


def test_each_event_that_asks_for_something_says_the_way_out(own_modules):
    del own_modules
    symptoms = importlib.import_module("symptoms")
    told = {name for name, kind in KINDS.items() if symptoms.WAY_OUT.search(inspect.getdoc(kind))}
    alarming = (
        r"lost|excluded|waiting|refused|short|differ|given_up|exited|hung|apart|rejected|fail"
    )
    assert {name for name in KINDS if re.search(alarming, name)} <= told | CALM
    assert len(told) > 20


def test_the_symptoms_have_the_errors_of_the_code_with_their_way_out(own_modules):
    del own_modules
    page = importlib.import_module("symptoms").page()
    assert '| scheme "none" keeps no versions with which fewer nodes could go on | choose' in page
    assert "| cannot read … as a size | write it like '128 MiB' or '20 GB' |" in page
    assert len([line for line in page.splitlines() if line.startswith("| ")]) > 400


def test_no_room_or_package_is_left_out_of_the_symptoms(own_modules):
    del own_modules
    symptoms = importlib.import_module("symptoms")
    among = {room for rooms in symptoms.ROOMS.values() for room in rooms}
    beside = {"../widgets/gemini_lab_widgets", "../bench/gemini_lab_bench"}
    assert beside | {"../notebooks/course/gemini_lab_course"} <= among
    found = [one for one in symptoms.PACKAGE.iterdir() if one.is_dir() or one.suffix == ".py"]
    rooms = {one.stem for one in found if not one.name.startswith("_")}
    assert not [room for room in rooms - among if [*symptoms.messages(room)]]


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("hang", "how-to/hang"),
        ("slow", "how-to/health"),
        ("resum", "how-to/resume"),
        ("nan", "how-to/nan"),
    ],
)
def test_a_search_finds_the_page_by_its_title(site, word, page):
    """The search of the site prefers titles; it looks for a word's stem."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", text.strip(), re.DOTALL)[1])
    found = index["titleterms"][word]
    numbers = found if isinstance(found, list) else [found]
    assert page in [index["docnames"][number] for number in numbers]


def test_the_drawing_is_on_the_page_and_tells_its_rooms_in_words(site, own_modules):
    del own_modules
    page = (site / "architecture.html").read_text(encoding="utf-8")
    told = re.search(r'<svg class="house"[^>]*aria-label="([^"]*)"', page)[1]
    assert [room for room in importlib.import_module("house").rooms() if room not in told] == []


def test_every_figure_of_the_paper_and_all_that_was_measured_is_drawn(site, own_modules):
    del own_modules
    page = (site / "evidence" / "figures.html").read_text(encoding="utf-8")
    drawn = re.findall(r"<title>([^<]*)</title><desc>", page)
    figures = importlib.import_module("figures")
    wanted = [figures.paper(name) for name in figures.FIGURES]
    wanted += [one for bench in figures.benches() for one in figures.results(bench)]
    assert sorted(drawn) == sorted(escape(one.title, quote=False) for one in wanted)


def test_every_room_of_the_drawing_exists_and_every_room_is_drawn(own_modules):
    del own_modules
    package = ROOT / "gemini_lab"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("[a-z]*.py")}
    drawn = set(importlib.import_module("house").rooms())
    assert rooms <= drawn <= rooms | modules


def test_files_that_the_pages_name_exist():
    named = re.compile(r"`((?:gemini_lab|widgets|tests|notebooks|docs)/[\w/.]*[\w/])`")
    missing = [
        f"{page.name}: {path}"
        for page in WRITTEN
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert not missing


def test_links_between_written_pages_hold_without_the_site():
    """On a code host the pages are read as they are."""
    link = re.compile(r"\]\((?!https?://|#)([^)#]+)")
    astray = [
        f"{page.name}: {target}"
        for page in [*WRITTEN, ROOT / "README.md", ROOT / "notebooks" / "README.md"]
        for target in link.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists() and "made/" not in target
    ]
    assert not astray
