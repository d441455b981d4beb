"""What the views draw of each recorded log, as it was when looked at last."""

import pytest

pytest.importorskip("bokeh")

from bokeh.models import ColumnDataSource, Div
from gemini_lab_widgets.store import EventStore
from gemini_lab_widgets.views import VIEWS
from told_runs import RUNS


def drawn(view):
    """Its words, the marks in its legend, its texts, and the columns that its figures draw."""
    found = {"words": view.words, "keys": [f"{key.label} {key.colour}" for key in view.keys]}
    for name, value in vars(view).items():
        for part, model in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(model, ColumnDataSource):
                rows = max(map(len, model.data.values()), default=0)
                # Bokeh knows no pattern of this name, and says so in the console at each drawing.
                assert "" not in model.data.get("hatch", ())
                found[f"{name} {part}".strip()] = model.data if rows else 0
            elif isinstance(model, Div):
                found[name] = model.text
    return found


@pytest.mark.parametrize("name", RUNS)
def test_every_view_draws_what_it_drew(name, golden):
    store = EventStore()
    store.extend(RUNS[name])
    tables = store.tables()
    found = {}
    for kind in VIEWS:
        view = kind()
        view.update(tables)
        found[kind.__name__] = drawn(view)
    golden(f"{name}.json", found)
