"""The persistent tier: whole versions or none, every wrong bit found, every refusal explained."""

import errno
import os
import random
import shutil
import subprocess
import uuid
from pathlib import Path

import fsspec
import msgspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from made import made
from safetensors import safe_open

from gemini_lab.errors import (
    CapacityError,
    ConfigError,
    GeminiError,
    IntegrityError,
    UnreadError,
)
from gemini_lab.recovery.messages import VersionMeta
from gemini_lab.recovery.plan import Stored, VersionId
from gemini_lab.shard.layout import ShardLayout, ShardRecord, lay_out
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage.persistent import PersistentTier


def layout(rank: int = 0) -> ShardLayout:
    tensors = lay_out(
        [
            ("0.master", "float32", (25,)),
            ("0.exp_avg", "bfloat16", (25,)),
            ("1.x", "float64", ()),
            ("1.count", "int64", (3,)),
            ("1.phase", "complex128", (2,)),
        ],
        start_bytes=100,
    )
    return made(
        ShardLayout,
        rank=rank,
        world_size=2,
        stage=3,
        optimizer="Adam",
        tensors=tensors,
        small_offset_bytes=0,
        small_capacity_bytes=100,
        payload_bytes=tensors[-1].offset_bytes + tensors[-1].size_bytes,
        weights={"w": (25,)},
    )


def payload(version: int, shard: int) -> bytes:
    return random.Random(version * 10 + shard).randbytes(layout().payload_bytes)


def save(tier: PersistentTier, version: int, **meta) -> None:
    records = [
        tier.write_shard(version, shard, payload(version, shard), layout(shard)) for shard in (1, 0)
    ]
    tier.commit(version, records, meta)


class BrokenStore(MemoryFileSystem):
    """A store that fails at what it is told to: `fails` holds name of operation: error."""

    protocol = "broken"
    cachable = False
    fails: dict[str, Exception] = {}  # noqa: RUF012 - the tests set it
    short_bytes: int | None = None

    def _fail(self, name):
        if name in self.fails:
            raise self.fails[name]

    def makedirs(self, path, exist_ok=False):  # noqa: FBT002
        self._fail("makedirs")
        super().makedirs(path, exist_ok=exist_ok)

    def _open(self, path, mode="rb", **kwargs):
        if "w" in mode and path.endswith(".json"):
            self._fail("write manifest")
        self._fail("write" if "w" in mode else "read")
        return super()._open(path, mode, **kwargs)

    def pipe_file(self, path, value, **kwargs):
        self._fail("write")
        super().pipe_file(path, value, **kwargs)

    def ls(self, path, detail=True, **kwargs):  # noqa: FBT002
        self._fail("list")
        return super().ls(path, detail=detail, **kwargs)

    def rm(self, path, **kwargs):
        self._fail("remove")
        super().rm(path, **kwargs)

    def info(self, path, **kwargs):
        found = super().info(path, **kwargs)
        return found if self.short_bytes is None else found | {"size": self.short_bytes}


fsspec.register_implementation("broken", BrokenStore, clobber=True)


@pytest.fixture
def broken(monkeypatch):
    def fail(**errors):
        named = {name.replace("_", " "): error for name, error in errors.items()}
        monkeypatch.setattr(BrokenStore, "fails", named)

    yield fail
    BrokenStore.fails = {}


@pytest.fixture(params=["folder", "file", "memory"])
def tier(request, tmp_path):
    urls = {
        "folder": str(tmp_path / "a" / "b"),
        "file": f"file://{tmp_path}/c",
        "memory": f"memory://{uuid.uuid4()}",
    }
    return PersistentTier(urls[request.param])


def test_a_saved_version_is_read_back_with_its_layout(tier):
    assert tier.versions() == []
    tier.check(1000)
    save(tier, 12, job="test")
    assert tier.versions() == [12]
    for shard in (0, 1):
        assert tier.read_file(12, shard)[0] == payload(12, shard)
        assert tier.read_file(12, shard)[1] == layout(shard)
    assert tier.manifest(12)["meta"] == {"job": "test"}
    assert [record["shard"] for record in tier.manifest(12)["shards"]] == [0, 1]


def test_a_folder_is_one_runs_and_another_is_told_the_way_out(tier):
    tier.claim(7)
    tier.claim(7)  # once more, as after a loss of the owner
    with pytest.raises(ConfigError, match=r"another run, and it has no version yet; .*--resume"):
        tier.claim(8)
    save(tier, 12)
    with pytest.raises(ConfigError, match=r"another run, and it has its versions \[12\]"):
        tier.claim(8)
    assert (tier.owner(), tier.versions()) == (7, [12])


def test_a_look_refuses_what_a_claim_would_and_writes_nothing(tmp_path):
    tier = PersistentTier(str(tmp_path / "new" / "tier"))
    tier.look()
    assert not any(tmp_path.iterdir())
    tier.claim(7)
    with pytest.raises(ConfigError, match="belongs to another run"):
        tier.look()
    tier.look(is_resumed=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="a part of that path is a file"):
        PersistentTier(str(tmp_path / "file" / "tier")).look()


def test_who_resumes_takes_the_folder_over_with_all_that_is_there(tier):
    tier.claim(7)
    save(tier, 12)
    tier.claim(8, is_resumed=True)
    assert (tier.owner(), tier.versions()) == (8, [12])


def test_versions_without_an_owner_are_some_other_runs(tier):
    save(tier, 12)
    with pytest.raises(ConfigError, match=r"has its versions \[12\]"):
        tier.claim(8)


def test_a_version_without_its_manifest_does_not_exist(tier):
    tier.write_shard(3, 0, payload(3, 0), layout())
    assert tier.versions() == []
    assert tier.survey().unclear == []
    with pytest.raises(UnreadError, match=r"version 3 cannot be read .* manifest is not there"):
        tier.read_file(3, 0)


def test_the_newest_versions_are_kept_and_nothing_else(tier):
    tier.write_shard(2, 0, payload(2, 0), layout())  # never became a version
    for version in (1, 3, 5, 8):
        save(tier, version)
    assert tier.versions() == [5, 8]
    assert tier._versions_begun() == [5, 8]


def test_a_version_saved_after_a_fall_back_is_kept(tier):
    for version in (10, 20, 15):
        save(tier, version)
    assert tier.versions() == [15, 20]


def of_history(rewinds: int, left: list[VersionId] = []) -> dict[str, object]:  # noqa: B006
    """What the manifest of a version says that was made after so many rewinds."""
    meta = made(
        VersionMeta,
        job="test",
        lineage=Lineage(run=7, epoch=1, rewinds=rewinds),
        world_size=2,
        left=left,
    )
    return msgspec.to_builtins(meta)


def test_a_version_is_of_the_history_that_it_was_made_in_rewinds_included(tier):
    """Otherwise one that was saved after a rewind passes for one that the rewind left."""
    save(tier, 15, **of_history(1))
    assert tier.survey().stored == [Stored(version=15, lineage=Lineage(run=7, epoch=1, rewinds=1))]


def test_what_a_rewind_left_behind_counts_no_more_for_who_goes_on_from_here(tier):
    """Another run knows of the rewind by what was saved since, and by nothing else."""
    tier.keep = 3
    for version in (10, 20):
        save(tier, version, **of_history(0))
    left = [VersionId(version=12, lineage=Lineage(run=7, epoch=1))]
    records = [tier.write_shard(15, shard, payload(15, shard), layout(shard)) for shard in (0, 1)]
    assert tier.versions() == [10, 20]
    tier.commit(15, records, of_history(1, left))
    assert tier.versions() == [10, 15]
    assert tier._versions_begun() == [10, 15]


def test_what_was_left_counts_no_more_although_no_version_was_saved_since(tier):
    save(tier, 12, **of_history(0))
    save(tier, 14, **of_history(0))
    tier.disown([VersionId(version=12, lineage=Lineage(run=7, epoch=1))])
    tier.disown([VersionId(version=13, lineage=Lineage(run=7, epoch=1))])
    assert tier.versions() == [12]
    assert tier.survey().disowned == [VersionId(version=12, lineage=Lineage(run=7, epoch=1))]
    save(tier, 13, **of_history(1))
    assert tier.versions() == [12, 13]


def test_what_was_left_is_forgotten_with_the_last_version_of_its_run(tier):
    save(tier, 12, **of_history(0))
    tier.disown([VersionId(version=12, lineage=Lineage(run=7, epoch=1))])
    for version in (13, 14):
        save(tier, version, lineage={"run": 8, "epoch": 1, "rewinds": 0})
    assert not [name for name in tier._files.listing() if name.startswith("left")]
    assert tier.versions() == [13, 14]


def test_what_was_left_takes_no_place_of_a_good_version(tier):
    for version in (10, 20):
        save(tier, version, **of_history(0))
    left = [VersionId(version=12, lineage=Lineage(run=7, epoch=1))]
    save(tier, 15, **of_history(1, left))
    assert tier.versions() == [10, 15]


def test_who_was_held_up_while_others_saved_removes_nothing_of_theirs(tier, monkeypatch):
    """A manifest that a frozen machine writes late; the newer version has a lower number."""
    save(tier, 10)
    records = [tier.write_shard(30, shard, payload(30, shard), layout(shard)) for shard in (0, 1)]
    put = tier._files.put

    def put_late(path, parts):
        monkeypatch.undo()
        save(tier, 29)
        put(path, parts)

    monkeypatch.setattr(tier._files, "put", put_late)
    tier.commit(30, records, {})
    assert 29 in tier.versions()


def test_a_version_can_be_saved_again(tier):
    save(tier, 4)
    record = tier.write_shard(4, 0, payload(99, 0), layout())
    assert tier.read_file(4, 0)[0] == payload(4, 0)  # until it is committed
    other = tier.write_shard(4, 1, payload(4, 1), layout(1))
    tier.commit(4, [record, other], {})
    assert tier.read_file(4, 0)[0] == payload(99, 0)
    assert len(tier._files.listing("version-000000000004")) == 3


def test_a_shard_file_opens_with_safetensors_alone(tmp_path):
    save(PersistentTier(str(tmp_path)), 1)
    path = next(tmp_path.glob("version-*/shard-0000-*.safetensors"))
    with safe_open(path, "pt") as file:
        master = file.get_tensor("0.master")
        assert file.get_tensor("0.exp_avg").shape == (25,)
        assert file.get_tensor("1.x").shape == ()
        assert file.get_tensor("1.count").shape == (3,)
    start = layout().tensors[0].offset_bytes
    assert master.numpy().tobytes() == payload(1, 0)[start : start + 100]


def test_a_version_needs_every_shard(tier):
    record = tier.write_shard(4, 1, payload(4, 1), layout(1))
    with pytest.raises(IntegrityError, match=r"version 4 has shards \[1\]"):
        tier.commit(4, [record], {})


def test_a_version_does_not_exist_where_machines_wrote_to_disks_of_their_own(tmp_path):
    """The same path on two machines, and no shared file system behind it on one of them."""
    here, there = (PersistentTier(str(tmp_path / name)) for name in ("here", "there"))
    records = [
        tier.write_shard(4, shard, payload(4, shard), layout(shard))
        for shard, tier in enumerate((here, there))
    ]
    with pytest.raises(IntegrityError, match=r"shard 1 of version 4 .* on all machines"):
        here.commit(4, records, {})
    assert here.versions() == []


def test_a_listing_that_is_old_does_not_hide_what_others_wrote(tier, monkeypatch):
    records = [tier.write_shard(4, shard, payload(4, shard), layout(shard)) for shard in (0, 1)]
    monkeypatch.setattr(tier._files, "listing", lambda _="": {})
    tier.commit(4, records, {})
    monkeypatch.undo()
    assert tier.versions() == [4]


def unclear(tier: PersistentTier) -> list[int]:
    """The versions that were saved and are not whole as it shows."""
    return [one.version for one in tier.survey().unclear]


def test_a_version_with_a_missing_or_cut_shard_file_is_unclear_and_not_damaged(tmp_path):
    tier = PersistentTier(str(tmp_path))
    save(tier, 1)
    save(tier, 2)
    path = next(tmp_path.glob("version-*2/shard-0001-*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert (tier.versions(), unclear(tier)) == ([1], [2])
    with pytest.raises(
        UnreadError, match=r"of shard 1 of version 2 .* \d+ were written and \d+ came"
    ):
        tier.read_file(2, 1)
    path.unlink()
    assert (tier.versions(), unclear(tier)) == ([1], [2])
    assert f"no bytes of {path.name}" in tier.survey().unclear[0].seen
    with pytest.raises(UnreadError, match="and 0 came"):
        tier.read_file(2, 1)
    path.write_bytes(whole)
    assert (tier.versions(), unclear(tier)) == ([1, 2], [])


@pytest.mark.parametrize("text", [b"", b"null", b"{}", b"<html>503</html>", b"[[[", b"7"])
def test_a_manifest_that_cannot_be_parsed_makes_its_version_unclear(tmp_path, text):
    tier = PersistentTier(str(tmp_path))
    save(tier, 1)
    path = next(tmp_path.glob("*/manifest.json"))
    whole = path.read_bytes()
    for wrong in (text, *(whole[:end] for end in range(1, len(whole), 97))):
        path.write_bytes(wrong)
        assert (tier.versions(), unclear(tier)) == ([], [1])
        with pytest.raises(UnreadError, match="version 1 cannot be read"):
            tier.manifest(1)


def test_bytes_that_come_differently_from_two_reads_are_no_proof_of_damage(tmp_path, monkeypatch):
    """A broken cache or network card of one machine."""
    tier = PersistentTier(str(tmp_path))
    save(tier, 1)
    path = next(tmp_path.glob("*/shard-0000-*"))
    whole = path.read_bytes()
    came = iter([b"x" + whole[1:], b"y" + whole[1:], b"x" + whole[1:], whole])
    read = tier._files.read

    def wrong(name, start=None, end=None):
        return read(name, start, end) if "manifest" in name else next(came)

    monkeypatch.setattr(tier._files, "read", wrong)
    with pytest.raises(UnreadError, match="differently from two reads"):
        tier.read_file(1, 0)
    assert tier.read_file(1, 0)[0] == payload(1, 0)
    came = iter([b"x" + whole[1:]] * 2)
    with pytest.raises(IntegrityError, match="twice alike"):
        tier.read_file(1, 0)


def test_an_unclear_version_stays_until_all_that_are_kept_are_newer(tmp_path):
    tier = PersistentTier(str(tmp_path))
    for version in (1, 2):
        save(tier, version)
    manifest = next(tmp_path.glob("version-*2/manifest.json"))
    text = manifest.read_bytes()
    manifest.write_bytes(b"<html>")
    save(tier, 3)
    assert (tier.versions(), unclear(tier)) == ([1, 3], [2])
    manifest.write_bytes(text)
    assert tier.versions() == [1, 2, 3]
    manifest.write_bytes(b"<html>")
    save(tier, 4)
    assert (tier.versions(), unclear(tier)) == ([3, 4], [])


def test_nothing_is_removed_before_the_new_version_was_read_back(tmp_path, monkeypatch):
    tier = PersistentTier(str(tmp_path), keep=1)
    save(tier, 1)
    read = tier._files.read
    monkeypatch.setattr(tier._files, "read", lambda name, *at: read(name, *at)[:-1])
    with pytest.raises(IntegrityError, match="were not read back as they were written"):
        save(tier, 2)
    wrong_manifest = lambda name, *at: read(name.replace("02/manifest", "01/manifest"), *at)  # noqa: E731
    monkeypatch.setattr(tier._files, "read", wrong_manifest)
    with pytest.raises(UnreadError, match="version 2 cannot be read"):
        save(tier, 2)
    monkeypatch.undo()
    assert 1 in tier._versions_begun()
    assert tier.read_file(1, 0)[0] == payload(1, 0)


def test_what_counts_no_more_is_not_forgotten_where_that_cannot_be_read(tmp_path):
    tier = PersistentTier(str(tmp_path))
    save(tier, 12, **of_history(0))
    tier.disown([VersionId(version=11, lineage=Lineage(run=7, epoch=1))])
    assert tier.versions() == []
    path = tmp_path / "left-7.json"
    text = path.read_bytes()
    path.write_bytes(b"<html>503</html>")
    with pytest.raises(UnreadError, match="which versions no longer count"):
        tier.survey()
    path.write_bytes(text)
    assert tier.versions() == []


def test_an_owner_that_cannot_be_read_is_not_nobody(tmp_path):
    tier = PersistentTier(str(tmp_path))
    tier.claim(7)
    (tmp_path / "owner.json").write_bytes(b"<html>503</html>")
    for refuses in (lambda: tier.claim(8), tier.look, tier.owner):
        with pytest.raises(UnreadError, match="whose it is"):
            refuses()


@pytest.mark.parametrize("seed", range(100))
def test_a_flipped_bit_in_any_file_never_loads_silently(tmp_path, seed):
    tier = PersistentTier(str(tmp_path))
    save(tier, 1)
    draw = random.Random(seed)
    path = draw.choice(sorted(tmp_path.glob("*/*")))
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    is_shard = path.name.startswith("shard")
    with pytest.raises(IntegrityError if is_shard else UnreadError):  # noqa: PT012 - whichever it is
        for shard in (0, 1):
            tier.read_file(1, shard)


def test_a_manifest_of_another_version_does_not_count(tmp_path):
    tier = PersistentTier(str(tmp_path))
    save(tier, 1)
    shutil.copytree(next(tmp_path.glob("version-*1")), tmp_path / "version-000000000002")
    assert (tier.versions(), unclear(tier)) == ([1], [2])


def test_a_payload_of_another_size_than_its_layout_is_refused(tier):
    with pytest.raises(IntegrityError, match="has 3 bytes, its layout"):
        tier.write_shard(1, 0, b"abc", layout())


def test_a_shard_that_the_version_has_not_is_refused(tier):
    save(tier, 1)
    with pytest.raises(IntegrityError, match=r"has shards \[0, 1\], not 2"):
        tier.read_file(1, 2)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), CapacityError, "it is full .* free space"),
        (OSError(errno.EROFS, "Read-only"), ConfigError, "not allowed there .* mount it writable"),
        (PermissionError("denied"), ConfigError, "not allowed there"),
        (OSError(errno.EIO, "Input/output error"), GeminiError, "check that it is reachable"),
        (RuntimeError("AccessDenied: who?"), GeminiError, "RuntimeError: AccessDenied"),
    ],
)
def test_a_failing_store_is_explained_and_older_versions_stay(broken, error, kind, message):
    tier = PersistentTier(f"broken://{uuid.uuid4()}")
    save(tier, 1)
    for operation in ("write", "write manifest", "makedirs"):
        broken(**{operation.replace(" ", "_"): error})
        with pytest.raises(kind, match=message):
            save(tier, 2)
        if operation != "write manifest":
            with pytest.raises(kind, match=message):
                tier.check()
        broken()
        assert tier.versions() == [1]
        assert tier.read_file(1, 0)[0] == payload(1, 0)
    save(tier, 2)
    assert tier.versions() == [1, 2]


def test_a_store_that_cannot_be_read_is_an_error_and_not_an_empty_one(broken):
    tier = PersistentTier(f"broken://{uuid.uuid4()}")
    save(tier, 1)
    broken(list=ConnectionError("reset"))
    with pytest.raises(GeminiError, match=r"could not list .* check that it is reachable"):
        tier.versions()


def test_old_versions_that_cannot_be_removed_do_not_undo_the_new_one(broken):
    tier = PersistentTier(f"broken://{uuid.uuid4()}", keep=1)
    save(tier, 1)
    broken(remove=OSError(errno.EIO, "Input/output error"))
    with pytest.warns(UserWarning, match="version 2 is whole, but could not remove"):
        save(tier, 2)
    assert 2 in tier.versions()


def test_bytes_that_did_not_arrive_are_noticed(monkeypatch):
    tier = PersistentTier(f"broken://{uuid.uuid4()}")
    monkeypatch.setattr(BrokenStore, "short_bytes", 7)
    with pytest.raises(IntegrityError, match=r"7 of .* bytes reached"):
        tier.write_shard(1, 0, payload(1, 0), layout())


def test_too_little_free_space_is_told_before_writing(tmp_path):
    with pytest.raises(CapacityError, match=r"needs 1024\.0 TiB, but .* are free"):
        PersistentTier(str(tmp_path)).check(2**50)


def test_a_url_without_a_driver_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be opened"):
        PersistentTier("nosuch://bucket/run")
    with pytest.raises(ConfigError, match="keep=0"):
        PersistentTier(str(tmp_path), keep=0)


def mounted(folder: Path, options: str) -> bool:
    """Whether a tmpfs could be mounted at `folder`."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def mount(tmp_path):
    folders = []

    def at(options):
        folder = tmp_path / options.replace("=", "-")
        if not mounted(folder, options):
            pytest.skip("a tmpfs cannot be mounted here")
        folders.append(folder)
        return folder

    yield at
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("url", ["s3:/bucket/run", "s3:bucket/run", "memory:/run"])
def test_a_slash_that_is_missing_makes_no_folder(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"write \w+://\w+.* or \./"):
        PersistentTier(url)
    PersistentTier(f"./{url}").check()
    PersistentTier("lr:0.1").check()


def test_a_really_full_disk_loses_only_the_new_version(mount):
    folder = mount("size=256k")
    tier = PersistentTier(str(folder))
    save(tier, 1)
    with (folder / "ballast").open("wb") as ballast:
        size = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        ballast.write(bytes(size - 4096))
    with pytest.raises(CapacityError, match="it is full"):
        save(tier, 2)
    assert tier.versions() == [1]
    assert tier.read_file(1, 1)[0] == payload(1, 1)
    assert not list(folder.rglob("*.part"))  # their room is free again
    (folder / "ballast").unlink()
    save(tier, 2)
    assert tier.versions() == [1, 2]


def test_a_really_read_only_disk_is_refused_at_the_start(mount):
    tier = PersistentTier(str(mount("ro") / "run"))
    for refuses in (tier.look, tier.check):
        with pytest.raises(ConfigError, match="not allowed there"):
            refuses()


def test_records_survive_json(tier):
    records = [
        tier.write_shard(1, shard, np.frombuffer(payload(1, shard), np.uint8).data, text)
        for shard, text in enumerate([layout(0), layout(1)])
    ]
    told = msgspec.json.decode(msgspec.json.encode(records), type=list[ShardRecord])
    tier.commit(1, told, {})
    assert tier.versions() == [1]
