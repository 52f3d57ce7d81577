"""Builds the model that is exported: from the config.json of a Hugging Face folder, or by a
function of a Python file. No code comes from the folder, and no weight is read or computed."""

import contextlib
import dataclasses
import importlib.util
import inspect
import json
import logging
import os
import pathlib
from typing import Any, Iterator

os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Imported after the variables above, which they read.
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # no GPU kernels here
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import masking_utils  # noqa: E402

from eps_models import errors, lora  # noqa: E402
from eps_models.initial import InitRecorder  # noqa: E402

torch._logging.set_logs(all=logging.CRITICAL)  # ExportError says what torch refuses
transformers.logging.disable_progress_bar()

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VARIANTS = ("causal", "packed", "encoder")
EXPERTS = ("grouped_mm", "batched_mm")


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its classes of transformers (the first that knows the config is taken), its variants
    from the default on, and the kind of its head."""
    classes: tuple[str, ...]
    variants: tuple[str, ...]
    head: str


TASKS = {
    # An encoder with a decoder is built to say which values cross its cuts.
    "causal_lm": Task(("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"), ("causal", "packed"),
                      "tokens"),
    "mlm": Task(("AutoModelForMaskedLM",), ("encoder",), "tokens"),
    "classify": Task(("AutoModelForSequenceClassification",), ("encoder",), "classes"),
    "regress": Task(("AutoModelForSequenceClassification",), ("encoder",), "mse"),
    "image": Task(("AutoModelForImageClassification",), ("encoder",), "classes"),
}


def task_of(source: str) -> str:
    """Returns the task of the class that config.json in a folder names; causal_lm if it names none
    of ours, or if `source` is no folder."""
    try:
        with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        name = str((config.get("architectures") or [""])[0])
    except (OSError, ValueError, AttributeError, TypeError):
        return "causal_lm"  # the export says what is wrong with the folder
    if name.endswith("ForMaskedLM"):
        return "mlm"
    if name.endswith("ForImageClassification"):
        return "image"
    if name.endswith("ForSequenceClassification"):
        one_number = len(config.get("id2label") or (0, 1)) == 1
        return "regress" if one_number or config.get("problem_type") == "regression" else "classify"
    return "causal_lm"


@dataclasses.dataclass(frozen=True)
class Request:
    """What is exported: a folder or FILE.py:FUNCTION, and how. `layers` names the module list of
    the layers; empty: it is looked for."""
    source: str
    task: str
    variant: str
    dtype: torch.dtype
    layers: str = ""
    experts: str = EXPERTS[0]
    trust_remote_code: bool = False
    adapters: lora.Lora = lora.Lora()


@dataclasses.dataclass(frozen=True)
class Model:
    """A model in train mode whose parameters have no values, and the columns that it reads."""
    module: torch.nn.Module
    config: Any  # a PretrainedConfig, or None
    architecture: str
    model_type: str
    columns: tuple[str, ...]
    init: InitRecorder

    def sliding_window(self) -> int:
        """Returns the shortest attention window of its layers; 0 if all see every position."""
        config = self.config
        window = getattr(config, "sliding_window", None)
        if not window or getattr(config, "use_sliding_window", True) is False:
            return 0
        kinds = getattr(config, "layer_types", None)
        return window if kinds is None or "sliding_attention" in kinds else 0


def is_function(source: str) -> bool:
    """Returns whether a source is FILE.py:FUNCTION, and not a folder."""
    return ".py:" in source


def build(request: Request) -> Model:
    """Builds the model. Errors: MISSING for a folder or file that is not there, UNSUPPORTED for a
    config without a class for the task, or whose code would come from the folder."""
    with InitRecorder() as recorder:
        if is_function(request.source):
            module = _call_builder(request)
            name = request.source.rpartition(":")[2]
        else:
            module = _from_folder(request)
            name = type(module).__name__
        if request.adapters.r > 0:
            lora.add(module, request.adapters)
    config = getattr(module, "config", None)
    model = Model(module.train(), config, name, getattr(config, "model_type", None) or "", (),
                  recorder)
    return dataclasses.replace(model, columns=_columns(request, model))


def _from_folder(request: Request) -> torch.nn.Module:
    folder = pathlib.Path(request.source)
    if not (folder / "config.json").is_file():
        raise errors.missing(
            f"{request.source} has no config.json. Give the folder of a model, or the name of one "
            f"that is in the cache of the hub after: hf download ORG/NAME")
    config = _load_config(folder, request.trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise errors.unsupported(f"{folder}/config.json has a quantization_config; convert the "
                                 f"weights to float32 or bfloat16 first")
    if request.task == "regress":
        config.num_labels = 1
    classes = TASKS[request.task].classes
    for name in classes:
        auto = getattr(transformers, name)
        has_code = request.trust_remote_code and name in (getattr(config, "auto_map", None) or {})
        if not has_code and type(config) not in auto._model_mapping:
            continue
        config.use_cache = False
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = request.experts
        return _make(auto, config, request)
    raise errors.unsupported(
        f"model_type {config.model_type} of {folder}/config.json has no {' or '.join(classes)} in "
        f"transformers {transformers.__version__}; choose another --task")


def _load_config(folder: pathlib.Path, trust: bool) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    except (ValueError, KeyError, OSError, json.JSONDecodeError) as error:
        hint = ""
        if not trust and "auto_map" in (folder / "config.json").read_text(errors="replace"):
            hint = "; its classes are code in that folder, which --trust-remote-code would run"
        raise errors.unsupported(
            f"{folder}/config.json: {_first_line(error)}{hint}") from error


def _make(auto: Any, config: Any, request: Request) -> torch.nn.Module:
    options = {"dtype": request.dtype}
    if request.trust_remote_code:
        options["trust_remote_code"] = True
    try:
        module = auto.from_config(config, **options)
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        raise errors.unsupported(f"transformers cannot build the model of {request.source}: "
                                 f"{_first_line(error)}") from error
    if getattr(module.config, "_experts_implementation", None) not in (None, "eager"):
        module.config._experts_implementation = request.experts
    return module


def _call_builder(request: Request) -> torch.nn.Module:
    file, _, function = request.source.rpartition(":")
    if not os.path.isfile(file):
        raise errors.missing(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location("eps_model_of_user", file)
    code = importlib.util.module_from_spec(spec)
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.dtype)
    try:
        spec.loader.exec_module(code)
        if not hasattr(code, function):
            raise errors.missing(f"{file} has no function {function}")
        module = getattr(code, function)()
    finally:
        torch.set_default_dtype(before)
    if not isinstance(module, torch.nn.Module):
        raise errors.usage(f"{request.source} returns {type(module).__name__}, not a "
                           f"torch.nn.Module")
    return module


def _columns(request: Request, model: Model) -> tuple[str, ...]:
    """Chooses the columns of a micro-batch that the model's forward function reads."""
    accepted = inspect.signature(model.module.forward).parameters
    if request.task == "image":
        wanted = ["pixel_values"]
    elif request.variant == "causal":
        wanted = ["input_ids"]
    elif request.variant == "packed":
        wanted = ["input_ids", "position_ids"]
    else:
        wanted = ["input_ids", "attention_mask"]
        if "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 2) > 1:
            wanted.append("token_type_ids")
    for name in wanted:
        if name not in accepted:
            hint = ("its documents cannot be packed; use --variant=causal"
                    if name == "position_ids" else
                    f"the task {request.task} needs an argument of that name in forward")
            raise errors.unsupported(
                f"{model.architecture} has no argument {name}: {hint}")
    return tuple(wanted)


@contextlib.contextmanager
def masks_of(variant: str) -> Iterator[None]:
    """Makes transformers choose attention masks by the variant while the model is traced.

    As it traces, transformers assumes that masks are needed. Outside of a trace it leaves out the
    causal mask of rows with one document, and the mask of an encoder without padding; so do
    `causal`, and encoders that read no attention_mask. The order of the sums, and with it the
    bits, depends on it.
    """
    kept = (masking_utils._ignore_causal_mask_sdpa, masking_utils._ignore_bidirectional_mask_sdpa,
            masking_utils.find_packed_sequence_indices)
    if variant == "causal":
        masking_utils._ignore_causal_mask_sdpa = lambda *_, **__: True
        masking_utils.find_packed_sequence_indices = lambda position_ids: None
    masking_utils._ignore_bidirectional_mask_sdpa = (
        lambda padding_mask, *_, **__: padding_mask is None)
    try:
        yield
    finally:
        (masking_utils._ignore_causal_mask_sdpa, masking_utils._ignore_bidirectional_mask_sdpa,
         masking_utils.find_packed_sequence_indices) = kept


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
