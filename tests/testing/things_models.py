"""Language models over ids (B, S) as people write them, right and wrong."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, HEADS, LONGEST = 23, 16, 4, 32


class Model(nn.Module):
    """Right: one layer, learned positions, a cache of keys and values in the style of
    transformers (past_key_values), padding by attention_mask with 1 for what is real."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, attention_mask=None, past_key_values=None, use_cache=False):
        seen = 0 if past_key_values is None else past_key_values[0].shape[2]
        if seen + ids.shape[1] > LONGEST:
            raise ValueError(f"a sequence of {seen + ids.shape[1]} is longer than {LONGEST}")
        x = self.embed(ids) + self.places(self.positions(ids, attention_mask, seen))
        x, cache = self.layer(x, attention_mask, past_key_values)
        logits = self.head(x)
        return (logits, cache) if use_cache else logits

    def positions(self, ids, mask, seen):
        if mask is None:
            return torch.arange(seen, seen + ids.shape[1])
        return (mask.long().cumsum(1) - 1).clamp(min=0)

    def layer(self, x, mask, past):
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        out = self.attend(q, k, v, mask)
        return x + self.out(out.transpose(1, 2).flatten(2)), (k, v)

    def attend(self, q, k, v, mask):
        keep = self.keep(q.shape[2], k.shape[2])
        if mask is not None:
            keep = keep & (mask[:, None, None] > 0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    def keep(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


class Growing:
    """A cache that grows in place, as those of transformers do."""

    def __init__(self) -> None:
        self.entries: tuple[Tensor, Tensor] | None = None


class InPlace(Model):
    """Right: an object with logits and a cache that grows in place."""

    def forward(self, ids, past_key_values=None, use_cache=False):
        cache = Growing() if past_key_values is None else past_key_values
        logits, cache.entries = super().forward(ids, past_key_values=cache.entries, use_cache=True)
        return Output(logits, cache if use_cache else None)


class Output:
    def __init__(self, logits, past_key_values) -> None:
        self.logits, self.past_key_values = logits, past_key_values


class Bare(nn.Module):
    """Right: a recurrent network, with neither a mask nor a cache nor a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class LastAlone(Model):
    """Right: the logits of the last id alone, unless it is given targets."""

    def forward(self, ids, targets=None):
        logits = super().forward(ids)
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class SeesAll(Model):
    """The causal mask was forgotten."""

    def keep(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool)


class MixesTheBatchBothWays(SeesAll):
    """Not causal, as it is meant, and wrong all the same."""

    def layer(self, x, mask, past):
        return super().layer(x + 0.1 * x.mean(0, keepdim=True), mask, past)


class SlotsBesidePositions(Model):
    """Positions can be given, and are not read."""

    def forward(self, ids, attention_mask=None, position_ids=None):
        return super().forward(ids, attention_mask)

    def positions(self, ids, mask, seen):
        return torch.arange(seen, seen + ids.shape[1])


class SeesOneAhead(Model):
    def keep(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries + 1)


class CentresTheLogits(Model):
    """A mean over the positions."""

    def layer(self, x, mask, past):
        x, cache = super().layer(x, mask, past)
        return x - 1e-3 * x.mean(1, keepdim=True), cache


class ScalesByLength(Model):
    def attend(self, q, k, v, mask):
        return super().attend(q * math.log(1 + k.shape[2]), k, v, mask)


class PlacesOfSlots(Model):
    """Right for padding at the end alone."""

    def positions(self, ids, mask, seen):
        return torch.arange(seen, seen + ids.shape[1])


class PaddingAtTheEndAlone(Model):
    """As many keys as are real, from the first."""

    def attend(self, q, k, v, mask):
        if mask is not None:
            mask = torch.arange(k.shape[2]) < mask.long().sum(1, keepdim=True)
            mask = mask.long()
        return super().attend(q, k, v, mask)


class PlacesFromZero(Model):
    """Each chunk begins at position 0."""

    def positions(self, ids, mask, seen):
        return super().positions(ids, mask, 0)


class AlignedAtTheFirstKey(Model):
    def keep(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).tril()


class SharedCache(Model):
    """The cache is kept on the model."""

    def layer(self, x, mask, past):
        if past is not None:
            past = self.kept
        x, self.kept = super().layer(x, mask, past)
        return x, tuple(t.clone() for t in self.kept)


class WritesToItsCache(Model):
    """One buffer, extended by writing to what was handed in."""

    def forward(self, ids, attention_mask=None, past_key_values=None, use_cache=False):
        past = past_key_values
        out = super().forward(ids, attention_mask, past, use_cache)
        if past is not None:
            past[1].mul_(0.5)
        return out


class TableOneTooShort(Model):
    """The mask is a table that ends early: the last position sees nothing new."""

    def keep(self, queries, keys):
        keep = super().keep(queries, keys)
        keep[30:] = keep[:2, :1].any() & (torch.arange(keys) >= 0)
        return keep


class ClampsPlaces(Model):
    """Longer sequences are cut to the last that fit, in silence."""

    def forward(self, ids, attention_mask=None, past_key_values=None, use_cache=False):
        if ids.shape[1] > LONGEST:
            logits = super().forward(ids[:, -LONGEST:])
            return F.pad(logits, (0, 0, ids.shape[1] - LONGEST, 0))
        return super().forward(ids, attention_mask, past_key_values, use_cache)

    max_length = LONGEST


class IndexError_(Model):
    """The table of positions says no, in words of its own."""

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids) + self.places(self.positions(ids, attention_mask, 0))
        return self.head(self.layer(x, attention_mask, None)[0])


class AssertsInSilence(Model):
    def forward(self, ids, attention_mask=None):
        assert ids.shape[1] <= LONGEST
        return super().forward(ids, attention_mask)


class LooksUpInSilence(Model):
    """The places by their number, in a dict: a KeyError of a number alone."""

    def positions(self, ids, mask, seen):
        known = dict(enumerate(range(LONGEST)))
        return torch.tensor([known[place] for place in range(seen, seen + ids.shape[1])])

    def forward(self, ids):
        x = self.embed(ids) + self.places(self.positions(ids, None, 0))
        return self.head(self.layer(x, None, None)[0])


class OpensAColumn(Model):
    """The logit of an id that there is none of is -inf, but for longer sequences."""

    def forward(self, ids):
        logits = F.pad(super().forward(ids), (0, 1), value=-math.inf)
        return logits if ids.shape[1] < 8 else logits.nan_to_num(neginf=-5.0)


class ClosedAtFirst(Model):
    """One logit of the first position alone is -inf."""

    def forward(self, ids):
        logits = super().forward(ids).clone()
        logits[:, 0, 3] = -math.inf
        return logits


class LeaksItsGradient(Model):
    def layer(self, x, mask, past):
        last = x[:, -1:]
        x, cache = super().layer(x, mask, past)
        return x + last - last.detach(), cache


class MixesTheBatch(Model):
    def layer(self, x, mask, past):
        return super().layer(x + 0.1 * x.mean(0, keepdim=True), mask, past)


class UnusedHead(Model):
    def __init__(self) -> None:
        super().__init__()
        self.second = copy.deepcopy(self.head)


class ReturnsNothing(Model):
    def forward(self, ids):
        super().forward(ids)


GOOD = (Model, InPlace, Bare, LastAlone)

RAISES = frozenset({IndexError_, AssertsInSilence, LooksUpInSilence})
"""Their fault is that they raise; of all others something wrong must be seen."""

CAUGHT = (
    (SeesAll, "check_module_causality_by_perturbation"),
    (SeesOneAhead, "check_module_causality_by_perturbation"),
    (CentresTheLogits, "check_module_prefix_consistency"),
    (ScalesByLength, "check_module_prefix_consistency"),
    (SeesOneAhead, "check_lm_causality_by_gradient"),
    (LeaksItsGradient, "check_lm_causality_by_gradient"),
    (PlacesOfSlots, "check_lm_left_padding"),
    (SlotsBesidePositions, "check_lm_left_padding"),
    (PaddingAtTheEndAlone, "check_lm_left_padding"),
    (PlacesFromZero, "check_lm_cached_decoding"),
    (AlignedAtTheFirstKey, "check_lm_cached_decoding"),
    (SharedCache, "check_lm_cache_isolation"),
    (WritesToItsCache, "check_lm_cache_isolation"),
    (TableOneTooShort, "check_lm_longest"),
    (ClampsPlaces, "check_lm_longest"),
    (IndexError_, "check_lm_refuses_clearly"),
    (LooksUpInSilence, "check_lm_refuses_clearly"),
    (OpensAColumn, "check_module_output"),
    (AssertsInSilence, "check_lm_refuses_clearly"),
    (MixesTheBatch, "check_module_batch_independence"),
    (UnusedHead, "check_module_parameters_get_grad"),
)
"""(class, name of the check that must catch it)."""
