"""Golden files: what a recorded log comes to, as text, so that a changed number shows as a diff.

They stand in `golden/` beside the test; `pytest PATH --rewrite-golden` writes them anew.
"""

import difflib
import json
from pathlib import Path
from typing import Any

WIDTH = 180


def same(path: Path, text: str, *, rewrite: bool) -> None:
    """Compare a text with the file at `path`, or write it there."""
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    diff = difflib.unified_diff(before.splitlines(), text.splitlines(), "as it was", "now", n=0)
    assert before == text, f"{path.name}; --rewrite-golden if it is right\n" + "\n".join(diff)


def plain(value: Any) -> Any:
    """The value as JSON has it; numbers to nine digits, as others add up in another order."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {str(name): plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case set() | frozenset():
            return sorted(plain(each) for each in value)
    return value


def as_text(value: Any, indent: str = "") -> str:
    """JSON in which what fits a line stands on one."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(whole) <= WIDTH or not isinstance(value, dict | list):
        return whole
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(name)}: {as_text(each, inner)}" for name, each in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    parts = [f"{inner}{as_text(each, inner)}" for each in value]
    return "[\n" + ",\n".join(parts) + f"\n{indent}]"
