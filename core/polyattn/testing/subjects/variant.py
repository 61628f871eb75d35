"""Registered variants, and classes that are not registered yet, as subjects of the suite."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polyattn.capabilities import Capabilities, FeatureMapCapabilities, Sizes
from polyattn.contract import FeatureMapAttention, SequenceAttention
from polyattn.errors import ConfigError, Unsupported
from polyattn.factory import resolve
from polyattn.kit import repeat_heads
from polyattn.operation import Operation
from polyattn.options import Options
from polyattn.registry import discover, load_target
from polyattn.spec import VariantSpec
from polyattn.state import State
from polyattn.testing.asked import described
from polyattn.testing.process.contained import contained
from polyattn.testing.results import Mismatch, Seen
from polyattn.testing.subjects.feature_maps import FeatureMapSubject
from polyattn.testing.subjects.sequence import (
    Formula,
    Instance,
    Subject,
    blaming,
    softmax_definition,
)
from polyattn.testing.tools.calls import methods_watched
from polyattn.testing.tools.cases import RECTANGULAR, Sample, Shape
from polyattn.testing.tools.devices import CPU, Place
from polyattn.testing.tools.loops import elementwise_attention, loop_attention
from polyattn.testing.tools.numerics import need_shape

Factory = Callable[[Options, Sizes | None], SequenceAttention]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Parameters are initialised from the global generator: it is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _building(given: str) -> Iterator[None]:
    """``blaming``, but for a refusal, which is an answer: sizes may be against the claims."""
    try:
        with blaming(given):
            yield
    except Mismatch as mismatch:
        if isinstance(mismatch.__cause__, Unsupported):
            raise mismatch.__cause__ from None
        raise


class VariantSubject(Subject):
    """A sequence variant under one of its configs. ``factory`` is its class, as a rule."""

    def __init__(self, name: str, factory: Factory, config: Options, place: Place = CPU) -> None:
        self.name = name
        self.config = config
        self.factory = factory
        self.place = place
        probe = factory(config, RECTANGULAR.of(value_dim=RECTANGULAR.head_dim).sizes)
        self.capabilities = probe.claims
        self.side_inputs = probe.side_inputs
        self.softmax = self.capabilities.exactness == "exact" and _plain_softmax(probe)
        if type(probe).refuse_lengths is not SequenceAttention.refuse_lengths:
            least = self._least_length()
            lengths = dataclasses.replace(self.capabilities.lengths, at_least=least)
            self.capabilities = dataclasses.replace(self.capabilities, lengths=lengths)
        left, right = (getattr(config, side, None) for side in ("left", "right"))
        if isinstance(left, int) and isinstance(right, int):
            self.promised_window = (left, right)

    def build(self, sizes: Sizes, dtype: torch.dtype, *, seed: int = 0) -> VariantInstance:
        with _building(f"building it for {sizes}"), seeded(seed):
            module = self.factory(self.config, sizes)
        return VariantInstance(self, self.place.settle(module.to(dtype).eval()))

    def _least_length(self) -> int:
        """The shortest length that it answers: a specialist leaves what is short to others."""
        for length in range(1, 33):
            shape = Shape(name="", queries=length, keys=length)
            try:
                self.build(shape.sizes, self.dtype).raw(self.draw(shape))
            except Unsupported:
                continue
            return length
        return 0

    def with_options(
        self, sizes: Sizes = RECTANGULAR.sizes, **options: object
    ) -> SequenceAttention:
        """The variant in training, its config changed in some options."""
        changed = type(self.config)(**{**dict(self.config), **options})
        with seeded(0):
            return self.factory(changed, sizes)


def _plain_softmax(probe: SequenceAttention) -> bool:
    """Whether its definition is the base class's: softmax over what its pattern leaves open."""
    makers = list(probe.members) if isinstance(probe, Operation) else [probe]
    plain = SequenceAttention.reference
    return all(getattr(type(maker), "reference", None) is plain for maker in makers)


def configured_softmax(
    config: object,
    sample: Sample,
    *,
    pattern: Tensor | None = None,
    formula: Formula = elementwise_attention,
) -> Tensor:
    """Softmax with the scale that these options name, over what pattern and mask leave open."""
    scale = getattr(config, "scale", None)
    return softmax_definition(sample, scale=scale, pattern=pattern, formula=formula)


class VariantInstance(Instance):
    """A variant built for some sizes."""

    def __init__(self, subject: VariantSubject, module: SequenceAttention) -> None:
        super().__init__(subject)
        self._module = module
        self._place = subject.place

    def module(self) -> nn.Module:
        return self._module

    def raw(self, sample: Sample) -> object:
        with contained():
            return self._module(sample.q, sample.k, sample.v, sample.mask, sample.inputs)

    def widened(self) -> Instance:
        assert isinstance(self.subject, VariantSubject)
        return VariantInstance(self.subject, copy.deepcopy(self._module).double())

    @property
    def _at_home(self) -> SequenceAttention:
        """The module where definitions are computed, with the same parameters."""
        return self._module if self._place.here else copy.deepcopy(self._module).to(CPU.name)

    def definition(self, sample: Sample) -> Tensor:
        if self.subject.softmax:
            return self._softmax(sample, elementwise_attention)
        return self.own_reference(sample)

    def loop(self, sample: Sample) -> Tensor:
        return self._softmax(sample, loop_attention)

    def _softmax(self, sample: Sample, formula: Formula) -> Tensor:
        pattern = self.pattern(*sample.lengths)
        return configured_softmax(self._module.config, sample, pattern=pattern, formula=formula)

    def own_reference(self, sample: Sample) -> Tensor:
        """Raises: Mismatch where its author's definition raises or is no such tensor."""
        given = f"its reference(), {sample.describe()}"
        with blaming(given):
            got = self._reference_of(self._at_home, sample)
        return need_shape("reference()", got, (*sample.q.shape[:3], sample.v.shape[3]), given)

    def _reference_of(self, module: SequenceAttention, sample: Sample) -> Tensor:
        q, k, v = sample.q, sample.k, sample.v
        if not (q.shape[0] and q.shape[2] and k.shape[2]):
            return q.new_zeros(*q.shape[:3], v.shape[3])
        inputs = sample.inputs
        if self.subject.capabilities.grouped_heads != "native":
            heads = q.shape[1]
            k, v = repeat_heads(k, heads), repeat_heads(v, heads)
            inputs = {name: repeat_heads(x, heads) for name, x in inputs.items()}
        return module.reference(q, k, v, sample.mask, inputs)

    def pattern(self, queries: int, keys: int) -> Tensor | None:
        return self._at_home.pattern(queries, keys, device=torch.device(CPU.name))

    def new_state(self, batch: int, sizes: Sizes, dtype: torch.dtype) -> State:
        return self._module.new_state(batch, sizes, dtype=dtype, device=self._place.name)

    def extend(self, sample: Sample, state: State) -> tuple[Tensor, State]:
        arguments = (sample.q, sample.k, sample.v, state, sample.mask, sample.inputs)
        out, state = self._place.call(self._module.extend, *arguments)
        shape = (*sample.q.shape[:3], sample.v.shape[3])
        return need_shape("the output of extend", out, shape, sample.describe()), state

    def fallback_of(self, sample: Sample) -> str:
        module, calls = self._module, list[str]()
        with ExitStack() as spies:
            # A call of an operation goes straight to the member that answers it.
            for maker in module.members if isinstance(module, Operation) else [module]:
                for method in ("reference", "attend"):
                    spies.enter_context(_spied(maker, method, calls))
            self(sample)
        return _answered_by(calls)

    def borrowed_by_reference(self, sample: Sample) -> str:
        """What the definition runs of the code that is compared with it; empty if nothing."""
        module = self._at_home
        makers = list(module.members) if isinstance(module, Operation) else [module]
        with methods_watched(makers, ANSWERING) as ran, blaming("reference()"), torch.no_grad():
            self._reference_of(module, sample)
        return _borrowed(ran)


ANSWERING = ("attend", "step", "extend", "forward")
"""The methods of a variant that answer; of feature maps there are two."""


def _borrowed(ran: list[str]) -> str:
    if not ran:
        return ""
    return f"reference() calls {ran[0]}(): compared with it, any answer is right"


def _answered_by(calls: list[str]) -> str:
    """What is wrong with the methods that ran in one call; empty where nothing is."""
    if "reference" in calls:
        return "the call was answered by reference(), which is what it is compared with"
    if calls.count("attend") != 1:
        return f"attend() ran {calls.count('attend')} times in one call"
    return ""


@contextmanager
def _spied(module: nn.Module, method: str, calls: list[str]) -> Iterator[None]:
    """Note each call of a method of this one module."""
    original = getattr(module, method)

    def spy(*args: Any) -> Any:
        calls.append(method)
        return original(*args)

    module.__dict__[method] = spy
    try:
        yield
    finally:
        del module.__dict__[method]


class FeatureMapVariant(FeatureMapSubject):
    """A feature-map variant under one of its configs."""

    def __init__(
        self,
        name: str,
        variant: type[FeatureMapAttention],
        config: Options,
        place: Place = CPU,
    ) -> None:
        self.name = name
        self.variant = variant
        self.config = config
        self.place = place
        self.capabilities = variant.capabilities_for(config)

    def build(self, channels: int, dtype: torch.dtype, *, seed: int = 0) -> nn.Module:
        with _building(f"building it for {channels} channels"), seeded(seed):
            module = self.variant(self.config, channels)
        return self.place.settle(module.to(dtype).eval())

    def definition(self, module: nn.Module, x: Tensor, keep: Tensor | None = None) -> Tensor:
        assert isinstance(module, FeatureMapAttention)
        given = f"its reference(), x {tuple(x.shape)}"
        with blaming(given):
            out = self.place.call(module.reference, x, keep)
        return need_shape("reference()", out, tuple(x.shape), given)

    def fallback_of(self, module: nn.Module, x: Tensor) -> str:
        """What else than ``attend`` answered this call; empty where nothing did."""
        calls = list[str]()
        with ExitStack() as spies:
            for method in ("reference", "attend"):
                spies.enter_context(_spied(module, method, calls))
            module(x)
        return _answered_by(calls)

    def borrowed_by_reference(self, module: nn.Module, x: Tensor) -> str:
        """What the definition runs of the code that is compared with it; empty if nothing."""
        with methods_watched([module], ANSWERING) as ran, torch.no_grad():
            self.definition(module, x)
        return _borrowed(ran)


AnySubject = Subject | FeatureMapSubject


Maker = Callable[[], AnySubject]


def subjects_of(name: str, place: Place = CPU) -> Mapping[str, AnySubject]:
    """What there is to check behind a registered name, by a label ("" if there is one).

    Raises: UnknownName, NameClash, Unavailable; whatever building it raises.
    """
    return {label: make() for label, make in makers_of(name, place).items()}


def makers_of(name: str, place: Place = CPU) -> Mapping[str, Maker]:
    """The same, each to be built by itself: what the code of one raises is not the others' loss.

    Raises: UnknownName, NameClash, Unavailable.
    """
    spec = discover().find(name).spec
    if isinstance(spec, VariantSpec):
        resolve(name)
        return makers_of_class(name, load_target(spec.target), place)
    blueprint = resolve(name)

    def build(config: Options, sizes: Sizes | None) -> SequenceAttention:
        built = dataclasses.replace(blueprint, config=config).build(sizes)
        assert isinstance(built, SequenceAttention)
        return built

    if blueprint.kind == "feature_map":
        raise ConfigError(f"{name!r} is a preset of a feature map: check the variant it names")
    return {"": partial(VariantSubject, name, build, blueprint.config, place)}


def subjects_of_class(
    name: str,
    variant: type[SequenceAttention] | type[FeatureMapAttention],
    place: Place = CPU,
) -> Mapping[str, AnySubject]:
    """One subject for each of the variant's ``examples()``, by a label ("" if there is one)."""
    return {label: make() for label, make in makers_of_class(name, variant, place).items()}


def makers_of_class(
    name: str, variant: type[SequenceAttention] | type[FeatureMapAttention], place: Place
) -> Mapping[str, Maker]:
    """The same, each to be built by itself.

    Raises: Mismatch where its examples are none; whatever ``examples()`` raises.
    """
    examples = _need_examples(variant.examples())
    labels = [_label(config) for config in examples] if len(examples) > 1 else [""]
    made: list[Maker] = []
    for config in examples:
        make: Maker
        if issubclass(variant, FeatureMapAttention):
            make = partial(FeatureMapVariant, name, variant, config, place)
        else:
            make = partial(VariantSubject, name, variant, config, place)
        made.append(partial(_with_its_claims, variant, config, make))
    return dict(zip(labels, made, strict=True))


def _need_examples(given: object) -> Sequence[Options]:
    """Raises: Mismatch for anything but configs, at least one."""
    expected = "examples(): expected a tuple of at least one config"
    if not isinstance(given, tuple | list):
        raise Mismatch(Seen(what=f"{expected}, got {described(given)}"))
    if not given:
        raise Mismatch(Seen(what=f"{expected}, got an empty {type(given).__name__}"))
    for config in given:
        if not isinstance(config, Options):
            raise Mismatch(Seen(what=f"{expected}, got {described(config)} in it"))
    return given


def _with_its_claims(
    variant: type[SequenceAttention] | type[FeatureMapAttention], config: Options, make: Maker
) -> AnySubject:
    """Raises: Mismatch where ``capabilities_for`` gives something else; what building it raises."""
    if issubclass(variant, Operation):
        return make()  # Its members claim.
    maps = issubclass(variant, FeatureMapAttention)
    kind = FeatureMapCapabilities if maps else Capabilities
    claims: object = variant.capabilities_for(config)
    if not isinstance(claims, kind):
        told = f"capabilities_for(): expected {kind.__name__}, got {described(claims)}"
        raise Mismatch(Seen(what=told))
    return make()


def _label(config: Options) -> str:
    """The options that differ from the defaults, as ``left=3,right=0``."""
    fields = type(config).model_fields
    changed = {
        key: value for key, value in dict(config).items() if fields[key].get_default() != value
    }
    return ",".join(f"{key}={value}" for key, value in changed.items()) or "defaults"
