"""Real labels: people rated 10,605 sentences of film reviews from -4 to 4 (Hutto, Gilbert, 2014).

third_party/install/setup_oracles.sh installs the file, which is part of the source package of
vaderSentiment 3.3.2. The sign of a rating is a label like those of SST-2.
"""

import collections
import hashlib
import pathlib
import re
import sys

import torch

FILE = pathlib.Path(sys.prefix) / "labels" / "movieReviewSnippets_GroundTruth.txt"
HELD_OUT = 4096  # a difference of one point is 41 sentences


def labelled():
    """Returns (training, held-out) lists of (text, 1 if its rating is positive, else 0), the same
    in each call. Neutral sentences are left out."""
    rows = {}
    for line in FILE.read_text(encoding="latin-1").splitlines():
        _, rating, text = line.split("\t", 2)
        if float(rating) != 0:
            rows[text.strip()] = int(float(rating) > 0)
    ordered = sorted(rows.items(), key=lambda row: hashlib.sha256(row[0].encode()).digest())
    return ordered[HELD_OUT:], ordered[:HELD_OUT]


def share_of_the_larger_class(rows):
    positive = sum(label for _, label in rows) / len(rows)
    return max(positive, 1 - positive)


def accuracy_of_bag_of_words(training, held_out, decay=3e-4):
    """Returns the accuracy of logistic regression on which words a sentence has. Of the decays
    1e-4, 3e-4, 1e-3 and 3e-3, the default is the best one for these sentences."""
    def words(text):
        return set(re.findall(r"[a-z']+|[^\sa-z']", text.lower()))

    counts = collections.Counter(word for text, _ in training for word in words(text))
    numbers = {word: i for i, word in enumerate(w for w, count in counts.items() if count > 1)}

    def matrix(rows):
        result = torch.zeros(len(rows), len(numbers))
        for i, (text, _) in enumerate(rows):
            result[i, [numbers[word] for word in words(text) if word in numbers]] = 1
        return result, torch.tensor([float(label) for _, label in rows])

    inputs, labels = matrix(training)
    model = torch.nn.Linear(len(numbers), 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(
            model(inputs).squeeze(1), labels) + decay / 2 * (model.weight ** 2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    inputs, labels = matrix(held_out)
    return ((model(inputs).squeeze(1) > 0) == (labels > 0)).float().mean().item()
