"""Small models of many architectures, with random weights, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from layers import TINY_SIZES
from torch import Tensor, nn

# Of encoders and decoders: few units, so that a test takes a second.
_BOTH = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 60, "decoder_ffn_dim": 60,
    "vocab_size": 97, "max_position_embeddings": 64, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0, "activation_function": "relu",
}  # fmt: skip
_T5 = {
    "vocab_size": 97, "d_model": 24, "d_kv": 12, "d_ff": 60, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip

_NEMOTRON = {**TINY_SIZES, "num_key_value_heads": 2}


def ids(rows: int = 2, tokens: int = 24) -> Tensor:
    return torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(1))


def features(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(2))


class Tiny(NamedTuple):
    """How a model is made, called, and what of its result is compared."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    layers: int
    """That become sparse."""
    output: str = "logits"

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """With norms and biases that are not what they begin as."""
        torch.manual_seed(7)
        model = self.make().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() == 1:
                    p.copy_(torch.randn(p.shape) * 0.3 + ("norm" in name and "weight" in name))
                elif 0 < p.std() < (unit := p[0].numel() ** -0.5):
                    # As large as what they are to add to: of 0.02 nothing is left after rounding.
                    p.mul_(unit / p.std())
        return model.to(dtype)

    def call(self, model: nn.Module) -> Tensor:
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        given = {
            name: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v
            for name, v in self.inputs().items()
        }
        out = model(**given)
        return out if torch.is_tensor(out) else getattr(out, self.output)


def of(name: str, config: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    """A model of transformers."""

    def make() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, name)(getattr(transformers, config)(**options))

    return make


def text() -> dict[str, Any]:
    return {"input_ids": ids()}


def both() -> dict[str, Any]:
    return {"input_ids": ids(), "decoder_input_ids": ids(2, 10)}


def encoder(**options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(24, 2, 60, **options)
        return nn.TransformerEncoder(layer, 2, nn.LayerNorm(24), enable_nested_tensor=False)

    return make


def decoder(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 2, 60, **options), 2)


def detector(name: str) -> Callable[[], nn.Module]:
    """Of the family of DETR, on a small ResNet."""

    def make() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        backbone = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, out_features=["stage4"],
            layer_type="basic",
        )  # fmt: skip
        sizes = {k: v for k, v in _BOTH.items() if k in (
            "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
            "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim",
        )}  # fmt: skip
        config = getattr(transformers, f"{name}Config")(
            use_timm_backbone=False, backbone_config=backbone, num_queries=20, **sizes
        )
        return getattr(transformers, f"{name}ForObjectDetection")(config)

    return make


def mask2former() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone, use_timm_backbone=False, feature_size=32, mask_feature_size=32,
        hidden_dim=32, encoder_feedforward_dim=60, encoder_layers=1, decoder_layers=3,
        num_attention_heads=2, dim_feedforward=60, num_queries=20,
    )  # fmt: skip
    return transformers.Mask2FormerModel(config)


def maskformer() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1] * 4, layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    decoder = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, d_model=32, decoder_layers=2,
        decoder_attention_heads=2, decoder_ffn_dim=60, num_queries=20,
    )  # fmt: skip
    config = transformers.MaskFormerConfig(
        backbone_config=backbone, decoder_config=decoder, fpn_feature_size=32, mask_feature_size=32
    )
    return transformers.MaskFormerModel(config)


def image() -> dict[str, Any]:
    return {"pixel_values": features(2, 3, 128, 128)}


def series() -> dict[str, Any]:
    """Shorter than the context, so that patches are padded."""
    return {"past_values": features(3, 42), "freq": [0, 1, 2]}


AMONG_OTHERS = {
    "torch encoder": Tiny(encoder(batch_first=True), lambda: {"src": features(3, 20, 24)}, 2),
    "torch encoder, tokens first": Tiny(encoder(), lambda: {"src": features(20, 3, 24)}, 2),
    "torch encoder, norm first": Tiny(
        encoder(batch_first=True, norm_first=True), lambda: {"src": features(3, 20, 24)}, 2
    ),
    "torch encoder, no biases": Tiny(
        encoder(batch_first=True, bias=False), lambda: {"src": features(3, 20, 24)}, 2
    ),
    "torch decoder": Tiny(
        decoder(), lambda: {"tgt": features(20, 3, 24), "memory": features(9, 3, 24)}, 2
    ),
    "torch decoder, norm first": Tiny(
        decoder(batch_first=True, norm_first=True),
        lambda: {"tgt": features(3, 20, 24), "memory": features(3, 9, 24)},
        2,
    ),
    "torch both": Tiny(
        lambda: nn.Transformer(24, 2, 2, 1, 60),
        lambda: {"src": features(9, 3, 24), "tgt": features(20, 3, 24)},
        3,
    ),
    "opt": Tiny(
        of("OPTForCausalLM", "OPTConfig", {
            "vocab_size": 97, "hidden_size": 24, "ffn_dim": 60, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 64, "word_embed_proj_dim": 24,
        }), text, 2),
    "opt, norm last": Tiny(
        of("OPTForCausalLM", "OPTConfig", {
            "vocab_size": 97, "hidden_size": 24, "ffn_dim": 60, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 64, "word_embed_proj_dim": 12,
            "do_layer_norm_before": False, "enable_bias": False,
        }), text, 2),
    "m2m100": Tiny(of("M2M100ForConditionalGeneration", "M2M100Config", _BOTH), both, 4),
    "bart": Tiny(of("BartForConditionalGeneration", "BartConfig", _BOTH), both, 4),
    "pegasus": Tiny(of("PegasusForConditionalGeneration", "PegasusConfig", _BOTH), both, 4),
    "fsmt": Tiny(
        of("FSMTForConditionalGeneration", "FSMTConfig", {
            **{k: v for k, v in _BOTH.items() if k != "vocab_size"},
            "src_vocab_size": 97, "tgt_vocab_size": 97,
        }), both, 4),
    "table transformer": Tiny(detector("TableTransformer"), image, 4),
    "mask2former": Tiny(mask2former, image, 3, "transformer_decoder_last_hidden_state"),
    "xlnet": Tiny(
        of("XLNetLMHeadModel", "XLNetConfig", {
            "vocab_size": 97, "d_model": 24, "n_layer": 2, "n_head": 2, "d_inner": 60,
            "ff_activation": "relu",
        }), text, 2),
    "rwkv": Tiny(
        of("RwkvForCausalLM", "RwkvConfig", {
            "vocab_size": 97, "hidden_size": 24, "intermediate_size": 60, "num_hidden_layers": 2, "use_cache": False,
        }), text, 2),
    "timesfm": Tiny(
        of("TimesFmModelForPrediction", "TimesFmConfig", {
            "patch_length": 4, "context_length": 64, "horizon_length": 8, "num_hidden_layers": 2,
            "hidden_size": 24, "intermediate_size": 60, "head_dim": 12, "num_attention_heads": 2,
        }), series, 2, "full_predictions"),
    "speech to text": Tiny(
        of("Speech2TextForConditionalGeneration", "Speech2TextConfig", {
            **{k: v for k, v in _BOTH.items() if k != "max_position_embeddings"},
            "max_source_positions": 100, "max_target_positions": 40, "conv_channels": 16,
            "input_feat_per_channel": 8,
        }),
        lambda: {"input_features": features(2, 80, 8), "decoder_input_ids": ids(2, 10)},
        4,
    ),
}  # fmt: skip

MODULES_OF_THEIR_OWN = {
    "t5": Tiny(of("T5ForConditionalGeneration", "T5Config", _T5), both, 4),
    "t5 with a gate": Tiny(
        of("T5ForConditionalGeneration", "T5Config", {**_T5, "feed_forward_proj": "gated-relu"}),
        both,
        4,
    ),
    "long t5": Tiny(
        of("LongT5ForConditionalGeneration", "LongT5Config", {**_T5, "local_radius": 7}), both, 4
    ),
    "nemotron": Tiny(of("NemotronForCausalLM", "NemotronConfig", _NEMOTRON), text, 2),
    "nemotron with biases": Tiny(
        of("NemotronForCausalLM", "NemotronConfig", {**_NEMOTRON, "mlp_bias": True}), text, 2
    ),
    "arcee": Tiny(of("ArceeForCausalLM", "ArceeConfig", TINY_SIZES), text, 2),
    "cosmos3 edge": Tiny(
        of("Cosmos3EdgeTextModel", "Cosmos3EdgeTextConfig", {
            **TINY_SIZES, "num_key_value_heads": 2, "head_dim": 12, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2],
            },
        }), text, 2, "last_hidden_state"),
    "maskformer": Tiny(maskformer, image, 2, "transformer_decoder_last_hidden_state"),
    "nanochat": Tiny(of("NanoChatForCausalLM", "NanoChatConfig", TINY_SIZES), text, 2),
    "jais2": Tiny(of("Jais2ForCausalLM", "Jais2Config", TINY_SIZES), text, 2),
    "persimmon": Tiny(of("PersimmonForCausalLM", "PersimmonConfig", TINY_SIZES), text, 2),
    "bitnet": Tiny(
        of("BitNetForCausalLM", "BitNetConfig", {**TINY_SIZES, "num_key_value_heads": 2}), text, 2
    ),
    "llama": Tiny(
        of("LlamaForCausalLM", "LlamaConfig", {**TINY_SIZES, "hidden_act": "relu2"}), text, 2
    ),
    "mistral": Tiny(
        of("MistralForCausalLM", "MistralConfig",
           {**TINY_SIZES, "hidden_act": "relu", "num_key_value_heads": 2}), text, 2
    ),
    "qwen2": Tiny(
        of("Qwen2ForCausalLM", "Qwen2Config",
           {**TINY_SIZES, "hidden_act": "relu", "num_key_value_heads": 2}), text, 2
    ),
    "qwen3": Tiny(
        of("Qwen3ForCausalLM", "Qwen3Config",
           {**TINY_SIZES, "hidden_act": "relu", "num_key_value_heads": 2, "head_dim": 12}), text, 2
    ),
    "gemma2": Tiny(
        of("Gemma2ForCausalLM", "Gemma2Config", {
            **TINY_SIZES, "hidden_activation": "relu", "num_key_value_heads": 2, "head_dim": 12,
        }), text, 2),
    "phi": Tiny(of("PhiForCausalLM", "PhiConfig", {**TINY_SIZES, "hidden_act": "relu"}), text, 2),
    "phi3": Tiny(
        of("Phi3ForCausalLM", "Phi3Config",
           {**TINY_SIZES, "hidden_act": "relu", "num_key_value_heads": 2, "pad_token_id": 0}), text, 2
    ),
    "gpt2": Tiny(
        of("GPT2LMHeadModel", "GPT2Config", {
            "vocab_size": 97, "n_embd": 24, "n_inner": 60, "n_layer": 2, "n_head": 2,
            "n_positions": 64, "activation_function": "relu",
        }), text, 2),
    "decision transformer": Tiny(
        of("DecisionTransformerModel", "DecisionTransformerConfig", {
            "state_dim": 5, "act_dim": 3, "hidden_size": 24, "n_inner": 60, "n_layer": 2, "n_head": 2,
        }),
        lambda: {
            "states": features(2, 12, 5), "actions": features(2, 12, 3),
            "rewards": features(2, 12, 1), "returns_to_go": features(2, 12, 1),
            "timesteps": torch.arange(12).expand(2, 12), "attention_mask": torch.ones(2, 12),
        },
        2,
        "action_preds",
    ),
    "detr": Tiny(detector("Detr"), image, 4),
    "gpt-j": Tiny(
        of("GPTJForCausalLM", "GPTJConfig", {
            "vocab_size": 97, "n_embd": 24, "n_inner": 60, "n_layer": 2, "n_head": 2,
            "rotary_dim": 4, "activation_function": "relu",
        }), text, 2),
    "parakeet": Tiny(
        of("ParakeetEncoder", "ParakeetEncoderConfig", {
            "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 60, "hidden_act": "relu", "num_mel_bins": 16,
            "subsampling_conv_channels": 8, "layerdrop": 0.0,
        }),
        lambda: {"input_features": features(2, 80, 16)},
        2,
        "last_hidden_state",
    ),
}  # fmt: skip

_MIXTRAL = {
    **TINY_SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 120,
    "hidden_act": "relu",
}  # fmt: skip
STACKED = {
    "mixtral": Tiny(of("MixtralForCausalLM", "MixtralConfig", _MIXTRAL), text, 8),
    "nemotron-h": Tiny(
        of("NemotronHForCausalLM", "NemotronHConfig", {
            "vocab_size": 97, "hidden_size": 24, "layers_block_type": ["moe", "attention", "mlp"],
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 12,
            "intermediate_size": 60, "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 52, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "max_position_embeddings": 64,
        }), text, 6),
}  # fmt: skip
EXPERTS = {
    **STACKED,
    "switch": Tiny(
        of("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", {
            **_T5, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1, "num_experts": 4, "router_jitter_noise": 0.0,
        }), both, 10),
    "nllb": Tiny(
        of("NllbMoeForConditionalGeneration", "NllbMoeConfig", {
            **_BOTH, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2,
        }), both, 10),
}  # fmt: skip


class ProSparseMlp(nn.Module):
    """As in the code of ProSparse and MiniCPM-S on the hub: FATReLU is a class of that code, whose
    threshold is the configuration's hidden_act_param."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(*sizes, bias=False)
        self.up_proj = nn.Linear(*sizes, bias=False)
        self.down_proj = nn.Linear(*sizes[::-1], bias=False)
        self.act_fn = ShiftedRelu(config.hidden_act_param)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class ShiftedRelu(nn.Module):
    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, v: Tensor) -> Tensor:
        return torch.where(v > self.threshold, v, torch.zeros_like(v))


class TurboMlp(nn.Module):
    """As in the code of TurboSparse on the hub: the activation is on both."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(*sizes, bias=False)
        self.up_proj = nn.Linear(*sizes, bias=False)
        self.down_proj = nn.Linear(*sizes[::-1], bias=False)
        self.act_fn = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.act_fn(self.up_proj(x)))


def with_mlp(kind: Callable[[Any], nn.Module], **said: Any) -> Callable[[], nn.Module]:
    """A Llama or Mistral whose code brings an MLP of its own."""

    def make() -> nn.Module:
        model = of("MistralForCausalLM", "MistralConfig", {**TINY_SIZES, "num_key_value_heads": 2})()
        for name, value in said.items():
            setattr(model.config, name, value)
        for block in model.model.layers:  # type: ignore[union-attr]
            block.mlp = kind(model.config)
        return model

    return make


class SmallThinkerMoe(nn.Module):
    """As the report on SmallThinker defines it: of the tokens, each goes to the two experts of the
    highest scores; an expert is gated by a ReLU, which its code applies."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.primary_router = nn.Linear(config.hidden_size, 4, bias=False)
        sizes = config.hidden_size, config.intermediate_size
        self.experts = nn.ModuleList(SmallThinkerExpert(*sizes) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores, chosen = self.primary_router(rows).topk(2, dim=-1)
        shares = scores.float().sigmoid()
        shares = (shares / shares.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            token, place = (chosen == i).nonzero(as_tuple=True)
            y = y.index_add(0, token, expert(rows[token]) * shares[token, place, None])
        return y.view_as(x)


class SmallThinkerExpert(nn.Module):
    def __init__(self, width: int, neurons: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, neurons, bias=False)
        self.gate = nn.Linear(width, neurons, bias=False)
        self.down = nn.Linear(neurons, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * nn.functional.relu(self.gate(x)))


ON_THE_HUB = {
    "prosparse": Tiny(
        with_mlp(ProSparseMlp, hidden_act="fatrelu", hidden_act_param=0.01), text, 2
    ),
    "turbosparse": Tiny(with_mlp(TurboMlp, hidden_act="drelu"), text, 2),
    "smallthinker": Tiny(with_mlp(SmallThinkerMoe), text, 8),
}  # fmt: skip
