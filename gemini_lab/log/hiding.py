"""What never enters a log: arguments that go by the name of a secret, and logins in URLs."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.events import RunStarted

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"(token|key|secret|password|passwd|passphrase|credentials?)$", re.IGNORECASE
)
_LOGIN: Final = re.compile(rb'(?<=://)[^/@\s"]+@')


def names_a_secret(name: str) -> bool:
    """Whether an argument or a variable of this name is a secret."""
    return _SECRET.search(name) is not None


def line_of(entry: Entry) -> bytes:
    """The entry as one line of a log, without its secrets."""
    if isinstance(entry.event, RunStarted):
        shown = tuple(hidden_arguments(entry.event.args))
        event = msgspec.structs.replace(entry.event, args=shown)
        entry = msgspec.structs.replace(entry, event=event)
    line = encode_entry(entry)
    # `s3://user:password@host/run` is `s3://***@host/run`, wherever it stands.
    return _LOGIN.sub(f"{HIDDEN}@".encode(), line) if b"://" in line else line


def hidden_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of a command: what follows `--api-key` or `API_KEY=` is hidden."""
    shown, is_secret = [], False
    for arg in args:
        name, equals, _ = arg.partition("=")
        if is_secret:
            shown.append(HIDDEN)
        elif equals and _SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(arg)
        is_named = arg.startswith("-") and not equals and _SECRET.search(arg) is not None
        is_secret = is_named and not is_secret
    return shown
