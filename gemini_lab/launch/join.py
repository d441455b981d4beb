"""Agents that join by themselves: any program that starts one process a machine starts them.

The lab's name in the store is where both sides meet. An agent reads there how the lab is to be
joined, takes the next free name, and registers; the lab counts who is there. Both know the lab's
token, which comes from a file or the environment: never from the command line, which everybody on
a machine can read.
"""

import os
import random
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.display import complain
from gemini_lab.errors import CapacityError, ConfigError, GeminiError, LaunchError
from gemini_lab.launch.provider import TOKEN_VARIABLE, JoinedNodes, Supply
from gemini_lab.limits import read_file
from gemini_lab.node.control_store import (
    StoreForgedError,
    StoreUnavailableError,
    patiently,
)
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.membership import node_addresses
from gemini_lab.node.start_config import LAB_KEY, AgentUp, LabRecord
from gemini_lab.seats import in_order, node_name, node_number

NO_TOKEN: Final = (
    "the lab's token is not told, which opens a lab to its agents and to who follows it; put it "
    f"into {TOKEN_VARIABLE}, or into a file that you alone can read (--token-file): for a new lab "
    "one such as `openssl rand -hex 16` gives, the same for all; that of a detached run stands in "
    "access.json in its folder"
)
SHORTEST_TOKEN: Final = 16
WAIT_S: Final = 600.0
LOOK_S: Final = 0.25
CHECK_S: Final = 5.0  # how often a provider is asked whether those that are to come still are
SAY_AGAIN_S: Final = 15.0
PLACES: Final = "places/"
"""Before each name that was taken: its key has the `NamePlace`, and none is given twice."""


class NamePlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine that took a node's name."""

    host: str  # the machine's name, for people
    machine: str  # its id, as its starter calls it
    nonce: str  # random: by it the taker knows its own


def prefix_of(lab: str) -> str:
    """Return the prefix of a lab's keys in the store."""
    return f"gemini_lab/{lab}"


def check_name(lab: str) -> None:
    """Refuse a lab's name that could not be a part of a key and of a path.

    Raises:
        ConfigError: It has other characters than letters, digits, `.`, `_` and `-`, or none.
    """
    if not re.fullmatch(r"[\w][\w.-]{0,99}", lab, re.ASCII):
        raise ConfigError(
            f"{lab!r} cannot be a lab's name; use up to 100 letters, digits, '.', '_' and '-'"
        )


def find_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the lab's token, from a file that its owner alone can read or from the environment.

    Raises:
        ConfigError: There is none, it is too short, or others can read the file.
    """
    if file is None:
        token, where = environment.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    else:
        where = str(file)
        try:
            mode, token = file.stat().st_mode, read_file(file).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token in {file}: {error}") from error
        if mode & 0o077:
            raise ConfigError(f"others can read the token in {file}; run `chmod 600 {file}`")
    if not token:
        raise ConfigError(NO_TOKEN)
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the token in {where} has {len(token)} characters; give it {SHORTEST_TOKEN} or more, "
            "such as `openssl rand -hex 16` makes"
        )
    return token


def say(text: str) -> None:
    """Print a line for the user who started this process."""
    complain(f"gemini-lab: {text}")


# -- the agent's side ------------------------------------------------------------------------------


def find_lab(
    store: EtcdStore, lab: str, *, wait_s: float, tell: Callable[[str], None]
) -> LabRecord:
    """Return a lab's record; wait for a lab or a store that is not there yet.

    Raises:
        ConfigError: The lab has another token.
        LaunchError: The lab did not come in time.
        StoreUnavailableError: The store did not.
    """
    say_s = time.monotonic()
    give_up_s = say_s + wait_s
    while True:
        left_s = give_up_s - time.monotonic()
        what = f"a lab {lab!r} in the store"
        try:
            items = store.get([LAB_KEY])
        except StoreForgedError as error:  # the lab would wait for this node in vain
            raise ConfigError(
                f"the lab {lab!r} was started with another token; give this node the same, in "
                f"{TOKEN_VARIABLE} or by --token-file"
            ) from error
        except StoreUnavailableError:
            if left_s <= 0:
                raise
            items, what = {}, "the store to answer"
        if LAB_KEY in items:
            return msgspec.json.decode(items[LAB_KEY], type=LabRecord)
        if left_s <= 0:
            raise LaunchError(
                f"no lab {lab!r} was in the store within {wait_s:.0f} s; start it with "
                f"`gemini-lab run --join {lab} ...`, or check --lab and --etcd"
            )
        if time.monotonic() >= say_s:
            tell(f"waiting up to {left_s:.0f} s for {what}")
            say_s = time.monotonic() + SAY_AGAIN_S
        time.sleep(LOOK_S)


def take_name(store: EtcdStore, host: str, *, machine: str = "", first: int = 0) -> str:
    """Return a name that no node of the lab has had; it is this host's from now on.

    `machine` is this host's id for its starter; by default its name. The number `first` is tried
    first.
    """
    place = NamePlace(host=host, machine=machine or host, nonce=secrets.token_hex(8))
    claim = msgspec.json.encode(place).decode()
    number = first
    while True:
        name = node_name(number)
        key = f"{PLACES}{name}"
        is_made = patiently(partial(store.create, key, claim))
        items = {} if is_made else patiently(store.items)
        if is_made or items[key] == claim:  # made before, and the answer was lost
            return name
        number = 1 + max(node_number(taken) for taken in items if _is_place(taken))
        time.sleep(random.uniform(0, LOOK_S))  # others want the same one


def _is_place(key: str) -> bool:
    return key.startswith(PLACES)


def places(items: Mapping[str, str]) -> dict[str, NamePlace]:
    """Return the machine that took each name, be it registered or not."""
    return {
        key.removeprefix(PLACES): msgspec.json.decode(claim, type=NamePlace)
        for key, claim in items.items()
        if _is_place(key)
    }


# -- the lab's side --------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class JoinOperator:
    """Waits for machines that join by themselves; implements `Operator`."""

    store: EtcdStore  # the lab's
    token: str = field(repr=False)  # the secret that they were given, too
    wait_s: float = WAIT_S  # how long it waits for them
    tell: Callable[[str], None] = say  # called with who is there and who is missing, now and then
    is_local: bool = False
    supply: Supply | None = None  # starts them; `None`: somebody else does
    _met: set[str] = field(default_factory=set)
    _is_closed: bool = False

    def bring(self, count: int) -> list[AgentUp]:
        """Wait until `count` more agents have joined.

        Raises:
            CapacityError: They did not come in time, or the supply has no more.
            LaunchError: The supply did not answer, or refused.
        """
        if self.supply is not None:
            self.supply.order(count, self._joined(patiently(self.store.items)))
        check_s = say_s = time.monotonic()
        give_up_s = say_s + self.wait_s
        while True:
            items = patiently(self.store.items)
            addresses = node_addresses(items)
            come = in_order(addresses.keys() - self._met)[:count]
            if len(come) == count:
                self._met.update(come)
                return [AgentUp(name=name, address=addresses[name], pid=0) for name in come]
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or self._is_closed:
                why = told(items, count, self._met)
                if self.supply is not None:  # who began and is not up in all that time never will
                    self._met.update(places(items).keys() - addresses.keys())
                way_out = "start `gemini-lab node` on more machines"
                if self.supply is not None:
                    way_out = "raise the wait (--wait, wait_s=)"
                raise CapacityError(f"{why}; waited {self.wait_s:.0f} s; {way_out}")
            if time.monotonic() >= say_s:
                self.tell(f"{told(items, count, self._met)}; waiting up to {left_s:.0f} s more")
                say_s = time.monotonic() + SAY_AGAIN_S
            if self.supply is not None and time.monotonic() >= check_s:
                self.supply.check(count, self._joined(items))
                check_s = time.monotonic() + CHECK_S
            time.sleep(LOOK_S)

    def know(self, names: Collection[str]) -> None:
        self._met.update(names)

    def clear(self) -> None:
        """Stop waiting; agents that joined end by themselves when the lab is gone."""
        self._is_closed = True
        if self.supply is not None:
            try:
                self.supply.provider.give_back(self.supply.lab)
            except GeminiError as error:
                self.tell(f"machines may not have been given back: {error}")

    def _joined(self, items: Mapping[str, str]) -> JoinedNodes:
        return JoinedNodes(
            machine_of={name: place.machine for name, place in places(items).items()},
            up=node_addresses(items).keys(),
            known=self._met,
        )


def told(items: Mapping[str, str], count: int, met: set[str]) -> str:
    """Return in words how many of `count` newcomers are there, and who is not."""
    here = in_order(node_addresses(items).keys() - met)
    taken = {name: place.host for name, place in places(items).items()}
    slow = in_order(taken.keys() - met - set(here))
    parts = [f"{len(here)} of {count} nodes have joined"]
    if here:
        parts.append(f"({', '.join(_on(name, taken) for name in here)})")
    if slow:
        parts.append(f"and {', '.join(_on(name, taken) for name in slow)} began to, but is not up")
    missing = count - len(here) - len(slow)
    if missing > 0:
        parts.append(f"and nothing is heard of {missing} more")
    return " ".join(parts)


def _on(name: str, taken: Mapping[str, str]) -> str:
    return f"{name} on {taken[name]}" if name in taken else name
