"""A protected job's settings in groups: the `"gemini"` block of `ds_config.json`, checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from inspect import cleandoc
from typing import Any, Final

from gemini_lab.errors import SHOWN, ConfigError, shown
from gemini_lab.limits import (
    above_zero,
    above_zero_or_none,
    module_names,
    named,
    one_of,
    require_limits,
    share,
    zero_or_more,
    zero_or_more_or_none,
)
from gemini_lab.units import MIB, PerNode, format_bytes, parse_bandwidth, parse_bytes

SettingValue = str | int | float | bool | None
"""A setting as a person writes it: a number, a word, `"4 MiB"`."""

SCHEMES: Final = ("background", "none", "blocking", "naive", "interleaved", "gemini")
SCHEDULED: Final = ("naive", "interleaved", "gemini")
"""The schemes whose chunks wait for idle spans, and so need a profile."""

AUTO: Final = "auto"
"""What `replicas` may be in place of a number."""
FEWEST_REPLICAS: Final = 2
"""Copies of each shard at least, where nobody says how many and there is memory for them."""

LOGGED_RANKS: Final = 64
"""Of more ranks the log has no training collectives, unless a person asks for them."""

LAYERS: Final = ("lab", "config block", "command line")
"""Who may say a setting; what comes later wins. What nobody says has its default."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """How many copies of each shard are in CPU memory, on which nodes.

    Attributes:
        replicas: Copies of each shard in CPU memory, the owner's own included (the paper's m).
            `"auto"` means `adapt_replicas`, with at least two copies of each shard.
        adapt_replicas: Whether copies follow the risk: `replicas` of each shard if there is memory
            for them, and more of shards in danger, so that memory survives with the chance
            `survival_target`. If other machines fail, or less memory is there, the root agent
            places copies again between two iterations.
        replica_memory: Memory on each node for copies, both buffers of each counted: a size, and
            others for some nodes, such as `"64 GiB, node-3: 16 GiB"`. `None`: half of what is free
            when the node joins, shared with other nodes on the same machine.
        adapt_pause_s: Least time between two placements of copies, unless all workers start again
            anyway.
        keep_in_memory: Whole versions of each shard that stay in CPU memory while the next one is
            written, on every node that keeps the shard: `protected.rewind` can go back so far. Each
            takes the shard's size once more, on all its holders.
        keep_gradients: Whether a version has the newest gradient, too. A step may leave a weight
            out, such as of layers dropped at random. DeepSpeed's ZeRO 3, and stages 1 and 2 with an
            offload, then update it with the gradient of an earlier step: only so does such a
            training come back with the same numbers. It takes the bytes of a gradient more. The
            script sets it, in its `"gemini"` block.
        strategy: Placement: `"auto"` (group if replicas divides nodes, else mixed), `"group"`,
            `"ring"`, `"mixed"` or `"hosted"`.
        chunk_bytes: Bytes that one checksum covers and one message carries.
    """

    replicas: int = above_zero(2)
    adapt_replicas: bool = False
    replica_memory: str | float | None = None
    adapt_pause_s: float = zero_or_more(600.0)
    keep_in_memory: int = above_zero(1)
    keep_gradients: bool = False
    strategy: str = "auto"
    chunk_bytes: int = above_zero(4 * MIB)

    @property
    def room_for_replicas(self) -> PerNode:
        """Bytes on each node for copies, as far as the user says."""
        return PerNode.parse("replica_memory", self.replica_memory, read=parse_bytes)


@dataclass(frozen=True, kw_only=True)
class RiskSettings:
    """How often machines fail, for copies that follow the risk.

    Attributes:
        survival_target: The chance that memory alone brings training back from all failures within
            `survival_days`.
        survival_days: That time.
        failures_per_day: How often a node fails a day before a run has seen it fail: one number,
            and others for some nodes, such as `"0.015, node-3: 0.5"`. It weighs as much as 30 days
            of a node's log.
        rack_failures_per_day: The same for a rack, with all its nodes.
        repair_s: From a node's loss until its copies exist again on its successor.
        risk_from: Folders of earlier runs on these machines, separated by commas: the launcher
            learns from their logs how often each node fails. Nodes are known by their names.
    """

    survival_target: float = 0.999
    survival_days: float = above_zero(30.0)
    failures_per_day: str | float = 0.015
    rack_failures_per_day: float = zero_or_more(0.0)
    repair_s: float = zero_or_more(600.0)
    risk_from: str | None = None

    @property
    def expected_failures(self) -> PerNode:
        """Failures a day of each node, before a run has seen any."""
        return PerNode.parse("failures_per_day", self.failures_per_day)


@dataclass(frozen=True, kw_only=True)
class SavingSettings:
    """When versions go to the persistent tier, and how long a run waits for one.

    Attributes:
        persistent_url: The persistent tier (any fsspec URL); `None` switches it off.
        persist_every_s: Time between versions in the persistent tier (the paper: 3 hours).
        persist_every_iterations: The same counted in iterations; the earlier one counts.
        persist_limit_s: Longest time for a save; the root agent gives up a later version.
        keep_versions: Persistent versions that are kept; older ones are deleted.
        give_up_progress_after_s: How long a run waits for versions that may come back (a silent
            node's memory, a persistent tier that cannot be read) before it goes on from an older
            one, or from its start. `None`: until the user says so.
    """

    persistent_url: str | None = None
    persist_every_s: float | None = above_zero_or_none(3 * 3600.0)
    persist_every_iterations: int | None = above_zero_or_none(None)
    persist_limit_s: float = above_zero(600.0)
    keep_versions: int = above_zero(2)
    give_up_progress_after_s: float | None = zero_or_more_or_none(None)


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """The reactions of a run when training goes wrong.

    Attributes:
        on_divergence: If an iteration that is done again after a recovery differs from the first
            time: `"warn"` says so in log, terminal and report; `"stop"` also ends the run.
        on_code_change: If workers start with other code than the run executed last, because a file
            of the script was edited since: `"warn"` says which in log, terminal and report, and
            trains on; `"stop"` ends the run before it trains with that code.
        on_unkept_updates: If the weights change and the optimizer that `protect` was given makes no
            update, as when the script has made another one: `"warn"` says so after three such
            changes in a row, in log and terminal; `"stop"` also ends the run if a loop over
            `protected.steps` or `protected.epochs` comes to 30 of them.
        on_not_finite: If a logged `loss` is NaN or infinite: `"warn"` says so in log, terminal and
            report; `"hold"` also saves no version to the persistent tier until losses are numbers
            again, so that good ones stay there (a user may ask for a save); `"stop"` also ends the
            run. `"rewind"` checks every rank's loss and state before a version leaves, which costs
            the ranks one small exchange an iteration: if one is no number, all go back to the
            version before, without the batches that led there; if that does not help, further
            back, as far as `keep_in_memory` reaches; then the run ends.
        rewind_on_spike: The same if the ranks' mean loss is more than so many standard deviations
            above the mean of the newest good ones (of 128, and of at least 32), such as 6; `None`:
            no loss is too high.
        verify_every: Each iteration of a number that this divides is computed once more, the work
            of each rank by another machine, and compared; if the answers differ, once more on a
            third. It takes the time of an iteration, and memory for one more version of each shard
            on all its holders, for the newest verified one. `None`: no iteration is.
        on_wrong_sums: If a machine computes wrong: `"drain"` moves its ranks to another machine for
            good, and training goes on from the newest verified version; if nothing tells which
            machine it is, the run ends. `"stop"` ends the run in any case; `"warn"` says so in log,
            terminal and report, and trains on.
        max_same_errors: How often a run tolerates the same exception of its script, also if it
            makes progress in between; `None`: no limit.
    """

    on_divergence: str = one_of("warn", ("warn", "stop"))
    on_code_change: str = one_of("warn", ("warn", "stop"))
    on_unkept_updates: str = one_of("stop", ("stop", "warn"))
    on_not_finite: str = one_of("hold", ("hold", "warn", "stop", "rewind"))
    rewind_on_spike: float | None = above_zero_or_none(None)
    verify_every: int | None = above_zero_or_none(None)
    on_wrong_sums: str = one_of("drain", ("drain", "stop", "warn"))
    max_same_errors: int | None = above_zero_or_none(5)

    @property
    def is_guarded(self) -> bool:
        """Whether ranks check each iteration before its version leaves, and may take it back."""
        return self.on_not_finite == "rewind" or self.rewind_on_spike is not None


@dataclass(frozen=True, kw_only=True)
class ResizeSettings:
    """How a run changes its number of nodes.

    Attributes:
        data_on_resize: If a position in the data has no meaning for another number of ranks:
            `"refuse"` does not load a version of such a number; `"restart"` reads from the
            beginning, and says so.
        when_short: If a run has lost a machine and has no other: `"wait"` for one; `"shrink"` also
            waits, but for `shrink_after_s` only; then it continues with the nodes that are there,
            its shards divided again, and grows when a machine joins.
        shrink_after_s: How long such a run waits for a machine; 0: not at all.
        grow_pause_s: Least time between a change of size and a growth by a machine that joins.
            It doubles after each growth, up to half an hour. So a machine that comes and goes does
            not restart the run each time.
        batch_on_resize: `"keep"` refuses another number of nodes if the global batch would change;
            `"change"` leaves it to the script.
    """

    data_on_resize: str = one_of("refuse", ("refuse", "restart"))
    when_short: str = one_of("wait", ("wait", "shrink"))
    shrink_after_s: float = zero_or_more(30.0)
    grow_pause_s: float = above_zero(60.0)
    batch_on_resize: str = one_of("keep", ("keep", "change"))


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """When a worker counts as hung, and how its process starts again.

    Attributes:
        min_progress_s: A worker that stands still in a step for this long, or for ten times the
            median iteration if that is longer, counts as hung; so does one whose process is
            stopped for this long.
        idle_s: A worker that does nothing outside its steps for this long (it starts, loads data,
            evaluates), or sends nothing, counts as hung. `protected.pause` is for what may take
            longer.
        on_slow: If a rank works much longer in each iteration than the others, so that these wait:
            `"warn"` names it with the evidence in log, terminal, `status` and metrics; `"drain"`
            also moves its node's ranks to another machine, once for each rank.
        on_ailing: If a machine tells of a fault after which it will fail, or may compute wrong:
            `"drain"` moves its ranks to another machine, `"warn"` only names it. Other faults are
            only named in any case (`docs/how-to/health.md`).
        reads_ahead: Whether the script asks its loader for the next batch before it trains on the
            one that it has, as prefetchers for GPUs do. A version then counts the batches that
            training has used. The script sets it, in its `"gemini"` block.
        preload: Modules of installed packages that a restart finds imported, separated by commas,
            such as "transformers,gemini_lab.adapters.transformers". The launcher sets it
            (`--set preload=...`): they are imported before the script sets its environment.
        keep_processes: Whether ranks that are not lost keep their process through a recovery: they
            end their iteration with whatever numbers there are, discard it, and go on from the
            chosen version, with new process groups; only the lost ranks start again. What a script
            prints of that iteration means nothing. The launcher sets it
            (`--set keep_processes=true`), for loops over `protected.steps`, and for DeepSpeed on
            CPUs; if a process cannot go on, all start again (`docs/how-to/keep.md`).
    """

    min_progress_s: float = above_zero(30.0)
    idle_s: float = above_zero(300.0)
    on_slow: str = one_of("warn", ("warn", "drain"))
    on_ailing: str = one_of("drain", ("drain", "warn"))
    reads_ahead: bool = False
    preload: str | None = module_names(None)
    keep_processes: bool = False


@dataclass(frozen=True, kw_only=True)
class TrafficSettings:
    """When a version's chunks leave, and as what.

    Attributes:
        scheme: `"background"`: at once, as fast as the link takes them. `"gemini"`,
            `"interleaved"`, `"naive"`: in the idle spans of a profile (paper, Fig. 16).
            `"blocking"`: while training waits. `"none"`: there are no versions, and a failure sends
            the job back to its start.
        replicate: What peers get of a version: `"copies"`: the whole shard. `"gradients"`: the
            reduced gradient, with which each peer makes the optimizer's step itself: about a third
            of the bytes for Adam, for a process of each worker that computes the step once more.
            The root agent counts what a peer made only if it has its owner's checksums; a part that
            differs comes in full. For DeepSpeed's ZeRO on CPUs, with Adam, AdamW or SGD.
        full_copy_every: With `"gradients"`: of so many versions one is sent in full anyway; `None`
            for only the first of each start.
        max_overhead: Largest tolerated mean delay as a share of the iteration; if sending every
            version would cost more, every j-th is sent. `None`: every version, at any cost.
        log_collectives: Whether the log has every training collective, for the traffic timeline:
            two thirds of a log. `None`: if at most `LOGGED_RANKS` train. On CUDA only the schemes
            that profile the job have them.
        link_bytes_per_s: Paces each node's link to this rate, training and checkpoints alike.
        copy_bytes_per_s: Empties received sub-buffers at this rate, as a bus to CPU memory does.
    """

    scheme: str = named("background", SCHEMES)
    replicate: str = one_of("copies", ("copies", "gradients"))
    full_copy_every: int | None = above_zero_or_none(None)
    max_overhead: float | None = above_zero_or_none(None)
    log_collectives: bool | None = None
    link_bytes_per_s: float | None = above_zero_or_none(None)
    copy_bytes_per_s: float | None = above_zero_or_none(None)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Describe what the settings emulate, for every result that is made with them."""
        found = []
        if self.link_bytes_per_s is not None:
            found.append(f"each node on a link paced to {format_bytes(self.link_bytes_per_s)}/s")
        if self.copy_bytes_per_s is not None:
            found.append(f"sub-buffers emptied at {format_bytes(self.copy_bytes_per_s)}/s")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How the schemes that profile a job plan their chunks.

    Attributes:
        algorithm: How scheme `"gemini"` plans its chunks: `"drain"` with the sub-buffers' drain in
            view and slack before delay, `"paper"` by the paper's Algorithm 2.
        profile_iterations: Iterations without checkpoint traffic that make the profile. Meanwhile
            every second version is sent, in the background.
        mu: Share of each idle span to fill, if that suffices.
        buffer_bytes: Memory between wire and slab; all sub-buffers together.
        sub_buffers: How many chunks are in it at once.
    """

    algorithm: str = named("drain", ("drain", "paper"))
    profile_iterations: int = above_zero(20)
    mu: float = share(0.8)
    buffer_bytes: int = above_zero(128 * MIB)
    sub_buffers: int = above_zero(4)


@dataclass(frozen=True, kw_only=True)
class Settings(  # the last base has the first fields
    PlanSettings,
    TrafficSettings,
    ProcessSettings,
    ResizeSettings,
    GuardSettings,
    SavingSettings,
    RiskSettings,
    ReplicaSettings,
):
    """How a job's checkpoints are kept: a user writes each setting by its own name."""

    def __post_init__(self) -> None:
        require_limits(self)
        self._check_buffers()
        self._check_none()
        self._check_replicas()

    def _check_buffers(self) -> None:
        if self.buffer_bytes < self.sub_buffers:
            raise ConfigError(
                f"buffer_bytes={self.buffer_bytes} leaves nothing for each of {self.sub_buffers} "
                "sub-buffers; raise it"
            )

    def _check_replicas(self) -> None:
        """Refuse what does not go with copies that follow the risk."""
        if not 0 <= self.survival_target < 1:
            raise ConfigError(
                f"survival_target is a chance below 1 (got {shown(self.survival_target)}); with "
                f"0.999 memory survives {self.survival_days:g} days in all of 1,000 runs but one"
            )
        _ = self.expected_failures, self.room_for_replicas
        if not self.adapt_replicas:
            return
        if self.scheme in (*SCHEDULED, "none"):
            raise ConfigError(
                f'"replicas": "auto" gives some shards more copies than others, and scheme '
                f'{self.scheme!r} plans for as many of each, or none; use "background" or '
                '"blocking", or a number of replicas'
            )
        if self.strategy != "auto":
            raise ConfigError(
                f'"replicas": "auto" chooses who keeps what, and strategy={self.strategy!r} too; '
                "leave one of them out"
            )

    def _check_none(self) -> None:
        """Refuse what needs versions beside the scheme that keeps none."""
        if self.scheme != "none":
            return
        if self.when_short == "shrink":
            raise ConfigError(
                'scheme "none" keeps no versions with which fewer nodes could go on; choose '
                'another scheme, or "when_short": "wait"'
            )
        if self.is_guarded:
            raise ConfigError(
                'scheme "none" keeps no versions, so there is none to go back to; choose another '
                'scheme, or leave out "on_not_finite": "rewind" and rewind_on_spike'
            )
        if self.verify_every is not None:
            raise ConfigError(
                'scheme "none" keeps no versions, so there is no verified one to go back to; '
                "choose another scheme, or leave out verify_every"
            )

    @property
    def buffers(self) -> int:
        """Room for each shard on each of its holders, in shards: one is being written.

        One more is for the newest verified version.
        """
        return self.keep_in_memory + 1 + (self.verify_every is not None)

    @classmethod
    def parse(cls, block: Mapping[str, SettingValue]) -> "Settings":
        """Return the settings in a `"gemini"` block; sizes may be written like `"4 MiB"`.

        Raises:
            ConfigError: A name is unknown or a value impossible.
        """
        return cls().updated(block)

    @classmethod
    def layered(cls, *layers: Mapping[str, SettingValue]) -> "Settings":
        """Return the settings of these `LAYERS`, as many as are known, together.

        Raises:
            ConfigError: As `parse`.
        """
        settings = cls()
        for layer in layers:
            settings = settings.updated(layer)
        return settings

    def updated(self, changes: Mapping[str, SettingValue]) -> "Settings":
        """Return these settings with some replaced."""
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise ConfigError(_unknown(unknown, known))
        values = _with_replicas(changes)  # their types are checked below
        for name, read in _READ.items():
            if values.get(name) is not None:
                try:
                    values[name] = read(values[name])
                except ConfigError as error:
                    raise ConfigError(f"the gemini setting {name}: {error}") from error
        return replace(self, **values)

    def to_json(self) -> dict[str, SettingValue]:
        """Return the settings as plain JSON values; `parse` reads them."""
        return asdict(self)


GROUPS: Final = tuple(reversed(Settings.__bases__))
"""The groups of settings, in the order of their fields; each documents its own."""
_TEXTS: Final = [cleandoc(group.__doc__ or "").partition("Attributes:\n")[2] for group in GROUPS]
Settings.__doc__ = f"{Settings.__doc__}\n\nAttributes:\n" + "\n".join(map(str.rstrip, _TEXTS))


_READ: Final[Mapping[str, Callable[[Any], float]]] = {
    "chunk_bytes": parse_bytes,
    "buffer_bytes": parse_bytes,
    "link_bytes_per_s": parse_bandwidth,
    "copy_bytes_per_s": parse_bandwidth,
}
"""What reads the settings that may have a unit."""


def _with_replicas(changes: Mapping[str, SettingValue]) -> dict[str, Any]:
    """The same changes with a number of replicas, where they follow the risk the fewest."""
    values: dict[str, Any] = dict(changes)
    if "replicas" not in values:
        return values
    is_auto = values["replicas"] == AUTO
    values.setdefault("adapt_replicas", is_auto)
    if is_auto:
        values["replicas"] = FEWEST_REPLICAS
    elif isinstance(values["replicas"], str):
        raise ConfigError(
            f"the gemini setting replicas={shown(values['replicas'])} has the wrong type; it has "
            f'to be "{AUTO}" or a whole number'
        )
    return values


def _unknown(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Name the settings nearest to names that are none."""
    near = [name for each in unknown for name in get_close_matches(each[:SHOWN], known, n=3)]
    nearest = f"the nearest: {', '.join(dict.fromkeys(near))}; " if near else ""
    names = ", ".join(map(shown, unknown))
    return f"the gemini settings have no {names}; {nearest}help(gemini_lab.Settings) has all"


def origins(*layers: Mapping[str, SettingValue]) -> dict[str, str]:
    """Return the source of each setting: one of `LAYERS`, or `"default"`."""
    found = {field.name: "default" for field in fields(Settings)}
    for name, layer in zip(LAYERS, layers, strict=False):
        found |= dict.fromkeys(layer, name)
        if "replicas" in layer:
            found["adapt_replicas"] = name
    return found
