"""How close two training runs must be. Uses Python's standard library only.

Each function returns a list of complaints; an empty list means that the two agree.
"""

import math

LOSS_TOLERANCE = 1e-5      # relative
NORM_TOLERANCE = 1e-4      # relative; a norm sums squares of rounded gradients
LR_TOLERANCE = 1e-12       # relative; both sides compute in double
WEIGHT_TOLERANCE = 1e-5    # absolute
WEIGHT_SHARE = 0.999       # of all elements within WEIGHT_TOLERANCE
LOGIT_TOLERANCE = 1e-4     # absolute
MOMENT_TOLERANCE = 1e-4    # relative to the tensor's largest element


def close(ours, theirs, relative):
    """Compares with a relative tolerance; returns False if a value is not finite."""
    return abs(ours - theirs) <= relative * abs(theirs)


def series(name, ours, theirs, relative):
    if len(ours) != len(theirs):
        return [f"{name}: {len(ours)} steps, {len(theirs)} expected"]
    wrong = [i for i in range(len(ours)) if not close(ours[i], theirs[i], relative)]
    return [f"{name}: {len(wrong)} of {len(ours)} differ by more than {relative} of it, the first "
            f"at step {i + 1}: {ours[i]!r}, expected {theirs[i]!r}" for i in wrong[:1]]


def steps(ours, theirs):
    """Compares losses, gradient norms and learning rates of two runs."""
    return (series("loss", ours.losses, theirs.losses, LOSS_TOLERANCE) +
            series("grad_norm", ours.grad_norms, theirs.grad_norms, NORM_TOLERANCE) +
            series("lr", ours.lrs, theirs.lrs, LR_TOLERANCE))


HEADS = 6                  # of the BLOOM and GPT-NeoX that are compared


def compared(name, count):
    """Returns the indices of a tensor's elements that are compared.

    A bias of the attention's keys is left out: it adds the same value to all scores of a query, so
    its gradient is only rounding noise, which Adam turns into steps of full size. It is the middle
    third of GPT-2's c_attn.bias, and of each head's part of that of BLOOM and GPT-NeoX, which
    rotates a quarter of a key. (Where keys are rotated, their bias has a gradient.)
    """
    if name.endswith(".attn.c_attn.bias"):
        third = count // 3
        return list(range(third)) + list(range(2 * third, count))
    if name.endswith("attention.query_key_value.bias"):
        part = count // HEADS // 3
        return [i for i in range(count) if i // part % 3 != 1]
    if ".decoder.layers." in name and name.endswith(".k_proj.bias"):  # OPT
        return []
    # BERT, DistilBERT, ViT
    if name.endswith((".attention.self.key.bias", ".attention.k_lin.bias",
                      ".attention.k_proj.bias")):
        return []
    return range(count)


def elements(pairs, lrs):
    """Compares elements; `pairs` yields (tensor, index, ours, theirs).

    Adam moves an element by at most about the learning rate, so two runs from the same start are at
    most twice the sum of the rates apart.
    """
    limit = 2 * sum(lrs)
    total, far, beyond = 0, [], []
    for pair in pairs:
        difference = abs(pair[2] - pair[3])
        total += 1
        if not difference <= WEIGHT_TOLERANCE:
            far.append(pair)
        if not difference <= limit:
            beyond.append(pair)

    def first(pairs):
        tensor, index, ours, theirs = pairs[0]
        return f"{tensor}[{index}] is {ours!r}, expected {theirs!r}"

    complaints = []
    if total == 0 or len(far) > (1 - WEIGHT_SHARE) * total:
        complaints.append(f"weights: {len(far)} of {total} differ by more than {WEIGHT_TOLERANCE}" +
                          (", as " + first(far) if far else ""))
    if beyond:
        complaints.append(f"weights: {len(beyond)} of {total} differ by more than {limit}, as " +
                          first(beyond))
    return complaints


def weights(ours, theirs, lrs):
    """Compares all elements of two models, given as {name: (shape, values)}."""
    if {k: v[0] for k, v in ours.items()} != {k: v[0] for k, v in theirs.items()}:
        return [f"tensors: {sorted(ours)}, expected {sorted(theirs)} with the same shapes"]
    return elements(((name, i, values[i], theirs[name][1][i]) for name, (_, values) in ours.items()
                     for i in compared(name, len(values))), lrs)


def moments(ours, theirs):
    """Compares one of the optimizer's moments, given as {name: (shape, values)}."""
    if {k: v[0] for k, v in ours.items()} != {k: v[0] for k, v in theirs.items()}:
        return [f"tensors: {sorted(ours)}, expected {sorted(theirs)} with the same shapes"]
    complaints = []
    for name, (_, values) in ours.items():
        expected = theirs[name][1]
        places = compared(name, len(values))
        limit = MOMENT_TOLERANCE * max(abs(expected[i]) for i in places)
        wrong = [i for i in places if not abs(values[i] - expected[i]) <= limit]
        if wrong:
            complaints.append(f"{name}: {len(wrong)} of {len(values)} differ by more than {limit}, "
                              f"as [{wrong[0]}]: {values[wrong[0]]!r}, expected "
                              f"{expected[wrong[0]]!r}")
    return complaints


def runs(ours, theirs):
    return steps(ours, theirs) + weights(ours.weights, theirs.weights, theirs.lrs)


def scores(ours, theirs):
    """Compares two lists of logits."""
    if len(ours) != len(theirs):
        return [f"logits: {len(ours)}, expected {len(theirs)}"]
    worst = max(range(len(ours)), key=lambda i: abs(ours[i] - theirs[i]), default=None)
    if worst is None or not all(map(math.isfinite, ours)):
        return ["logits: some are not finite, or there are none"]
    if abs(ours[worst] - theirs[worst]) <= LOGIT_TOLERANCE:
        return []
    return [f"logits: {ours[worst]!r} at {worst}, expected {theirs[worst]!r}"]
