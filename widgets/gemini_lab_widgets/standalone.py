"""The timeline in a saved page: a window in full, and the whole run in bins of time."""

import base64
import gzip
import itertools
import json
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from gemini_lab.errors import ConfigError
from gemini_lab.report.bars import LAYERS, Rows, in_columns
from gemini_lab.report.reducers.traffic import TrafficBars
from gemini_lab_widgets.modules import joined
from gemini_lab_widgets.timeline import ENTRY, state
from gemini_lab_widgets.timeline_query import TimelineQuery, coverage_of, shades

MOST_BARS: Final = 1_000_000
"""In a saved window: 12 MB of a page."""
CELLS_BYTES: Final = 1 << 24
"""Of the whole run's bins, before they are compressed; most of them are empty."""
MOST_BINS: Final = 1 << 15
SCALE: Final = 4
"""A pyramid may give so many times the bins that are asked for."""

Window = tuple[float, float]
"""From when to when, in seconds since the run's start."""

_ids = itertools.count(1)


def standalone_html(
    traffic: TrafficBars, *, window: Window | None = None, most_bars: int = MOST_BARS
) -> str:
    """A piece of HTML that shows `traffic` with no server and no request, to put into any page.

    About 12 bytes a bar, compressed. The browser must know `DecompressionStream` (since 2023 all
    do); one without says so in place of the timeline.

    Args:
        traffic: What to show.
        window: From when to when each bar is in the page, by default the newest bars; the rest of a
            run that has more is there in bins of time.
        most_bars: So many may be in the window.

    Raises:
        ConfigError: The window has too many bars.
    """
    rows, first, whole_s = _window(traffic, window, most_bars)
    cells, shading = (None, "") if whole_s == (None, None) else _bins(traffic)
    meta = {
        **state(traffic),
        "reset": True,
        "is_recorded": True,
        "first": first,
        "count": len(rows),
        "whole_s": whole_s,
        "is_deep": cells is not None,
        "cells": cells,
        "limit": max(len(rows), 1),
        "lanes": traffic.lanes,
        "names": traffic.names,
        "racks": traffic.racks,
        "comings": traffic.comings,
        "costs_s": [round(cost_s, 3) for cost_s in traffic.costs_s],
        "marks": [asdict(mark) for mark in traffic.marks],
    }
    bars = zipped(in_columns(rows))
    place = f"gl-timeline-{next(_ids)}"
    told = json.dumps(meta).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return (
        f'<div id="{place}"></div>\n<script type="module">\n{joined(ENTRY)}\n'
        f'const place = document.getElementById("{place}");\n'
        f'mountSaved(place, {told}, "{bars}", "{shading}").catch((error) => {{\n'
        "  place.textContent = `The timeline cannot be shown in this browser: ${error.message}`;\n"
        "});\n</script>\n"
    )


def _window(
    traffic: TrafficBars, window: Window | None, most_bars: int
) -> tuple[Rows, int, tuple[float | None, float | None]]:
    """The bars that are saved one by one, and the first one's number.

    Then between which moments they are all there are; `None` for no end.
    """
    bars, pyramid = traffic.bars, traffic.pyramid
    lasted_s = (traffic.newest_s or 0.0) - (traffic.origin_s or 0.0)
    if window is not None and window[0] > lasted_s:
        raise ConfigError(
            f"the window begins {window[0]:g} s after the run's start, and its timeline ends after "
            f"{lasted_s:.1f} s; name an earlier one"
        )
    if window is None or pyramid is None or not pyramid.end:
        since_s = bars.gone_s if bars.first else None
        return bars.between(bars.first, bars.end), bars.first, (since_s, None)
    from_s, to_s = (at_s + (traffic.origin_s or 0.0) for at_s in window)
    rows, numbers = pyramid.rows(from_s, to_s, fresh=bars.between(pyramid.end, bars.end))
    if len(rows) > most_bars:
        raise ConfigError(
            f"from {window[0]:g} to {window[1]:g} s the run has {len(rows):,} bars, and a page "
            f"takes {most_bars:,}; name a shorter window"
        )
    return rows, int(numbers[0]) if len(numbers) else 0, (from_s, to_s)


def _bins(traffic: TrafficBars) -> tuple[dict[str, Any] | None, str]:
    """Return how much of each bin of the whole run each lane was covered."""
    pyramid, bars = traffic.pyramid, traffic.bars
    if pyramid is None:
        return None, ""
    lanes = len(traffic.lanes)
    from_s = traffic.origin_s or 0.0
    look = TimelineQuery(
        number=0,
        from_s=from_s,
        to_s=max(traffic.newest_s or from_s, from_s + 1e-3),
        bins=min(max(CELLS_BYTES // (lanes * LAYERS * SCALE), 256), MOST_BINS // SCALE),
        row_of=np.arange(lanes),
        is_bars=False,
    )
    covered = coverage_of(pyramid, look, bars.between(pyramid.end, bars.end))
    window = {"from_s": covered.from_s, "to_s": covered.to_s, "upto": bars.end}
    size = {"rows": lanes, "bins": covered.seconds.shape[2]}
    return window | size, zipped(shades(covered, np.ones(lanes, np.int64)))


def zipped(data: bytes) -> str:
    """Bytes as `js/packed.js` reads them."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()
