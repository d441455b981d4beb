"""A change in the store is seen by whoever follows it, also when the watch fails them."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from gemini_lab.launch.etcd import start_etcd
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError, patiently
from gemini_lab.node.news import REREAD_S, SPREAD_S, StoreNews

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdAddress]:
    with start_etcd() as address:
        yield address


@pytest.fixture
def stores(etcd: EtcdAddress, request: pytest.FixtureRequest) -> Iterator[tuple[EtcdStore, ...]]:
    """Two connections to one lab's keys: who writes, and who follows."""
    both = tuple(EtcdStore(etcd, f"gemini_lab/{request.node.name}") for _ in range(2))
    yield both
    for store in both:
        store.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def test_a_quiet_store_is_left_alone_and_a_change_rings(stores):
    writer, reader = stores
    news = StoreNews(reader)
    assert news.is_due()
    assert news.read(whole=False).items == {}
    assert not news.is_due()
    writer.put("root", "somebody")
    wait_until(news.is_due)
    assert news.read(whole=False).items == {"root": "somebody"}
    writer.delete("root")
    wait_until(news.is_due)
    assert news.read(whole=False).items == {}


def test_only_the_root_agent_hears_of_other_nodes(stores):
    writer, reader = stores
    news = StoreNews(reader)
    news.read(whole=False)
    writer.put("nodes/node-1", "{}")
    writer.put("epoch", "1")
    wait_until(news.is_due)
    assert news.read(whole=False).items == {"epoch": "1"}
    assert news.read(whole=True).items == {"epoch": "1", "nodes/node-1": "{}"}
    wait_until(lambda: not news.is_due() or not news.read(whole=True))  # the old watch's end rang
    writer.delete("nodes/node-1")
    wait_until(news.is_due)
    assert news.read(whole=True).items == {"epoch": "1"}


def test_a_lease_that_runs_out_rings(stores):
    writer, reader = stores
    news = StoreNews(reader)
    writer.put("root", "mortal", lease=writer.grant(1))
    news.read(whole=False)
    wait_until(news.is_due)
    assert news.read(whole=False).items == {}


def test_a_store_that_was_away_is_read_again_and_watched_again(stores):
    writer, reader = stores
    news = StoreNews(reader)
    writer.put("root", "first")
    news.read(whole=False)
    (server,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "etcd")
    os.kill(server.pid, signal.SIGKILL)
    wait_until(news.is_due)
    seen = patiently(lambda: news.read(whole=False), patience_s=LIMIT_S)
    assert seen.items == {"root": "first"}
    patiently(lambda: writer.put("root", "second"), patience_s=LIMIT_S)
    wait_until(news.is_due)
    assert news.read(whole=False).items == {"root": "second"}


class DeafStore:
    """A store of which no change is ever told."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.watches = 0
        self.is_away = False

    def get(self, keys):
        if self.is_away:
            raise StoreUnavailableError("away")
        return {key: self.kept[key] for key in keys if key in self.kept}

    def watch(self, keys, tell):
        del keys, tell
        self.watches += 1

    def close(self) -> None:
        pass


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_a_watch_missed_is_found_later_and_another_watch_begins():
    store, clock = DeafStore(), Clock()
    news = StoreNews(store, clock=clock)
    news.read(whole=False)
    store.kept["root"] = "unheard"
    clock.now_s = REREAD_S - 1
    assert not news.is_due()
    clock.now_s = REREAD_S + 1
    assert news.is_due()
    assert news.read(whole=False).items == {"root": "unheard"}
    assert store.watches == 1
    clock.now_s *= 2
    news.read(whole=False)
    assert store.watches == 2


def test_a_look_that_failed_is_due_again_at_once():
    store = DeafStore()
    news = StoreNews(store)
    store.is_away = True
    with pytest.raises(StoreUnavailableError):
        news.read(whole=False)
    assert news.is_due()


def test_who_has_time_looks_within_a_while_and_not_all_at_the_same_moment():
    clock = Clock()
    many = [StoreNews(DeafStore(), clock=clock) for _ in range(200)]
    for news in many:
        news.read(whole=False)
        news.ring()
    assert all(news.is_due() for news in many)
    clock.now_s = SPREAD_S / 2
    due = sum(news.is_due(is_urgent=False) for news in many)
    assert 0 < due < len(many)
    clock.now_s = SPREAD_S
    assert all(news.is_due(is_urgent=False) for news in many)
