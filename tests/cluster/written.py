"""Examples as README and guide have them, as text."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A block of Python on a page.

    Attributes:
        page: Its path in the repository.
        after: Its section's heading.
        text: Without its indentation on the page.
    """

    page: str
    after: str
    text: str


def blocks() -> list[Written]:
    """All of them, in order."""
    found = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for block in BLOCK.finditer(page):
            heading = re.findall(r"^#+ (.+)$", page[: block.start()], re.MULTILINE)[-1]
            text = re.sub(rf"^{block[1]}", "", block[2], flags=re.MULTILINE)
            name = path.relative_to(ROOT).as_posix()
            found.append(Written(page=name, after=heading, text=text))
    return found


def block(page: str, after: str, number: int = 0) -> str:
    """The block, from 0, that a page has under a heading."""
    return [b.text for b in blocks() if (b.page, b.after) == (page, after)][number]


def completed(text: str, **filled: str) -> str:
    """A block with what it leaves open filled in.

    Args:
        text: The block.
        filled: In its order, what takes the place of each line of three points (and a comment),
            indented as that line is; by whatever names.
    """
    for lines in filled.values():
        text, count = re.subn(
            r"^( *)\.\.\.( *#.*)?$",
            lambda gap, lines=lines: "\n".join(gap[1] + line for line in lines.splitlines()),
            text,
            count=1,
            flags=re.MULTILINE,
        )
        assert count == 1
    return text
