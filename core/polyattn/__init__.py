"""polyattn: interchangeable attention variants. The public names, imported when first used."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyattn import kit as kit
    from polyattn.capabilities import PARTS as PARTS
    from polyattn.capabilities import Call as Call
    from polyattn.capabilities import Capabilities as Capabilities
    from polyattn.capabilities import FeatureMapCapabilities as FeatureMapCapabilities
    from polyattn.capabilities import InputSize as InputSize
    from polyattn.capabilities import Lengths as Lengths
    from polyattn.capabilities import Refusal as Refusal
    from polyattn.capabilities import Sizes as Sizes
    from polyattn.capabilities import Support as Support
    from polyattn.contract import FeatureMapAttention as FeatureMapAttention
    from polyattn.contract import Inputs as Inputs
    from polyattn.contract import SequenceAttention as SequenceAttention
    from polyattn.errors import ConfigError as ConfigError
    from polyattn.errors import PolyattnError as PolyattnError
    from polyattn.errors import Unsupported as Unsupported
    from polyattn.factory import create as create
    from polyattn.factory import explain as explain
    from polyattn.factory import weights as weights
    from polyattn.hookspecs import hookimpl as hookimpl
    from polyattn.layers.multi_head import MultiHeadAttention as MultiHeadAttention
    from polyattn.manifest import read_manifest as read_manifest
    from polyattn.mask import Mask as Mask
    from polyattn.mask import alibi_slopes as alibi_slopes
    from polyattn.models.build import build as build
    from polyattn.models.files import load as load
    from polyattn.models.files import save as save
    from polyattn.options import Options as Options
    from polyattn.spec import ComparisonSpec as ComparisonSpec
    from polyattn.spec import OperationSpec as OperationSpec
    from polyattn.spec import PresetSpec as PresetSpec
    from polyattn.spec import VariantSpec as VariantSpec
    from polyattn.state import KeyValueState as KeyValueState
    from polyattn.state import RecurrentState as RecurrentState
    from polyattn.state import State as State

_HOME = {
    "PARTS": "capabilities",
    "Call": "capabilities",
    "Capabilities": "capabilities",
    "ComparisonSpec": "spec",
    "ConfigError": "errors",
    "FeatureMapAttention": "contract",
    "FeatureMapCapabilities": "capabilities",
    "InputSize": "capabilities",
    "Inputs": "contract",
    "KeyValueState": "state",
    "Lengths": "capabilities",
    "Mask": "mask",
    "MultiHeadAttention": "layers.multi_head",
    "OperationSpec": "spec",
    "Options": "options",
    "PolyattnError": "errors",
    "PresetSpec": "spec",
    "RecurrentState": "state",
    "Refusal": "capabilities",
    "SequenceAttention": "contract",
    "Sizes": "capabilities",
    "State": "state",
    "Support": "capabilities",
    "Unsupported": "errors",
    "VariantSpec": "spec",
    "alibi_slopes": "mask",
    "build": "models.build",
    "create": "factory",
    "explain": "factory",
    "hookimpl": "hookspecs",
    "kit": "",
    "load": "models.files",
    "read_manifest": "manifest",
    "save": "models.files",
    "weights": "factory",
}

_OLD: dict[str, tuple[str, str]] = {}
"""Names on their way out: the name to use instead, and the version that no longer has the old."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """PEP 562: import a public name from its home, so that listing plugins needs no torch."""
    if name in _OLD:
        instead, until = _OLD[name]
        said = f"polyattn.{name} is gone in polyattn {until}; use polyattn.{instead}"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return __getattr__(instead)
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'polyattn' has no attribute {name!r}")
    if not home:
        return importlib.import_module(f"polyattn.{name}")
    value = getattr(importlib.import_module(f"polyattn.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
