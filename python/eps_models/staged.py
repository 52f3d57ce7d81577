"""A program with its constants, evaluated stage by stage. It sees the JSON text, weights and
columns, and nothing of the model or of the graph."""

import json
from typing import Any

import torch

from eps_models import interpret

Tensors = dict[str, torch.Tensor]


class StagedModel:
    """A program that can be run. `weights` in its functions are {name of a tensor: value}."""

    def __init__(self, text: str):
        self.text: dict[str, Any] = json.loads(text)
        self._constants = [interpret.constant(c) for c in self.text["constants"]]

    def stage(self, number: int, activation: torch.Tensor | None, weights: list[torch.Tensor],
              columns: Tensors, dropout: bool = False) -> torch.Tensor:
        """Returns the output of a stage for the weights of its uses."""
        stage = self.text["stages"][number]
        return interpret.run(self.text["programs"][stage["program"]], activation, weights,
                             [self._constants[i] for i in stage["constants"]], columns, dropout)

    def names(self, number: int) -> list[str]:
        """Returns the names of the tensors that a stage reads, one for each use."""
        return [self.text["tensors"][use["tensor"]]["name"]
                for use in self.text["stages"][number]["uses"]]

    def forward(self, weights: Tensors, columns: Tensors, dropout: bool = False
                ) -> list[torch.Tensor]:
        """Returns the output of each stage, computed without autograd; the last are the scores."""
        outputs: list[torch.Tensor] = []
        with torch.no_grad():
            for number in range(len(self.text["stages"])):
                outputs.append(self.stage(number, outputs[-1] if outputs else None,
                                          [weights[n] for n in self.names(number)], columns,
                                          dropout))
        return outputs

    def gather(self, stored: Tensors) -> Tensors:
        """Returns the weights from the tensors of a folder's files, as the format's `files` says.

        They are copies: sums depend on the alignment of memory, and files are mapped where they
        begin. Errors: KeyError for a name that is not in the files.
        """
        weights = {}
        for tensor in self.text["tensors"]:
            pieces = [stored[name] for name in tensor["files"]["names"]]
            whole = torch.cat(pieces) if len(pieces) > 1 else pieces[0].clone()
            weights[tensor["name"]] = whole.reshape(tensor["shape"])
        return weights
