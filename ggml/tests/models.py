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
# Of nemotron_h_moe.
EXPERTS, SSM_HEADS, SSM_STATE = 8, 16, 64


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

    def __init__(self, architecture: str, path: pathlib.Path, *, width: int, inner: int, layers: int, vocabulary: int,
                 heads: int, seed: int):
        self.normal = Normals(seed, max(8 * inner, vocabulary, heads * HEAD) * width)
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.writer.add_name(f"random {architecture}")
        self.writer.add_context_length(4096)
        self.writer.add_embedding_length(width)
        self.writer.add_block_count(layers)
        self.writer.add_head_count(heads)
        self.writer.add_key_length(HEAD)
        self.writer.add_value_length(HEAD)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.writer.add_layer_norm_eps(1e-5)
        self.writer.add_rope_dimension_count(HEAD)
        self.writer.add_rope_freq_base(10000.0)
        self.writer.add_file_type(1)
        add_vocabulary(self.writer, vocabulary)
        embedding = self.normal(vocabulary, width).copy()
        embedding[:, 0] = CONSTANT
        self.half("token_embd.weight", embedding)
        self.half("output.weight", self.normal(vocabulary, width, sd=width**-0.5))

    def half(self, name: str, array: np.ndarray) -> None:
        self.writer.add_tensor(name, array.astype(np.float16))

    def single(self, name: str, array: np.ndarray) -> None:
        self.writer.add_tensor(name, array.astype(np.float32))

    def linear(self, name: str, rows: int, cols: int, scale: float = 1.0) -> None:
        self.half(name, self.normal(rows, cols, sd=scale * cols**-0.5))

    def norm(self, name: str, width: int, bias: bool = False) -> None:
        self.single(f"{name}.weight", np.ones(width))
        if bias:
            self.single(f"{name}.bias", np.zeros(width))

    def down(self, *shape: int, sd: float) -> np.ndarray:
        """Adds nothing to input 0."""
        array = self.normal(*shape, sd=sd).copy()
        array[..., 0, :] = 0
        return array

    def up(self, *shape: int, fire: float) -> np.ndarray:
        array = self.normal(*shape, sd=shape[-1]**-0.5).copy()
        array[..., 0] = -statistics.NormalDist().inv_cdf(1 - fire) / CONSTANT
        return array

    def attention(self, at: str, width: int, heads: int, kv_heads: int, bias: bool = False) -> None:
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            self.linear(f"{at}.attn_{part}.weight", rows * HEAD, width)
            if bias:
                self.single(f"{at}.attn_{part}.bias", np.zeros(rows * HEAD))
        self.half(f"{at}.attn_output.weight", self.down(width, heads * HEAD, sd=0.2 * (heads * HEAD)**-0.5))
        if bias:
            self.single(f"{at}.attn_output.bias", np.zeros(width))

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write(architecture: str, path: pathlib.Path, *, fire: float, width: int = 512, inner: int = 2048,
          layers: int = 2, vocabulary: int = 512, heads: int = 4, kv_heads: int = 2, weight: float = 1.0,
          seed: int = 1) -> None:
    """`architecture`: arcee, jais2 (with biases), llama (a gate with SiLU, where nothing is zero) or
    nemotron_h_moe. `weight`: how much a layer adds to the residual stream."""
    experts = architecture == "nemotron_h_moe"
    pattern = "ME*E" if experts else "+" * layers  # M: Mamba-2, E: experts, *: attention, +: attention and a layer
    model = Model(architecture, path, width=width, inner=inner, layers=len(pattern), vocabulary=vocabulary,
                  heads=heads, seed=seed)
    bias = architecture == "jais2"
    down = weight * (max(fire, 0.002) * inner)**-0.5
    model.norm("output_norm", width, bias)
    if experts:
        add_mamba_and_experts(model, inner, pattern, kv_heads)
    else:
        model.writer.add_feed_forward_length(inner)
        model.writer.add_head_count_kv(kv_heads)
    for i, kind in enumerate(pattern):
        at = f"blk.{i}"
        model.norm(f"{at}.attn_norm", width, bias)
        if kind in "*+":
            model.attention(at, width, heads, kv_heads, bias)
        if kind == "M":
            mamba(model, at, width)
        if kind == "E":
            model.linear(f"{at}.ffn_gate_inp.weight", EXPERTS, width)
            model.single(f"{at}.exp_probs_b.bias", np.zeros(EXPERTS))
            model.half(f"{at}.ffn_up_exps.weight", model.up(EXPERTS, inner // 4, width, fire=fire))
            model.half(f"{at}.ffn_down_exps.weight", model.down(EXPERTS, width, inner // 4, sd=down))
            model.half(f"{at}.ffn_up_shexp.weight", model.up(inner, width, fire=fire))
            model.half(f"{at}.ffn_down_shexp.weight", model.down(width, inner, sd=down))
        if kind == "+":
            model.norm(f"{at}.ffn_norm", width, bias)
            model.half(f"{at}.ffn_up.weight", model.up(inner, width, fire=fire))
            if architecture == "llama":
                model.linear(f"{at}.ffn_gate.weight", inner, width)
            model.half(f"{at}.ffn_down.weight", model.down(width, inner, sd=down))
            if bias:
                model.single(f"{at}.ffn_up.bias", model.normal(inner, sd=0.1))
                model.single(f"{at}.ffn_down.bias", model.normal(width, sd=0.1) * (np.arange(width) > 0))
    model.close()


def add_mamba_and_experts(model: Model, inner: int, pattern: str, kv_heads: int) -> None:
    writer = model.writer
    writer.add_feed_forward_length([inner if kind == "E" else 0 for kind in pattern])
    writer.add_head_count_kv([kv_heads if kind == "*" else 0 for kind in pattern])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(SSM_HEADS * 64)
    writer.add_ssm_state_size(SSM_STATE)
    writer.add_ssm_time_step_rank(SSM_HEADS)
    writer.add_ssm_group_count(1)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(inner // 4)
    writer.add_expert_shared_feed_forward_length(inner)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def mamba(model: Model, at: str, width: int) -> None:
    inner = SSM_HEADS * 64
    mixed = inner + 2 * SSM_STATE
    model.linear(f"{at}.ssm_in.weight", inner + mixed + SSM_HEADS, width)
    model.single(f"{at}.ssm_conv1d.weight", model.normal(mixed, 4, sd=0.5))
    model.single(f"{at}.ssm_conv1d.bias", model.normal(mixed, sd=0.1))
    model.single(f"{at}.ssm_dt.bias", model.normal(SSM_HEADS) - 3)
    model.single(f"{at}.ssm_a", -np.exp(model.normal(SSM_HEADS, 1, sd=0.3)))
    model.single(f"{at}.ssm_d", np.ones((SSM_HEADS, 1)))
    model.single(f"{at}.ssm_norm.weight", np.ones((1, inner)))
    model.half(f"{at}.ssm_out.weight", model.down(width, inner, sd=0.2 * inner**-0.5))


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
