"""`gemini-lab bench`: measurements with repeats and spread, on the machine at hand.

A bench is a function that takes the number of repeats and gives rows. It is listed in `BENCHES` by
name, as `module:function`, so that only the benches that run import what they need. Its module may
have `add_options`, which adds options to the parser that the function takes by name, and a `table`
of its own.
"""

import argparse
import importlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gemini_lab.display import columns
from gemini_lab.errors import ConfigError
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.limits import whole
from gemini_lab_bench.rows import Row, table
from gemini_lab_bench.versions import machine, made_with

ENDED: Final = "interrupted, so nothing is told or written; what it started has ended"
BENCHES: Final[dict[str, tuple[str, str]]] = {
    "planner": (
        "gemini_lab_bench.benches.planner:bench",
        "placing N nodes, and their exact recovery probability",
    ),
    "simulator": (
        "gemini_lab_bench.benches.simulator:bench",
        "30 days of N machines, policy by policy",
    ),
    "restart": (
        "gemini_lab_bench.benches.restart:bench",
        "failure to the next finished iteration, warm, kept and cold in turn; beside NVRx",
    ),
    "imports": (
        "gemini_lab_bench.benches.imports:bench",
        "recoveries of a Trainer's job, its imports preloaded and not, in turn",
    ),
    "wasted": (
        "gemini_lab_bench.benches.wasted:bench",
        "workers killed at any time: does Eq. (1) hold?",
    ),
    "losses": (
        "gemini_lab_bench.benches.losses:bench",
        "every pair of nodes lost at once: does memory suffice as placement says?",
    ),
    "baselines": (
        "gemini_lab_bench.benches.baselines:bench",
        "Strawman and HighFreq on a throttled store, killed at any time, beside this system",
    ),
    "goodput": (
        "gemini_lab_bench.benches.goodput:bench",
        "the share of the time that counts where all three are killed at the same moments",
    ),
    "reduction": (
        "gemini_lab_bench.benches.reduction:bench",
        "a version's time to peers beside that to a throttled store, on 2 to 4 nodes",
    ),
    "drain": (
        "gemini_lab_bench.benches.drain:bench",
        "nodes whose ranks move to a standby, one after the other",
    ),
    "resize": (
        "gemini_lab_bench.benches.resize:bench",
        "from four nodes to three and back: seconds, bytes, losses",
    ),
    "rewind": (
        "gemini_lab_bench.benches.rewind:bench",
        "from a loss of NaN to the next good iteration, and what the guard costs",
    ),
    "verify": (
        "gemini_lab_bench.benches.verify:bench",
        "what verifying sums costs, and who is named when bits turn",
    ),
    "profiler": (
        "gemini_lab_bench.benches.profiler:bench",
        "what watching costs each collective",
    ),
    "links": (
        "gemini_lab_bench.benches.links:bench",
        "a job on a paced link, beside one that the kernel shapes (root)",
    ),
    "copy": (
        "gemini_lab_bench.benches.copy:bench_copy",
        "into the slab and over the wire, beside memcpy and bare Gloo",
    ),
    "overhead": (
        "gemini_lab_bench.benches.overhead:bench",
        "checkpoints every iteration beside the same script under plain torchrun",
    ),
    "schemes": (
        "gemini_lab_bench.benches.schemes:bench",
        "the five schemes of the paper's Fig. 16 on one paced link",
    ),
    "differential": (
        "gemini_lab_bench.benches.differential:bench",
        "gradients to peers in place of shards: bytes, processor time, and when they are felt",
    ),
    "contention": (
        "gemini_lab_bench.benches.contention:bench",
        "less and less idle time, until checkpoints no longer fit",
    ),
    "gpu": (
        "gemini_lab_bench.benches.gpu:bench",
        "12 bytes a parameter to pinned memory every iteration (needs a GPU)",
    ),
    "peers": (
        "gemini_lab_bench.peers.bench:bench",
        "checkpoints of other systems on the same tensors, beside ours",
    ),
    "control": (
        "gemini_lab_bench.benches.control:bench",
        "what N agents cost the store, the root agent and the log (--agents 10,100,1000)",
    ),
    "log": (
        "gemini_lab_bench.benches.long_log:bench",
        "opening a long log, the first time and again, and one place of it (--lines, --calls)",
    ),
    "dashboard": (
        "gemini_lab_bench.benches.dashboard:bench",
        "the traffic timeline in a headless browser: draw time and lag, up to a million bars",
    ),
}
"""Name: (`module:function` taking the repeats and returning rows, help)."""

PACKAGES: Final = ("torch", "deepspeed", "numpy")
"""Whose versions a measurement depends on."""
DRAWN: Final = ("wasted", "losses", "baselines", "goodput")
"""Benches that draw moments or an order at random; their seed is the number of repeats."""


def _parser(name: str | None, benches: Mapping[str, tuple[str, str]]) -> argparse.ArgumentParser:
    """Of one bench, or of all while none is named."""
    if name is None:
        listed = columns({each: text for each, (_, text) in benches.items()})
        parser = argparse.ArgumentParser(
            prog="gemini-lab bench",
            usage="%(prog)s NAME [--repeats N] [--json FILE] [options of that bench]",
            description=f"Measure something on this machine, some times.\n\n{listed}",
            epilog="gemini-lab bench NAME --help tells the options of one.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("name", metavar="NAME", choices=benches, help="which bench")
    else:
        text = benches[name][1]
        parser = argparse.ArgumentParser(
            prog=f"gemini-lab bench {name}", description=f"{text[0].upper()}{text[1:]}"
        )
    parser.add_argument(
        "--repeats",
        type=whole("repeats", least=1),
        default=5,
        metavar="N",
        help="how often (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the values here")
    return parser


def command(arguments: list[str], benches: Mapping[str, tuple[str, str]] = BENCHES) -> int:
    """Run one of `benches`, or list them."""
    name = next((argument for argument in arguments if argument in benches), None)
    parser = _parser(name, benches)
    if name is None:
        parser.parse_args(arguments)  # there is no way past it without a name
        return 2
    home, _, function = benches[name][0].partition(":")
    module = importlib.import_module(home)
    getattr(module, "add_options", lambda _: None)(parser)
    at = arguments.index(name)
    options = parser.parse_args([*arguments[:at], *arguments[at + 1 :]])
    if options.repeats < 1:
        raise ConfigError(f"a bench needs at least 1 repeat (got {options.repeats})")
    own = {k: v for k, v in vars(options).items() if k not in {"repeats", "json"}}
    before, began = machine(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with interrupt_says(lambda: ENDED):
        rows: list[Row] = getattr(module, function)(options.repeats, **own)
    after = machine()
    print(getattr(module, "table", table)(rows))  # noqa: T201
    print(  # noqa: T201
        f"\non {before['system']}, {before['cores']} cores, load {before['load_1_min']:.1f} before "
        f"and {after['load_1_min']:.1f} after (a busy machine spoils times)"
    )
    if options.json:
        record = {
            "bench": name,
            "machine": before,
            "load_1_min_after": after["load_1_min"],
            "at": began,
            "made_with": made_with(PACKAGES),
            "repeats": options.repeats,
            "seed": options.repeats if name in DRAWN else None,
            "rows": [row.to_json() for row in rows],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"written to {options.json}")  # noqa: T201
    return 0
