"""Small models of every architecture that the export tool is tested with.

They have 6 heads over 2 for keys and values, a vocabulary of 113 and 3 layers; attention windows
are shorter than the rows. Weights are large enough that nonlinear functions are not nearly linear.
"""

import dataclasses
import pathlib
from typing import Any, Callable

import torch
import transformers

from eps_models import build

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
         "num_hidden_layers": 3, "vocab_size": 113, "max_position_embeddings": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
_WINDOWS = {"sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


@dataclasses.dataclass(frozen=True)
class Family:
    """One row: a model, its task, and how it is exported. `is_ordinary`: it is the row of its kind
    that is always tested. `variants`: those that can be exported."""
    name: str
    config: Callable[[], Any]
    variants: tuple[str, ...] = ("causal", "packed")
    task: str = "causal_lm"
    dtype: torch.dtype = torch.float32
    experts: str = "grouped_mm"
    is_ordinary: bool = False

    def request(self, folder: pathlib.Path, variant: str) -> build.Request:
        return build.Request(str(folder), self.task, variant, self.dtype, experts=self.experts)


def config_of(kind: str, *settings: dict[str, Any], **more: Any) -> Callable[[], Any]:
    """Returns a function that makes a config of transformers; later settings win."""
    merged: dict[str, Any] = {}
    for setting in settings:
        merged.update(setting)
    return lambda: getattr(transformers, kind)(**merged, **more)


_LLAMA = config_of("LlamaConfig", GROUPED)
_MIXTRAL = config_of("MixtralConfig", GROUPED, num_local_experts=12, sliding_window=None)
_BERT = config_of("BertConfig", SIZES, num_labels=3)
_ENCODER = ("encoder",)
_CAUSAL = ("causal",)

FAMILIES = (
    Family("gpt2", config_of("GPT2Config", n_embd=48, n_layer=3, n_head=6, vocab_size=113,
                             n_positions=64), is_ordinary=True),
    Family("gpt2_untied", config_of("GPT2Config", n_embd=48, n_layer=3, n_head=6, vocab_size=113,
                                    n_positions=64, tie_word_embeddings=False), _CAUSAL),
    Family("llama", _LLAMA, is_ordinary=True),
    Family("llama_tied", config_of("LlamaConfig", GROUPED, tie_word_embeddings=True), _CAUSAL),
    Family("llama_bfloat16", _LLAMA, _CAUSAL, dtype=torch.bfloat16, is_ordinary=True),
    Family("llama_float16", _LLAMA, _CAUSAL, dtype=torch.float16),
    Family("llama3_rope", config_of("LlamaConfig", GROUPED, rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}), _CAUSAL),
    Family("mistral", config_of("MistralConfig", GROUPED, sliding_window=8)),
    Family("qwen2", config_of("Qwen2Config", GROUPED)),
    Family("qwen3", config_of("Qwen3Config", HEADS)),
    Family("gemma", config_of("GemmaConfig", HEADS)),
    Family("gemma2", config_of("Gemma2Config", HEADS, _WINDOWS), is_ordinary=True),
    Family("gemma3", config_of("Gemma3TextConfig", HEADS, _WINDOWS)),
    Family("phi3", config_of("Phi3Config", GROUPED, pad_token_id=0)),
    Family("olmo2", config_of("Olmo2Config", GROUPED)),
    Family("gpt_neox", config_of("GPTNeoXConfig", SIZES)),
    Family("opt", config_of("OPTConfig", hidden_size=48, ffn_dim=80, num_attention_heads=6,
                            num_hidden_layers=3, vocab_size=113, max_position_embeddings=64,
                            word_embed_proj_dim=48), _CAUSAL),
    Family("opt_projected", config_of(
        "OPTConfig", hidden_size=48, ffn_dim=80, num_attention_heads=6, num_hidden_layers=3,
        vocab_size=113, max_position_embeddings=64, word_embed_proj_dim=24), _CAUSAL),
    Family("bloom", config_of("BloomConfig", hidden_size=48, n_head=6, n_layer=3, vocab_size=113),
           _CAUSAL, is_ordinary=True),
    Family("mixtral", _MIXTRAL, is_ordinary=True),
    Family("mixtral_batched", _MIXTRAL, _CAUSAL, experts="batched_mm"),
    Family("mixtral_bfloat16", _MIXTRAL, _CAUSAL, dtype=torch.bfloat16),
    Family("qwen3_moe", config_of("Qwen3MoeConfig", HEADS, num_experts=4, moe_intermediate_size=32,
                                  num_experts_per_tok=2)),
    Family("bert_mlm", _BERT, _ENCODER, "mlm"),
    Family("bert_classify", _BERT, _ENCODER, "classify", is_ordinary=True),
    Family("bert_regress", _BERT, _ENCODER, "regress"),
    Family("bert_bfloat16", _BERT, _ENCODER, "mlm", dtype=torch.bfloat16),
    Family("bert_classify_bfloat16", _BERT, _ENCODER, "classify", dtype=torch.bfloat16),
    Family("roberta", config_of("RobertaConfig", SIZES), _ENCODER, "mlm"),
    Family("roberta_classify", config_of("RobertaConfig", SIZES, num_labels=3), _ENCODER,
           "classify"),
    Family("distilbert", config_of(
        "DistilBertConfig", dim=48, hidden_dim=80, n_heads=6, n_layers=3, vocab_size=113,
        max_position_embeddings=64, num_labels=3), _ENCODER, "classify"),
    Family("vit", config_of("ViTConfig", {k: v for k, v in SIZES.items() if "hidden" in k or
                                          k in ("intermediate_size", "num_attention_heads")},
                            image_size=16, patch_size=4, num_channels=1, num_labels=10), _ENCODER,
           "image", is_ordinary=True),
)


def named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def write_config(config: Any, folder: pathlib.Path) -> pathlib.Path:
    """Writes a folder without weights; returns it."""
    config.save_pretrained(folder)
    return folder


def write_folder(family: Family, folder: pathlib.Path) -> pathlib.Path:
    """Writes config.json and random weights as transformers does; returns the folder."""
    config = family.config()
    if family.task == "regress":
        config.num_labels = 1
    auto = next(c for c in (getattr(transformers, name)
                           for name in build.TASKS[family.task].classes)
                if type(config) in c._model_mapping)
    model = auto.from_config(config, dtype=family.dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.empty(parameter.shape).normal_(generator=generator)
            parameter.copy_(1 + 0.1 * values if parameter.dim() == 1 else 0.15 * values)
    model.save_pretrained(folder)
    return folder
