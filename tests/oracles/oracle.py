"""The oracle: a model of transformers trained by PyTorch, as in an ordinary Python script.

It shares no code or arithmetic with EPS, only the folder that both start from. `mistake` plants a
mistake, to show that a comparison notices it.
"""

import array
import json
import os
import pathlib
import re

os.environ.update(TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="",
                  TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")

# Imported after the variables above, which they read.
import torch  # noqa: E402
import transformers  # noqa: E402

import eps_run  # noqa: E402
import golden  # noqa: E402
import jobs  # noqa: E402

MISTAKES = {
    "decay_on_biases": "weight decay on every tensor, not only on those of rank 2",
    "coupled_decay": "weight decay added to the gradient, as Adam has it",
    "schedule_one_late": "every step with the learning rate of the previous step",
    "no_bias_correction": "moments without bias correction",
    "no_clipping": "the gradient without clipping",
    "clip_each_tensor": "each tensor clipped by its own norm",
    "mean_of_last_micro_batch": "the gradient of the last sample instead of the mean",
    "labels_not_shifted": "each token predicts itself",
    "one_sample_late": "the data read from sample 1 on",
    "no_wrap": "a partial sample after the last whole one before wrapping around",
    "erf_gelu": "the exact GELU instead of the tanh approximation",
    "untied_head": "a copy of the embedding as head, with its own gradient",
}


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def load_with_report(folder):
    """Returns (model, {kind of problem: tensors})."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             output_loading_info=True)


def load_tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def load_trainer_state(folder):
    return transformers.TrainerState.load_from_json(os.path.join(folder, "trainer_state.json"))


def to_arrays(named_tensors):
    """Converts tensors to {name: (shape, values)}."""
    return {name: (tuple(tensor.shape), array.array("f", tensor.detach().flatten().tolist()))
            for name, tensor in named_tensors}


def make_comparable(folder):
    """Changes the config.json of a model. Turns dropout off: the two sides would draw different
    random numbers. Replaces ReLU, whose gradient jumps: PyTorch itself, from weights that are moved
    by 1e-7 of their size, leaves the tolerances in the 11th step of OPT."""
    path = pathlib.Path(folder) / "config.json"
    config = json.loads(path.read_text())
    config.update({key: 0.0 for key in config if "drop" in key and config[key] is not None})
    config.update({key: "gelu" for key in config if config[key] == "relu"})
    path.write_text(json.dumps(config))


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of "Symbolic Discovery of Optimization Algorithms" (Chen et al., 2023), which
    torch.optim does not have."""

    def __init__(self, groups, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                moment = state.setdefault("exp_avg", torch.zeros_like(parameter))
                mixture = beta1 * moment + (1 - beta1) * parameter.grad
                parameter -= group["lr"] * (torch.sign(mixture) +
                                            group["weight_decay"] * parameter)
                state["exp_avg"] = beta2 * moment + (1 - beta2) * parameter.grad


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (You
    et al., 2020) with the identity for phi, which torch.optim does not have. As in the training
    scripts of BERT, parameters without weight decay have no trust ratio, unless `always_adapt`."""

    def __init__(self, groups, lr, betas, eps, always_adapt=False):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0,
                                  "always_adapt": always_adapt})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                first = state.setdefault("exp_avg", torch.zeros_like(parameter))
                second = state.setdefault("exp_avg_sq", torch.zeros_like(parameter))
                first.mul_(beta1).add_(parameter.grad, alpha=1 - beta1)
                second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                unbiased = first / (1 - beta1 ** state["step"])
                root = (second / (1 - beta2 ** state["step"])).sqrt() + group["eps"]
                update = unbiased / root + group["weight_decay"] * parameter
                trust = 1.0
                if group["always_adapt"] or group["weight_decay"] > 0:
                    norms = parameter.norm().item(), update.norm().item()
                    trust = norms[0] / norms[1] if min(norms) > 0 else 1.0
                parameter.sub_(update, alpha=group["lr"] * trust)


def new_optimizer(job, model, mistake):
    """Groups parameters as most training scripts do: only matrices decay."""
    sets = {(1.0, job.weight_decay): []}  # whose rate is that of the records
    for name, parameter in model.named_parameters():
        rule = next((g for g in job.groups if re.search(g[0], name)), (None, 1.0, None))
        decay = job.weight_decay if rule[2] is None else rule[2]
        if parameter.dim() < 2 and mistake != "decay_on_biases":
            decay = 0.0
        sets.setdefault((rule[1], decay), []).append(parameter)
    groups = [{"params": parameters, "weight_decay": decay, "lr": job.lr * multiplier}
              for (multiplier, decay), parameters in sets.items() if parameters]
    kind = {"adamw": torch.optim.Adam if mistake == "coupled_decay" else torch.optim.AdamW,
            "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
            "lion": Lion, "lamb": Lamb}[job.optimizer]
    parameters = {name: getattr(job, name) for name in jobs.PARAMETERS[job.optimizer]}
    return kind(groups, lr=job.lr, **parameters)


def new_scheduler(name, optimizer, warmup_steps, total_steps, options=None):
    if name == "polynomial" and not options:
        options = {"lr_end": 0.0}  # EPS's value without lr_scheduler.min_lr_ratio
    return transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup_steps,
                                      num_training_steps=total_steps,
                                      scheduler_specific_kwargs=options)


def learning_rates(name, lr, warmup_steps, total_steps, options):
    """Returns the rates of steps 1 to total_steps by transformers' schedule."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = new_scheduler(name, optimizer, warmup_steps, total_steps, options)
    lrs = []
    for _ in range(total_steps):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return lrs


def mean_loss(job, model, samples, mistake):
    """Returns the mean loss over all tokens of a step."""
    if mistake == "mean_of_last_micro_batch":
        samples = samples[-1:]
    ids = torch.tensor([inputs for inputs, _ in samples])
    labels = torch.tensor([labels for _, labels in samples])
    if mistake == "labels_not_shifted":
        labels = ids
    if job.seq_len < job.n_positions and mistake is None and not job.label_smoothing:
        # If the last label fits in, use the model's own loss, which shifts the labels itself.
        whole = torch.cat([ids, labels[:, -1:]], dim=1)
        return model(whole, labels=whole).loss
    logits = model(ids).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                                             label_smoothing=job.label_smoothing)


def clip(job, model, mistake):
    """Clips the gradients; returns their norm before clipping."""
    if mistake == "clip_each_tensor":
        norms = [torch.nn.utils.clip_grad_norm_(p, job.max_grad_norm) for p in model.parameters()]
        return torch.stack(norms).norm().item()
    limit = job.max_grad_norm
    if job.clip == "none" or mistake == "no_clipping":
        limit = float("inf")
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()


def samples_of(job, data, step, mistake):
    if mistake == "one_sample_late":
        data = data[job.seq_len:] + data[:job.seq_len]
    if mistake == "no_wrap":
        data = data + data[:2 * job.seq_len - len(data) % job.seq_len]
    return jobs.batch(job, data, step)


def new_model(inputs, mistake):
    model = load(inputs.folder)
    if mistake == "erf_gelu":
        for block in model.transformer.h:
            block.mlp.act = torch.nn.GELU()
    if mistake == "untied_head":
        model.lm_head.weight = torch.nn.Parameter(model.transformer.wte.weight.detach().clone())
    return model


def train(job, inputs, mistake=None, model=None):
    """Trains the model of the inputs' folder, or `model`, which may have frozen parameters."""
    assert mistake is None or mistake in MISTAKES, mistake
    torch.set_num_threads(1)
    data = jobs.tokens(job)
    model = (model or new_model(inputs, mistake)).train()
    optimizer = new_optimizer(job, model, mistake)
    scheduler = new_scheduler(job.schedule, optimizer, job.warmup_steps, jobs.STEPS)
    run = eps_run.Run(losses=[], grad_norms=[], lrs=[], weights={}, moments={}, folder="")
    for step in range(jobs.STEPS):
        loss = mean_loss(job, model, samples_of(job, data, step, mistake), mistake)
        optimizer.zero_grad()
        loss.backward()
        run.losses.append(loss.item())
        run.grad_norms.append(clip(job, model, mistake))
        run.lrs.append(optimizer.param_groups[0]["lr"])
        if mistake == "no_bias_correction":
            for state in optimizer.state.values():
                state["step"].fill_(1e9)
        optimizer.step()
        if mistake != "schedule_one_late" or step > 0:
            scheduler.step()
    run.weights = to_arrays(model.named_parameters())
    run.moments = {field: to_arrays((name, optimizer.state[parameter][field])
                                    for name, parameter in model.named_parameters()
                                    if parameter.requires_grad)
                   for field in job.state_fields}
    if mistake == "untied_head":
        del run.weights["lm_head.weight"]
    return run


def logits(model, ids):
    """Returns the scores after each position, one row after the other."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits.flatten().tolist()


def generate(model, ids, count):
    """Returns the likeliest continuation."""
    with torch.no_grad():
        tokens = model.generate(torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count,
                                do_sample=False)
    return tokens[0, len(ids):].tolist()


def summary(job, inputs, run):
    """Returns the content of the job's golden file."""
    prompt, _ = jobs.sample(job, jobs.tokens(job), 0)
    scores = logits(load(inputs.folder).eval(), prompt)
    return golden.summary(job, inputs, run, prompt, scores[-job.vocab_size:],
                          {"torch": torch.__version__, "transformers": transformers.__version__})
