"""`gemini-lab torchrun`: torchrun's own arguments, for nodes whose failures a script survives.

torchrun is started on every machine; its agents meet at a rendezvous and start the workers, anew
when one dies. Here agents are started once, and a store and epochs take the rendezvous's place, of
which a mere backend for torchrun's would know nothing: not which node keeps which shard, nor which
ranks a standby takes. So what has a meaning here is taken over, and what has none is named.
"""

import argparse
import os
from typing import Final

from gemini_lab.cli import run_command
from gemini_lab.display import complain
from gemini_lab.errors import SHOWN, ConfigError, shortened, shown
from gemini_lab.units import check_number, most_of

_TAKEN: Final = {
    "nnodes",
    "nproc_per_node",
    "node_rank",
    "no_python",
    "module",
    "run_path",  # workers run a script so in any case
    "standalone",
    "training_script",
    "training_script_args",
}
_SAID_HERE: Final = {"--nodes", "--workers-per-node"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of torchrun's options and those of `gemini-lab run`."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415

    options: argparse.ArgumentParser = get_args_parser()
    options.prog = "gemini-lab torchrun"
    options.description = (
        "Run a script as `gemini-lab run` does, with torchrun's arguments. Start it once, and not "
        "on every machine."
    )
    options.usage = "gemini-lab torchrun [options] [-m] SCRIPT [arguments of the script]"
    known = options._option_string_actions  # noqa: SLF001 - argparse has no other way to ask
    options._optionals.title = "torchrun's options"  # noqa: SLF001
    ours = options.add_argument_group("gemini-lab's own options")
    options._action_groups.insert(0, options._action_groups.pop())  # noqa: SLF001 - shown first
    for action in run_command.parser()._actions:  # noqa: SLF001
        names = {*action.option_strings}
        if names and not names & (known.keys() | _SAID_HERE):
            ours._add_action(action)  # noqa: SLF001
    options.set_defaults(standbys=0)  # as many machines as were asked for
    return options


def command(arguments: list[str]) -> int:
    """Launch as `gemini-lab run` does."""
    asked = parser()
    given = asked.parse_args(arguments)
    options, remarks = translate(given)
    if ignored := without_meaning(asked, given):
        remarks.append(f"without a meaning here, and not looked at: {', '.join(ignored)}")
    for remark in remarks:
        complain(f"gemini-lab torchrun: {remark}")
    return run_command.launch(options)


def translate(given: argparse.Namespace) -> tuple[argparse.Namespace, list[str]]:
    """Return the options for `gemini-lab run`, and remarks on what differs from torchrun.

    Raises:
        ConfigError: It cannot be what was meant.
    """
    require_one_start(given)
    options = argparse.Namespace(**vars(given))
    least, most = nodes_of(given.nnodes)
    remarks = []
    if most > least:
        options.standbys = given.standbys or most - least
        remarks.append(
            f"--nnodes {given.nnodes}: {least} nodes train and {options.standbys} stand by; the "
            "number of ranks stays the same"
        )
    if least == 1 and given.replicas is None:
        options.replicas = 1
        remarks.append(
            "one node, so --replicas 1: versions outlive the workers, but not the machine"
        )
    if least > 1 and not (given.join or run_command.hosts_of(given)):
        remarks.append(
            f"{least} nodes on this machine; name others with --hosts or --hostfile, or have them "
            "join (--join)"
        )
    options.nodes = least
    options.workers_per_node = workers_of(given.nproc_per_node)
    options.script, options.args = given.training_script, given.training_script_args
    return options, remarks


def workers_of(asked: str) -> int:
    """Return how many workers a node has by `--nproc-per-node`.

    Raises:
        ConfigError: It cannot be read, or asks for what this machine lacks.
    """
    from torch.distributed.run import determine_local_world_size  # noqa: PLC0415

    try:
        workers = int(determine_local_world_size(asked))
    except ValueError as error:
        raise ConfigError(
            f"--nproc-per-node {shortened(asked, SHOWN)}: {str(error).rstrip('.')}; give a number"
        ) from error
    check_number("workers_per_node", workers, is_whole=True)
    return workers


def require_one_start(given: argparse.Namespace) -> None:
    """Refuse to be started on every machine, and what is no Python.

    Raises:
        ConfigError: It is.
    """
    slurm = os.environ.get("SLURM_PROCID", "0") if os.environ.get("SLURM_STEP_ID") else "0"
    for value, said in ((str(given.node_rank), "--node-rank"), (slurm, "SLURM_PROCID")):
        if value != "0":
            raise ConfigError(
                f"{said} is {value}: torchrun is started on every machine, but this is started "
                "once, without srun or pdsh before it, and starts the nodes itself (--hosts, "
                "--hostfile, a Slurm allocation), or they join: see `gemini-lab node`"
            )
    if given.no_python:
        raise ConfigError("--no-python: a worker runs a Python script; give one, or -m MODULE")


def nodes_of(nnodes: str) -> tuple[int, int]:
    """Return the least and the most nodes of `N` or `MIN:MAX`.

    Raises:
        ConfigError: It is neither.
    """
    least, _, most = nnodes.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1] <= most_of("nodes"):
        raise ConfigError(
            f"cannot read --nnodes {shown(nnodes)}; give N or MIN:MAX, such as 4 or 4:6, and "
            f"{most_of('nodes'):,} at most"
        )
    return found


def without_meaning(asked: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """Return torchrun's options that were given, and that `gemini-lab run` has no use for."""
    ours = {action.dest for action in run_command.parser()._actions}  # noqa: SLF001
    return [
        action.option_strings[0]
        for action in asked._actions  # noqa: SLF001
        if action.dest not in ours | _TAKEN
        and action.option_strings
        and getattr(given, action.dest, action.default) != asked.get_default(action.dest)
    ]
