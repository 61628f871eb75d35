"""A model in a folder: a config, weights, versions. Nothing that could run code is read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

from polyattn.errors import ConfigError
from polyattn.models.build import build
from polyattn.models.stack import SequenceModel

__all__ = ["Opened", "load", "load_weights", "save"]

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
VERSIONS = "versions.yaml"


@dataclass(frozen=True)
class Opened:
    """What two sets of parameters did not share, by name.

    left_out: in the file, without a place in the model. untouched: in the model, not in the file.
    """

    left_out: tuple[str, ...]
    untouched: tuple[str, ...]

    def __bool__(self) -> bool:
        """True where something was left out or untouched."""
        return bool(self.left_out or self.untouched)

    def __str__(self) -> str:
        parts = []
        if self.left_out:
            parts.append(f"left out of the file: {', '.join(self.left_out)}")
        if self.untouched:
            parts.append(f"not in the file, as initialised: {', '.join(self.untouched)}")
        return "; ".join(parts) or "every parameter was read"


def save(model: SequenceModel, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write config.yaml (resolved), model.safetensors and versions.yaml into a folder.

    Raises: ConfigError for a model without config or with several floating dtypes, and for a
    folder that cannot be made or already holds one.
    """
    config = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or not isinstance(config, Mapping):
        raise ConfigError(
            f"save: expected a model that polyattn.build made, with its config, got {_kind(model)}"
        )
    dtypes = {str(x.dtype) for x in model.state_dict().values() if x.is_floating_point()}
    if len(dtypes) > 1:
        raise ConfigError(
            f"save: expected weights of one floating dtype, got {', '.join(sorted(dtypes))}; "
            "model.to(dtype) makes it one"
        )
    folder = _folder(folder, "save")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder, got a file; give another folder")
    if not overwrite:
        for name in (CONFIG, WEIGHTS, VERSIONS):
            if (folder / name).exists():
                raise ConfigError(
                    f"{folder / name}: expected a folder without a model, and it holds one; give "
                    "another folder, or overwrite=True"
                )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: expected a folder that can be made, got: {error.strerror}"
        ) from None
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / WEIGHTS)
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    (folder / VERSIONS).write_text(yaml.safe_dump(_versions()), encoding="utf-8")


def load(folder: str | Path, config: Mapping[str, Any] | str | Path | None = None) -> SequenceModel:
    """The model that `save` wrote, in the dtype of its weights, on the CPU.

    config: builds this model instead, for example one with another variant, and opens the same
    weights; a warning then names the parameters that the two do not share.

    Raises: ConfigError for a missing or damaged file, and where parameters differ in shape, or
    at all without ``config``.
    """
    folder = _folder(folder, "load")
    model = build(folder / CONFIG if config is None else config)
    opened = load_weights(model, folder)
    if opened and config is None:
        raise ConfigError(
            f"{folder / WEIGHTS}: expected the parameters that {CONFIG} describes, got others: "
            f"{opened}; pass config= to open them with another config"
        )
    if opened:
        warnings.warn(f"{folder / WEIGHTS}: {opened}", stacklevel=2)
    return model


def load_weights(model: nn.Module, folder: str | Path) -> Opened:
    """Copy the weights of a folder into ``model``, which takes their dtype where they share one.

    Returns: the names that the two do not share, which keep what they had.
    Raises: ConfigError for a missing or damaged file, and where a name has two shapes or
    a tensor another dtype than the other weights.
    """
    path = _folder(folder, "load_weights") / WEIGHTS
    weights = _read(path)
    own = model.state_dict()
    for name in sorted(weights.keys() & own.keys()):
        if weights[name].shape != own[name].shape:
            raise ConfigError(
                f"{path}: {name}: expected {tuple(own[name].shape)}, got "
                f"{tuple(weights[name].shape)}; build the model with the sizes in {CONFIG}"
            )
    dtype = _dtype_of(path, weights, own)
    if dtype is not None:
        model.to(dtype)
    model.load_state_dict(weights, strict=False)
    return Opened(
        left_out=tuple(sorted(weights.keys() - own.keys())),
        untouched=tuple(sorted(own.keys() - weights.keys())),
    )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing; expected a folder that save() wrote") from None
    except (OSError, safetensors.SafetensorError) as error:
        reason = json.dumps(str(error))
        raise ConfigError(f"{path}: expected a safetensors file, got {reason}") from None


def _dtype_of(
    path: Path, weights: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> torch.dtype | None:
    """The one floating dtype of the weights. Raises: ConfigError where a tensor has another."""
    floats = [name for name in sorted(weights.keys() & own.keys()) if own[name].is_floating_point()]
    counts = Counter(weights[name].dtype for name in floats if weights[name].is_floating_point())
    for name in sorted(weights.keys() & own.keys()):
        got = weights[name].dtype
        expected: object = own[name].dtype
        if name in floats:
            expected = counts.most_common(1)[0][0] if counts else "a floating dtype"
        if got != expected:
            others = ", as the other weights" if name in floats and counts else ""
            raise ConfigError(f"{path}: {name}: expected {expected}{others}, got {got}")
    return next(iter(counts), None)


def _folder(given: object, caller: str) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"{caller}: expected the path of a folder, got {_kind(given)}")
    return Path(given)


def _kind(given: object) -> str:
    return "None" if given is None else f"a {type(given).__name__}"


def _versions() -> dict[str, str]:
    return {
        "polyattn": importlib.metadata.version("polyattn"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
