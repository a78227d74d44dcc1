"""GGUF files of small models, written by the package gguf."""

import numpy
import pytest
import torch

gguf = pytest.importorskip("gguf")

WIDTH, NEURONS, HEADS, KEY_HEADS, LAYERS = 256, 512, 4, 2, 2
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
         "output_norm.weight": "model.norm.weight"}  # fmt: skip


def random_blocks(rng, kind, rows, columns, scale=1 / 64):
    """Bits by chance; the scales of each block are finite and about as large as this."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows * columns // block, size), dtype=numpy.uint8)
    if kind == gguf.GGMLQuantizationType.Q8_0:
        data[:, 2:][data[:, 2:] == 128] = 0  # -128 has no opposite
    scales = (rng.standard_normal((len(data), 2)) * scale).astype(numpy.float16)
    if kind == gguf.GGMLQuantizationType.Q8_0:
        scales = abs(scales)
    view = numpy.ascontiguousarray(scales).view(numpy.uint8)
    if kind == gguf.GGMLQuantizationType.Q6_K:
        data[:, 208:] = view[:, :2]
    else:
        data[:, :2] = view[:, :2]
        if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
            data[:, 2:4] = view[:, 2:]
    return data.reshape(rows, -1)


def write_tokenizer(out, vocabulary):
    tokens = [f"t{i}" for i in range(vocabulary)]
    tokens[:3] = ["<s>", "</s>", "t"]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([3, 3, 1] + [4] * (vocabulary - 3))  # no merges make the others
    out.add_token_merges([])
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)


def unit_blocks(rng, kind, rows, columns):
    """Whose products are about as large as their inputs."""
    sample = gguf.quants.dequantize(random_blocks(rng, kind, 64, columns), kind)
    return random_blocks(rng, kind, rows, columns, 1 / 64 / sample.std() / columns**0.5)


def write_model(path, kind, architecture="llama", tied=False, vocabulary=64, kinds=None, blocks=random_blocks,
                template=None):
    """A model of random numbers whose matrices have this type, but for those that `kinds` names."""
    rng = numpy.random.default_rng(3)
    out = gguf.GGUFWriter(path, architecture)
    out.add_block_count(LAYERS)
    out.add_context_length(128)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(NEURONS)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KEY_HEADS)
    out.add_rope_freq_base(1e5)
    out.add_layer_norm_rms_eps(1e-5)
    write_tokenizer(out, vocabulary)
    if template is not None:
        out.add_chat_template(template)
    numbers = {}

    def add(name, *shape):
        if len(shape) == 1:
            data = rng.standard_normal(shape).astype(numpy.float32)
            numbers[name] = data
            own = gguf.GGMLQuantizationType[(kinds or {}).get(".".join(name.split(".")[-2:]), "F32")]
            out.add_tensor(name, gguf.quants.quantize(data, own), raw_dtype=own)
            return
        own = gguf.GGMLQuantizationType[(kinds or {}).get(name.split(".")[-2], kind)]
        if own.name in ("F32", "F16", "BF16"):
            data = gguf.quants.quantize(rng.standard_normal(shape).astype(numpy.float32) / 16, own)
        else:
            data = blocks(rng, own, *shape)
        numbers[name] = gguf.quants.dequantize(data, own)
        out.add_tensor(name, data, raw_dtype=own)

    heads, keys = WIDTH, WIDTH // HEADS * KEY_HEADS
    add("token_embd.weight", vocabulary, WIDTH)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": [WIDTH], "attn_q": [heads, WIDTH], "attn_k": [keys, WIDTH], "attn_v": [keys, WIDTH],
            "attn_output": [WIDTH, heads], "ffn_norm": [WIDTH], "ffn_gate": [NEURONS, WIDTH],
            "ffn_up": [NEURONS, WIDTH], "ffn_down": [WIDTH, NEURONS],
        }.items():  # fmt: skip
            if name == "ffn_gate" and architecture == "arcee":
                continue
            add(f"blk.{layer}.{name}.weight", *shape)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                add(f"blk.{layer}.{name}.bias", shape[0])
    add("output_norm.weight", WIDTH)
    if not tied:
        add("output.weight", vocabulary, WIDTH)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return numbers


def as_in_transformers(numbers, architecture="llama"):
    """Under its names, and rows of q and k of a Llama with halves of a head side by side."""
    out = {}
    for name, data in numbers.items():
        tensor = torch.from_numpy(numpy.array(data))
        if name in WHOLE:
            out[WHOLE[name]] = tensor
            continue
        _, layer, part, kind = name.split(".")
        if architecture != "qwen2" and part in ("attn_q", "attn_k"):
            count = HEADS if part == "attn_q" else KEY_HEADS
            pairs = tensor.reshape(count, tensor.shape[0] // count // 2, 2, *tensor.shape[1:])
            tensor = pairs.swapaxes(1, 2).reshape(tensor.shape)
        out[f"model.layers.{layer}.{NAMES[part]}.{kind}"] = tensor
    return out
