"""What a worker printed last, as HTML: its lines as lines, in fixed width, the last one always."""

from collections.abc import Sequence
from typing import Final

from gemini_lab.report.output import last_lines
from gemini_lab_widgets.views.palette import RED, css, esc

CSS: Final = f"""
.bk-clearfix {{ display: block; width: 100%; }}
p.error {{ font-size: 14px; font-weight: 600; color: var(--gl-ink); margin: 8px 0 4px;
  overflow-wrap: anywhere; }}
p.error::before {{ content: "✕"; color: {css(RED)}; margin-right: 6px; }}
pre.output {{ font: 12.5px/1.45 ui-monospace, 'DejaVu Sans Mono', monospace; color: var(--gl-ink);
  background: var(--gl-pale); border-left: 5px solid {css(RED)}; border-radius: 6px;
  margin: 0 0 10px; padding: 8px 12px; white-space: pre-wrap; overflow-wrap: anywhere; }}
"""


def printed(error: str, output: Sequence[str]) -> str:
    """What a worker raised, and its last lines beneath; empty where it said nothing."""
    lines = "\n".join(esc(line) for line in last_lines(output))
    said = f"<p class=error>{esc(error)}</p>" if error else ""
    return said + (f"<pre class=output>{lines}</pre>" if lines else "")
