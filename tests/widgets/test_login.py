"""Who guesses at the door waits; who knows the password comes in."""

import asyncio

import pytest

pytest.importorskip("bokeh")

from gemini_lab_widgets.login import (
    KEY_BYTES,
    LOGIN_PAGE,
    MOST_TRIES,
    LoginGuard,
    kept_key,
    page_of,
    whose,
)

PASSWORD = "correct horse"
KEY = bytes(32)


async def a_moment():
    """Lets everything else go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_tries_of_one_address_are_looked_at_one_after_another():
    """Who asks for many at once learns nothing sooner, not even which one is right."""
    answered = asyncio.Event()
    guard = LoginGuard(PASSWORD, port=1, key=KEY, pause=answered.wait)
    wrong = asyncio.create_task(guard.admits("wrong", address="a"))
    await a_moment()
    right = asyncio.create_task(guard.admits(PASSWORD, address="a"))
    await a_moment()
    assert not right.done()
    assert await guard.admits(PASSWORD, address="b")
    answered.set()
    assert (await wrong, await right) == (False, True)


async def test_more_tries_at_once_are_not_looked_at():
    answered = asyncio.Event()
    guard = LoginGuard(PASSWORD, port=1, key=KEY, pause=answered.wait)
    tries = [asyncio.create_task(guard.admits("wrong", address="a")) for _ in range(MOST_TRIES)]
    await a_moment()
    assert await guard.admits(PASSWORD, address="a") is None
    answered.set()
    assert await asyncio.gather(*tries) == [False] * MOST_TRIES
    assert await guard.admits(PASSWORD, address="a")


def test_a_ticket_is_no_password_and_ends_with_its_server():
    guard, again = LoginGuard(PASSWORD, port=1, key=KEY), LoginGuard(PASSWORD, port=1, key=KEY)
    assert guard.knows(guard.ticket)
    assert PASSWORD not in guard.ticket
    assert not again.knows(guard.ticket)
    assert guard.secret == again.secret != LoginGuard("another one", port=1, key=KEY).secret


def test_the_password_alone_signs_nothing():
    """Else a guesser would sign a cookie with each guess, and wait at no door."""
    guard = LoginGuard(PASSWORD, port=1, key=KEY)
    assert guard.secret != LoginGuard(PASSWORD, port=1, key=b"1" * 32).secret


def test_a_users_key_is_kept_and_nobody_elses(tmp_path):
    key = kept_key(tmp_path)
    assert len(key) == KEY_BYTES
    assert kept_key(tmp_path) == key != kept_key(tmp_path / "another")
    (path,) = (each for each in tmp_path.iterdir() if each.is_file())
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o644)
    assert kept_key(tmp_path) != key  # others have read it


def test_without_a_place_for_it_each_key_is_a_new_one(tmp_path):
    (tmp_path / "file").touch()
    assert kept_key(tmp_path / "file") != kept_key(tmp_path / "file")


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("/?run=group-loss&at=6.278", "./?run=group-loss&at=6.278"),
        ("/?run=a%20run%26&token=an+old+one", "./?run=a+run%26"),
        ("/", "./"),
        ("", "./"),
        ("//evil.example/?run=a", "./?run=a"),
        ("https://evil.example/there?//evil.example", "./"),
        ("/\\evil.example\r\nSet-Cookie: a=b", "./"),
        ("/?run=a\r\nSet-Cookie: a=b", "./?run=a%0D%0ASet-Cookie%3A+a%3Db"),
        ("http://[/?at=1", "./?at=1"),
    ],
)
def test_who_comes_in_gets_the_page_as_it_was_asked_for_and_no_other_server(asked, page):
    assert page_of(asked) == page


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("127.0.0.1", "127.9.8.7", True),
        ("127.0.0.1", "::1", True),
        ("::ffff:127.0.0.2", "127.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("", "127.0.0.1", False),
    ],
)
def test_who_has_many_addresses_waits_as_who_has_one(address, other, is_same):
    """Any user of this machine may come from all of 127.0.0.0/8, one guess a second from each."""
    assert (whose(address) == whose(other)) == is_same


async def test_tries_from_many_addresses_of_one_machine_are_not_looked_at_at_once():
    gate = asyncio.Event()
    guard = LoginGuard(PASSWORD, port=1, key=KEY, pause=gate.wait)
    tries = [
        asyncio.create_task(guard.admits("wrong", address=f"127.0.0.{number}"))
        for number in range(1, MOST_TRIES + 1)
    ]
    await a_moment()
    assert await guard.admits(PASSWORD, address="127.1.2.3") is None
    gate.set()
    assert await asyncio.gather(*tries) == [False] * MOST_TRIES


def test_the_form_asks_for_a_password_and_says_what_comes_then() -> None:
    assert "<button>Look at the run</button>" in LOGIN_PAGE
