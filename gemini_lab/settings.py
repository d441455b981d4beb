"""A protected job's settings: the `"gemini"` block of `ds_config.json`, checked at the door."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job's checkpoints are kept.

    Attributes:
        replicas: Copies of each shard in CPU memory, the owner's own included (the paper's m).
            Written as `"auto"` it means `adapt_replicas`, with two copies of each shard at least.
        adapt_replicas: Whether copies follow the risk: `replicas` of each shard where there is
            memory for them, and more of those in danger, so that memory survives with the chance
            `survival_target`. Where other machines fail, or less memory is there, copies are placed
            anew between two iterations.
        survival_target: The chance asked for that memory alone brings training back from all
            failures within `survival_days`.
        survival_days: How long.
        failures_per_day: How often a node is expected to fail, in days, before anything is seen of
            it: one number, others for some nodes, such as `"0.015, node-3: 0.5"`. It weighs as much
            as 30 days of seeing a node.
        rack_failures_per_day: The same of a rack, with all its nodes.
        repair_s: From a node's loss until its copies exist again on its successor.
        replica_memory: Memory on each node for copies, both buffers of each counted: a size, and
            others for some nodes, such as `"64 GiB, node-3: 16 GiB"`. `None`: half of what is free
            when the node joins, shared with other nodes on the same machine.
        risk_from: Folders of earlier runs on these machines, with commas between: the launcher
            learns from their logs how often each node fails. Nodes are known by their names.
        adapt_pause_s: Copies are placed anew so long after the last time at the earliest, unless
            all workers start anew anyway.
        keep_in_memory: Whole versions of each shard that stay in CPU memory while the next one is
            written, on every node that keeps the shard: so far `protected.rewind` can go back. Each
            takes the shard's size once more, on all its holders.
        keep_gradients: Whether a version has the newest gradient beside the weights. DeepSpeed's
            ZeRO 3, and stages 1 and 2 with an offload, update a weight that a step left out, as of
            layers that are dropped at random, with the gradient of an earlier step: such a training
            comes back with the same numbers only so. It takes the bytes of a gradient more. For the
            script to set, in its `"gemini"` block.
        strategy: Placement: `"auto"` (group where replicas divides nodes, else mixed), `"group"`,
            `"ring"`, `"mixed"` or `"hosted"`.
        chunk_bytes: What one checksum covers and one message carries.
        persistent_url: Where the persistent tier lies (any fsspec URL); `None` switches it off.
        persist_every_s: A version goes to the persistent tier this often (the paper: 3 hours).
        persist_every_iterations: The same counted in iterations; whichever comes first.
        persist_limit_s: A version that has not reached the persistent tier by then is given up.
        keep_versions: Persistent versions that are kept; older ones are deleted.
        give_up_progress_after_s: How long a run waits for versions that may come back (a silent
            node's memory, a persistent tier that cannot be read) before it goes on from an older
            one, or from its start. `None`: until a person says so.
        on_divergence: What is done when an iteration that is done again after a recovery differs
            from what it was: `"warn"` says so in log, terminal and report; `"stop"` also ends the
            run.
        on_code_change: What is done when workers start with other code than the run executed last,
            because a file of the script was edited since: `"warn"` says which in log, terminal and
            report, and trains on; `"stop"` ends the run before anything is trained with it.
        on_unkept_updates: What is done when the weights change and the optimizer that `protect` was
            given makes no update, as where the script has made another one: `"warn"` says so after
            three such changes in a row, in log and terminal; `"stop"` also ends the run if a loop
            over `protected.steps` or `protected.epochs` comes to 30 of them.
        on_not_finite: What is done when a `loss` that is logged is NaN or infinite: `"warn"` says
            so in log, terminal and report; `"hold"` also saves no version to the persistent tier,
            unless a person asks for it, until losses are numbers again, so that good ones stay
            there; `"stop"` also ends the run. `"rewind"` looks at every rank's loss and state
            before a version leaves, which costs the ranks one small exchange an iteration: where
            one is no number, all go back to the version before, without the batches that led there;
            if that does not help, further back, as far as `keep_in_memory` reaches; then the run
            ends.
        rewind_on_spike: The same where the ranks' mean loss lies more than so many standard
            deviations above the mean of the newest good ones (of 128, and of 32 at least), such as
            6; `None`: no loss is too high.
        verify_every: Each iteration of a number that this divides is computed once more, the work
            of each rank by another machine, and compared; where the answers differ, once more on a
            third. It takes the time of an iteration, and memory for one more version of each shard
            on all its holders, for the newest verified one stays. `None`: none is.
        on_wrong_sums: What is done when a machine is found to compute wrong: `"drain"` moves its
            ranks to another machine for good, and training goes on from the newest verified
            version; where it cannot be told which machine it is, the run ends. `"stop"` ends the
            run in any case; `"warn"` says so in log, terminal and report, and trains on.
        data_on_resize: What becomes of a position in the data that cannot be told for another
            number of ranks: `"refuse"` does not load a version of such a number; `"restart"` reads
            from the beginning, and says so.
        when_short: What a run does that has lost a machine and has no other: `"wait"` for one;
            `"shrink"` also waits, but for `shrink_after_s` only; then it goes on with the nodes
            that there are, its shards cut anew, and grows again when a machine joins.
        shrink_after_s: So long such a run waits for a machine; 0: not at all.
        grow_pause_s: So long after it became smaller or larger no machine that joins makes it
            larger; twice as long after each time that one did, up to half an hour, so that one
            that comes and goes does not have it start again and again.
        batch_on_resize: `"keep"` refuses another number of nodes where the global batch would not
            be what it was; `"change"` leaves it to the script.
        max_same_errors: So often a script may raise one and the same error in a run, also where it
            makes progress in between; `None` for as often as it likes.
        min_progress_s: A worker that stands still in a step for this long, or for ten times the
            median iteration if that is longer, counts as hung; so does one whose process is
            stopped for this long.
        idle_s: A worker that does nothing at all outside its steps for this long (it starts, loads
            data, evaluates), or from which no word comes, counts as hung. `protected.pause` is for
            what may take longer.
        scheme: When a version's chunks leave. `"background"`: at once, as fast as the link takes
            them. `"gemini"`, `"interleaved"`, `"naive"`: in the idle spans of a profile (paper,
            Fig. 16). `"blocking"`: while training waits. `"none"`: there are no versions, and a
            failure sends the job back to its start.
        replicate: What peers get of a version: `"copies"`: the whole shard. `"gradients"`: the
            reduced gradient, with which each peer makes the optimizer's step itself: about a third
            of the bytes for Adam, for a process beside each worker that computes the step once
            more. What a peer made is compared with its owner's checksums before it counts, and
            comes in full where it differs. For DeepSpeed's ZeRO on CPUs, with Adam, AdamW or SGD.
        full_copy_every: With `"gradients"`: of so many versions one is sent in full anyway; `None`
            for the first of each start alone.
        algorithm: How scheme `"gemini"` plans its chunks: `"drain"` with the sub-buffers' drain in
            view and slack before delay, `"paper"` by the paper's Algorithm 2.
        profile_iterations: Iterations without checkpoint traffic that make the profile. While it is
            made every second version is sent, in the background.
        mu: Share of each idle span to fill, where that suffices.
        buffer_bytes: Memory between wire and slab; all sub-buffers together.
        sub_buffers: How many chunks are in it at once.
        max_overhead: Largest tolerated mean delay as a share of the iteration; where sending every
            version would cost more, every j-th is sent. `None`: every version, at any cost.
        link_bytes_per_s: Paces each node's link to this rate, training and checkpoints alike.
        log_collectives: Whether the log has every training collective, for the traffic timeline:
            two thirds of a log. `None`: where at most `LOGGED_RANKS` train. On CUDA only the
            schemes that profile the job can say them.
        preload: Modules of installed packages that a restart finds imported, with commas between
            them, such as "transformers,gemini_lab.adapters.transformers". It is for the launcher to
            set (`--set preload=...`): they are imported before the script sets its environment.
        keep_processes: Whether ranks that are not lost keep their process through a recovery: they
            bring their iteration to an end with what numbers there are, throw it away, and go on
            from the version that is chosen, with new process groups; the lost ranks alone start
            anew. What a script itself prints of that iteration means nothing. It is for the
            launcher to set (`--set keep_processes=true`), for loops over `protected.steps`, and for
            DeepSpeed on CPUs; where a process cannot go on, all start anew (`docs/guide/keep.md`).
        copy_bytes_per_s: Empties received sub-buffers at this rate, as a bus to CPU memory does.
    """

    replicas: int = above_zero(2)
    adapt_replicas: bool = False
    survival_target: float = 0.999
    survival_days: float = above_zero(30.0)
    failures_per_day: str | float = 0.015
    rack_failures_per_day: float = zero_or_more(0.0)
    repair_s: float = zero_or_more(600.0)
    replica_memory: str | float | None = None
    risk_from: str | None = None
    adapt_pause_s: float = zero_or_more(600.0)
    keep_in_memory: int = above_zero(1)
    keep_gradients: bool = False
    strategy: str = "auto"
    chunk_bytes: int = above_zero(4 * MIB)
    persistent_url: str | None = None
    persist_every_s: float | None = above_zero_or_none(3 * 3600.0)
    persist_every_iterations: int | None = above_zero_or_none(None)
    persist_limit_s: float = above_zero(600.0)
    keep_versions: int = above_zero(2)
    give_up_progress_after_s: float | None = zero_or_more_or_none(None)
    on_divergence: str = one_of("warn", ("warn", "stop"))
    on_code_change: str = one_of("warn", ("warn", "stop"))
    on_unkept_updates: str = one_of("stop", ("stop", "warn"))
    on_not_finite: str = one_of("hold", ("hold", "warn", "stop", "rewind"))
    data_on_resize: str = one_of("refuse", ("refuse", "restart"))
    when_short: str = one_of("wait", ("wait", "shrink"))
    shrink_after_s: float = zero_or_more(30.0)
    grow_pause_s: float = above_zero(60.0)
    batch_on_resize: str = one_of("keep", ("keep", "change"))
    rewind_on_spike: float | None = above_zero_or_none(None)
    verify_every: int | None = above_zero_or_none(None)
    on_wrong_sums: str = one_of("drain", ("drain", "stop", "warn"))
    max_same_errors: int | None = above_zero_or_none(5)
    min_progress_s: float = above_zero(30.0)
    idle_s: float = above_zero(300.0)
    scheme: str = named("background", SCHEMES)
    replicate: str = one_of("copies", ("copies", "gradients"))
    full_copy_every: int | None = above_zero_or_none(None)
    algorithm: str = named("drain", ("drain", "paper"))
    profile_iterations: int = above_zero(20)
    mu: float = share(0.8)
    buffer_bytes: int = above_zero(128 * MIB)
    sub_buffers: int = above_zero(4)
    max_overhead: float | None = above_zero_or_none(None)
    link_bytes_per_s: float | None = above_zero_or_none(None)
    copy_bytes_per_s: float | None = above_zero_or_none(None)
    log_collectives: bool | None = None
    preload: str | None = module_names(None)
    keep_processes: bool = False

    def __post_init__(self) -> None:
        require_limits(self)
        self._check_buffers()
        self._check_resizes()
        self._check_returns()
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

    @property
    def expected_failures(self) -> PerNode:
        """A day, of each node, before anything is seen of it."""
        return PerNode.parse("failures_per_day", self.failures_per_day)

    @property
    def room_for_replicas(self) -> PerNode:
        """Bytes on each node for copies, as far as they are said."""
        return PerNode.parse("replica_memory", self.replica_memory, read=parse_bytes)

    def _check_resizes(self) -> None:
        """Refuse what does not go with another number of nodes."""
        if self.when_short == "shrink" and self.scheme == "none":
            raise ConfigError(
                'scheme "none" keeps no versions with which fewer nodes could go on; choose '
                'another scheme, or "when_short": "wait"'
            )

    def _check_returns(self) -> None:
        """Refuse what does not go with going back by itself."""
        if self.is_guarded and self.scheme == "none":
            raise ConfigError(
                'scheme "none" keeps no versions, so there is none to go back to; choose another '
                'scheme, or leave out "on_not_finite": "rewind" and rewind_on_spike'
            )
        if self.verify_every is not None and self.scheme == "none":
            raise ConfigError(
                'scheme "none" keeps no versions, so there is no verified one to go back to; '
                "choose another scheme, or leave out verify_every"
            )

    @property
    def is_guarded(self) -> bool:
        """Whether each iteration is looked at before its version leaves, and may be taken back."""
        return self.on_not_finite == "rewind" or self.rewind_on_spike is not None

    @property
    def buffers(self) -> int:
        """Room for each shard on each of its holders, in shards: one is being written.

        One more is for the newest verified version.
        """
        return self.keep_in_memory + 1 + (self.verify_every is not None)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What the settings emulate, for every result that is made with them."""
        found = []
        if self.link_bytes_per_s is not None:
            found.append(f"each node on a link paced to {format_bytes(self.link_bytes_per_s)}/s")
        if self.copy_bytes_per_s is not None:
            found.append(f"sub-buffers emptied at {format_bytes(self.copy_bytes_per_s)}/s")
        return tuple(found)

    @classmethod
    def parse(cls, block: Mapping[str, SettingValue]) -> "Settings":
        """The settings in a `"gemini"` block; sizes may be written like `"4 MiB"`.

        Raises:
            ConfigError: A name is unknown or a value impossible.
        """
        return cls().updated(block)

    @classmethod
    def layered(cls, *layers: Mapping[str, SettingValue]) -> "Settings":
        """The settings that these `LAYERS`, as many as are known, come to together.

        Raises:
            ConfigError: As `parse`.
        """
        settings = cls()
        for layer in layers:
            settings = settings.updated(layer)
        return settings

    def updated(self, changes: Mapping[str, SettingValue]) -> "Settings":
        """These settings with some replaced."""
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
        """The settings as plain JSON values; `parse` reads them."""
        return asdict(self)


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
    """What to say of names that are no setting's: the nearest that are."""
    near = [name for each in unknown for name in get_close_matches(each[:SHOWN], known, n=3)]
    nearest = f"the nearest: {', '.join(dict.fromkeys(near))}; " if near else ""
    names = ", ".join(map(shown, unknown))
    return f"the gemini settings have no {names}; {nearest}help(gemini_lab.Settings) has all"


def origins(*layers: Mapping[str, SettingValue]) -> dict[str, str]:
    """Who said each setting: one of `LAYERS`, or `"default"`."""
    found = {field.name: "default" for field in fields(Settings)}
    for name, layer in zip(LAYERS, layers, strict=False):
        found |= dict.fromkeys(layer, name)
        if "replicas" in layer:
            found["adapt_replicas"] = name
    return found
