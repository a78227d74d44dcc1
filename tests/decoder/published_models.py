"""Models whose code is not in `transformers`, as their papers and configurations define them.

All are Llama but for what a configuration says:

- ProSparse: `hidden_act: fatrelu`, which keeps what is above `hidden_act_param`.
- MiniCPM: embeddings times `scale_emb`, what a layer adds times `scale_depth` / √layers, and the
  head's input divided by hidden_size / `dim_model_base`; MiniCPM-S has a FATReLU besides.
- SmallThinker: several experts in place of a feed-forward layer. A router reads the block's input;
  the two or so with the highest scores add what they compute, weighted by their scores' sigmoids
  over the sum of these. `rope_layout` says in which layers positions enter.
- Bamboo, the architecture of TurboSparse-Mistral: up is activated as the gate is (dReLU).
"""

import json
import math
import types

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).normal_(1, 0.1))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def linears(std, **shapes):
    out = nn.ModuleDict()
    for name, (into, outof) in shapes.items():
        out[name] = nn.Linear(into, outof, bias=False)
        nn.init.normal_(out[name].weight, 0, std)
    return out


def rotated(x, theta):
    """x [heads, length, width]: dimension i turns with i + width / 2."""
    length, width = x.shape[1:]
    frequencies = theta ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.arange(length).float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Published(nn.Module):
    """One of them, of random weights, from its config.json."""

    def __init__(self, **keys):
        super().__init__()
        c = self.config = types.SimpleNamespace(**keys)
        self.heads, self.kv_heads = c.num_attention_heads, c.num_key_value_heads
        self.experts = getattr(c, "moe_num_primary_experts", 0)
        width, head = c.hidden_size, c.hidden_size // self.heads
        std = c.initializer_range
        layers = nn.ModuleList()
        for _ in range(c.num_hidden_layers):
            kv = self.kv_heads * head
            layers.append(nn.ModuleDict({
                "input_layernorm": Norm(width, c.rms_norm_eps),
                "self_attn": linears(std, q_proj=(width, width), k_proj=(width, kv), v_proj=(width, kv),
                                     o_proj=(width, width)),
                "post_attention_layernorm": Norm(width, c.rms_norm_eps),
            }))
            if self.experts:
                hidden = c.moe_ffn_hidden_size
                expert = dict(gate=(width, hidden), up=(width, hidden), down=(hidden, width))
                layers[-1]["block_sparse_moe"] = nn.ModuleDict({
                    "primary_router": nn.Linear(width, self.experts, bias=False),
                    "experts": nn.ModuleList(linears(std, **expert) for _ in range(self.experts)),
                })
            else:
                hidden = c.intermediate_size
                layers[-1]["mlp"] = linears(std, gate_proj=(width, hidden), up_proj=(width, hidden),
                                            down_proj=(hidden, width))
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(c.vocab_size, width),
            "layers": layers,
            "norm": Norm(width, c.rms_norm_eps),
        })
        nn.init.normal_(self.model["embed_tokens"].weight, 0, std)
        self.lm_head = nn.Linear(width, c.vocab_size, bias=False)
        nn.init.normal_(self.lm_head.weight, 0, std)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def act(self, x):
        if self.experts:
            return F.relu(x)
        if self.config.hidden_act == "fatrelu":
            return torch.where(x > self.config.hidden_act_param, x, torch.zeros_like(x))
        return F.relu(x).square() if self.config.hidden_act == "relu2" else F.relu(x)

    def attention(self, layer, x, theta):
        def heads_of(name, heads):
            return layer[name](x).view(len(x), heads, -1).transpose(0, 1)

        sharing = self.heads // self.kv_heads
        q, k = heads_of("q_proj", self.heads), heads_of("k_proj", self.kv_heads)
        if theta:
            q, k = rotated(q, theta), rotated(k, theta)
        k = k.repeat_interleave(sharing, 0)
        v = heads_of("v_proj", self.kv_heads).repeat_interleave(sharing, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).float().softmax(-1).to(x.dtype)
        return layer["o_proj"]((weights @ v).transpose(0, 1).reshape(len(x), -1))

    def mlp(self, layer, x):
        up = layer["up_proj"](x)
        if self.config.model_type == "bamboo":
            up = self.act(up)
        return layer["down_proj"](self.act(layer["gate_proj"](x)) * up)

    def mixture(self, layer, block_input, x):
        scores, chosen = layer["primary_router"](block_input).topk(self.config.moe_num_active_primary_experts)
        if self.config.moe_primary_router_apply_softmax:
            shares = scores.float().softmax(-1).to(x.dtype)
        else:
            shares = scores.sigmoid()
            shares = shares / shares.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(layer["experts"]):
            token, place = torch.where(chosen == i)
            out = expert["down"](F.relu(expert["gate"](x[token])) * expert["up"](x[token]))
            y = y.index_add(0, token, out * shares[token, place, None])
        return y

    def forward(self, ids):
        c = self.config
        minicpm = c.model_type == "minicpm"
        depth = c.scale_depth / math.sqrt(c.num_hidden_layers) if minicpm else 1.0
        x = self.model["embed_tokens"](ids[0])
        if minicpm:
            x = x * c.scale_emb
        for i, layer in enumerate(self.model["layers"]):
            block_input = x
            theta = c.rope_theta if getattr(c, "rope_layout", [1] * c.num_hidden_layers)[i] else None
            x = x + depth * self.attention(layer["self_attn"], layer["input_layernorm"](x), theta)
            h = layer["post_attention_layernorm"](x)
            if self.experts:
                x = x + self.mixture(layer["block_sparse_moe"], block_input, h)
            else:
                x = x + depth * self.mlp(layer["mlp"], h)
        x = self.model["norm"](x)
        if minicpm:
            x = x / (c.hidden_size / c.dim_model_base)
        return types.SimpleNamespace(logits=self.lm_head(x)[None])

    def save_pretrained(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(vars(self.config)))
        tensors = self.state_dict()
        if self.config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors")
