"""Code and commands of README.md and docs/: each stands in a compiled file, or is run here."""

import copy
import html
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import documents  # noqa: E402
from documents import BLOCK, resized  # noqa: E402
from project_files import tracked  # noqa: E402

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "bench/README.md",
    ROOT / "python/README.md",  # of the wheel: what a package index shows
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]


def blocks(language):
    """(file name, text) of every block of a language."""
    for document in DOCUMENTS:
        for text in documents.blocks(document, language):
            yield document.name, text


@pytest.mark.parametrize(("language", "fewest"), [("cpp", 2), ("c", 1)])
def test_cpp_stands_in_a_compiled_file(language, fewest):
    sources = [
        path.read_text()
        for folder in ("examples", "src", "lm", "include", "cuda")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".cc", ".h")
    ]
    found = list(blocks(language))
    assert len(found) >= fewest
    for name, text in found:
        assert any(text in source for source in sources), f"{name}: in no source:\n{text}"


def test_python_runs(tmp_path):
    torch = pytest.importorskip("torch")
    sys.path.insert(0, str(ROOT / "python"))
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=50,
        hidden_act="relu",
    )

    ids = torch.randint(50, (1, 40))
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")

    def given():
        return {
            "path": tmp_path / "model",
            "dataset": [{"input_ids": ids[0], "labels": ids[0]}],
            "arguments": transformers.TrainingArguments(
                str(tmp_path / "run"), max_steps=1, report_to="none", use_cpu=True
            ),
            "model": transformers.LlamaForCausalLM(copy.deepcopy(config)).eval(),
            "teacher": transformers.LlamaForCausalLM(config),
            "token_ids": ids,
        }

    found = list(blocks("python"))
    assert found
    for name, text in found:
        # Those of README and of the wheel's own run as they stand, pasted into an empty file.
        names = {} if name == "README.md" else given()
        # A path that is longer than the run, here a step, is refused.
        exec(compile(re.sub(r"steps=\d+", "steps=1", text), name, "exec"), names)


@pytest.mark.parametrize(("document", "fewest"), [("README.md", 5), ("training.md", 4), ("quantised.md", 4),
                                                   ("generating.md", 4), ("gguf.md", 5), ("models.md", 1)])
def test_commands_run(document, fewest, tmp_path):
    program = os.environ.get("TWELL_CLI") or pytest.skip("TWELL_CLI names no command line")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("the cat sat on the mat and saw a rat\n" * 400)
    (tmp_path / "lines.txt").write_text("the cat\na rat\n")
    page = next(page for page in DOCUMENTS if page.name == document)
    found = documents.commands(page)
    assert len(found) >= fewest
    for launcher, arguments in found:
        if launcher and os.environ.get("TWELL_MPI") != "ON":
            continue
        done = subprocess.run(
            [*launcher, program, *resized(arguments)],
            cwd=tmp_path,
            input="Hello\n" if arguments[0] == "chat" else "",
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "TWELL_CALIBRATION": str(tmp_path / "calibration.json")},
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def test_the_readme_is_read_in_a_minute_or_two():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_pages_are_read_in_an_afternoon():
    """Together: a page that has more to say takes it from a page that says less."""
    words = {page.name: len(page.read_text().split()) for page in (ROOT / "docs").glob("*.md")}
    assert sum(words.values()) <= 22_000, words


def test_scripts_exist_and_take_their_options():
    """scripts/NAME in a block is there; steps and options are those of its help or source."""
    for name, text in [*blocks(""), *blocks("sh")]:
        for line in text.splitlines():
            if re.match(r"scripts/\w+(\s|$)", line):
                script, *arguments = shlex.split(line, comments=True)
                source = (ROOT / script).read_text()
                assert os.access(ROOT / script, os.X_OK), f"{name}: {line}"
                if script == "scripts/test":
                    source += (ROOT / "scripts/lib/test_steps.sh").read_text()
                elif script != "scripts/gpu_check":
                    continue
                elif "paper" in arguments:  # what follows are options of a program of its own, with their values
                    source += (ROOT / "scripts/lib/gpu_paper.py").read_text()
                    place = arguments.index("paper")
                    arguments[place + 1:] = [one for one in arguments[place + 1:] if one.startswith("--")]
                for argument in arguments:
                    assert re.search(rf"(?<![\w-]){re.escape(argument)}\b", source), f"{name}: {line}"


def anchors(page):
    """What links to the page's headings end in, as GitHub makes it of their words."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        if "://" not in target:
            page = document.parent / target if target else document
            assert page.exists(), target
            assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


# Words that name a file of the project: by its suffix, or by the folder they begin with.
SOURCE = re.compile(r"[\w.*/-]+\.(?:cc|h|cu|cuh|py|sh|cmake|md)")
TRACKED = [path.as_posix() for path in tracked()]
FOLDERS = {path.split("/")[0] for path in TRACKED if "/" in path}


def named_files(text):
    """Words in backticks, outside blocks, that name a file or folder of the project."""
    for words in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        word = words.split()[0] if words.split() else ""
        in_the_tree = "/" in word and word.split("/")[0] in FOLDERS
        if (in_the_tree or SOURCE.fullmatch(word)) and not re.search("[A-Z]{2}|<", word):
            yield word


def is_there(word):
    """A path from the root, or the end of one."""
    pattern = re.escape(word.rstrip("/")).replace(r"\*", "[^/]*")
    return any(re.search(rf"(^|/){pattern}(/|$)", path) for path in TRACKED)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document):
    missing = [word for word in named_files(document.read_text()) if not is_there(word)]
    assert not missing, f"{document.name} names what is not there: {missing}"


def test_a_stale_name_is_found():
    text = "`src/ops/plan.cc`, `ops/plan.cc`, `ffn.cc` and `src/ops` are, `src/ops/none.cc`, `none.h`"
    missing = [word for word in named_files(text) if not is_there(word)]
    assert missing == ["src/ops/none.cc", "none.h"]


def named_in_sources():
    """What code says, in one text: names that documents use have to stand in it."""
    suffixes = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake")
    texts = []
    for path in TRACKED:
        if path.endswith(suffixes) or path.startswith("scripts/"):
            texts.append((ROOT / path).read_text("utf-8", "replace"))
    return "\n".join(texts)


SOURCES = named_in_sources()


def options_and_members(text):
    """Options of ours, and names with a scope (FfnPlan::hot_share), in backticks outside blocks."""
    for words in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        yield from re.findall(r"^--[a-z][a-z_-]+", words)
        yield from (name.split("::")[-1] for name in re.findall(r"[\w]+(?:::\w+)+", words))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_options_and_members_that_are_named_exist(document):
    found = options_and_members(document.read_text())
    missing = [word for word in found if not re.search(rf"{re.escape(word)}\b", SOURCES)]
    assert not missing, f"{document.name} names what no source has: {missing}"


def test_the_version_has_one_place():
    """python/twell/__init__.py; what repeats it is compared with that by scripts/lib/release_check.py."""
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "python/twell/__init__.py").read_text(), re.MULTILINE)[1]
    compared = {"python/twell/__init__.py", "include/twell/version.h", "CHANGELOG.md", "CITATION.cff", "README.md",
                "python/README.md"}
    named = re.compile(rf"(?<![\d.=-]){re.escape(version)}(?![\d.])|twell-{re.escape(version)}")
    for path in TRACKED:
        if path in compared or path.startswith(("tests/", "bench/results/")):
            continue
        found = named.search((ROOT / path).read_text("utf-8", "replace"))
        assert not found, f"{path} names the version {version}"


def test_the_map_stays_a_map():
    """What needs more words than this is a decision, and has its entry in decisions.md."""
    assert len((ROOT / "docs/architecture.md").read_text().split()) <= 1500


def test_the_command_line_has_one_name():
    """`twell`, as its package installs it; README says what that is in a checkout. mpirun knows no aliases."""
    for name, text in blocks(""):
        assert not re.search(r"^scripts/twell ", text, re.MULTILINE), name


def test_the_demos_picture_says_what_the_demo_says():
    """bench/draw_demo.py has the words of the command, and README's picture those of its results."""
    folder = ROOT / "bench/results/2026-11-21-zen5-2-cores"
    svg = html.unescape((folder / "demo.svg").read_text().replace("&#160;", " "))
    shown = re.sub(r"\s+", " ", " ".join(re.findall(r">([^<>]+)</text>", svg)))
    results = json.loads((folder / "demo.json").read_text())
    assert f"{results['nnz_mean']:.1f} of 2048" in shown and f"{results['speedup_decode']:.2f}x" in shown
    command = re.sub(r'"\s+"', "", (ROOT / "cli/cmd_demo.cc").read_text().replace("\\n", " "))
    for words in ("its surprise at the next token", "neurons per token and layer", "are exactly zero",
                  "twell skips those. Same weights, same threads, against PyTorch's dense layers:",
                  "they differ by", "is allowed."):
        assert words in shown and words in re.sub(r"\s+", " ", command), words
