#!/usr/bin/env python3
"""Whole-model prefill and decode against llama.cpp, on the same shape, threads and machine.

    bench/against_llama_cpp.py --model synth-2b --twell build/release/cli/twell --json llama.json

Writes the checkpoint's weights as GGUF files and measures llama.cpp through `llama-cpp-python`,
before and after `twell bench model`. Of the types, bf16 is the one with the weights that twell has;
q8_0 rounds them to 8 bits. llama.cpp's Llama has SiLU in place of ReLU and other positions of the
rotary pairs, so its text would be another one; its work and its time are those of the shape. Where
`llama-cpp-python` or `gguf` is not installed (pip install llama-cpp-python gguf) it says so and
skips.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def skip(arguments, reason):
    print(f"skipped: {reason}")
    write(arguments, {"skipped": reason})
    sys.exit(0)


def write(arguments, result):
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")


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


WEIGHT_TYPES = ("bf16", "q8_0")

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
    return config


def write_gguf(model, config, weight_type, path):
    import gguf
    import numpy as np
    from gguf.quants import quantize

    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_rope_dimension_count(head)
    out.add_rope_freq_base(config.get("rope_theta", 10000.0))
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("no_vocab")
    out.add_file_type(gguf.LlamaFileType[f"MOSTLY_{weight_type.upper()}"])
    for name, (dtype, shape, raw) in read_tensors(model).items():
        if dtype not in ("BF16", "F32"):
            raise SystemExit(f"{model}: {name} is {dtype}, expected BF16 or F32")
        wide = (raw.view(np.float32) if dtype == "F32" else
                (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)).reshape(shape)
        if len(shape) == 1:  # llama.cpp keeps norms in f32
            out.add_tensor(gguf_name(name), wide)
        else:
            stored = gguf.GGMLQuantizationType[weight_type.upper()]
            out.add_tensor(gguf_name(name), quantize(wide, stored), raw_dtype=stored)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class LlamaCpp:
    """A context of llama.cpp, by its C interface: the Python class computes logits it need not."""

    def __init__(self, path, context, threads):
        import llama_cpp

        self.api = llama_cpp
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp {llama_cpp.__version__} does not load the GGUF file")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = context
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.memory = llama_cpp.llama_get_memory(self.context)

    def close(self):
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)

    def forget(self):
        self.api.llama_memory_seq_rm(self.memory, 0, 0, -1)

    def run(self, tokens):
        """Seconds for these tokens, behind those that the context has; logits of the last one."""
        ids = (self.api.llama_token * len(tokens))(*tokens)
        begin = time.perf_counter()
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(ids, len(tokens))):
            raise SystemExit("llama.cpp could not decode")
        self.api.llama_synchronize(self.context)
        return time.perf_counter() - begin


def measure(path, vocabulary, arguments):
    """Tokens a second of llama.cpp, by phase. The model's memory is given back: twell wants it."""
    prompt = arguments.prompt_tokens
    tokens = [(i * 7919 + 13) % vocabulary for i in range(prompt + arguments.decode_tokens)]
    llama = LlamaCpp(path, len(tokens) + 8, arguments.threads)
    prefill, decode = [], []
    for repeat in range(arguments.repeats + 1):
        llama.forget()
        took = llama.run(tokens[:prompt])
        one_by_one = [llama.run([token]) for token in tokens[prompt:]]
        if repeat > 0:  # the first touches the memory
            prefill.append(took)
            decode += one_by_one
    llama.close()
    return {"prefill": prompt / statistics.median(prefill),
            "decode": 1 / statistics.median(decode)}


def measure_twell(arguments, report):
    subprocess.run(
        [arguments.twell, "bench", "model", "--model", arguments.model, "--threads",
         str(arguments.threads), "--prompt-tokens", str(arguments.prompt_tokens),
         "--decode-tokens", str(arguments.decode_tokens), "--repeats",
         str(arguments.repeats), "--seconds", str(arguments.seconds), "--json", str(report)],
        check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())


def compare(runs, twell):
    """Of one phase: its row of the table and of the JSON. llama.cpp's better run counts."""
    sparse, dense = twell["sparse_tokens_per_s"], twell["dense_tokens_per_s"]
    result = {"dense_tokens_per_s": dense, "sparse_tokens_per_s": sparse, "llama_cpp": {}}
    row = f"{dense:14.1f} {sparse:13.1f}"
    for weight_type, speeds in runs.items():
        best = max(speeds)
        result["llama_cpp"][weight_type] = {
            "tokens_per_s": best, "runs_tokens_per_s": speeds,
            "sparse_over_llama_cpp": sparse / best}
        row += f" {best:15.1f} {sparse / best:12.2f}x"
    return row, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory of a Llama")
    parser.add_argument("--twell", default="twell", help="the command line's program")
    parser.add_argument("--types", nargs="+", choices=WEIGHT_TYPES, default=WEIGHT_TYPES,
                        help="of llama.cpp's weights")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run of twell")
    parser.add_argument("--json", help="also write the results here")
    arguments = parser.parse_args()
    try:
        import gguf  # noqa: F401
        import llama_cpp
    except ImportError as missing:
        skip(arguments, f"{missing}; pip install llama-cpp-python gguf")

    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # outlives all that logs
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    config = read_config(arguments.model)
    with tempfile.TemporaryDirectory() as place:
        files = {name: pathlib.Path(place) / f"{name}.gguf" for name in arguments.types}
        for name, file in files.items():
            write_gguf(arguments.model, config, name, file)

        def measure_types():
            return {name: measure(file, config["vocab_size"], arguments)
                    for name, file in files.items()}

        # llama.cpp before and after: what else the machine does meets both.
        before = measure_types()
        twell = measure_twell(arguments, pathlib.Path(place) / "twell.json")
        after = measure_types()

    result = {"llama_cpp_version": llama_cpp.__version__, "threads": arguments.threads,
              "system": llama_cpp.llama_print_system_info().decode().strip(),
              "machine": twell["machine"]}
    print(f"{'tokens/s':10} {'PyTorch dense':>14} {'twell sparse':>13}" + "".join(
        f" {'llama.cpp ' + name:>15} {'sparse/that':>13}" for name in arguments.types))
    for phase in ("prefill", "decode"):
        runs = {name: [before[name][phase], after[name][phase]] for name in arguments.types}
        row, result[phase] = compare(runs, twell[phase])
        print(f"{phase:10} {row}")
    write(arguments, result)


if __name__ == "__main__":
    main()
