"""lm-eval: its model "twell" gives the likelihoods of "hf", and `twell eval` its accuracies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import twell

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
tasks = pytest.importorskip("lm_eval.tasks")

DATA = Path(os.environ.get("TWELL_DATA") or Path(__file__).parents[3] / "shared" / "data") / "eval"
ITEMS = 40

# What lm-eval's own tasks say, on the fields of the files. WinoGrande and LAMBADA have no acc_norm.
QUESTION = {"doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_choice": "{{choices}}"}
QUERY = {"doc_to_text": "{{query}}", "doc_to_choice": "{{choices}}"}
TASKS = {
    "arc": ("arc_easy_test.jsonl", QUESTION),
    "hellaswag": ("hellaswag_val_full.txt", QUERY),
    "openbookqa": ("openbook_qa.jsonl", QUERY),
    "piqa": ("piqa.jsonl", {**QUERY, "doc_to_text": "{{query}}Answer:"}),
    "winogrande": ("winogrande.jsonl", {
        "doc_to_text": "{{gold}}", "doc_to_choice": "{{context_options}}",
        "doc_to_target": "{{continuation}}"}),
    "commonsenseqa": ("commonsense_qa_dev_rand_split.jsonl", QUESTION),
    "lambada": ("lambada_openai.jsonl", {
        "doc_to_text": "{{context}}", "doc_to_target": " {{continuation}}"}),
}  # fmt: skip


def documents(task: str, lines: list[str]) -> Iterator[dict]:
    """Of the first items; what Jinja cannot say of them is done here."""
    if task == "hellaswag":  # a context, the index of the right ending, four endings
        for at in range(0, len(lines), 6):
            context, gold, *endings = lines[at : at + 6]
            yield {"query": context, "gold": int(gold), "choices": endings}
        return
    for item in map(json.loads, lines):
        if task == "commonsenseqa":
            labels = [choice["label"] for choice in item["question"]["choices"]]
            yield {
                "question": item["question"]["stem"],
                "choices": [choice["text"] for choice in item["question"]["choices"]],
                "gold": labels.index(item["answerKey"]),
            }
        else:
            yield item


def first_items(task: str, out: Path) -> Path:
    """The first ITEMS of the task's file, as `twell eval` reads it."""
    file = DATA / TASKS[task][0]
    if not file.is_file():
        pytest.skip(f"{file} is absent")
    lines = file.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[: ITEMS * (6 if task == "hellaswag" else 1)]))
    return out


def evaluate(model: str, directory: Path, task: str, items: Path, work: Path) -> dict:
    """lm-eval's results and samples of one task."""
    data = work / f"{task}.documents.jsonl"
    lines = items.read_text().splitlines()
    data.write_text("".join(json.dumps(item) + "\n" for item in documents(task, lines)))
    kind = "loglikelihood" if task == "lambada" else "multiple_choice"
    metrics = ["acc"] if task in ("winogrande", "lambada") else ["acc", "acc_norm"]
    config = {
        "task": f"local_{task}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": kind,
        "doc_to_target": "{{gold}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics
        ],
        **TASKS[task][1],
    }
    return lm_eval.simple_evaluate(
        model=model,
        model_args={"pretrained": str(directory), "dtype": "float32"},
        device="cpu",
        batch_size=8,
        tasks=[config],
        log_samples=True,
        bootstrap_iters=0,
    )


def likelihoods(results: dict) -> list[list[float]]:
    (samples,) = results["samples"].values()
    samples = sorted(samples, key=lambda sample: sample["doc_id"])
    return [[float(pair[0]) for pair in sample["filtered_resps"]] for sample in samples]


@pytest.mark.parametrize("task", TASKS)
def test_twell_hf_and_twell_eval_agree(
    task: str, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import twell.lm_eval  # noqa: F401  (registers the model)

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    items = first_items(task, tmp_path / f"{task}.data")
    sparse = evaluate("twell", model_directory, task, items, tmp_path)
    dense = evaluate("hf", model_directory, task, items, tmp_path)
    got, want = likelihoods(sparse), likelihoods(dense)
    assert len(got) == len(want) == ITEMS
    bound = {}
    for item, (g, w) in enumerate(zip(got, want)):
        # Of the logits' order of magnitude, 100 tokens or fewer: 2^-24 of each sum of 352 products.
        bound[item] = 2e-5 * max(1.0, *map(abs, w))
        assert g == pytest.approx(w, abs=bound[item])
    (result,) = sparse["results"].values()
    (plain,) = dense["results"].values()
    counted = json_of_twell_eval(task, model_directory, items, tmp_path)
    assert counted["items"] == ITEMS
    # An answer may differ only where two choices are as likely as rounding can tell.
    close = sum(
        any(abs(a - b) <= 2 * bound[item] for i, a in enumerate(w) for b in w[:i])
        for item, w in enumerate(want)
    )
    for metric, name in (("acc,none", "accuracy"), ("acc_norm,none", "accuracy_norm")):
        if metric in result:
            assert abs(result[metric] - counted[name]) * ITEMS <= close + 1e-6, metric
            assert abs(result[metric] - plain[metric]) * ITEMS <= close + 1e-6, metric
    assert close <= ITEMS // 10


def json_of_twell_eval(task: str, directory: Path, items: Path, work: Path) -> dict:
    program = os.environ.get("TWELL_CLI")
    if not program:
        pytest.skip("TWELL_CLI names no twell")
    out = work / "twell.json"
    command = [program, "eval", "--model", directory, "--task", task, "--data", items]
    subprocess.run([*map(str, command), "--dtype", "f32", "--json", str(out)], check=True)
    return json.loads(out.read_text())


def test_command_line(model_directory: Path, tmp_path: Path) -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "twell.lm_eval", "run", "--help"], capture_output=True, text=True
    )
    assert help_text.returncode == 0 and "--model_args" in help_text.stdout
    items = tmp_path / "items.jsonl"
    items.write_text('{"question": "Why?", "choices": ["so", "this"], "gold": 0}\n' * 3)
    (tmp_path / "local.yaml").write_text(
        f"task: local\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {items}}}}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: '{{gold}}'\n"
        "metric_list: [{metric: acc}]\n"
    )
    command = [
        sys.executable, "-m", "twell.lm_eval", "run", "--model", "twell", "--model_args",
        f"pretrained={model_directory},dtype=float32", "--include_path", tmp_path, "--tasks",
        "local", "--device", "cpu",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "local" in done.stdout and "acc" in done.stdout


def test_options_that_would_go_around_it(model_directory: Path) -> None:
    from twell.lm_eval import TwellLM

    with pytest.raises(ValueError, match="TwellLM: delta: expected none"):
        TwellLM(str(model_directory), delta=str(model_directory), device="cpu")
    model = TwellLM(str(model_directory), device="cpu", dtype="float32")
    assert all(layer.frozen for layer in twell.sparse_layers(model.model).values())


def test_a_model_of_the_trainer_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 steps in transformers' Trainer; then frozen, it knows what comes next."""
    import tokenizers
    import transformers
    import twell.lm_eval
    from test_trainer import Text, trainer

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    run = trainer(
        tmp_path / "run", 200, [twell.hf.SparsityCallback(l1=0.1, warmup=20)], bf16=True,
        gradient_accumulation_steps=2, gradient_checkpointing=True, save_strategy="steps",
        save_steps=200,
    )  # fmt: skip
    run.train()
    directory = tmp_path / "run" / "checkpoint-200"
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="w0", pad_token="w0"
    ).save_pretrained(directory)

    items = tmp_path / "items.jsonl"
    with items.open("w") as file:
        for row in Text().ids[:ITEMS].tolist():
            right, wrong = f"w{row[8]}", f"w{(row[8] + 1) % 61}"
            question = " ".join(f"w{i}" for i in row[:8])
            file.write(json.dumps({"query": question, "choices": [wrong, right], "gold": 1}) + "\n")
    sparse = evaluate("twell", directory, "openbookqa", items, tmp_path)
    dense = evaluate("hf", directory, "openbookqa", items, tmp_path)
    for g, w in zip(likelihoods(sparse), likelihoods(dense)):
        assert g == pytest.approx(w, rel=1e-5, abs=1e-5)
    (result,) = sparse["results"].values()
    assert result["acc,none"] > 0.9
