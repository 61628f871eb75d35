"""Peak memory of a call, above what was already there when it began.

Read from the allocation events of ``torch.profiler``, which see every tensor that torch allocates
on the CPU, byte by byte, and nothing else: scratch inside vendor libraries (a matrix product's
packing buffers) is not seen. The process's resident size would see it, and page granularity, the
allocator's hoard and the interpreter with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The largest number of bytes that ``call`` held at one moment beyond those held before it.

    Its result is still alive when the peak is read, so an output counts; what the caller made
    beforehand (q, k, v) does not. Call once to warm up first, or lazily made tables count too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    recorded = profiler.profiler.kineto_results.events()
    changes = [
        (event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]"
    ]
    del result
    changes.sort(key=lambda change: change[0])
    return peak_of(size for _, size in changes)


def peak_of(changes: Iterable[int]) -> int:
    """Highest running sum of allocations (positive) and releases (negative), starting at 0."""
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    return peak
