"""Multi-head attention against torch's own, whose inference path is one native call.

Interleaved, many rounds, ratio of minima, processor time of one thread. Bars:
at (8, 128, 512) 1.03 in training and in inference; at (1, 16, 64) 0.95 in training, 1.15 in
inference. Run with `pytest benchmarks/test_multi_head.py`.
"""

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from polyattn import MultiHeadAttention

SHAPES = {"small": (1, 16, 64, 4), "large": (8, 128, 512, 8)}
ROUNDS = {"small": (120, 20), "large": (12, 1)}
BARS = [
    ("small", "training", 0.95),
    ("small", "inference", 1.15),
    ("large", "training", 1.03),
    ("large", "inference", 1.03),
]
VOID = 1.25


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def interleaved(calls: dict[str, Callable[[], object]], rounds: int, each: int) -> dict[str, list]:
    """Seconds of processor time per call, one entry per round, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        assert spent[name] == []
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(each):
                call()
            spent[name].append((time.thread_time() - start) / each)
    return spent


def trained(module: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], None]:
    """One pass forwards and backwards, the gradients kept in place."""
    upstream = torch.randn_like(x)

    def call() -> None:
        module(x).backward(upstream)

    return call


def drift(samples: list[float]) -> float:
    halves = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    first, second = (min(half) for half in halves)
    return max(first, second) / min(first, second)


@pytest.mark.parametrize("attention", ["softmax", "sdpa"])
@pytest.mark.parametrize(("size", "mode", "bar"), BARS, ids=lambda value: str(value))
def test_against_torch(size, mode, bar, attention, benchmark):
    batch, length, width, heads = SHAPES[size]
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(width, heads, batch_first=True)
    ours = MultiHeadAttention(width, heads, attention)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(batch, length, width)

    def their_call(given: torch.Tensor) -> torch.Tensor:
        return theirs(given, given, given, need_weights=False)[0]

    def our_call(given: torch.Tensor) -> torch.Tensor:
        return ours(given)[0]

    # A time counts only for the right answer.
    torch.testing.assert_close(our_call(x), their_call(x))
    if mode == "training":
        calls = {"theirs": trained(their_call, x), "ours": trained(our_call, x)}
        spent = interleaved(calls, *ROUNDS[size])
    else:
        theirs.eval(), ours.eval()
        with torch.inference_mode():
            calls = {"theirs": lambda: their_call(x), "ours": lambda: our_call(x)}
            spent = interleaved(calls, *ROUNDS[size])
    ratio = min(spent["ours"]) / min(spent["theirs"])
    benchmark.extra_info.update(
        ratio=ratio, bar=bar, shape=[batch, length, width], heads=heads, mode=mode,
        variant=attention, dtype="float32", device="cpu", threads=1, torch=torch.__version__,
        theirs_us=1e6 * min(spent["theirs"]), ours_us=1e6 * min(spent["ours"]),
    )  # fmt: skip
    benchmark.pedantic(calls["ours"], rounds=3)
    if drift(spent["theirs"]) > VOID:
        pytest.skip(f"void: torch's own time moved by {drift(spent['theirs']):.2f} within the run")
    print(f"{size} {mode} {attention}: {ratio:.3f} of torch's time, bar {bar}")
    assert ratio <= bar
