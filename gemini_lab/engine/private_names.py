"""Private names of other packages, required before they are read.

Another version may call it otherwise, or have none of it. Where a default in its place would leave
out a part of the state without a word, a training on such a version is refused at its start.
"""

from collections.abc import Collection
from importlib import import_module
from importlib.metadata import version

from gemini_lab.errors import UnsupportedError


def require(thing: object, *names: str, package: str) -> None:
    """Refuse a version of a package if an object of it lacks names that are read."""
    where: str = getattr(thing, "__name__", type(thing).__name__)
    missing = [name for name in names if not hasattr(thing, name)]
    require_known(missing, where, package=package)


def require_known(missing: Collection[str], where: str, *, package: str) -> None:
    """Refuse a version in which a caller found names missing."""
    if missing:
        raise UnsupportedError(
            f"{package} {version(package)} has no {', '.join(missing)} in {where}, and without it "
            "a part of the state would be left out; install a version that was tried "
            "(docs/evidence/versions.md)"
        )


def avoid_shared_memory_collectives() -> None:
    """Keep DeepSpeed's CPU collectives on the network; called before its process group is made.

    Its shared-memory helper is compiled at the first start, which fails where no compiler is, and
    carries traffic past the network that the profiler measures. To learn whether it could be,
    DeepSpeed tries compilers for all its operators: what asks for that is left out, too.
    """
    collectives = import_module("deepspeed.comm.torch")  # by name: the package's `torch` is PyTorch
    require(collectives, "build_shm_op", package="deepspeed")
    vars(collectives)["build_shm_op"] = lambda: None
