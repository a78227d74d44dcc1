"""Directories as other people have them: whatever `transformers` loads gives its numbers, or is refused
by a line. The bound is that of test_transformers.py."""

import json
import shutil
import subprocess

import pytest
from test_transformers import LENGTH, driver, ids_of, logits_of, make_model  # noqa: F401

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def saved(tmp_path):
    """save(case) -> a folder of one file, its tensors."""
    def save(case="llama", dtype=torch.float32):
        make_model(case, dtype).save_pretrained(tmp_path / "model")
        return tmp_path / "model", safetensors.load_file(tmp_path / "model/model.safetensors")

    return save


def configure(folder, remove=(), **keys):
    file = folder / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k not in remove}
    file.write_text(json.dumps({**config, **keys}))


def store(folder, tensors, name="model.safetensors"):
    safetensors.save_file({k: t.clone() for k, t in tensors.items()}, folder / name, {"format": "pt"})


def shard(folder, files, owner):
    """Shards, and an index that says of each tensor whose it is."""
    (folder / "model.safetensors").unlink()
    for name, tensors in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        store(folder, tensors, name)
    index = {"metadata": {}, "weight_map": owner}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def theirs(folder, ids, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    c = model.config
    terms = c.num_hidden_layers * (3 * c.hidden_size + c.intermediate_size + LENGTH) + c.hidden_size
    expected = logits_of(model, ids)
    return expected, terms * 2.0**-24 * np.abs(expected).max()


def check(driver, folder):  # noqa: F811
    ids = ids_of()
    expected, bound = theirs(folder, ids)
    for how, got in driver.logits(folder, "dense", ids).items():
        worst = np.abs(got - expected).max()
        assert worst <= bound, f"{how}: {worst} > {bound}"
    return expected


def refusal(driver, folder):  # noqa: F811
    done = subprocess.run([driver.program, str(folder), "dense", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


# --- tied heads ---

def test_a_tied_head_that_is_stored_too(driver, saved):  # noqa: F811
    folder, tensors = saved("llama-gqa-tied")
    assert HEAD not in tensors
    without = check(driver, folder)
    store(folder, {**tensors, HEAD: tensors[EMBEDDING]})
    assert np.array_equal(check(driver, folder), without)


def test_a_tied_head_of_other_numbers_is_not_tied(driver, saved):  # noqa: F811
    folder, tensors = saved("llama-gqa-tied")
    without = check(driver, folder)
    other = tensors[EMBEDDING].clone()
    other[0] += 1
    store(folder, {**tensors, HEAD: other})
    assert not np.array_equal(check(driver, folder), without)


def test_a_tied_head_of_another_rounding_is_not_tied(driver, saved):  # noqa: F811
    folder, tensors = saved("llama-gqa-tied")
    store(folder, {**tensors, HEAD: tensors[EMBEDDING].bfloat16()})
    check(driver, folder)
    store(folder, {**tensors, HEAD: tensors[EMBEDDING].double()})  # the same numbers
    check(driver, folder)


def test_a_head_alone_is_the_embedding_that_is_tied_to_it(driver, saved):  # noqa: F811
    folder, tensors = saved("llama-gqa-tied")
    without = check(driver, folder)
    tensors[HEAD] = tensors.pop(EMBEDDING)
    store(folder, tensors)
    assert np.array_equal(check(driver, folder), without)


def test_nothing_is_tied_where_no_key_says_so(driver, saved):  # noqa: F811
    folder, _ = saved("qwen2")
    configure(folder, remove=["tie_word_embeddings"])
    check(driver, folder)


# --- shards ---

def halves(tensors):
    names = sorted(tensors)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = {first: {n: tensors[n] for n in names[:9]}, second: {n: tensors[n] for n in names[9:]}}
    return files, {n: file for file, some in files.items() for n in some}


def test_an_overlay_shard(driver, saved):  # noqa: F811
    folder, tensors = saved()
    files, owner = halves(tensors)
    overlay = "model-overlay.safetensors"
    files[overlay] = {HEAD: tensors[HEAD] * 2}
    shard(folder, files, {**owner, HEAD: overlay})
    check(driver, folder)


@pytest.mark.parametrize("place", ["", "shards/"])
def test_tensors_that_the_index_does_not_list(driver, saved, place):  # noqa: F811
    folder, tensors = saved()
    files, owner = halves(tensors)
    files["model-00002-of-00002.safetensors"]["model.mtp.eh_proj.weight"] = torch.zeros(4, 4)
    shard(folder, {place + n: t for n, t in files.items()}, {n: place + f for n, f in owner.items()})
    check(driver, folder)
    # Not listed, and the model has it.
    del owner[HEAD]
    index = {"metadata": {}, "weight_map": {n: place + f for n, f in owner.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check(driver, folder)


def test_one_file_and_a_stale_index(driver, saved):  # noqa: F811
    folder, tensors = saved()
    files, owner = halves({n: t * 0 for n, t in tensors.items()})
    shard(folder, files, owner)
    store(folder, tensors)
    check(driver, folder)


def test_a_file_that_config_json_names(driver, saved):  # noqa: F811
    folder, tensors = saved()
    store(folder, {n: t * 2 if n == HEAD else t for n, t in tensors.items()}, "other.safetensors")
    configure(folder, transformers_weights="other.safetensors")
    check(driver, folder)


def test_links_into_a_cache_of_the_hub(driver, saved, tmp_path):  # noqa: F811
    folder, _ = saved()
    snapshot, blobs = tmp_path / "hub/snapshots/5f3a", tmp_path / "hub/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.move(file, blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:040x}")
    check(driver, snapshot)


# --- types ---

@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_types(driver, saved, dtype):  # noqa: F811
    folder, tensors = saved()
    store(folder, {n: t.to(dtype) for n, t in tensors.items()})
    check(driver, folder)


def test_mixed_types(driver, saved):  # noqa: F811
    folder, tensors = saved()
    mixed = {n: t.double() if "q_proj" in n else t.half() if "mlp" in n else t for n, t in tensors.items()}
    store(folder, mixed)
    check(driver, folder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.complex64], ids=str)
def test_types_that_are_no_weights_are_refused(driver, saved, dtype):  # noqa: F811
    folder, tensors = saved()
    store(folder, {n: t.to(dtype) if "q_proj" in n else t for n, t in tensors.items()})
    assert "q_proj" in refusal(driver, folder)


def test_a_number_that_fits_no_float_is_refused(driver, saved):  # noqa: F811
    folder, tensors = saved()
    large = tensors["model.norm.weight"].double()
    large[3] = 1e300
    store(folder, {**tensors, "model.norm.weight": large})
    assert "model.norm.weight" in refusal(driver, folder)


# --- config.json ---

LINEAR = {"rope_type": "linear", "factor": 4.0}
CONFIGS = {
    "rope_parameters": ("llama", ["rope_theta", "rope_scaling"], dict(rope_parameters={**LINEAR, "rope_theta": 5e4})),
    "rope_scaling": ("llama", ["rope_parameters"], dict(rope_scaling=LINEAR, rope_theta=5e4)),
    "rope_scaling first": ("llama", [], dict(rope_scaling=LINEAR, rope_parameters={"rope_theta": 5e4})),
    "theta beside parameters": ("llama", [], dict(rope_parameters=LINEAR, rope_theta=5e4)),
    "theta alone": ("llama", ["rope_parameters"], dict(rope_theta=5e4)),
    "llama3 of this length": ("llama", [], dict(rope_parameters={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4})),
    "no key-value heads": ("llama", ["num_key_value_heads"], {}),
    "null key-value heads": ("llama", [], dict(num_key_value_heads=None)),
    "head_dim null": ("llama", [], dict(head_dim=None)),
    "heads wider than hidden": ("llama-mqa-wide-heads", [], {}),
    "biases": ("llama-biases", [], {}),
    "torch_dtype": ("llama", ["dtype"], dict(torch_dtype="float32")),
    "no dtype": ("llama", ["dtype", "torch_dtype"], {}),
    "NaN": ("llama", [], dict(router_jitter=float("nan"), limits=[float("inf"), -float("inf")])),
    "window that is off": ("qwen2", ["layer_types"], dict(use_sliding_window=False, sliding_window=4)),
    "window of no layer": ("qwen2", ["layer_types"], dict(use_sliding_window=True, sliding_window=4,
                                                           max_window_layers=3)),
    "null window": ("qwen2", ["layer_types"], dict(use_sliding_window=True, sliding_window=None,
                                                    max_window_layers=0)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config(driver, saved, name):  # noqa: F811
    case, remove, keys = CONFIGS[name]
    folder, _ = saved(case)
    configure(folder, remove, **keys)
    check(driver, folder)


@pytest.mark.parametrize("keys", [
    dict(quantization_config={"quant_method": "gptq"}), dict(model_type="mamba"),
    dict(rope_parameters={"rope_type": "dynamic", "factor": 4.0}),
    dict(layer_types=["sliding_attention"] * 3, use_sliding_window=True),
], ids=lambda keys: next(iter(keys)))
def test_config_that_asks_for_more_is_refused(driver, saved, keys):  # noqa: F811
    folder, _ = saved("qwen2")
    configure(folder, **keys)
    assert "not supported" in refusal(driver, folder)


def test_an_adapter_beside_the_weights_is_refused(driver, saved):  # noqa: F811
    folder, _ = saved()
    (folder / "adapter_config.json").write_text("{}")
    assert "merge" in refusal(driver, folder)
