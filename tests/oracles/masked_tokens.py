"""Chooses the tokens that a masked language model guesses, by docs/formats/data.md alone.

Uses Python's standard library only. With the arguments seed, step, sample, seq_len and vocab_size
it prints the choice for the tokens 8, 9, 10, ...
"""

import fractions
import math
import sys

IGNORED = -100
_WORD = 1 << 32


def philox(counter, key):
    """Returns the four words of Philox4x32-10 (Salmon et al., SC'11)."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xd2511f53 * counter[0], _WORD)
        high1, low1 = divmod(0xcd9e8d57 * counter[2], _WORD)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9e3779b9) % _WORD, (key[1] + 0xbb67ae85) % _WORD]
    return counter


def threshold(probability):
    return math.ceil(fractions.Fraction(probability) * _WORD)


def masked(tokens, seed, step, sample, vocab_size, mask_token, special_tokens, probability=0.15):
    """Returns the tokens of a sample without padding as the model reads them, and their labels."""
    key = philox([step % _WORD, step // _WORD, 0, 3], [seed % _WORD, seed // _WORD])[:2]
    draws = {place: philox([place, sample % _WORD, sample // _WORD, 0], key)
             for place, token in enumerate(tokens) if token not in special_tokens}
    chosen = [place for place, draw in draws.items() if draw[0] < threshold(probability)]
    if draws and not chosen:
        chosen = [min(draws, key=lambda place: draws[place][0])]
    read, labels = list(tokens), [IGNORED] * len(tokens)
    for place in chosen:
        labels[place] = tokens[place]
        if draws[place][1] < threshold(0.8):
            read[place] = mask_token
        elif draws[place][1] < threshold(0.9):
            read[place] = draws[place][2] * vocab_size // _WORD
    return read, labels


if __name__ == "__main__":
    SEED, STEP, SAMPLE, SEQ_LEN, VOCAB_SIZE = (int(text, 0) for text in sys.argv[1:])
    print(*masked(range(8, 8 + SEQ_LEN), SEED, STEP, SAMPLE, VOCAB_SIZE, 7, (1, 2, 7)), sep="\n")
