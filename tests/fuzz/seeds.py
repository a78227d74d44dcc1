"""Writes small valid inputs for each fuzz target: seeds.py DIRECTORY. The fuzzers change them."""

import json
import pathlib
import struct
import sys


def safetensors():
    tensors = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]},
        "c": {"dtype": "U8", "shape": [0], "data_offsets": [10, 10]},
    }
    header = json.dumps(tensors).encode()
    yield struct.pack("<Q", len(header)) + header + bytes(10)
    yield struct.pack("<Q", 2) + b"{}"


def config():
    base = dict(
        model_type="llama", hidden_size=64, intermediate_size=172, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=512, hidden_act="relu",
        rope_theta=1e4, bos_token_id=1, eos_token_id=[2, 3], torch_dtype="bfloat16",
        tie_word_embeddings=True, attention_bias=False, rms_norm_eps=1e-5,
    )  # fmt: skip
    rope = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8192)  # fmt: skip
    yield json.dumps(base).encode()
    yield json.dumps({**base, "rope_scaling": rope}).encode()
    yield json.dumps({**base, "rope_parameters": {**rope, "rope_theta": 5e5}}).encode()
    yield json.dumps({**base, "model_type": "qwen2_sparse_relu", "twell_gated": False}).encode()
    more = dict(transformers_weights="a/b.safetensors", pad_token_id=0, limits=[float("inf"), float("nan")])
    yield json.dumps({**base, **more}).encode()
    yield json.dumps({**base, "hidden_act": "fat_relu", "twell_fat_relu_threshold": 0.5}).encode()
    yield json.dumps({**base, "hidden_act": "fatrelu", "hidden_act_param": 0.5}).encode()
    scheme = dict(targets=["Linear", "re:.*down_proj$"], weights=dict(num_bits=4, strategy="group", group_size=32))
    quantized = dict(quant_method="compressed-tensors", format="pack-quantized", config_groups=dict(group_0=scheme))
    yield json.dumps({**base, "quantization_config": quantized}).encode()
    yarn = dict(rope_type="yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.5, truncate=False)
    yield json.dumps({**base, "model_type": "arcee", "rope_scaling": yarn}).encode()
    others = dict(ffn_dim=172, activation_function="relu", word_embed_proj_dim=64, sliding_window=None, norm_eps=1e-5,
                  partial_rotary_factor=0.5, final_logit_softcapping=15.0, scale_emb=12, scale_depth=1.4,
                  dim_model_base=256)  # fmt: skip
    for name in ("qwen3", "mistral", "bamboo", "nemotron", "opt", "bitnet", "nanochat", "minicpm"):
        yield json.dumps({**base, **others, "model_type": name}).encode()


def quantized():
    def args(bits, group):
        return dict(num_bits=bits, type="int", symmetric=True, dynamic=False, group_size=group or None,
                    strategy="group" if group else "channel")  # fmt: skip

    def file(tensors):
        header, data = {}, b""
        for name, dtype, shape, values in tensors:
            header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(values)])
            data += values
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    four = [("a.weight_packed", "I32", [2, 4], bytes(range(32))), ("a.weight_scale", "BF16", [2, 1], b"\0\x3f" * 2),
            ("a.weight_shape", "I64", [2], struct.pack("<qq", 2, 32))]  # fmt: skip
    eight = [("b.weight", "I8", [2, 3], b"\x80\x7f\0\1\xff\x40"),
             ("b.weight_scale", "F32", [2, 1], b"\0\0\x80\x3f" * 2)]  # fmt: skip
    config = dict(quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed",
                  ignore=["lm_head", "re:c.*"], kv_cache_scheme=None)  # fmt: skip
    groups = dict(group_0=dict(targets=["Linear"], weights=args(4, 32)),
                  group_1=dict(targets=["re:b$", "down"], weights=args(8, 0), format="int-quantized"))  # fmt: skip
    yield json.dumps({**config, "config_groups": groups}).encode() + b"\0" + file(four + eight)
    packed = [("b.weight_packed", "I32", [1, 1], b"\x80\x81\x7f\0"), ("b.weight_scale", "F16", [1], b"\0\x3c"),
              ("b.weight_shape", "I32", [2], struct.pack("<ii", 1, 3))]  # fmt: skip
    whole = dict(g=dict(targets=["Linear"], weights=args(8, 0)))
    yield json.dumps({**config, "config_groups": whole}).encode() + b"\0" + file(packed)


def gguf():
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(key, kind, data):
        return text(key) + struct.pack("<I", kind) + data

    def texts(key, values):
        return value(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))

    def numbers(key, kind, code, values):
        return value(key, 9, struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values))

    def file(name, kind, tensors, tokens, *more):
        sizes = dict(block_count=1, context_length=64, embedding_length=32, feed_forward_length=32)
        sizes.update({"attention.head_count": 2, "attention.head_count_kv": 1})
        values = [value("general.architecture", 8, text(name))]
        values += [value(f"{name}.{key}", 4, struct.pack("<I", number)) for key, number in sizes.items()]
        values += [value(f"{name}.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))]
        values += [value("tokenizer.ggml.model", 8, text(kind)), texts("tokenizer.ggml.tokens", tokens)]
        values += [value("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0)), *more]
        listed, data = b"", b""
        for tensor, (number, size), shape in tensors:
            listed += text(tensor) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, len(data))
            rows = shape[1] if len(shape) > 1 else 1
            data += struct.pack("<f", 1) * shape[0] if number == 0 else bytes(size * shape[0] // 32 * rows)
            data += bytes(-len(data) % 32)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + listed
        return head + bytes(-len(head) % 32) + data

    embedding = ("token_embd.weight", (8, 34), [32, 4])
    merges = texts("tokenizer.ggml.merges", ["a b"])
    pre = value("tokenizer.ggml.pre", 8, text("llama-bpe"))
    types = numbers("tokenizer.ggml.token_type", 5, "i", [3, 1, 1, 1])
    chat = value("tokenizer.chat_template", 8, text("{{ messages }}<|im_end|>"))
    yes = value("tokenizer.ggml.add_bos_token", 7, b"\1")
    yield file("llama", "gpt2", [embedding, ("rope_freqs.weight", (0, 4), [8])], ["<s>", "a", "b", "ab"], merges, pre,
               types, chat, yes)  # fmt: skip
    scores = numbers("tokenizer.ggml.scores", 6, "f", [0, -1, -2, -3])
    space = value("tokenizer.ggml.add_space_prefix", 7, b"\1")
    yield file("qwen3", "llama", [embedding, ("output.weight", (2, 18), [32, 4])], ["<unk>", "▁", "a", "▁a"], scores,
               space)  # fmt: skip


def tokenizer():
    model = dict(type="BPE", vocab={"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ã": 4, "©": 5, "Ã©": 6},
                 merges=[["a", "b"], "Ã ©"], ignore_merges=False, unk_token=None)  # fmt: skip
    added = [dict(id=7, content="<s>", special=True, lstrip=True, rstrip=True, single_word=True,
                  normalized=False)]  # fmt: skip
    byte_level = dict(type="ByteLevel", add_prefix_space=False, use_regex=True)
    split = dict(type="Split", behavior="MergedWithPrevious", invert=True,
                 pattern={"Regex": r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)"})  # fmt: skip
    template = dict(
        type="TemplateProcessing",
        single=[{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        special_tokens={"<s>": {"id": "<s>", "ids": [7]}},
    )
    decoder = dict(type="ByteLevel")
    for pre in (byte_level, dict(type="Digits", individual_digits=True), split):
        steps = [pre] if pre is byte_level else [pre, byte_level]
        document = dict(
            model=model, added_tokens=added, decoder=decoder, post_processor=template,
            normalizer=dict(type="NFC"),
            pre_tokenizer=dict(type="Sequence", pretokenizers=steps),
        )  # fmt: skip
        text = json.dumps(document, ensure_ascii=False).encode()
        yield text
        yield text + b"\0ab <s> 12 \xc3\xa9 e\xcc\x81\n  x"
    yield from tokenizers_of_characters()


def tokenizers_of_characters():
    """As those that come from SentencePiece."""
    pieces = ["<unk>", "<s>", "▁", "▁▁", "a", "b", "▁a", "▁ab", "<0x0A>", "<0xC3>", "<0xA9>"]
    model = dict(type="BPE", vocab={piece: i for i, piece in enumerate(pieces)},
                 merges=["▁ ▁", "▁ a", ["▁a", "b"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                 ignore_merges=False)  # fmt: skip
    added = [dict(id=1, content="<s>", special=True, normalized=True),
             dict(id=11, content="<|im_start|>", special=False, normalized=False, lstrip=True)]  # fmt: skip
    space = dict(type="Replace", pattern={"String": " "}, content="▁")
    prefix = dict(type="Prepend", prepend="▁")
    spaces = dict(type="Replace", pattern={"Regex": " {2,}|x*"}, content=" ")
    split = dict(type="Split", behavior="MergedWithPrevious", invert=False, pattern={"String": " "})
    back = [dict(type="Replace", pattern={"String": "▁"}, content=" "), dict(type="ByteFallback"),
            dict(type="Fuse"), dict(type="Strip", content=" ", start=1, stop=0)]  # fmt: skip

    def metaspace(**more):
        return dict(type="Metaspace", replacement="▁", **more)

    def sequence(key, *steps):
        return {"type": "Sequence", key: list(steps)}

    for normalizer, pre_tokenizer, decoder in (
        (sequence("normalizers", prefix, space), None, sequence("decoders", *back)),
        (None, metaspace(prepend_scheme="first", split=False), sequence("decoders", *back)),
        (sequence("normalizers", dict(type="NFKC"), spaces, space), split, sequence("decoders", *back[:3])),
        (None, metaspace(add_prefix_space=True), metaspace(prepend_scheme="always")),
        (None, sequence("pretokenizers", dict(type="Digits"), metaspace(prepend_scheme="never")), back[1]),
    ):
        document = dict(model=model, added_tokens=added, normalizer=normalizer, pre_tokenizer=pre_tokenizer,
                        decoder=decoder)  # fmt: skip
        text = json.dumps(document, ensure_ascii=False).encode()
        yield text
        yield text + b"\0  ab <s>a <|im_start|>\n\xc3\xa9 \xe4\xb8\xad \xef\xac\x81 <0x0A> aab"


def token_shard():
    yield b"TWELLTOK" + struct.pack("<IIQQI", 1, 2, 3, 99, 10) + bytes(28) + bytes(6)
    yield b"TWELLTOK" + struct.pack("<IIQQI", 1, 4, 1, 99, 100000) + bytes(28) + bytes(4)


def activity_trace():
    for version, ids in ((1, b""), (2, struct.pack("<II", 7, 40000))):
        head = b"TWELLTRC" + struct.pack("<IIIIIIQ", version, 2, 64, 300, 1, 128, 2) + bytes(24)
        yield head + struct.pack("<QQ", 4, 5) + ids + b"\2\5\0\0" + b"\0\2\0\xac\1"


def regex():
    text = "The 12 quick\n  é 中文x 2024's".encode()
    for pattern in (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}]+|\s+(?!\S)|\s+",
                    r"\p{N}{1,3}+|a{,2}", r"(?:ab|c){2}?x*+", r"(?>a|\x{4e2d})|[\x30-\x39\u00e9]+",
                    r"x(?i)a|b(?<=q)", r"\S+?$|^\P{Letter}{2,}"):  # fmt: skip
        yield pattern.encode() + b"\0" + text


def recipe():
    yield json.dumps(dict(
        bpe_vocab=4096, validation_fraction=0.01, steps=100, context=64, micro_batch=8, accumulation=1,
        peak_lr=1e-3, min_lr_ratio=0.1, warmup_steps=5, beta1=0.9, beta2=0.95, eps=1e-8,
        weight_decay=0.1, clip=1.0, l1=2e-5, l1_start=0, l1_warmup=0, reinit_every=0, reinit_std=0.02,
        dead_window=50, time_budget_s=0.0, shortened_to=0, log_every=10, eval_every=0, eval_windows=32,
        save_every=0, keep_checkpoints=1, model="", compute="auto", recompute=False, sparse=True,
        seed=1)).encode()  # fmt: skip


def json_file():
    yield b"\1" + json.dumps({"metadata": {"total_size": 1}, "weight_map": {"a": "a.safetensors"}}).encode()
    costs = dict(tokens=[1, 64], densities=[0, 0.5, 1], dense_ns_per_weight=[0.1, 1.5],
                 sparse=[{"ns_per_weight": [0.1, 0.2, 0.3]}, {"ns_per_weight": [0.5, 1, 2]}])  # fmt: skip
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<|endoftext|>": 4}
    yield b"\2" + json.dumps(vocab).encode() + b"\0#version: 0.2\na b\n"
    yield b"\0" + json.dumps({"any machine, portable, 1 threads": costs}).encode()


if __name__ == "__main__":
    for make in (safetensors, config, quantized, gguf, tokenizer, regex, token_shard, activity_trace, recipe,
                 json_file):
        folder = pathlib.Path(sys.argv[1]) / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(make()):
            (folder / f"seed{number}").write_bytes(data)
