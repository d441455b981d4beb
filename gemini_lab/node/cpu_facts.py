"""What DeepSpeed asks of the processor whenever it loads one of its operators: asked once.

py-cpuinfo answers from a process of its own that measures the clock for a second, and DeepSpeed
asks it twice for each operator that it loads. A warm parent asks while it imports, and its workers
know.
"""

import copy
import json
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

import cpuinfo

ANSWER_S: Final = 30.0


class CpuFacts:
    """A question to py-cpuinfo, on its way."""

    def __init__(self) -> None:
        self._asked = subprocess.Popen(
            [sys.executable, cpuinfo.cpuinfo.__file__, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def remember(self) -> None:
        """Have py-cpuinfo know the answer from now on, in this process and those forked from it.

        Without an answer it asks each time, as it does.
        """
        try:
            answer, _ = self._asked.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._asked.kill()
            answer, _ = self._asked.communicate()
        facts: dict[str, Any] = {}
        with suppress(ValueError):
            facts = json.loads(answer)
        if facts:
            cpuinfo.get_cpu_info = lambda: copy.deepcopy(facts)
