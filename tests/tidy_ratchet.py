"""The ratchet: tests/tidy_ratchet.txt lists every current violation with its size.

A size may only shrink: the test fails if one grows, and also if it shrinks without its entry.
`python3 tests/tidy_test.py --write-ratchet` writes the file again.
"""

import collections

PATH = "tests/tidy_ratchet.txt"
HEAD = """\
# Violations of the rules of tests/tidy_test.py with their sizes; entries may only shrink or go.
# kind path name size
"""


def read(text):
    """Parses lines "kind path name size" into {(kind, path, name): size}; # begins a comment."""
    entries = {}
    for line in text.split("\n"):
        words = line.split("#")[0].split()
        if words:
            kind, path, name, size = words
            entries[kind, path, name] = int(size)
    return entries


def violations(found, ratchet):
    """`found` holds (key, size, message); of several with one name, the largest counts."""
    largest = collections.defaultdict(int)
    for key, size, message in found:
        largest[key] = max(largest[key], size)
        if key not in ratchet:
            yield message
        elif size > ratchet[key]:
            yield f"{message}, and {PATH} allows {ratchet[key]}"
    for key, size in ratchet.items():
        if largest[key] < size:
            now = f"lower it to {largest[key]}" if key in largest and largest[key] else "remove it"
            yield f"{PATH}: \"{' '.join(key)} {size}\" has shrunk: {now}"


def text_of(found):
    """Returns the text of a ratchet that allows exactly what was found."""
    largest = collections.defaultdict(int)
    for key, size, _ in found:
        largest[key] = max(largest[key], size)
    return HEAD + "".join(f"{' '.join(key)} {size}\n" for key, size in sorted(largest.items()))
