"""The meaning of a class's fields, from the comments beside them in its source."""

import inspect
import re


def of(owner: type) -> dict[str, str]:
    """Return the comment beside or above each own field of a class, as a sentence."""
    texts: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(owner).splitlines():
        if comment := re.fullmatch(r" {4}# (.*)", line):
            above.append(comment[1])
        elif field := re.fullmatch(r" {4}(\w+): .*?(?:  # (.*))?", line):
            text = field[2] or " ".join(above)
            end = "" if text.endswith((".", ":")) else "."
            if text and field[1] in inspect.get_annotations(owner):
                texts[field[1]] = f"{text[:1].upper()}{text[1:]}{end}"
            above = []
        else:
            above = []
    return texts
