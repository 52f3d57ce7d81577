"""Runs a whole program of stages as a worker does: forward with one activation at a time, backward by
computing each stage again. It sees the JSON text, weights and columns, and nothing of the model."""

import json
import pathlib
from typing import Any

import torch

from eps_models import interpret

Tensors = dict[str, torch.Tensor]


class StagedModel:
    """A program with its constants. `weights` in its functions are {name of a tensor: value}."""

    def __init__(self, text: str):
        self.text: dict[str, Any] = json.loads(text)
        self._constants = [interpret.constant(c) for c in self.text["constants"]]

    @staticmethod
    def read(path: pathlib.Path) -> "StagedModel":
        return StagedModel(path.read_text(encoding="utf-8"))

    def _stage(self, number: int, activation: torch.Tensor | None, weights: list[torch.Tensor],
               columns: Tensors, dropout: bool) -> torch.Tensor:
        stage = self.text["stages"][number]
        return interpret.run(self.text["programs"][stage["program"]], activation, weights,
                             [self._constants[i] for i in stage["constants"]], columns, dropout)

    def names(self, number: int) -> list[str]:
        """Returns the names of the tensors that a stage reads, one for each use."""
        return [self.text["tensors"][use["tensor"]]["name"]
                for use in self.text["stages"][number]["uses"]]

    def forward(self, weights: Tensors, columns: Tensors, dropout: bool = False
                ) -> list[torch.Tensor]:
        """Returns the output of each stage; the last are the scores."""
        outputs: list[torch.Tensor] = []
        with torch.no_grad():
            for number in range(len(self.text["stages"])):
                outputs.append(self._stage(number, outputs[-1] if outputs else None,
                                           [weights[n] for n in self.names(number)], columns,
                                           dropout))
        return outputs

    def gradients(self, weights: Tensors, columns: Tensors, d_scores: torch.Tensor) -> Tensors:
        """Returns {tensor: gradient}, summed over its uses from the last stage to the first."""
        outputs = self.forward(weights, columns)
        gradients: Tensors = {}
        upper = d_scores
        for number in reversed(range(len(outputs))):
            leaves = [weights[n].detach().clone().requires_grad_() for n in self.names(number)]
            inputs = list(leaves)
            activation = None
            if number:
                activation = outputs[number - 1].detach().requires_grad_()
                inputs.insert(0, activation)
            result = self._stage(number, activation, leaves, columns, dropout=False)
            found = list(torch.autograd.grad(result, inputs, upper, allow_unused=True))
            if number:
                upper = found.pop(0)
            for name, gradient in zip(self.names(number), found):
                if gradient is not None:
                    gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return {t["name"]: gradients.get(t["name"], torch.zeros_like(weights[t["name"]]))
                for t in self.text["tensors"]}

    def gather(self, stored: Tensors) -> Tensors:
        """Returns the weights from the tensors of a folder's files, as the format's `files` says."""
        weights = {}
        for tensor in self.text["tensors"]:
            pieces = [stored[name] for name in tensor["files"]["names"]]
            whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            weights[tensor["name"]] = whole.reshape(tensor["shape"])
        return weights
