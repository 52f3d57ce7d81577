#!/usr/bin/env python3
"""Measures `eps data make` against datasets.map: tokens per second of the whole command, with the
same tokenizer, documents and processes; and the padding that is left in packed rows.

Both read the same JSONL file, tokenize it with the tokenizer's end of text after each document, and
write rows of the same length to disk: EPS an .epsd file, the peer an Arrow folder by the recipe of
transformers' run_clm.py. A run counts only if both have the same ids. The peer is installed into a
temporary folder; third_party/install/setup_oracles.sh installs the rest.

Exit code: 0 if every goal is reached, 1 if one is missed, 2 if something did not run.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import report

ROOT = pathlib.Path(report.ROOT)
PYTHON = ROOT / "third_party/.oracles/bin/python"
STUBS = ROOT / "third_party/.oracles/stub_libs"
PEER_PACKAGES = ["datasets==4.8.5", "dill", "multiprocess", "pandas", "xxhash"]
TEXTS = pathlib.Path("/usr/share/common-licenses")
VOCABULARY, SEQ_LEN = 8192, 1024
TIMEOUT_S = 1200
SPEED, SPEED_GOAL = "tokens/s, eps data make / datasets.map", 1.0
PADDING, PADDING_GOAL = "padding left in packed rows", 0.03

# Makes a tokenizer in a folder from the documents of a JSONL file.
TOKENIZER = r"""
import json, sys
import tokenizers, transformers
documents, folder, vocabulary = sys.argv[1:]
tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = tokenizers.decoders.ByteLevel()
trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=int(vocabulary), special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
with open(documents, encoding="utf-8") as lines:
    texts = [json.loads(line)["text"] for _, line in zip(range(2000), lines)]
tokenizer.train_from_iterator(texts, trainer)
transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
"""

# The peer: tokenizes with datasets.map, joins the ids and cuts them into rows.
PEER = r"""
import itertools, json, sys
import datasets, transformers
documents, folder, out, seq_len, processes = sys.argv[1:]
seq_len, processes = int(seq_len), int(processes)
datasets.disable_progress_bars()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
end = tokenizer.eos_token_id
def encode(rows):
    return {"input_ids": [ids + [end] for ids in tokenizer(rows["text"])["input_ids"]]}
def join(rows):
    ids = list(itertools.chain.from_iterable(rows["input_ids"]))
    return {"input_ids": [ids[i:i + seq_len] for i in range(0, len(ids), seq_len)]}
found = datasets.load_dataset("json", data_files=documents, split="train", cache_dir=out + ".cache")
found = found.map(encode, batched=True, num_proc=processes, remove_columns=found.column_names)
found = found.map(join, batched=True, num_proc=processes)
found.save_to_disk(out)
print(json.dumps({"tokens": sum(map(len, found["input_ids"])),
                  "sum": sum(sum(row) for row in found["input_ids"])}))
"""

# Reads the ids of an .epsd file.
OURS = r"""
import json, sys
import numpy
from eps_models.data import epsd
reader = epsd.Reader(sys.argv[1])
ids = numpy.frombuffer(reader.raw(reader.header.find("tokens")), dtype=sys.argv[2])
print(json.dumps({"tokens": int(ids.size), "sum": int(ids.sum(dtype="int64"))}))
"""


class DidNotRun(Exception):
    pass


def run(command, **environment):
    """Runs a command to its end; returns (seconds, its output)."""
    start = time.monotonic()
    result = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT_S,
                            env=dict(os.environ, **environment))
    if result.returncode != 0:
        raise DidNotRun(f"{' '.join(map(str, command[:4]))}: {result.stderr[-2000:]}")
    return time.monotonic() - start, result.stdout


def write_documents(path, megabytes, seed=7):
    """Writes documents of 200 to 6,000 characters: words of licenses in a drawn order of lines."""
    lines = [line for file in sorted(TEXTS.iterdir()) if file.is_file()
             for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
             if line.strip()]
    draw, written = random.Random(seed), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < megabytes * 1_000_000:
            size, text = draw.randrange(200, 6000), []
            while sum(map(len, text)) < size:
                text.append(draw.choice(lines))
            line = json.dumps({"text": "\n".join(text)}) + "\n"
            written += len(line)
            file.write(line)


def padding_of(eps, documents, tokenizer, out):
    """Returns the share of padding in packed rows, none of which splits a document that fits."""
    _, made = run([eps, "data", "make", "jsonl", documents, f"--tokenizer={tokenizer}",
                   "--overwrite", f"--seq-len={SEQ_LEN}", f"--out={out}"])
    found = re.search(r"([0-9.]+) % padding", made)
    if found is None:
        raise DidNotRun(f"eps data make names no padding: {made[:500]}")
    return float(found[1]) / 100


def speed_line(ratios):
    met = report.spread(ratios).median >= SPEED_GOAL
    return (f"{SPEED:40} {report.format_spread(ratios)} goal >= {SPEED_GOAL:g}: "
            f"{'reached' if met else 'MISSED'}")


def padding_line(padding):
    met = padding <= PADDING_GOAL
    return f"{PADDING:40} {padding:.3f} goal at most {PADDING_GOAL:g}: " \
           f"{'reached' if met else 'MISSED'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", default=str(ROOT / "bazel-bin/cli/eps"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=40, help="size of the JSONL file")
    parser.add_argument("--patience", type=float, default=60)
    options = parser.parse_args()
    processes = len(os.sched_getaffinity(0))
    os.environ.update(EPS_PYTHON=str(PYTHON), LD_LIBRARY_PATH=str(STUBS),
                      TOKENIZERS_PARALLELISM="false")
    ratios = []
    with tempfile.TemporaryDirectory(prefix="eps-data-making-") as name:
        folder = pathlib.Path(name)
        documents, tokenizer = folder / "documents.jsonl", folder / "tokenizer"
        try:
            run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder / "peer",
                 *PEER_PACKAGES], LD_LIBRARY_PATH="")
            write_documents(documents, options.megabytes)
            run([PYTHON, "-c", TOKENIZER, documents, tokenizer, VOCABULARY])
            for index in range(options.rounds):
                report.wait_until_quiet(0.10, processes, options.patience, time.monotonic,
                                        time.sleep)
                ours, _ = run([options.eps, "data", "make", "jsonl", documents, "--overwrite",
                               f"--tokenizer={tokenizer}", f"--processes={processes}",
                               f"--out={folder / 'ours.epsd'}"])
                _, our_ids = run([PYTHON, "-c", OURS, folder / "ours.epsd", "<u2"],
                                 PYTHONPATH=str(ROOT / "python"))
                theirs, their_ids = run([PYTHON, "-c", PEER, documents, tokenizer,
                                         folder / f"peer-{index}", SEQ_LEN, processes],
                                        PYTHONPATH=str(folder / "peer"), HF_HUB_OFFLINE="1",
                                        HF_HOME=str(folder / "home"))
                mine, other = json.loads(our_ids), json.loads(their_ids.splitlines()[-1])
                if mine != other:
                    raise DidNotRun(f"the ids differ: {mine} with EPS, {other} with datasets")
                ratios.append(theirs / ours)
                print(f"round {index + 1}: {mine['tokens'] / ours / 1e6:.2f} million tokens/s with "
                      f"EPS, {mine['tokens'] / theirs / 1e6:.2f} with datasets", flush=True)
            padding = padding_of(options.eps, documents, tokenizer, folder / "packed.epsd")
        except (DidNotRun, OSError, subprocess.SubprocessError) as failure:
            print(failure, file=sys.stderr)
            return 2
    print(speed_line(ratios) + "\n" + padding_line(padding))
    faster = report.spread(ratios).median >= SPEED_GOAL
    return 0 if faster and padding <= PADDING_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
