"""A store that can be broken: fsspec's own driver reaches it, and feels what it is told to do."""

import subprocess
import sys
import threading

import pytest
from made import made

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.shard.layout import ShardLayout, lay_out
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab_bench.chaos.store import PAGE, BreakableStore, why_not

requests = pytest.importorskip("requests")

TENSORS = lay_out([("0.master", "float32", (500,))], start_bytes=100)
LAYOUT = made(
    ShardLayout,
    stage=3,
    optimizer="Adam",
    tensors=TENSORS,
    small_offset_bytes=0,
    small_capacity_bytes=100,
    payload_bytes=TENSORS[-1].offset_bytes + TENSORS[-1].size_bytes,
    weights={"w": (500,)},
)


def payload(version):
    return bytes([version]) * LAYOUT.payload_bytes


def save(tier, version):
    tier.commit(version, [tier.write_shard(version, 0, payload(version), LAYOUT)], {})


def read(tier, version=16):
    return bytes(tier.read_file(version, 0)[0])


@pytest.fixture
def store(tmp_path, monkeypatch):
    (tmp_path / "tier").mkdir()
    with BreakableStore(tmp_path / "tier") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            "fsspec.config.conf", {"webhdfs": {"token": next(iter(made.environment.values()))}}
        )
        yield made


@pytest.fixture
def tier(store):
    """With versions 8 and 16, as a run would have saved them."""
    opened = PersistentTier(store.url)
    opened.check()
    for version in (8, 16):
        save(opened, version)
    return opened


def test_a_store_that_nothing_is_broken_of_keeps_versions_as_any_other(tier, tmp_path):
    assert why_not() is None
    assert tier.versions() == [8, 16]
    assert read(tier) == payload(16)
    save(tier, 24)
    assert tier.versions() == [16, 24]
    assert PersistentTier(str(tmp_path / "tier")).versions() == [16, 24]


def test_who_has_not_the_campaigns_token_reads_and_writes_nothing(tier, store):
    address = store.url.replace("webhdfs", "http").removesuffix("/tier")
    for token in ("", "&delegation=guess"):
        asked = f"{address}/webhdfs/v1/tier?op=%s{token}"
        assert requests.get(asked % "LISTSTATUS", timeout=30).status_code == 401
        assert requests.delete(asked % "DELETE", timeout=30).status_code == 401
    (token,) = store.environment.values()
    outside = f"{address}/webhdfs/v1/tier/../../x?op=MKDIRS&delegation={token}"
    sent = requests.Request("PUT", outside).prepare()
    sent.url = outside  # as a stranger would send it
    assert requests.Session().send(sent, timeout=30).status_code == 400
    assert tier.versions() == [8, 16]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("unread", GeminiError, "503"),
        ("cut", GeminiError, "version 16"),
        ("html", GeminiError, "version 16"),
        ("denied", ConfigError, "permission denied"),
    ],
)
def test_reads_fail_for_as_long_as_they_are_to_and_lists_do_not(tier, store, how, error, said):
    store.strike(how)
    assert [*tier._files.listing()] == ["version-000000000008", "version-000000000016"]
    with pytest.raises(error, match=said):
        read(tier)
    if how == "html":
        assert tier._files.read("version-000000000016/manifest.json") == PAGE
    store.mend(how)
    assert read(tier) == payload(16)


@pytest.mark.parametrize("how", ["unread", "cut", "html", "denied", "stale"])
def test_reads_of_shards_alone_fail_where_a_store_is_asked_for_all_at_once(tier, store, how):
    store.strike(how, 1)
    assert tier.versions() == [8, 16]
    assert tier.manifest(16)["version"] == 16
    with pytest.raises(GeminiError, match="version 16"):
        read(tier)
    store.mend(how)
    assert read(tier) == payload(16)


def test_a_store_that_lists_nothing_still_gives_what_is_asked_for_by_name(tier, store):
    store.strike("unlisted")
    assert tier.versions() == []
    assert read(tier) == payload(16)
    store.mend("unlisted")
    assert tier.versions() == [8, 16]


def test_a_list_that_is_late_lacks_the_newest_versions_and_what_is_written_since(tier, store):
    store.strike("late", 0)
    save(tier, 24)
    assert tier.versions() == [8]
    assert read(tier, 24) == payload(24)
    store.mend("late")
    assert 24 in tier.versions()


def test_reads_that_are_stale_know_nothing_of_the_newest_versions(tier, store):
    store.strike("stale", 0)
    assert "version-000000000016" in tier._files.listing()
    assert read(tier, 8) == payload(8)
    with pytest.raises(GeminiError, match="version 16"):
        read(tier)
    store.mend("stale")
    assert read(tier) == payload(16)


def test_one_call_is_slow_and_the_others_are_not(tier, store):
    store.strike("slow_call", 1)  # a read
    answers = []
    slow = threading.Thread(target=lambda: answers.append(read(tier)), daemon=True)
    slow.start()
    while slow.is_alive() and not answers:
        try:
            assert requests.get(url_of(store, "version-000000000008", "LISTSTATUS"), timeout=30).ok
            break
        except requests.Timeout:
            pytest.fail("another call stood still")
    slow.join(0.5)
    assert slow.is_alive()
    assert tier.versions() == [8, 16]  # these are calls of the same kind
    store.mend("slow_call")
    slow.join(30)
    assert answers == [payload(16)]


def url_of(store, path, op):
    (token,) = store.environment.values()
    return f"{store.url.replace('webhdfs', 'http')}/{path}?op={op}&delegation={token}".replace(
        "/tier/", "/webhdfs/v1/tier/"
    )


def test_several_ways_may_overlap_and_end_one_by_one(tier, store):
    store.strike("unlisted")
    store.strike("unread")
    store.mend("unlisted")
    with pytest.raises(GeminiError, match="503"):
        tier.versions()
    store.mend("unread")
    assert tier.versions() == [8, 16]


def test_a_file_takes_the_place_of_another_in_one_step(tier, store, tmp_path):
    """A process that is killed as it writes leaves what was there."""
    name = "version-000000000016/manifest.json"
    before = (tmp_path / "tier" / name).read_bytes()
    answer = requests.put(url_of(store, name, "CREATE"), allow_redirects=False, timeout=30)
    requests.put(answer.headers["Location"], timeout=30).raise_for_status()
    assert (tmp_path / "tier" / name).read_bytes() == before
    assert tier.versions() == [8, 16]


def test_a_store_whose_way_is_closed_says_so_and_never_that_it_is_empty(tmp_path, tier):
    (tmp_path / "tier").rename(tmp_path / "elsewhere")
    (tmp_path / "tier").symlink_to(tmp_path / "tier")
    with pytest.raises(GeminiError, match="could not"):
        tier.versions()


def test_a_store_ends_with_the_campaign_that_made_it(tmp_path):
    (tmp_path / "tier").mkdir()
    program = f"""
from gemini_lab_bench.chaos.store import BreakableStore
from pathlib import Path
import sys
with BreakableStore(Path({str(tmp_path)!r}) / "tier") as store:
    print(store._server.pid, flush=True)
    sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as campaign:
        pid = int(campaign.stdout.readline())
        campaign.kill()
    import psutil

    server = psutil.Process(pid) if psutil.pid_exists(pid) else None
    if server is not None:
        server.wait(60)
