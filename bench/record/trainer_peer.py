"""The peer of fine_tuning.py: trains a folder with transformers.Trainer, on tokens that are bytes.

    trainer_peer.py --make CONFIG FOLDER TEXT     writes a model with new weights, and a text
    trainer_peer.py FOLDER TEXT --steps=N ...     trains; prints the loss of each step as JSON

Runs in the environment of third_party/install/setup_oracles.sh.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers

SEED = 7


def make(config, folder, text):
    torch.manual_seed(SEED)
    values = json.loads(config)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**values))
    model.save_pretrained(folder)
    source = b"".join(path.read_bytes() for path in sorted(pathlib.Path(
        "/usr/share/common-licenses").iterdir()) if path.is_file() and not path.is_symlink())
    pathlib.Path(text).write_bytes(source)


class Samples(torch.utils.data.Dataset):
    """Consecutive samples, as data.order=sequential takes them; the model shifts the labels."""

    def __init__(self, tokens, seq_len):
        self.tokens = tokens
        self.seq_len = seq_len

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq_len

    def __getitem__(self, index):
        at = index * self.seq_len
        ids = self.tokens[at:at + self.seq_len]
        # The label of the last token is that of the next sample's first one.
        return {"input_ids": ids, "shift_labels": self.tokens[at + 1:at + self.seq_len + 1],
                "labels": ids}


class InOrder(transformers.Trainer):
    """A Trainer that does not shuffle."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.of_steps = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.of_steps.append(logs["loss"])


def train(options):
    text = pathlib.Path(options.text).read_bytes()
    tokens = torch.tensor(list(text), dtype=torch.long)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder)
    losses = Losses()
    arguments = transformers.TrainingArguments(
        output_dir=options.out, max_steps=options.steps, learning_rate=options.lr,
        lr_scheduler_type="constant", per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate, weight_decay=0.0, max_grad_norm=1.0,
        logging_steps=1, logging_first_step=True, save_strategy="no", report_to=[], seed=SEED,
        use_cpu=True, disable_tqdm=True, dataloader_num_workers=0)
    trainer = InOrder(model=model, args=arguments, callbacks=[losses],
                      train_dataset=Samples(tokens, options.seq_len))
    trainer.train()
    trainer.save_model(options.out)
    print(json.dumps(losses.of_steps))


def main():
    if sys.argv[1] == "--make":
        make(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("text")
    for name in ("steps", "seq-len", "batch", "accumulate"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--out", required=True)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
