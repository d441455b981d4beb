"""The slider of a saved page: what it keeps of a moment is what a live page draws of it."""

import base64
import gzip
import json
import re
from typing import Any

import pytest

pytest.importorskip("bokeh")

from bokeh.document import Document
from bokeh.models import ColumnDataSource, Div
from gemini_lab_widgets.page_layout import PageLayout, looking_back
from gemini_lab_widgets.save import FEWEST, Tape, choose, plain, script_of
from gemini_lab_widgets.store import EventStore, tables_at
from told_runs import with_one_loss

from gemini_lab.log.entry import encode_entry

END = ("over", "finished", "")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EventStore:
    folder = tmp_path_factory.mktemp("a-run")
    log = folder / "events.jsonl"
    log.write_bytes(b"".join(encode_entry(entry) + b"\n" for entry in with_one_loss().entries))
    return EventStore.load(log)


def page() -> tuple[PageLayout, Document]:
    sheet, document = PageLayout(), Document()
    sheet.put_on(document, title="")
    return sheet, document


def drawn(sheet: PageLayout) -> list[Any]:
    """Every text and every table of the views, in order."""
    found = []
    for root in (sheet.state, *(view.root for view in sheet.views.values())):
        for model in root.references() if root is not sheet.state else [root]:
            if isinstance(model, Div):
                found.append((model.id, plain(model.text)))
            if isinstance(model, ColumnDataSource):
                found.append((model.id, plain(dict(model.data))))
    return [value for _, value in sorted(found, key=lambda one: int(one[0][1:]))]


def told(script: str) -> dict[str, Any]:
    """What the browser unpacks."""
    (packed,) = re.findall(r'mountMoments\("([^"]+)"', script)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def shown(models: dict[str, Any], told: dict[str, Any], place: int) -> dict[str, dict[str, Any]]:
    """By model and property: what `js/moments.js` sets at a place."""
    found: dict[str, dict[str, Any]] = {}
    for number, name, steps, _ in told["tracks"]:
        value = [value for at, value in steps if at <= place][-1]
        if isinstance(value, dict):
            value = {column: told["pool"][at] for column, at in value.items()}
        else:
            value = told["pool"][value]
        found.setdefault(told["ids"][number], {})[name] = value
    assert set(found) <= set(models)
    return found


def test_each_moment_in_the_page_is_what_the_views_draw_of_it(store: EventStore) -> None:
    sheet, document = page()
    kept = told(script_of(store, sheet, document, state=END))
    models = {model.id: model for model in document.models}
    failures = [kept["at_s"][place] for place in kept["failures"]]
    assert len(failures) == 1
    for place in (0, kept["failures"][0], len(kept["at_s"]) // 2, len(kept["at_s"]) - 1):
        for name, values in shown(models, kept, place).items():
            models[name].update(**values)
        at_s = kept["at_s"][place]
        other, _ = page()
        if place < len(kept["at_s"]) - 1:
            way = store.moments.way(store.run.course.started_at_s + at_s)
            while not way.go():
                pass
            other.update(tables_at(way.run, way.at_s))
            other.say(*looking_back(at_s))
        else:
            other.update(store.tables())
            other.say(*END)
        assert drawn(sheet) == drawn(other), at_s


def test_failures_have_moments_of_their_own_and_few_are_enough(store: EventStore) -> None:
    end_s = store.run.newest_s - store.run.course.started_at_s
    chosen = choose(store.run, store.moments, end_s, most=FEWEST)
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0.0
    assert chosen[-1] < end_s
    (outage,) = store.run.spans.outages()
    after = [at_s for at_s in chosen if at_s > outage.noticed_s - store.run.course.started_at_s]
    assert after[0] < outage.noticed_s - store.run.course.started_at_s + 1.0


def test_only_views_of_text_follow_a_slider_that_moves(store: EventStore) -> None:
    sheet, document = page()
    kept = told(script_of(store, sheet, document, state=END))
    live = [document.get_model_by_id(kept["views"][place]).name for place in kept["live"]]
    assert sorted(live) == ["spent", "state", "status"]
    assert {view for *_, view in kept["tracks"]} > set(kept["live"])


def test_what_a_page_cannot_keep_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot keep a set"):
        plain({1})


def test_a_value_that_came_back_is_kept_once() -> None:
    document, div = Document(), Div(text="a")
    document.add_root(div)
    tape = Tape(document)
    tape.start()
    for place, text in enumerate(("a", "b", "a", "a", "b")):
        div.text = text
        tape.take(place)
    (track,) = tape.tracks.values()
    assert [place for place, _ in track] == [0, 1, 2, 4]
    assert list(tape.pool) == ['"a"', '"b"']
