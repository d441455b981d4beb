"""`gemini-lab bench`: measurements with repeats and spread, on the machine at hand.

A bench is a module of `benches` with a function `bench`, which takes the number of repeats and
returns rows; only the one that runs is imported. Its module may have `add_options`, which adds
options to the parser that the function takes by name, and a `table` of its own.
"""

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Final

from gemini_lab.display import columns, interrupt_says
from gemini_lab.errors import ConfigError
from gemini_lab.lab.made_with import PACKAGE, machine, made_with
from gemini_lab.limits import whole
from gemini_lab_bench.rows import Row, table

ENDED: Final = "interrupted, so nothing is printed or written; what it started has ended"
BENCHES: Final[dict[str, str]] = {
    "restart": "failure to the next finished iteration: warm, kept, cold, and NVRx in turn",
    "wasted": "workers killed at any time: does Eq. (1) hold?",
    "losses": "every pair of nodes lost at once: does memory suffice as placement says?",
    "baselines": "Strawman and HighFreq on a throttled store, killed at any time, and ours",
    "goodput": "the share of the time that counts where all three are killed at the same moments",
    "reduction": "a version's time to peers and to a throttled store, on 2 to 4 nodes",
    "drain": "nodes whose ranks move to a standby, one after the other",
    "resize": "from four nodes to three and back: seconds, bytes, losses",
    "rewind": "from a loss of NaN to the next good iteration, and what the guard costs",
    "verify": "what verifying sums costs, and who is named when bits turn",
    "copy": "into the slab and over the wire, compared with memcpy and bare Gloo",
    "overhead": "checkpoints every iteration, compared with the same script under plain torchrun",
    "schemes": "the five schemes of the paper's Fig. 16 on one paced link",
    "differential": "gradients to peers in place of shards: bytes, processor time, when felt",
    "contention": "less and less idle time, until checkpoints no longer fit",
    "gpu": "12 bytes a parameter to pinned memory every iteration (needs a GPU)",
    "peers": "checkpoints of other systems on the same tensors, and ours",
    "control": "what N agents cost their root agent, store and log (--agents 4,32,128,1000)",
    "log": "opening a long log, the first time and again, and one place of it (--lines, --calls)",
}
"""Help by name."""
HOMES: Final = {"gpu": "benches.gpu_steps", "log": "benches.long_log", "peers": "peers.bench"}
"""The modules of benches that are not called as these."""

PACKAGES: Final = ("torch", "deepspeed", "numpy")
"""Whose versions a measurement depends on."""
DRAWN: Final = ("wasted", "losses", "baselines", "goodput")
"""Benches that draw moments or an order at random; their seed is the number of repeats."""


def _parser(name: str | None) -> argparse.ArgumentParser:
    """Return the parser of one bench, or of all while none is named."""
    if name is None:
        listed = columns(BENCHES)
        parser = argparse.ArgumentParser(
            prog="gemini-lab bench",
            usage="%(prog)s NAME [--repeats N] [--json FILE] [options of that bench]",
            description=f"Measure something on this machine, several times.\n\n{listed}",
            epilog="`gemini-lab bench NAME --help` lists the options of one.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("name", metavar="NAME", choices=BENCHES, help="which bench")
    else:
        text = BENCHES[name]
        parser = argparse.ArgumentParser(
            prog=f"gemini-lab bench {name}", description=f"{text[0].upper()}{text[1:]}"
        )
    parser.add_argument(
        "--repeats",
        type=whole("repeats", least=1),
        default=5,
        metavar="N",
        help="how often (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the values here")
    return parser


def command(arguments: list[str]) -> int:
    """Run a bench, or list all."""
    name = next((argument for argument in arguments if argument in BENCHES), None)
    parser = _parser(name)
    if name is None:
        parser.parse_args(arguments)  # there is no way past it without a name
        return 2
    home = HOMES.get(name, f"benches.{name}")
    module = importlib.import_module(f"gemini_lab_bench.{home}")
    getattr(module, "add_options", lambda _: None)(parser)
    at = arguments.index(name)
    options = parser.parse_args([*arguments[:at], *arguments[at + 1 :]])
    if options.repeats < 1:
        raise ConfigError(f"a bench needs at least 1 repeat (got {options.repeats})")
    own = {k: v for k, v in vars(options).items() if k not in {"repeats", "json"}}
    before, began = machine(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with interrupt_says(lambda: ENDED):
        rows: list[Row] = module.bench(options.repeats, **own)
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
            "made_with": made_with(PACKAGES, file=PACKAGE),
            "repeats": options.repeats,
            "seed": options.repeats if name in DRAWN else None,
            "rows": [row.to_json() for row in rows],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"written to {options.json}")  # noqa: T201
    return 0
