"""twell quantize, and quantised models in every command, against a decoder in Python."""

import json
import shutil
import signal
import subprocess
import time

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

SHAPE = ["--layers", 2, "--width", 128, "--neurons", 512, "--heads", 4, "--kv-heads", 2, "--vocab",
         400, "--nnz", 24, "--sample-tokens", 2048]  # fmt: skip
FOUR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
NOTE = "quantised weights are computed with as floating-point numbers"


def codes_of(words, shape, bits):
    """Whole numbers of `bits` bits, lowest first in the words of a row, less half their range."""
    rows, columns = map(int, shape)
    flat = numpy.unpackbits(words.numpy().view(numpy.uint8), axis=1, bitorder="little")
    each = flat[:, : columns * bits].reshape(rows, columns, bits)
    weights = 1 << numpy.arange(bits)
    return torch.from_numpy((each * weights).sum(-1) - (1 << (bits - 1)))


def bits_of(words, shape):
    return 4 if words.shape[1] * 8 < int(shape[1]) + 32 else 8


def decoded(tensors):
    """Name -> numbers in float64, of a checkpoint as it is stored; scales by name as well."""
    out, scales = {}, {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            scale = tensors[f"{module}.weight_scale"].double()
            shape = tensors[f"{module}.weight_shape"]
            codes = codes_of(tensor, shape, bits_of(tensor, shape))
            group = codes.shape[1] // scale.shape[1]
            out[f"{module}.weight"] = codes * scale.repeat_interleave(group, 1)
            scales[f"{module}.weight"] = scale
        elif kind not in ("weight_scale", "weight_shape"):
            out[name] = tensor.double()
    return out, scales


def decibels(weight, rounded):
    return float(10 * torch.log10((weight**2).sum() / ((weight - rounded) ** 2).sum()))


@pytest.fixture(scope="module")
def model(twell, work):
    out = work / "to-quantise"
    twell("synth", *SHAPE, "--out", out)
    return out


@pytest.fixture(scope="module")
def quantized(twell, work, model):
    """By options, the directory and what the command reported; made once."""
    made = {}

    def make(*options):
        if options not in made:
            out = work / ("quantised" + "".join(options))
            done = twell("quantize", "--model", model, "--out", out, *options,
                         json_name=f"quantise{len(made)}.json")  # fmt: skip
            made[options] = (out, done)
        return made[options]

    return make


WAYS = [("--type", "int8"), ("--type", "int4"), ("--type", "int4", "--group", "128"),
        ("--type", "int8", "--group", "64"), ("--type", "int4", "--head", "bf16"),
        ("--type", "int4", "--head", "int4"), ("--type", "int8", "--head", "int4")]  # fmt: skip
# In dB; 0.7 less than normal weights have, as a gate's neurons share a direction here.
LEAST = {("4", 32): 20.3, ("4", 128): 18.8, ("8", 64): 43.5, ("8", 0): 41.0}


@pytest.mark.parametrize("options", WAYS, ids=" ".join)
def test_the_numbers_are_those_of_the_model_rounded(quantized, model, options):
    out, done = quantized(*options)
    before = load_file(model / "model.safetensors")
    after, scales = decoded(load_file(out / "model.safetensors"))
    four, group = options[1] == "int4", 0
    if "--group" in options:
        group = int(options[-1])
    elif four:
        group = 32
    tied = "bf16" in options
    assert set(after) == set(before) | (set() if tied else {"lm_head.weight"})
    for name, numbers in after.items():
        original = before["model.embed_tokens.weight" if "lm_head" in name else name].double()
        if name not in scales:
            assert torch.equal(numbers, original), name
            continue
        many = name.split(".")[-2] in FOUR
        bits = "4" if four and many else "8"
        of = group if many else 0
        if "lm_head" in name and options[-2:] == ("--head", "int4"):
            bits, of = "4", 32
        scale = scales[name]
        assert scale.shape[1] == (original.shape[1] // of if of else 1), name
        mantissa = torch.frexp(scale).mantissa * (32 if bits == "4" else 256)
        assert (scale > 0).all() and torch.equal(mantissa, mantissa.round()), name
        assert decibels(original, numbers) > LEAST[bits, of], (name, decibels(original, numbers))
        if bits == "4":  # code times scale is a number of bf16
            assert torch.equal(numbers, numbers.bfloat16().double()), name
    assert done.json["kept_tensors"] == len(after) - len(scales)
    assert sum(part["tensors"] for part in done.json["parts"]) == len(scales)
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("options", WAYS[:2], ids=" ".join)
def test_what_is_loaded_is_code_times_scale(twell, quantized, tmp_path, options, dtype):
    out, _ = quantized(*options)
    done = twell("convert", "--in", out, "--out", tmp_path / "plain", "--dtype", dtype)
    assert done.err.count(NOTE) == 1
    numbers, _ = decoded(load_file(out / "model.safetensors"))
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert set(plain) == set(numbers)
    for name, tensor in plain.items():  # float64 -> bf16 rounds once: products have 16 bits
        assert torch.equal(tensor, numbers[name].to(tensor.dtype)), name
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())


def test_every_command_takes_a_quantised_model(twell, quantized, text, tmp_path):
    out, _ = quantized("--type", "int4")
    twell("convert", "--in", out, "--out", tmp_path / "plain")
    ask = ["--prompt", "The cat", "--max-tokens", 8, "--temperature", 0]
    for path in ("sparse", "dense"):
        texts = [twell("generate", "--model", directory, *ask, "--path", path, json_name="q.json")
                 for directory in (out, tmp_path / "plain")]  # fmt: skip
        assert texts[0].json["text"] == texts[1].json["text"]
        # Codes stay codes on the sparse path.
        assert (NOTE in texts[0].err) is (path == "dense")
        assert NOTE not in texts[1].err
    told = twell("prepare", "--model", out, "--text", text, ok=False).error_line()
    assert "there is nothing to find: no gate is screened that is stored as codes" in told
    assert "gate int4, up int4, down int8" in twell("explain", "--model", out).out


@pytest.mark.parametrize("options", [("--type", "int4"), ("--type", "int4", "--group", "128")], ids=" ".join)
def test_wide_scales_are_rounded_where_asked(twell, quantized, tmp_path, options):
    """The model is then the one whose file has the rounded scales, on both paths."""
    out, _ = quantized(*options)
    torch.manual_seed(1)
    for name in ("wide", "rounded"):
        shutil.copytree(out, tmp_path / name)
    wide = load_file(out / "model.safetensors")
    rounded = dict(wide)
    for name, scale in wide.items():
        if name.endswith("weight_scale") and name.split(".")[-2] in FOUR:
            wide[name] = (scale.float() * (1 + 0.1 * torch.rand(scale.shape))).bfloat16()
            mantissa, exponent = wide[name].float().frexp()
            rounded[name] = torch.ldexp((mantissa * 32).round() / 32, exponent).bfloat16()
    save_file(wide, tmp_path / "wide" / "model.safetensors")
    save_file(rounded, tmp_path / "rounded" / "model.safetensors")

    def run(name, path, *more):
        return twell("generate", "--model", tmp_path / name, "--prompt", "a", "--max-tokens", 12, "--temperature", 0,
                     "--path", path, *more, json_name="wide.json")  # fmt: skip

    said = run("wide", "sparse").err
    if "--group" not in options:  # 128 are a row, and whatever its one scale is, codes stay codes
        assert NOTE in said and "--round-scales" in said
    for path in ("sparse", "dense"):
        done, want = run("wide", path, "--round-scales"), run("rounded", path)
        assert done.json["sequences"] == want.json["sequences"]
        assert (NOTE in done.err) == (NOTE in want.err) == (path == "dense")


def rounded_inputs(x):
    """include/twell/linear.h: round_inputs()."""
    out = torch.empty_like(x)
    for first in range(0, x.shape[-1], 256):
        block = x[..., first : first + 256].double()
        largest = block.abs().amax(-1, keepdim=True)
        unit = torch.exp2(torch.frexp(largest).exponent.double() - 7)
        unit = torch.where(largest / unit < 127.5, unit, unit * 2)
        out[..., first : first + 256] = (block / unit).round() * unit
    return out


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_inputs_are_rounded_where_asked(twell, tmp_path, kind):
    """The loss is that of `transformers` on the dequantised model, whose linear layers but the head
    get such inputs. Sums in another order round some input the other way: that may change the loss by
    a tenth of what rounding changes."""
    transformers = pytest.importorskip("transformers")
    from test_architectures import SIZES, make

    make("Llama", tmp_path / "model")
    twell("quantize", "--model", tmp_path / "model", "--type", kind, "--head", "bf16", "--out",
          tmp_path / "codes")  # fmt: skip
    twell("convert", "--in", tmp_path / "codes", "--out", tmp_path / "plain", "--dtype", "f32")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="float32")
    text = "It was the best of times, it was the worst of times, it was the age of wisdom."
    (tmp_path / "text.txt").write_text(text)
    ids = torch.tensor([list(text.encode())])
    assert len(text) < SIZES["max_position_embeddings"]

    def loss():
        with torch.no_grad():
            return float(reference(ids, labels=ids).loss)

    def found(path, *options):
        return twell("eval", "--model", tmp_path / "codes", "--task", "perplexity", "--data",
                     tmp_path / "text.txt", "--dtype", "f32", "--path", path, *options,
                     json_name="rounded.json").json["nats_per_token"]  # fmt: skip

    exact = loss()
    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear) and name.split(".")[-1] in FOUR:
            module.register_forward_pre_hook(lambda _, inputs: rounded_inputs(inputs[0]))
    rounded = loss()
    change = abs(rounded - exact)
    assert change > 1e-4
    for path in ("sparse", "dense"):
        assert abs(found(path) - exact) < change / 10
        assert abs(found(path, "--activations", "int8") - rounded) < change / 10


def test_inputs_are_rounded_of_codes_alone(twell, model, tmp_path):
    told = twell("generate", "--model", model, "--prompt", "a", "--activations", "int8", ok=False)
    assert "activations in int8 are for a model with quantised weights" in told.error_line()


def test_training_goes_on_in_floating_point(twell, quantized, text, tmp_path):
    out, _ = quantized("--type", "int8")
    twell("train", "--model", out, "--data", text, "--out", tmp_path / "run", "--steps", 1,
          "--context", 16, "--batch", 2)  # fmt: skip
    trained = tmp_path / "run" / "latest"
    assert "quantization_config" not in json.loads((trained / "config.json").read_text())
    done = twell("generate", "--model", trained, "--prompt", "a", "--max-tokens", 1)
    assert NOTE not in done.err


def test_the_same_bytes_on_any_number_of_threads(twell, quantized, model, tmp_path):
    out, _ = quantized("--type", "int4")
    for threads in (1, 3):
        other = tmp_path / str(threads)
        twell("quantize", "--model", model, "--type", "int4", "--out", other, "--threads", threads)
        for name in ("model.safetensors", "config.json"):
            assert (other / name).read_bytes() == (out / name).read_bytes()


def test_killed_it_leaves_no_model(twell, program, model, tmp_path):
    """Whenever it is killed. What it left is gone when the next one has finished."""
    command = [program, "quantize", "--model", model, "--type", "int8", "--out", tmp_path / "q"]
    killed = 0
    for wait in (0.02, 0.1, 0.2, 0.3, 0.5):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "q").exists():
            break  # it was finished, whatever became of the process: it has to be whole
        assert process.returncode != 0
        killed += 1
    assert killed > 0
    if not (tmp_path / "q").exists():
        twell(*command[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q"]
    twell(*command[1:-1], tmp_path / "whole")
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == files
    for name in files:
        assert (tmp_path / "q" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_cannot_be_quantised_is_one_line(twell, quantized, model, tmp_path):
    out, _ = quantized("--type", "int8")
    done = twell("quantize", "--model", out, "--type", "int8", "--out", tmp_path / "q", ok=False)
    assert "quantised already" in done.error_line()
    done = twell("quantize", "--model", model, "--type", "int8", "--out", out, ok=False)
    assert out.name in done.error_line()
    odd = tmp_path / "odd"
    twell("synth", "--layers", 1, "--width", 80, "--neurons", 256, "--heads", 2, "--vocab", 300,
          "--sample-tokens", 2048, "--out", odd)  # fmt: skip
    done = twell("quantize", "--model", odd, "--type", "int4", "--out", tmp_path / "q", ok=False)
    line = done.error_line()
    assert "--group" in line and "q_proj" in line and "80 columns" in line and "32" in line
    twell("quantize", "--model", odd, "--type", "int8", "--out", tmp_path / "rows")
    broken = load_file(odd / "model.safetensors")
    broken["model.layers.0.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(broken, odd / "model.safetensors")
    done = twell("quantize", "--model", odd, "--type", "int8", "--out", tmp_path / "q", ok=False)
    assert "up_proj.weight" in done.error_line() and "NaN" in done.error_line()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd", "rows"]


UP = "model.layers.1.mlp.up_proj"


def scales(value):
    return lambda tensors: tensors[f"{UP}.weight_scale"][2].fill_(value)


def cut(tensors):
    tensors[f"{UP}.weight_packed"] = tensors[f"{UP}.weight_packed"][:, :-1].contiguous()


def in_floats(tensors):
    del tensors[f"{UP}.weight_packed"], tensors[f"{UP}.weight_scale"], tensors[f"{UP}.weight_shape"]
    tensors[f"{UP}.weight"] = torch.ones(512, 128, dtype=torch.bfloat16)


def scheme(**values):
    def change(config):
        for group in config["quantization_config"]["config_groups"].values():
            group["weights"].update(values)

    return change


def other_layout(config):
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128}


BAD = {  # of an int4 model: the change of tensors or of config.json, and what the line holds
    "scale 0": (scales(0), f"{UP}.weight_scale", "positive"),
    "scale negative": (scales(-1), f"{UP}.weight_scale", "positive"),
    "scale NaN": (scales(float("nan")), f"{UP}.weight_scale", "nan"),
    "scale infinite": (scales(float("inf")), f"{UP}.weight_scale", "inf"),
    "no scales": (lambda t: t.pop(f"{UP}.weight_scale"), f"{UP}.weight_scale", "missing"),
    "cut short": (cut, f"{UP}.weight_packed", "[512, 15]"),
    "floats": (in_floats, f"{UP}.weight", "BF16"),
    "zero points": (lambda t: t.update({f"{UP}.weight_zero_point": torch.zeros(1)}),
                    f"{UP}.weight_zero_point", "asymmetric"),
    "g_idx": (lambda t: t.update({f"{UP}.weight_g_idx": torch.zeros(1)}), f"{UP}.weight_g_idx",
              "g_idx"),
    "groups": (scheme(strategy="group", group_size=96), "weight_packed", "96"),
    "other bits": (scheme(num_bits=8, strategy="channel", group_size=None), "weight_packed",
                   "8 bits"),
    "not quantised": (lambda c: c.pop("quantization_config"), "weight", "missing"),
    "AWQ": (other_layout, "quant_method", "awq"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_with_file_and_tensor(twell, quantized, tmp_path, name):
    change, *needles = BAD[name]
    out, _ = quantized("--type", "int4")
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    config = json.loads((broken / "config.json").read_text())
    tensors = load_file(broken / "model.safetensors")
    change(config if name in ("groups", "other bits", "not quantised", "AWQ") else tensors)
    (broken / "config.json").write_text(json.dumps(config))
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    done = twell("generate", "--model", broken, "--prompt", "a", "--max-tokens", 1, ok=False)
    line = done.error_line()
    assert done.out == "" and str(broken) in line
    assert all(needle in line for needle in needles), line
