"""ES modules as one file, and the timeline's own modules under Node.js where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.pictures.palette import BLUE, FELT, IDLE, ON_DARK, PINK, RED
from gemini_lab_widgets.timeline import ENTRY

from gemini_lab.report.bars import COLUMNS, Kind

TESTS = Path(__file__).parent / "js"


@pytest.fixture
def node():
    """Runs Node.js with arguments and gives what it printed."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed: what it would run is tested in a browser too")

    def run(*arguments, text=None):
        done = subprocess.run(
            [program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def write(tmp_path):
    """`write(a="...")` writes modules and gives the last one's path."""

    def write(**modules):
        for name, text in modules.items():
            path = tmp_path / f"{name}.js"
            path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_pure_parts_of_the_timeline_hold(node):
    """A file at a time: what a folder means to `--test` depends on the version of Node.js."""
    node("--test", *map(str, sorted(TESTS.glob("*.test.js"))))


def test_the_joined_timeline_exports_what_its_hosts_call(node):
    text = f"{joined(ENTRY)}\nconsole.log(typeof mount, typeof mountSaved, typeof render);\n"
    assert node("--input-type=module", "-", text=text).split() == ["function"] * 3


def test_nothing_is_left_to_load():
    assert not re.search(r"^import\b", joined(ENTRY), re.MULTILINE)
    assert "export default" in joined(ENTRY)


def test_equal_names_in_two_modules_stay_apart(node, write):
    entry = write(
        a="const STEP = 1;\nexport function a() { return STEP; }\n",
        b='import { a } from "./a.js";\n\nconst STEP = 10;\nexport const b = () => a() + STEP;\n',
        c='import { a } from "./a.js";\nimport {b}\n from "./b.js";\nexport const c = a() + b();',
    )
    assert node("--input-type=module", "-", text=f"{joined(entry)}console.log(c);") == "12\n"


def test_a_circle_of_modules_is_refused_with_its_way(write):
    entry = write(
        a='import { b } from "./b.js";\nexport const a = 1;\n',
        b='import { a } from "./a.js";\nexport const b = 1;\n',
    )
    with pytest.raises(ValueError, match="b -> a -> b"):
        joined(entry)


@pytest.mark.parametrize(
    "line",
    [
        'import * as other from "./other.js";',
        'import { a as b } from "./other.js";',
        'import { a } from "elsewhere";',
        'import "./other.js";',
    ],
)
def test_an_import_of_another_form_is_refused_and_named(write, line):
    entry = write(other="export const a = 1;\n", entry=f"{line}\n")
    with pytest.raises(ValueError, match=r"entry\.js: this form of import is not joined"):
        joined(entry)


def test_an_export_of_another_form_is_refused_and_named(write):
    entry = write(a="const a = 1;\nexport { a };\n", b='import { a } from "./a.js";\n')
    with pytest.raises(ValueError, match=r"a\.js: this form of export is not joined"):
        joined(entry)


def test_the_timeline_has_the_colours_of_all_other_views():
    text = ENTRY.with_name("theme.js").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r'(\w+): "(#\w+)"', part)) for part in text.split("export const")[1:3]
    ]
    same = {"checkpoint": BLUE, "exposed": FELT, "restore": PINK, "complete": IDLE, "failure": RED}
    for name, colour in same.items():
        assert [theme[name] for theme in themes] == [colour, ON_DARK[colour]], name


def test_kinds_and_columns_have_the_same_numbers_in_both_languages():
    text = ENTRY.with_name("kinds.js").read_text(encoding="utf-8")
    kinds = {name: int(number) for name, number in re.findall(r"([A-Z]+) = (\d)", text)}
    assert kinds == {kind.name: kind.value for kind in Kind}
    codes = {"Float64": "d", "Float32": "f", "Int32": "i", "Uint16": "H", "Uint8": "B"}
    found = re.findall(r'\["(\w+)", (\w+)Array\]', text)
    columns = {name: codes[kind] for name, kind in found}
    assert list(columns.items()) == [(name.split("_")[0], code) for name, code in COLUMNS.items()]
