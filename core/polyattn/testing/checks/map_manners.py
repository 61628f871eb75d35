"""M. Feature maps, the contract: options, randomness, memory of calls, settings, fallbacks."""

from __future__ import annotations

import contextlib
import io
import random

import torch

from polyattn.options import as_data, parse
from polyattn.testing.process.settings import changes_watched, kernel_flags_watched
from polyattn.testing.results import Mismatch, Seen, proves
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import blaming
from polyattn.testing.subjects.variant import FeatureMapVariant
from polyattn.testing.tools.cases import normal
from polyattn.testing.tools.numerics import compare_bits, need_tensor


@proves(
    "The options survive: written out as data and parsed again they are equal, and what is built "
    "from them with the same parameters gives the same bits.",
    causes=(
        "a validator that changes what it is given, each time it is asked",
        "a serialiser that rounds or drops an option",
        "an option that is read from somewhere else than the config",
    ),
)
def check_fm_config_roundtrip(subject: FeatureMapVariant, size: tuple[int, ...]) -> None:
    config, dtype = subject.config, subject.dtype
    given = repr(config)
    with blaming(given):
        again = parse(type(config), as_data(config), subject.name)
    if again != config:
        raise Mismatch(Seen(what=f"parsed again the options are {again!r}", given=given))
    module = subject.build(size[1], dtype)
    x = normal(*size, seed=1).to(dtype)
    with blaming(given), torch.no_grad():
        repr(module)
        other = FeatureMapVariant(subject.name, subject.variant, again)
        twin = other.build(size[1], dtype, seed=1)
        twin.load_state_dict(module.state_dict())
        got, want = need_tensor("the output", twin(x), given), module(x)
    compare_bits("the output of what the parsed options build", got, want, given=given)


@proves(
    "In evaluation two calls give the same bits, and no global random numbers are consumed.",
    causes=(
        "dropout or stochastic depth that is not switched off in evaluation",
        "noise or a random projection drawn in the call; draw it when building",
    ),
)
def check_fm_eval_deterministic_and_rng_neutral(
    subject: FeatureMapSubject, size: tuple[int, ...]
) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=2).to(subject.dtype)
    given = f"x {size}, {subject.dtype}"
    states = torch.get_rng_state(), random.getstate()
    with blaming(given), torch.no_grad():
        first = need_tensor("the output", module(x.clone()), given)
        second = module(x.clone())
    if not torch.equal(torch.get_rng_state(), states[0]) or random.getstate() != states[1]:
        raise Mismatch(Seen(what="the call changed the global random state", given=given))
    compare_bits("the second call's output", second, first, given=given)


@proves(
    "A call leaves nothing behind: the same map gives the same before and after maps of other "
    "sizes.",
    causes=(
        "a cache keyed by size or channels alone: means, coordinates, masks of the border",
        "a buffer that is written in one call and read in the next",
        "running statistics that are updated in evaluation",
    ),
)
def check_fm_call_is_stateless(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    dtype, batch, channels = subject.dtype, size[0], size[1]
    sizes = [
        size,
        size,
        (batch + 1, channels, *(2 * n + 1 for n in size[2:])),
        (1, channels, *(max(1, n - 2) for n in size[2:])),
    ]
    maps = [normal(*one, seed=seed).to(dtype) for seed, one in enumerate(sizes)]
    module = subject.build(channels, dtype)
    given = f"x {', '.join(str(one) for one in sizes)}, {dtype}, one after the other"
    with blaming(given), torch.no_grad():
        outputs = [need_tensor("the output", module(x), given).clone() for x in maps]
        again = module(maps[0])
        fresh = [subject.build(channels, dtype)(x) for x in maps]
    compare_bits("the first map's output, asked for again", again, outputs[0], given=given)
    for number, (got, want) in enumerate(zip(outputs, fresh, strict=True)):
        told = f"the output of call {number + 1}, against a fresh module's"
        compare_bits(told, got, want, given=given)


@proves(
    "A call changes no setting of the process and prints nothing.",
    causes=(
        "torch.set_default_dtype, set_num_threads, set_grad_enabled or manual_seed in the call",
        "the sdpa_kernel context manager: its flags belong to the whole process",
        "os.chdir, sys.path or the warning filters changed in the call",
        "a print left from debugging",
    ),
)
def check_fm_global_state_untouched(subject: FeatureMapSubject, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=3).to(subject.dtype)
    given = f"x {size}, {subject.dtype}"
    spoken = io.StringIO()
    with (
        changes_watched() as changed,
        contextlib.redirect_stdout(spoken),
        contextlib.redirect_stderr(spoken),
        kernel_flags_watched() as touched,
        blaming(given),
    ):
        module(x)
    if touched:
        raise Mismatch(Seen(what="the call set the flags that choose torch's kernels"))
    if changed:
        raise Mismatch(Seen(what="the call changed " + ", ".join(changed), given=given))
    if spoken.getvalue().strip():
        line = spoken.getvalue().strip().splitlines()[0]
        raise Mismatch(Seen(what=f"the call printed {line[:80]!r}", given=given))


@proves(
    "The map is answered by attend(), once: never by the definition that it is compared with.",
    causes=(
        "an except clause that answers with a slower path",
        "attend() that calls reference(), or is called twice",
    ),
)
def check_fm_backend_really_used(subject: FeatureMapVariant, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=4).to(subject.dtype)
    given = f"x {size}, {subject.dtype}"
    with blaming(given), torch.no_grad():
        fallback = subject.fallback_of(module, x)
    if fallback:
        raise Mismatch(Seen(what=fallback, given=given))


@proves(
    "The definition stands alone: reference() of a map runs neither attend() nor forward(), on "
    "whatever object.",
    causes=(
        "reference() that returns self.attend(...), or calls super().attend: write the formula",
        "a copy of the variant that is called in the place of a definition",
    ),
)
def check_fm_reference_stands_alone(subject: FeatureMapVariant, size: tuple[int, ...]) -> None:
    module = subject.build(size[1], subject.dtype)
    x = normal(*size, seed=4).to(subject.dtype)
    given = f"x {size}, {subject.dtype}"
    with blaming("the definition, " + given):
        borrowed = subject.borrowed_by_reference(module, x)
    if borrowed:
        raise Mismatch(Seen(what=borrowed, given=given))
