"""All variants at one length, in one process: proven, weighed, then timed in turn.

Runs inside a worker. What happens to one variant (a refusal, an error, a wrong result) is written
beside it, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polyattn.capabilities import Call, Sizes
from polyattn.contract import SequenceAttention
from polyattn.errors import PolyattnError
from polyattn.mask import Mask
from polyattn.measure.clock import Candidate, Times, drift, interleave, is_void
from polyattn.measure.memory import peak_bytes
from polyattn.measure.proof import Tensors, prove, random_tensors
from polyattn.measure.results import (
    PASSES,
    LengthRun,
    Measurement,
    Pass,
    PassRun,
    Proof,
    Record,
    Timing,
)
from polyattn.measure.worker import Event
from polyattn.operation import Operation

YARDSTICK = 1024
"""Side of the square float32 matrix product whose rate is the unit of arithmetic."""

_TRIES = 2
_AGAIN, _STICK = "the baseline again", "the yardstick"
"""Not names that a variant can have."""


class TimingRequest(Record):
    """variants are timed in this order; without the baseline among them there are no ratios.

    patience: seconds that void rounds may have cost for them to be tried again.
    """

    variants: tuple[str, ...]
    baseline: str
    length: int
    heads: int
    head_dim: int
    threads: int
    seconds: float
    patience: float
    seed: int


@dataclass
class _Entrant:
    """One variant on its way: what is known so far, and how to run it."""

    name: str
    variant: SequenceAttention | None = None
    tensors: Tensors | None = None
    ran: dict[Pass, str] = field(default_factory=dict)
    reason: str = ""
    proof: Proof | None = None
    peaks: dict[Pass, int] = field(default_factory=dict)
    timings: dict[Pass, Timing] = field(default_factory=dict)

    def measurement(self, length: int) -> Measurement:
        return Measurement(
            variant=self.name,
            length=length,
            ran=self.ran,
            reason=self.reason,
            proof=self.proof,
            forward=self.timings.get("forward"),
            backward=self.timings.get("backward"),
        )

    def candidate(self, kind: Pass) -> Candidate:
        """The pass as a function without arguments; its result is what it allocated to the end."""
        assert self.variant is not None
        assert self.tensors is not None
        return CANDIDATES[kind](self.variant, self.tensors)


def forward(variant: SequenceAttention, tensors: Tensors) -> Candidate:
    """The forward pass without gradients."""
    still = Tensors({name: x.detach() for name, x in tensors.leaves.items()})
    mask = Mask.causal()

    def run() -> Tensor:
        with torch.no_grad():
            output: Tensor = variant(*still.qkv, mask, still.inputs)
        return output

    return run


def backward(variant: SequenceAttention, tensors: Tensors) -> Candidate:
    """The forward pass and the backward pass to q, k, v and the side inputs."""
    tracked = tensors.to(torch.float32)
    mask, cotangent = Mask.causal(), torch.ones_like(tracked.leaves["v"])

    def run() -> tuple[Tensor, ...]:
        output = variant(*tracked.qkv, mask, tracked.inputs)
        wanted = tuple(tracked.leaves.values())
        return torch.autograd.grad(output, wanted, cotangent, allow_unused=True)

    return run


CANDIDATES: dict[Pass, Callable[[SequenceAttention, Tensors], Candidate]] = {
    "forward": forward,
    "backward": backward,
}


def measure_length(request: TimingRequest) -> Iterator[Event]:
    """Do what the request says. A ``LengthRun`` follows each pass; the last one is whole."""
    torch.set_num_threads(request.threads)
    entrants = [_Entrant(name) for name in request.variants]
    for entrant in entrants:
        yield {"event": "begin", "variant": entrant.name, "what": "proving"}
        _attempt(entrant, lambda e: _prepare(e, request))
    runs: dict[Pass, PassRun] = {}
    for kind in PASSES:
        for entrant in entrants:
            yield {"event": "begin", "variant": entrant.name, "what": f"memory of {kind}"}
            _attempt(entrant, lambda e, kind=kind: _weigh(e, kind))  # type: ignore[misc]
        ready = [entrant for entrant in entrants if not entrant.reason]
        if ready:
            yield {"event": "begin", "variant": "", "what": f"timing {kind}"}
            runs[kind] = _time(ready, kind, request)
        result = LengthRun(
            length=request.length,
            measurements=tuple(entrant.measurement(request.length) for entrant in entrants),
            **runs,
        )
        yield {"event": "result", "result": result.model_dump(mode="json")}


def _attempt(entrant: _Entrant, step: Callable[[_Entrant], None]) -> None:
    """Take a step unless an earlier one failed; whatever is raised becomes the reason."""
    if entrant.reason:
        return
    try:
        step(entrant)
    except Exception as error:
        entrant.reason = describe(error)


def describe(error: Exception) -> str:
    """One line: our own errors as they are, others with their type."""
    said = " ".join(str(error).split())
    return said if isinstance(error, PolyattnError) and said else f"{type(error).__name__}: {said}"


def _prepare(entrant: _Entrant, request: TimingRequest) -> None:
    from polyattn.factory import resolve

    torch.manual_seed(request.seed)
    sizes = Sizes(request.heads, request.head_dim, max_length=request.length)
    blueprint = resolve(entrant.name)
    if blueprint.kind == "feature_map":
        raise PolyattnError("it works on feature maps; a language model needs a sequence variant")
    variant = blueprint.build(sizes)
    assert isinstance(variant, SequenceAttention)
    variant.eval()
    entrant.tensors = random_tensors(
        variant, request.heads, request.head_dim, request.length, request.seed
    )
    entrant.variant = variant
    entrant.ran = {kind: _who_runs(entrant.name, variant, request, sizes, kind) for kind in PASSES}
    entrant.proof = prove(variant, entrant.tensors, request.seed)
    entrant.reason = entrant.proof.reason


def _who_runs(
    name: str, variant: SequenceAttention, request: TimingRequest, sizes: Sizes, kind: Pass
) -> str:
    if not isinstance(variant, Operation):
        return name
    call = Call(
        device="cpu",
        dtype=torch.float32,
        batch=1,
        queries=request.length,
        keys=request.length,
        sizes=sizes,
        parts=Mask.causal().parts,
        prefix=0,
        dropout=0.0,
        grad=kind == "backward",
    )
    return variant.choose(call).name


def _weigh(entrant: _Entrant, kind: Pass) -> None:
    assert entrant.proof is not None
    assert entrant.tensors is not None
    candidate = entrant.candidate(kind)
    if entrant.proof.length != entrant.tensors.length:
        # What a variant makes at its first call of a length is not the call's.
        candidate()
    entrant.peaks[kind] = peak_bytes(candidate)


def _time(entrants: list[_Entrant], kind: Pass, request: TimingRequest) -> PassRun:
    """Rounds of one pass over everybody who is ready; once more if they were void and cheap."""
    candidates = {entrant.name: entrant.candidate(kind) for entrant in entrants}
    if request.baseline in candidates:
        base = next(e for e in entrants if e.name == request.baseline)
        candidates[_AGAIN] = base.candidate(kind)
    candidates[_STICK] = stick = yardstick()
    stick()
    tries = 0
    while True:
        tries += 1
        # Weighing was the last warm-up, and the longest passes take seconds.
        times = interleave(candidates, seconds=request.seconds, least=3, warm=True)
        judged = yardstick_samples(times[_STICK], request.threads)
        void = is_void(judged)
        spent = sum(sum(samples.wall) for samples in times.values())
        if not void or tries == _TRIES or spent > request.patience:
            break
    for entrant in entrants:
        entrant.timings[kind] = _timing(times[entrant.name], entrant.peaks[kind])
    return PassRun(
        yardstick=tuple(times[_STICK].processor),
        yardstick_wall=tuple(times[_STICK].wall),
        again=_timing(times[_AGAIN], base.peaks[kind]) if _AGAIN in times else None,
        drift=drift(judged),
        void=void,
        tries=tries,
    )


def yardstick() -> Candidate:
    """A float32 matrix product of two 1024-square matrices: 2.1 billion operations."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(YARDSTICK, YARDSTICK, generator=generator)
    b = torch.randn(YARDSTICK, YARDSTICK, generator=generator)
    return lambda: a @ b


def yardstick_samples(times: Times, threads: int) -> list[float]:
    """One thread's processor time says what it did; with more threads only wall time does."""
    return times.processor if threads == 1 else times.wall


def _timing(times: Times, peak: int) -> Timing:
    return Timing(wall=tuple(times.wall), processor=tuple(times.processor), peak=peak)
