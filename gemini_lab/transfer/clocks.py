"""What a collective's times are read from: the CPU's clock, or the device's events."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Gives stamps, whatever they are, and says later how far they are apart."""

    def stamp(self) -> Any:
        """A mark of this moment."""

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds from one stamp to another."""


class WallClock:
    """Stamps of a CPU backend: when the calling thread, or the backend's thread, gets there."""

    def stamp(self) -> float:
        """Now."""
        return time.monotonic()

    def between_s(self, start: float, end: float) -> float:
        """Seconds from one stamp to another."""
        return end - start


class DeviceClock:
    """Stamps of a CUDA backend: events on the current stream, read when the iteration is over."""

    def stamp(self) -> Any:
        """An event, recorded on the current stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds from one event to another; waits until the device has reached the second."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0
