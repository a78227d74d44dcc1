"""GGUF files of a checkpoint's weights, for `against_llama_cpp.py` and `quantised_quality.py`."""

import ctypes
import json
import os
import pathlib

# Name: llama.cpp's own (LLAMA_FTYPE_MOSTLY_…). bf16 is the one with the weights that twell has.
WEIGHT_TYPES = {"bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part.removesuffix('.weight')]}.weight"


def read_config(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("attention_bias"):
        raise SystemExit(f"{model}: expected a Llama without biases, got {config['model_type']}")
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def read_tensors(directory):
    """Name -> (safetensors dtype, shape, raw bytes as a map of the file)."""
    import numpy as np

    tensors = {}
    for file in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = np.memmap(file, np.uint8, "r")
        length = int.from_bytes(bytes(data[:8]), "little")
        for name, about in json.loads(bytes(data[8:8 + length])).items():
            if name != "__metadata__":
                first, last = (8 + length + offset for offset in about["data_offsets"])
                tensors[name] = (about["dtype"], about["shape"], data[first:last])
    return tensors


def in_pairs(name, config, raw):
    """Rows of q and k as llama.cpp's Llama wants them: it turns neighbours in a head, transformers
    dimensions half a head apart."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return raw
    halves = raw.reshape(config[heads], 2, config["head_dim"] // 2, -1)
    return halves.swapaxes(1, 2).reshape(raw.shape)


def write_bf16(model, config, path, pairs=False):
    """`pairs`: by in_pairs(), so that llama.cpp computes what transformers does."""
    import gguf
    import numpy as np

    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config.get("rope_theta", 10000.0))
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("no_vocab")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    bf16 = gguf.GGMLQuantizationType.BF16
    for name, (dtype, shape, raw) in read_tensors(model).items():
        if dtype not in ("BF16", "F32"):
            raise SystemExit(f"{model}: {name} is {dtype}, expected BF16 or F32")
        if pairs and len(shape) == 2:
            raw = in_pairs(name, config, raw.reshape(shape[0], -1))
        if dtype == "BF16" and len(shape) == 2:  # written from the map, never all in memory
            out.add_tensor(gguf_name(name), raw.reshape(shape[0], -1), raw_dtype=bf16)
            continue
        wide = (raw.view(np.float32) if dtype == "F32" else
                (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)).reshape(shape)
        if len(shape) == 1:  # llama.cpp keeps norms in f32
            out.add_tensor(gguf_name(name), wide)
        else:
            out.add_tensor(gguf_name(name), gguf.quants.quantize(wide, bf16), raw_dtype=bf16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def quantise(source, weight_type, path, threads):
    """By llama.cpp's own rules: it decides which tensor gets which type."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.nthread = threads
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{WEIGHT_TYPES[weight_type]}")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(),
                                      ctypes.byref(options)):
        raise SystemExit(f"llama.cpp {llama_cpp.__version__} could not write {weight_type}")


def write_gguf_files(model, config, weight_types, place, threads, pairs=False):
    """Type -> file. One that is there is from an earlier run; none is there half-written."""
    files = {name: pathlib.Path(place) / f"{name}.gguf" for name in ("bf16", *weight_types)}
    for name, file in files.items():
        if not file.exists():
            part = file.with_suffix(".part")
            if name == "bf16":
                write_bf16(model, config, part, pairs)
            else:
                quantise(files["bf16"], name, part, threads)
            os.replace(part, file)
    return {name: files[name] for name in weight_types}


def list_tensors(path):
    """(name, type, bytes) of each tensor, as the file says."""
    import gguf

    return [(tensor.name, tensor.tensor_type.name, int(tensor.n_bytes))
            for tensor in gguf.GGUFReader(path).tensors]
