"""Adds LoRA adapters to a model before it is exported, with peft. The program then holds the
adapters as small tensors that are trained, and marks all others as frozen, except a new head."""

import dataclasses
import sys
import warnings
from typing import Any

import torch

from eps_models import errors

_BASE = ".base_layer."
_ADAPTERS = (".lora_A.", ".lora_B.")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Settings of the adapters, as in peft.LoraConfig; r 0: none. `alpha` 0 stands for 2 r, no
    `targets` for those that peft names for the kind of the model."""
    r: int = 0
    alpha: float = 0
    dropout: float = 0
    targets: tuple[str, ...] = ()

    def scale(self) -> float:
        return self.alpha or 2 * self.r


def add(module: torch.nn.Module, lora: Lora) -> None:
    """Puts adapters into the layers of `module`. Errors: MISSING without peft, USAGE for settings
    that it refuses."""
    try:
        import peft
    except ImportError as error:
        raise errors.missing(f"lora.r (--lora-r) needs the package peft: {sys.executable} cannot "
                             f"import it: {error}") from error
    targets: Any = list(lora.targets) or None
    if lora.targets == ("all-linear",):
        targets = "all-linear"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fan_in_fan_out, which peft corrects itself
            config = peft.LoraConfig(r=lora.r, lora_alpha=lora.scale(), lora_dropout=lora.dropout,
                                     target_modules=targets, bias="none")
            peft.inject_adapter_in_model(config, module)
    except (ValueError, TypeError) as error:
        text = str(error).strip().split("\n", 1)[0]
        raise errors.usage(f"lora.r, lora.targets (--lora-r, --lora-targets): {text}") from error


def is_adapter(name: str) -> bool:
    """Returns whether a parameter is one that `add` made."""
    return any(part in name for part in _ADAPTERS)


def plain(name: str) -> str:
    """Returns the name that a parameter has in files: that of the model without adapters."""
    return name.replace(_BASE, ".")


def describe(lora: Lora, names: list[str]) -> dict[str, Any]:
    """Returns the settings as the program has them. `names`: all parameters."""
    layers = sorted({name.split(".lora_A.")[0] for name in names if ".lora_A." in name})
    kinds = sorted({layer.rpartition(".")[2] for layer in layers})
    return {"r": lora.r, "alpha": float(lora.scale()), "dropout": float(lora.dropout),
            "targets": list(lora.targets if lora.targets != ("all-linear",) else ()) or kinds}
