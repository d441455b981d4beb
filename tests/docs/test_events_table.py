"""Every kind of event is said by somebody, and the documentation knows all of them.

That no reader asks for a field that no class has, and that no emitter leaves one out, is mypy's to
say: events are read and made as typed values only.
"""

import sys
from pathlib import Path

import msgspec

from gemini_lab.log.events import KINDS

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from events_table import emitters, made_in, table


def test_every_kind_is_said_by_somebody():
    assert not KINDS.keys() - emitters().keys(), "no module of gemini_lab makes these"


def test_a_kind_that_is_only_read_is_not_counted_as_said():
    source = (
        "from gemini_lab.log import events\n"
        "from gemini_lab.log.events import Note as Remark, Iteration\n"
        "from elsewhere import NodeLost\n"
        "NodeLost(name='no event')\n"
        "def read(event):\n"
        "    match event:\n"
        "        case Iteration(): return isinstance(event, events.RunFailed)\n"
        "Remark(text='said'); events.LabClosed()\n"
    )
    assert sorted(made_in(source)) == ["lab_closed", "note"]


def test_the_table_has_every_kind_and_field_with_its_meaning():
    rows = {line.split("`")[1]: line for line in table().splitlines() if line.startswith("| `")}
    assert list(rows) == list(KINDS)
    for name, kind in KINDS.items():
        for field in msgspec.structs.fields(kind):
            assert f"`{field.name}` (" in rows[name]
    assert "`began_s` (float, moment): When it began." in rows["collectives"]
    assert "`sent_bytes` (int, bytes)" in rows["transfer"]
    assert "`recovery.saver`" in rows["persist_failed"]
