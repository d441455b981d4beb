"""DeepSpeed's collectives on CPUs, on the network instead of in shared memory."""

from importlib import import_module

from gemini_lab.engine.private_names import require


def avoid_shared_memory_collectives() -> None:
    """Keep DeepSpeed's CPU collectives on the network; called before its process group is made.

    Its shared-memory helper is compiled at the first start, which fails where no compiler is, and
    carries traffic past the network that the profiler measures. To learn whether it could be,
    DeepSpeed tries compilers for all its operators: what asks for that is left out, too.
    """
    collectives = import_module("deepspeed.comm.torch")  # by name: the package's `torch` is PyTorch
    require(collectives, "build_shm_op", package="deepspeed")
    vars(collectives)["build_shm_op"] = lambda: None
