"""A program that prints how fast each GPU of this machine multiplies matrices, then ends.

It is a process of its own, because a CUDA context takes hundreds of MiB of a GPU for as long as
its process lives. `gemini_lab.node.health` reads what it prints: one JSON list a GPU, of its name
and its speed in TFLOPS.
"""

import json
import time
from typing import Any, Final

import torch

from gemini_lab.engine.process_exit import tie_to_parent

SIDE: Final = 4096
PRODUCTS: Final = 100
ROUNDS: Final = 3
"""The fastest one counts: a GPU that was idle raises its clock in the first."""


def product_tflops(
    device: torch.device, *, side: int = SIDE, dtype: torch.dtype = torch.float16
) -> float:
    """Return the speed of products of square matrices on a device, in TFLOPS."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    one: Any = torch.randn(side, side, dtype=torch.float32, device=device).to(dtype)
    product = torch.empty_like(one)
    times_s = []
    for _ in range(ROUNDS):
        wait()
        began_s = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(one, one, out=product)
        wait()
        times_s.append(time.perf_counter() - began_s)
    return 2 * side**3 * PRODUCTS / min(times_s) / 1e12


def main() -> None:
    """Print a line for each GPU."""
    tie_to_parent()
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        line = json.dumps([name, product_tflops(torch.device("cuda", number))])
        print(line, flush=True)  # noqa: T201 - it is what the program is for


if __name__ == "__main__":
    main()
