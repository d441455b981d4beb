"""A dashboard below a notebook's cell: live while it is served, and afterwards a picture.

What a notebook saves of it is a picture of the run as it was, or a line of text, and a script that
puts the live page in its place where its server answers. Neither holds a password.
"""

import json
import secrets
from html import escape
from string import Template
from typing import Final

from gemini_lab.display import picture
from gemini_lab.errors import GeminiError
from gemini_lab.report.build import load_report
from gemini_lab_widgets.cell_output import CellOutput
from gemini_lab_widgets.follow import ShownRun

LONGEST_BYTES: Final = 32 << 20
"""Of a log from which a picture is made: some seconds."""
LIVE: Final = Template("""
<div id="$place">
<p><a href="$link" target="_blank" rel="noopener">Open the dashboard</a> in a tab of its own</p>
<div class="saved">$saved</div>
<script>
(async () => {
  try {  // of another host nothing is told but that somebody answers there
    const told = await fetch($there, { mode: "no-cors", cache: "no-store" })
    if (!told.ok && told.type !== "opaque") return
  } catch { return }
  const box = document.createElement("div"), line = document.createElement("p")
  const frame = document.createElement("iframe"), page = new URL($page, location)
  const notebook = document.body.dataset  // JupyterLab says here how it looks; others do not
  const theme = () => ({ true: "light", false: "dark" })[notebook.jpThemeLight]
  if (theme()) page.searchParams.set("theme", theme())
  new MutationObserver(() => {
    if (theme()) frame.contentWindow?.postMessage({ theme: theme() }, page.origin)
  }).observe(document.body, { attributeFilter: ["data-jp-theme-light"] })
  frame.src = page.href
  frame.title = "Dashboard of the run"
  frame.style.cssText = "grid-area:1/1;width:100%;height:760px;border:1px solid #8884;"
    + "border-radius:8px"
  frame.addEventListener("load", () => line.remove())
  line.textContent = "The dashboard is loading \\u2026"
  line.style.cssText = "grid-area:1/1;place-self:center"
  box.style.cssText = "display:grid"
  box.append(line, frame)
  document.getElementById("$place")?.querySelector(".saved").replaceWith(box)
})()
</script>
</div>
""")
NOTHING: Final = (
    "The dashboard shows a run while its lab lives. <code>gemini-lab serve</code> shows it again."
)


class NotebookEmbed:
    """The cells that show one dashboard."""

    def __init__(self) -> None:
        self._below = CellOutput()

    def show(self, url: str, ticket: str, run: ShownRun) -> None:
        """Show a page below the cell that runs.

        Args:
            url: Where it is.
            ticket: What lets a visitor in; empty where nothing is served any more.
            run: What it shows.
        """
        live = live_html(url, ticket, saved_html(run))
        self._below.show(_bundle(live if ticket else saved_html(run), url))

    def end(self, run: ShownRun) -> None:
        """Put a picture of the run in the place of its page."""
        self._below.put(_bundle(saved_html(run), "a dashboard that has ended"))
        self._below = CellOutput()


def live_html(url: str, ticket: str, saved: str) -> str:
    """The page in a frame, with what stands there where its server does not answer.

    Args:
        url: Where the page is.
        ticket: What lets a visitor in.
        saved: HTML for afterwards.
    """
    return LIVE.substitute(
        place=f"gl-frame-{secrets.token_hex(4)}",
        link=escape(f"{url}login?token={ticket}"),
        there=_quoted(f"{url}login"),
        page=_quoted(f"{url}?token={ticket}"),
        saved=saved,
    )


def saved_html(run: ShownRun) -> str:
    """A picture of the run so far with a line on how to see more of it."""
    if run.log is None:
        return f"<p>No run has begun yet. {NOTHING}</p>"
    more = f"<p>{NOTHING.replace('serve', f'serve {escape(run.name)}')}</p>"
    try:
        if run.log.stat().st_size > LONGEST_BYTES:
            return more
        return picture(load_report(run.log.parent)).html() + more
    except (OSError, GeminiError):  # a run of which nothing is told yet, or nothing that draws
        return more


def _quoted(text: str) -> str:
    return json.dumps(text).replace("<", "\\u003c")


def _bundle(html: str, plain: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": f"<Dashboard on {plain}>"}
