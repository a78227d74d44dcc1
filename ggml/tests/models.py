"""Random models as GGUF files, in F16, whose neurons fire as often as asked.

    TWELL_LLAMA_CPP=tree python models.py arcee OUT.gguf --fire 0.09 [--width 2560 --inner 18432 --layers 9 ...]

Input 0 of every layer is the same positive number before the norm, and up has a negative weight
there, so that a neuron's sum is a normal number minus a threshold.
"""

import argparse
import os
import pathlib
import statistics
import sys

import numpy as np

sys.path.insert(0, os.environ["TWELL_LLAMA_CPP"] + "/gguf-py")
import gguf

# What input 0 is, in standard deviations of the others.
CONSTANT = 4.0
HEAD = 128
# Of nemotron_h_moe and smallthinker.
EXPERTS = 8
# Of nemotron_h_moe.
SSM_HEADS, SSM_STATE = 16, 64
# Of plm: the rank of keys and values, and how much of a head is rotated.
LATENT, ROTATED = 256, 64
# Of rwkv6 and rwkv7.
WKV_HEAD, RANK = 64, 32


class Normals:
    """Normal numbers, from anywhere in a pool: to draw all of a large model's would take a minute."""

    def __init__(self, seed: int, largest: int):
        self.rng = np.random.default_rng(seed)
        self.pool = self.rng.standard_normal(largest + (1 << 20), dtype=np.float32)

    def __call__(self, *shape: int, sd: float = 1.0) -> np.ndarray:
        count = int(np.prod(shape))
        start = int(self.rng.integers(len(self.pool) - count))
        return (self.pool[start:start + count] * np.float32(sd)).reshape(shape)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{b:02X}>".encode() for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    tokens += ["\u2581".encode()] + [bytes([97 + i]) for i in range(26)]
    tokens += [f"\u2581w{i}".encode() for i in range(size - len(tokens))]
    kinds += [1] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_vocab_size(size)


class Model:
    """A file being written, and what all architectures have."""

    def __init__(self, architecture: str, path: pathlib.Path, *, fire: float, weight: float, width: int, inner: int,
                 layers: int, vocabulary: int, heads: int, kv_heads: int, seed: int):
        self.architecture, self.width, self.inner, self.layers = architecture, width, inner, layers
        self.heads, self.kv_heads, self.fire = heads, kv_heads, fire
        self.sd = weight * (max(fire, 0.002) * inner)**-0.5
        self.normal = Normals(seed, max(8 * inner, vocabulary, heads * HEAD) * width)
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.writer.add_name(f"random {architecture}")
        self.writer.add_context_length(4096)
        self.writer.add_embedding_length(width)
        self.writer.add_block_count(layers)
        self.writer.add_head_count(0 if architecture.startswith("rwkv") else heads)
        self.writer.add_key_length(HEAD)
        self.writer.add_value_length(HEAD)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.writer.add_layer_norm_eps(1e-5)
        self.writer.add_rope_dimension_count(ROTATED if architecture == "plm" else HEAD)
        self.writer.add_rope_freq_base(10000.0)
        self.writer.add_file_type(1)
        add_vocabulary(self.writer, vocabulary)
        embedding = self.normal(vocabulary, width).copy()
        embedding[:, 0] = CONSTANT
        self.half("token_embd.weight", embedding)
        if architecture != "plm":
            self.half("output.weight", self.normal(vocabulary, width, sd=width**-0.5))

    def half(self, name: str, array: np.ndarray) -> None:
        self.writer.add_tensor(name, array.astype(np.float16))

    def single(self, name: str, array: np.ndarray) -> None:
        self.writer.add_tensor(name, array.astype(np.float32))

    def linear(self, name: str, *shape: int, scale: float = 1.0) -> None:
        self.half(name, self.normal(*shape, sd=scale * shape[-1]**-0.5))

    def norm(self, name: str, bias: bool = False) -> None:
        self.single(f"{name}.weight", np.ones(self.width))
        if bias:
            self.single(f"{name}.bias", np.zeros(self.width))

    def down(self, *shape: int, sd: float | None = None) -> np.ndarray:
        """Adds nothing to input 0."""
        array = self.normal(*shape, sd=self.sd if sd is None else sd).copy()
        array[..., 0, :] = 0
        return array

    def up(self, *shape: int) -> np.ndarray:
        array = self.normal(*shape, sd=shape[-1]**-0.5).copy()
        array[..., 0] = -statistics.NormalDist().inv_cdf(1 - self.fire) / CONSTANT
        return array

    def output(self, name: str, inputs: int, scale: float = 0.2) -> None:
        """What attention, or what stands for it, adds to the residual stream."""
        self.half(name, self.down(self.width, inputs, sd=scale * inputs**-0.5))

    def attention(self, at: str, bias: bool = False, output: str = "output", scale: float = 1.0) -> None:
        for part, rows in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            self.linear(f"{at}_{part}.weight", rows * HEAD, self.width, scale=scale if part == "q" else 1.0)
            if bias:
                self.single(f"{at}_{part}.bias", np.zeros(rows * HEAD))
        self.output(f"{at}_{output}.weight", self.heads * HEAD)
        if bias:
            self.single(f"{at}_{output}.bias", np.zeros(self.width))

    def feed_forward(self, at: str, bias: bool = False) -> None:
        self.norm(f"{at}.ffn_norm", bias)
        self.half(f"{at}.ffn_up.weight", self.up(self.inner, self.width))
        if self.architecture == "llama":
            self.linear(f"{at}.ffn_gate.weight", self.inner, self.width)
        self.half(f"{at}.ffn_down.weight", self.down(self.width, self.inner))
        if bias:
            self.single(f"{at}.ffn_up.bias", self.normal(self.inner, sd=0.1))
            self.single(f"{at}.ffn_down.bias", self.normal(self.width, sd=0.1) * (np.arange(self.width) > 0))

    def experts(self, at: str) -> None:
        """Those of smallthinker have a gate, which then says what fires, and what fires is not squared."""
        inner = self.inner // 4
        gated = self.architecture == "smallthinker"
        self.linear(f"{at}.ffn_gate_inp.weight", EXPERTS, self.width)
        if gated:
            self.linear(f"{at}.ffn_up_exps.weight", EXPERTS, inner, self.width)
        else:
            self.single(f"{at}.exp_probs_b.bias", np.zeros(EXPERTS))
        self.half(f"{at}.ffn_{'gate' if gated else 'up'}_exps.weight", self.up(EXPERTS, inner, self.width))
        self.half(f"{at}.ffn_down_exps.weight", self.down(EXPERTS, self.width, inner, sd=(3 if gated else 1) * self.sd))

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write(architecture: str, path: pathlib.Path, *, fire: float, width: int = 512, inner: int = 2048,
          layers: int = 2, vocabulary: int = 512, heads: int = 4, kv_heads: int = 2, weight: float = 1.0,
          seed: int = 1) -> None:
    """`architecture`: arcee, jais2 and nemotron (with biases), llama (a gate with SiLU, where nothing is zero),
    nemotron_h_moe (always of four layers), plm, rwkv6, rwkv7, smallthinker or t5. `weight`: how much a layer adds
    to the residual stream."""
    model = Model(architecture, path, fire=fire, weight=weight, width=width, inner=inner,
                  layers=4 if architecture == "nemotron_h_moe" else layers, vocabulary=vocabulary, heads=heads,
                  kv_heads=heads if architecture in ("plm", "t5") else kv_heads, seed=seed)
    parts = {"nemotron_h_moe": add_mamba_and_experts, "rwkv6": add_rwkv, "rwkv7": add_rwkv, "t5": add_t5}
    parts.get(architecture, add_transformer)(model)
    model.close()


def add_transformer(model: Model) -> None:
    bias = model.architecture in ("jais2", "nemotron")
    experts = model.architecture == "smallthinker"
    model.writer.add_feed_forward_length(model.inner)
    model.writer.add_head_count_kv(model.kv_heads)
    if experts:
        add_expert_counts(model)
    if model.architecture == "plm":
        model.writer.add_kv_lora_rank(LATENT)
        # Its output is the embedding again: with all ones here, a token would be followed by itself.
        model.single("output_norm.weight", model.normal(model.width, sd=model.width**-0.5))
    else:
        model.norm("output_norm", bias)
    for i in range(model.layers):
        at = f"blk.{i}"
        model.norm(f"{at}.attn_norm", bias)
        if model.architecture == "plm":
            latent_attention(model, at)
        else:
            model.attention(f"{at}.attn", bias)
        if experts:
            model.norm(f"{at}.ffn_norm")
            model.experts(at)
        else:
            model.feed_forward(at, bias)


def latent_attention(model: Model, at: str) -> None:
    model.linear(f"{at}.attn_q.weight", model.heads * HEAD, model.width)
    model.linear(f"{at}.attn_kv_a_mqa.weight", LATENT + ROTATED, model.width)
    model.single(f"{at}.attn_kv_a_norm.weight", np.ones(LATENT))
    model.linear(f"{at}.attn_kv_b.weight", model.heads * (HEAD - ROTATED + HEAD), LATENT)
    model.output(f"{at}.attn_output.weight", model.heads * HEAD)


def add_expert_counts(model: Model) -> None:
    model.writer.add_expert_count(EXPERTS)
    model.writer.add_expert_used_count(2)
    model.writer.add_expert_feed_forward_length(model.inner // 4)
    model.writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_mamba_and_experts(model: Model) -> None:
    pattern = "ME*E"  # M: Mamba-2, E: experts, *: attention
    writer = model.writer
    writer.add_feed_forward_length([model.inner if kind == "E" else 0 for kind in pattern])
    writer.add_head_count_kv([model.kv_heads if kind == "*" else 0 for kind in pattern])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(SSM_HEADS * 64)
    writer.add_ssm_state_size(SSM_STATE)
    writer.add_ssm_time_step_rank(SSM_HEADS)
    writer.add_ssm_group_count(1)
    add_expert_counts(model)
    writer.add_expert_shared_feed_forward_length(model.inner)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    model.norm("output_norm")
    for i, kind in enumerate(pattern):
        at = f"blk.{i}"
        model.norm(f"{at}.attn_norm")
        if kind == "M":
            mamba(model, at)
        elif kind == "*":
            model.attention(f"{at}.attn")
        else:
            model.experts(at)
            model.half(f"{at}.ffn_up_shexp.weight", model.up(model.inner, model.width))
            model.half(f"{at}.ffn_down_shexp.weight", model.down(model.width, model.inner))


def mamba(model: Model, at: str) -> None:
    inner = SSM_HEADS * 64
    mixed = inner + 2 * SSM_STATE
    model.linear(f"{at}.ssm_in.weight", inner + mixed + SSM_HEADS, model.width)
    model.single(f"{at}.ssm_conv1d.weight", model.normal(mixed, 4, sd=0.5))
    model.single(f"{at}.ssm_conv1d.bias", model.normal(mixed, sd=0.1))
    model.single(f"{at}.ssm_dt.bias", model.normal(SSM_HEADS) - 3)
    model.single(f"{at}.ssm_a", -np.exp(model.normal(SSM_HEADS, 1, sd=0.3)))
    model.single(f"{at}.ssm_d", np.ones((SSM_HEADS, 1)))
    model.single(f"{at}.ssm_norm.weight", np.ones((1, inner)))
    model.output(f"{at}.ssm_out.weight", inner)


def add_rwkv(model: Model) -> None:
    seventh = model.architecture == "rwkv7"
    model.writer.add_feed_forward_length(model.inner)
    model.writer.add_wkv_head_size(WKV_HEAD)
    if seventh:
        model.writer.add_decay_lora_rank(RANK)
        model.writer.add_iclr_lora_rank(RANK)
        model.writer.add_value_residual_mix_lora_rank(RANK)
        model.writer.add_gate_lora_rank(RANK)
    else:
        model.writer.add_time_mix_extra_dim(RANK)
        model.writer.add_time_decay_extra_dim(RANK)
    model.norm("token_embd_norm", bias=True)
    model.norm("output_norm", bias=True)
    for i in range(model.layers):
        at = f"blk.{i}"
        model.norm(f"{at}.attn_norm", bias=True)
        model.norm(f"{at}.attn_norm_2", bias=True)
        for part in ("key", "value", "receptance"):
            model.linear(f"{at}.time_mix_{part}.weight", model.width, model.width)
        model.norm(f"{at}.time_mix_ln", bias=True)
        model.output(f"{at}.time_mix_output.weight", model.width, scale=0.05)  # its inputs are no means, as attention's
        (time_mix_7 if seventh else time_mix_6)(model, at)
        channel_mix(model, at)


def last_share(model: Model, *shape: int) -> np.ndarray:
    """The share of the token before in what is multiplied; input 0 is of this token alone."""
    share = model.normal.rng.uniform(size=(*shape, model.width)).astype(np.float32)
    share[..., 0] = 0
    return share


def time_mix_7(model: Model, at: str) -> None:
    model.single(f"{at}.time_mix_lerp_fused.weight", last_share(model, 6, 1, 1))
    for part in "wavg":
        model.linear(f"{at}.time_mix_{part}1.weight", RANK, model.width)
        model.linear(f"{at}.time_mix_{part}2.weight", model.width, RANK, scale=2.0 if part == "g" else 0.5)
        if part != "g":
            model.single(f"{at}.time_mix_{part}0.weight", model.normal(model.width) - 1)
    model.single(f"{at}.time_mix_k_k.weight", 1 + model.normal(model.width, sd=0.1))
    model.single(f"{at}.time_mix_k_a.weight", 1 + model.normal(model.width, sd=0.1))
    model.single(f"{at}.time_mix_r_k.weight", model.normal(model.width, sd=0.1))


def time_mix_6(model: Model, at: str) -> None:
    model.single(f"{at}.time_mix_lerp_x.weight", last_share(model))
    model.single(f"{at}.time_mix_lerp_fused.weight", last_share(model, 5, 1, 1))
    model.linear(f"{at}.time_mix_w1.weight", 5 * RANK, model.width)
    model.linear(f"{at}.time_mix_w2.weight", 5, model.width, RANK, scale=0.1)
    model.single(f"{at}.time_mix_first.weight", model.normal(model.width // WKV_HEAD, WKV_HEAD, sd=0.5))
    model.single(f"{at}.time_mix_decay.weight", model.normal(model.width, sd=0.5) - 2)
    model.linear(f"{at}.time_mix_decay_w1.weight", RANK, model.width)
    model.linear(f"{at}.time_mix_decay_w2.weight", model.width, RANK, scale=0.5)
    model.linear(f"{at}.time_mix_gate.weight", model.width, model.width)


def channel_mix(model: Model, at: str) -> None:
    """A mean of two tokens varies less than either, and key makes up for it."""
    last = last_share(model)
    model.single(f"{at}.channel_mix_lerp_k.weight", last)
    if model.architecture == "rwkv6":
        model.single(f"{at}.channel_mix_lerp_r.weight", last_share(model))
        model.linear(f"{at}.channel_mix_receptance.weight", model.width, model.width)
    key = model.up(model.inner, model.width)
    key /= np.sqrt(last**2 + (1 - last)**2)
    model.half(f"{at}.channel_mix_key.weight", key)
    model.half(f"{at}.channel_mix_value.weight", model.down(model.width, model.inner))


def add_t5(model: Model) -> None:
    model.writer.add_feed_forward_length(model.inner)
    model.writer.add_head_count_kv(model.kv_heads)
    model.writer.add_relative_attn_buckets_count(32)
    model.writer.add_decoder_start_token_id(1)
    for coder, attentions in (("enc", ["attn"]), ("dec", ["attn", "cross_attn"])):
        model.norm(f"{coder}.output_norm")
        model.single(f"{coder}.blk.0.attn_rel_b.weight", model.normal(32, model.heads))
        for i in range(model.layers):
            at = f"{coder}.blk.{i}"
            for attention in attentions:
                model.norm(f"{at}.{attention}_norm")
                # Products of queries and keys are not scaled.
                model.attention(f"{at}.{attention}", output="o", scale=HEAD**-0.5)
            model.feed_forward(at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture")
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--fire", type=float, required=True)
    parser.add_argument("--weight", type=float)
    for name in ("width", "inner", "layers", "vocabulary", "heads", "kv_heads"):
        parser.add_argument(f"--{name}", type=int)
    options = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    write(options.pop("architecture"), options.pop("path"), **options)


if __name__ == "__main__":
    main()
