"""Architectures of transformers that nothing else in the tree names: what is general exports them,
or refuses them with the reason. `docs/models.md` lists them."""

import dataclasses
from typing import Any

from eps_models import build
from eps_models.testing import families
from eps_models.testing.families import Family

_OLD = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "vocab_size": 113}
_IMAGE = {"image_size": 16, "patch_size": 4, "num_channels": 1, "num_labels": 10}


WORKER = "by the worker: "


@dataclasses.dataclass(frozen=True)
class Further:
    """One row: `title` in the page, and for each variant the text of its refusal, or an empty one
    if it is exported. A text that begins with WORKER is a refusal of the worker: the program is
    right, but holds an operator that is not in the worker's list. `is_ordinary`: it is always
    tested."""
    title: str
    family: Family
    refusals: dict[str, str]
    is_ordinary: bool = False

    def page_row(self) -> str:
        exported = ", ".join(f"`{v}`" for v, text in self.refusals.items() if not text)
        refused = "; ".join(f"`{v}`: {text}" for v, text in self.refusals.items() if text)
        return f"| {self.title} | `{self.family.task}` | {exported or '-'} | {refused or '-'} |"


def _row(title: str, kind: str, sizes: dict[str, Any], task: str = "causal_lm", causal: str = "",
         packed: str = "", encoder: str = "", is_ordinary: bool = False, **more: Any) -> Further:
    texts = {"causal": causal, "packed": packed, "encoder": encoder}
    variants = build.TASKS[task].variants
    family = Family(f"{kind}_{task}", families.config_of(kind + "Config", sizes, more), variants,
                    task)
    return Further(title, family, {v: texts[v] for v in variants}, is_ordinary)


_NO_POSITIONS = "has no argument position_ids"
_MIXED = "it reads the tokens of the first"

FURTHER = (
    _row("Cohere", "Cohere", families.GROUPED),
    _row("Cohere 2", "Cohere2", families.HEADS, sliding_window=8),
    _row("CodeGen", "CodeGen", _OLD, n_head=4, n_embd=32, rotary_dim=4),
    _row("DeepSeek-V3", "DeepseekV3", families.SIZES, causal="aten::copy_", packed="aten::copy_",
         num_key_value_heads=6, moe_intermediate_size=16, n_routed_experts=8, n_group=2,
         topk_group=1, num_experts_per_tok=2, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4,
         v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=1),
    _row("Falcon", "Falcon", {}, packed=_MIXED, hidden_size=48, num_attention_heads=6,
         num_hidden_layers=3, vocab_size=113),
    _row("GLM", "Glm", families.HEADS, pad_token_id=0),
    _row("GPT-J", "GPTJ", _OLD, rotary_dim=4),
    _row("Granite", "Granite", families.GROUPED, is_ordinary=True, embedding_multiplier=2.0,
         residual_multiplier=0.5, logits_scaling=3.0),
    _row("Granite MoE", "GraniteMoe", families.GROUPED, num_local_experts=4),
    _row("Mamba", "Mamba", {}, causal="it works for some sizes only", packed=_NO_POSITIONS,
         hidden_size=48, num_hidden_layers=3, vocab_size=113, state_size=4),
    _row("MPT", "Mpt", {}, causal="sym_max", packed=_NO_POSITIONS, d_model=48, n_heads=6,
         n_layers=3, vocab_size=113, max_seq_len=64),
    _row("Nemotron", "Nemotron", families.HEADS),
    _row("SmolLM3", "SmolLM3", families.GROUPED, pad_token_id=0),
    _row("StableLM", "StableLm", families.GROUPED),
    _row("StarCoder2", "Starcoder2", families.GROUPED),
    _row("XGLM", "XGLM", {}, causal=WORKER + "aten::max.other", packed=_MIXED, d_model=48,
         attention_heads=6, num_layers=3, ffn_dim=80, vocab_size=113, max_position_embeddings=64),
    _row("ALBERT", "Albert", families.SIZES, "mlm", embedding_size=16),
    _row("DeBERTa-v2", "DebertaV2", families.SIZES, "mlm", encoder=WORKER + "aten::ceil",
         relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
    _row("ELECTRA", "Electra", families.SIZES, "mlm", embedding_size=24),
    _row("ELECTRA", "Electra", families.SIZES, "classify", embedding_size=24, num_labels=3),
    _row("DINOv2", "Dinov2", {}, "image", hidden_size=48, num_hidden_layers=3,
         num_attention_heads=6, **_IMAGE),
    _row("Swin", "Swin", {}, "image", encoder="aten::rand", embed_dim=24, depths=[2, 2],
         num_heads=[2, 4], window_size=4, **{**_IMAGE, "patch_size": 2}),
)
