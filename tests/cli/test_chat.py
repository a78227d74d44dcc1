"""Talking with a model: its chat template, turns, what fits into the context, Ctrl-C."""

import json
import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("jinja2")
from bigram import make_bigram  # noqa: E402

WORDS = ["<|end_of_text|>", "<|eot|>"]
EOT = 257
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def after_of(text, ends=True):
    ids = [*text.encode(), *([EOT] if ends else [])]
    after = dict(zip(ids, [*ids[1:], ids[0]]))
    return lambda token: after.get(token, ids[0])


def make_chat(folder, says=">yes", template=TEMPLATE, ends=True, **config):
    """A model that answers with what follows ">" in a text."""
    make_bigram(folder, after_of(says, ends), WORDS, eos_token_id=EOT, **config)
    file = folder / "tokenizer_config.json"
    about = json.loads(file.read_text()) if file.exists() else {}
    about |= {"eos_token": "<|eot|>", "chat_template": template}
    file.write_text(json.dumps(about))
    return folder


@pytest.fixture
def chat(program, tmp_path):
    def run(lines, *more, model=None, env=None):
        out = tmp_path / "chat.json"
        model = model or tmp_path / "m"
        if not model.exists():
            make_chat(model)
        done = subprocess.run(
            [program, "chat", "--model", model, "--temperature", "0",
             "--path", "dense", "--json", out, *map(str, more)],
            input=lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode(),
            capture_output=True, timeout=120,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        done.json = json.loads(out.read_text()) if out.exists() else None
        done.out = out
        out.unlink(missing_ok=True)
        return done

    return run


def test_turns(chat):
    done = chat(["first", "", "second?"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().startswith("yes\nyes\n")
    said = [(m["role"], m["content"]) for m in done.json["messages"]]
    assert said == [("user", "first"), ("assistant", "yes"), ("user", "second?"), ("assistant", "yes")]
    one, two = done.json["turns"]
    assert one["finish"] == two["finish"] == "stop_token" and one["tokens"] == 4
    whole = len("ufirst") + 1 + len(">")
    assert one["prompt_tokens"] == one["prompt_tokens_run"] == whole
    # What was answered is not run again: of the new text only what follows it.
    assert two["prompt_tokens"] == whole - 1 + len("ayes") + 1 + len("usecond?") + 1 + 1
    assert two["prompt_tokens_run"] == two["prompt_tokens"] - (whole - 1)


def test_commands(chat):
    done = chat(["one", "/reset", "two", "/system be brief", "three", "/help", "/exit", "four"], "--system", "hm")
    assert done.returncode == 0, done.stderr
    assert [(m["role"], m["content"]) for m in done.json["messages"]] == [
        ("system", "be brief"), ("user", "three"), ("assistant", "yes")]  # fmt: skip
    assert len(done.json["turns"]) == 3 and "/reset forgets" in done.stderr.decode()
    assert done.json["turns"][1]["prompt_tokens"] == len("shm") + 1 + len("utwo") + 1 + 1


def users(done):
    assert done.returncode == 0, done.stderr
    return [m["content"] for m in done.json["messages"] if m["role"] == "user"]


def test_what_begins_with_a_slash_and_is_no_command_is_a_message(chat):
    lines = ["/etc/hosts is where?", "/etc what", "/exit now", "/system", "/systems of it", "/usr/bin", "/", "/c++",
             " /tmp", "/reset it"]  # fmt: skip
    done = chat([*lines, "/exit "])
    assert users(done) == [line for line in lines if line != "/system"]
    assert done.stderr.decode().count("/reset forgets") == 1
    done = chat(["one", "/rest", "/Tmp", "two", "/reset ", "three"])
    assert users(done) == ["three"] and len(done.json["turns"]) == 3
    for word in ("/rest", "/Tmp"):
        assert f"{word} is no command, so it was not sent; a space in front sends it." in done.stderr.decode()


def test_lines_of_other_systems(chat):
    done = chat(b"\xef\xbb\xbf/system be brief\r\none\r\n\r\ntwo \rx\r\n/exit\r\nno\r\n")
    assert done.json["messages"][0]["content"] == "be brief" and users(done) == ["one", "two \rx"]
    assert users(chat(b"\xef\xbb\xbfone\r\ntwo\r")) == ["one", "two"]


@pytest.mark.parametrize(("lines", "why"), [
    ("one\né".encode("latin-1"), "line 2 of standard input: byte 0 is no UTF-8"),
    (b"\xff\n", "line 1 of standard input: byte 0 is no UTF-8"),
    (b"/system \xe9\n", "line 1 of standard input: byte 8 is no UTF-8"),
    (b"/etc/\xe9\n", "line 1 of standard input: byte 5 is no UTF-8"),
    ("one\n".encode("utf-16"), "line 1 of standard input: byte 0 is no UTF-8"),
    ("one\n".encode("utf-16-le"), "line 1 of standard input: byte 1 is zero, as in UTF-16"),
    ("one\n".encode("utf-16-be"), "line 1 of standard input: byte 0 is zero, as in UTF-16"),
])  # fmt: skip
def test_standard_input_that_is_no_utf8(chat, lines, why):
    done = chat(lines)
    assert done.returncode == 1 and why in done.stderr.decode()
    told = done.stderr.splitlines()
    if "line 2" in why:  # what was said before is there
        assert len(done.json["turns"]) == 1 and not done.json["complete"]
        assert told.pop(0) == f"note: {done.out} has what there was until then".encode()
    assert len(told) == 1 and b"error: " in told[0]


def test_what_the_system_says_is_utf8_too(program, tmp_path):
    command = [program, "chat", "--model", make_chat(tmp_path / "m"), "--system", b"be \xe9"]
    done = subprocess.run(command, input=b"hm\n", capture_output=True)
    assert done.returncode == 1 and b"--system: byte 3 is no UTF-8" in done.stderr and done.stderr.count(b"\n") == 1
    done = subprocess.run([*command[:-2], "--stop", b"\xe9"], input=b"hm\n", capture_output=True)
    assert done.returncode == 1 and b"--stop: byte 0 is no UTF-8" in done.stderr and done.stderr.count(b"\n") == 1


def test_text_is_utf8_whatever_the_locale(chat, tmp_path):
    made = subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", tmp_path / "en_US.ISO-8859-1"],
                          capture_output=True) if shutil.which("localedef") else None  # fmt: skip
    locales = ["C", *(["en_US.ISO-8859-1"] if made and (tmp_path / "en_US.ISO-8859-1").exists() else [])]
    model = make_chat(tmp_path / "modèle", template=TEMPLATE.replace("{{ eos_token }}", "é"))
    for locale in locales:
        env = {"LC_ALL": locale, "LOCPATH": str(tmp_path), "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0",
               "PYTHONCOERCECLOCALE": "0"}  # fmt: skip
        done = chat(["naïve 字"], model=model, env=env)
        assert users(done) == ["naïve 字"]
        assert done.json["turns"][0]["prompt_tokens"] == len("unaïve 字é>".encode())


def test_what_generation_config_says_of_answers(chat, tmp_path):
    model = make_chat(tmp_path / "said")
    file = model / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": EOT, "stop_strings": ["es"], "num_beams": 2}))
    done = chat(["one", "two"], model=model)
    assert [turn["finish"] for turn in done.json["turns"]] == ["stop_string"] * 2
    assert done.stderr.decode() == f"note: {file}: num_beams is not heeded here\n"
    file.write_text(json.dumps({"max_new_tokens": 2}))
    assert chat(["one"], model=model).json["turns"][0]["tokens"] == 2
    assert chat(["one"], "--max-tokens", 3, model=model).json["turns"][0]["tokens"] == 3


def test_the_oldest_exchanges_are_forgotten(chat):
    done = chat(["a" * 20, "b" * 20, "c" * 20], "--context", 96, "--system", "s", "--max-tokens", 8)
    assert done.returncode == 0, done.stderr
    assert "the oldest 1 exchanges are forgotten" in done.stderr.decode()
    assert [m["content"][0] for m in done.json["messages"]] == ["s", "b", "y", "c", "y"]
    done = chat(["a" * 90], "--context", 96)
    assert done.returncode == 1 and done.stderr.decode().count("\n") == 1
    assert "leaves room for 72; shorten it, or raise --context" in done.stderr.decode()


def test_stop_strings_and_lengths(chat, tmp_path):
    done = chat(["hm"], "--stop", "es", model=make_chat(tmp_path / "stop"))
    assert done.stdout.decode().startswith("y\n") and done.json["turns"][0]["finish"] == "stop_string"
    done = chat(["hm"], "--max-tokens", 2)
    assert done.stdout.decode().startswith("ye\n") and done.json["turns"][0]["finish"] == "max_tokens"


def test_what_cannot_be_is_told(chat, tmp_path):
    model = make_chat(tmp_path / "none")
    (model / "tokenizer_config.json").unlink()
    done = chat(["hm"], model=model)
    assert done.returncode == 1 and b"chat template: there is none in" in done.stderr
    assert done.stderr.endswith(b"; --no-template does without\n")
    refuses = make_chat(tmp_path / "refuses", template="{{ raise_exception('no users, please') }}")
    done = chat(["hm"], model=refuses)
    assert done.returncode == 1 and b"chat template: no users, please" in done.stderr
    broken = make_chat(tmp_path / "broken", template="{% for %}")
    done = chat(["hm"], model=broken)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"chat template: " in done.stderr
    spies = make_chat(tmp_path / "spies", template="{{ messages.__class__.__mro__ }}")
    done = chat(["hm"], model=spies)
    assert done.returncode == 1 and b"unsafe" in done.stderr
    for python in ("/bin/false", "/no/such/python"):
        done = chat(["hm"], model=spies, env={"TWELL_PYTHON": python})
        assert done.returncode == 1 and python.encode() in done.stderr and done.stderr.count(b"\n") == 1


def test_without_a_template(chat, tmp_path):
    """Each turn reads what was said as a play; an answer ends where the model goes on as the user."""
    model = make_chat(tmp_path / "plain", says=": k\nUser", ends=False)
    (model / "tokenizer_config.json").unlink()
    done = chat(["one", "two"], "--no-template", "--system", "brief", model=model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b" k\n k\n")
    assert [m["content"] for m in done.json["messages"]] == ["brief", "one", " k", "two", " k"]
    assert [turn["finish"] for turn in done.json["turns"]] == ["stop_string"] * 2
    first = len("brief\n\nUser: one\n\nAssistant:")
    assert done.json["turns"][0]["prompt_tokens"] == first
    assert done.json["turns"][1]["prompt_tokens"] == first + len(" k\n\nUser: two\n\nAssistant:")


@pytest.mark.parametrize(("template", "why"), [
    ("{{ 9 ** 999999999 }}", "10 seconds"),
    ("{{ 'a' * 3000000000 }}", "2 GB of memory"),
])  # fmt: skip
def test_a_template_that_takes_too_much(chat, tmp_path, template, why):
    done = chat(["hm"], model=make_chat(tmp_path / "greedy", template=template))
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1
    assert f"chat template: takes more than {why}; --no-template" in done.stderr.decode()


def test_ctrl_c_stops_the_answer_and_not_the_program(program, tmp_path):
    model = make_chat(tmp_path / "m", ends=False, max_position_embeddings=100000)
    process, terminal = pty.fork()
    if process == 0:
        os.execv(program, [program, "chat", "--model", str(model), "--path", "dense", "--temperature", "0",
                           "--max-tokens", "1000000", "--context", "100000"])  # fmt: skip
    seen = b""

    def until(what, seconds=60):
        nonlocal seen
        begin = time.time()
        while what not in seen:
            ready = select.select([terminal], [], [], max(0, begin + seconds - time.time()))[0]
            if not ready:
                os.kill(process, signal.SIGKILL)
            assert ready, seen[-300:]
            seen += os.read(terminal, 4096)
        seen = seen.split(what, 1)[1]

    until(b"> ")
    os.write(terminal, b"\x03")  # nothing is being said
    until(b"> ")
    os.write(terminal, b"talk\n")
    until(b"yes>yes>yes")
    os.write(terminal, b"\x03")
    until(b"[stopped]")
    until(b"> ")
    os.write(terminal, b"again\n")
    until(b"yes>yes>yes")
    os.write(terminal, b"\x03")
    until(b"[stopped]")
    until(b"> ")
    os.write(terminal, b"/exit\n")
    deadline = time.time() + 30
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        if time.time() > deadline:
            os.kill(process, signal.SIGKILL)
        try:
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 4096)
        except OSError:  # the terminal's other end is closed
            time.sleep(0.05)
    assert ended[1] == 0


# --- rendering, as transformers does ---

TALK = [
    {"role": "system", "content": "Be <brief> & “kind”."},
    {"role": "user", "content": " One\ntwo? "},
    {"role": "assistant", "content": "Yes: {{ 1 }} é"},
    {"role": "user", "content": "And now?"},
]
TEMPLATES = {
    "turns": TEMPLATE,
    "blocks": "{{- bos_token }}\n{%- for m in messages %}\n    {% if loop.first %}\n    first\n    {% endif %}\n"
              "    {{ m.content | trim }}\n{% endfor %}\n",
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
             "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                  "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "no tools": "{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}x",
    "time": "{{ strftime_now('%Y') }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}  # fmt: skip


def rendered(folder, messages):
    done = subprocess.run(
        [sys.executable, "-I", ROOT / "cli" / "chat_template.py"],
        input=json.dumps({"directory": str(folder), "messages": messages}), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_give_what_transformers_makes_of_them(tmp_path, name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATES[name], "bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    )
    made = utils.render_jinja_template(
        conversations=[TALK], chat_template=TEMPLATES[name], add_generation_prompt=True, **tokens)  # fmt: skip
    assert rendered(tmp_path, TALK) == {"text": made[0][0]}


def test_where_templates_are(tmp_path):
    for name, text in (
        ("chat_template.json", json.dumps({"chat_template": "legacy"})),
        ("tokenizer_config.json", json.dumps({"chat_template": [
            {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "of several"}]})),
        ("chat_template.jinja", "its own file"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        want = {"chat_template.json": "legacy", "tokenizer_config.json": "of several"}.get(name, text)
        assert rendered(tmp_path, TALK) == {"text": want}


CLASSES = ["LlamaTokenizer", "CodeLlamaTokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizerFast", "GemmaTokenizer"]


@pytest.mark.parametrize(("model", "config", "older"), [
    *[("llama", {"tokenizer_class": name}, {}) for name in CLASSES],
    *[(name, {}, {}) for name in ("llama", "qwen2", "qwen3", "opt")],
    ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "b"}, {}),
    ("llama", {"tokenizer_class": "LlamaTokenizer", "bos_token": None, "eos_token": ""}, {}),
    ("llama", {"tokenizer_class": "LlamaTokenizer", "bos_token": "a"},
     {"bos_token": "b", "eos_token": {"content": "a"}}),
    ("llama", {"tokenizer_class": "LlamaTokenizer", "bos_token": None}, {"bos_token": "b", "unk_token": None}),
    ("llama", {"bos_token": "a", "added_tokens_decoder": {}}, {"bos_token": "b", "eos_token": "a"}),
])  # fmt: skip
def test_special_tokens_are_those_of_transformers(tmp_path, model, config, older):
    """Where no file names them, by the class of the tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["a", "b", "<s>", "</s>", "<unk>", "<|endoftext|>"])}
    tokenizers.Tokenizer(tokenizers.models.BPE(words, [], unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    template = "".join(f"[{{{{ {name} }}}}]" for name in names)
    config = {**config, "chat_template": template}
    for name, content in (("config", {"model_type": model}), ("tokenizer_config", config),
                          ("special_tokens_map", older)):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    want = theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert rendered(tmp_path, TALK) == {"text": want}


# --- generate ---


def generate(twell, model, *more, **options):
    return twell("generate", "--model", model, "--path", "dense", *more, json_name="chat-g.json", **options)


def test_standard_output_has_the_text_alone(twell, tmp_path):
    done = generate(twell, make_chat(tmp_path / "m"), "--prompt", ">", "--temperature", 0)
    assert done.out == ">yes\nResults as JSON: " + str(twell.directory / "chat-g.json") + "\n"
    assert "tokens/s" in done.err


def test_prompts_from_elsewhere(twell, program, tmp_path):
    model = make_chat(tmp_path / "m")
    done = subprocess.run([program, "generate", "--model", model, "--prompt", "-", "--temperature", "0",
                           "--path", "dense"], input=b"a\n>", capture_output=True)  # fmt: skip
    assert done.stdout == b"a\n>yes\n"
    (tmp_path / "lines").write_text(">\r\n>y\n>ye\n")
    done = generate(twell, model, "--prompts", tmp_path / "lines", "--temperature", 0)
    assert [s["text"] for s in done.json["sequences"]] == ["yes", "es", "s"]
    (tmp_path / "lines").write_text(">\n\n>y\n")
    error = generate(twell, model, "--prompts", tmp_path / "lines", ok=False).error_line()
    assert f"line 2 of --prompts {tmp_path / 'lines'}: is empty" in error


def test_prompts_of_other_systems(twell, tmp_path):
    """A mark in front and carriage returns are no part of a text; a text of another encoding is refused."""
    model, file = make_chat(tmp_path / "m"), tmp_path / "text"
    for option, lines in (("--prompt-file", 1), ("--prompts", 2)):
        asked = [option, file, "--temperature", 0]
        file.write_bytes(b"a\n>")
        plain = generate(twell, model, *asked).json
        assert plain["prompt_tokens"] == (3 if lines == 1 else 2)
        file.write_bytes(b"\xef\xbb\xbfa\r\n>")
        same = generate(twell, model, *asked).json
        assert (same["prompt_tokens"], same["sequences"]) == (plain["prompt_tokens"], plain["sequences"])
        for text, why in (("é".encode("latin-1"), "byte 0 is no UTF-8"), ("a>".encode("utf-16"), "byte 0 is no UTF-8"),
                          ("a>".encode("utf-16-le"), "byte 1 is zero, as in UTF-16")):  # fmt: skip
            file.write_bytes(text)
            error = generate(twell, model, *asked, ok=False).error_line()
            assert f"{option} {file}: {why}" in error and "convert the text" in error


def test_stop_strings_of_a_batch(twell, tmp_path):
    done = generate(twell, make_chat(tmp_path / "m"), "--prompt", ">", "--prompt", ">ye", "--temperature", 0,
                    "--stop", "es", "--stop", "never")  # fmt: skip
    assert [(s["text"], s["finish"]) for s in done.json["sequences"]] == [("y", "stop_string"), ("s", "stop_token")]
    error = generate(twell, tmp_path / "m", "--prompt", ">", "--stop", "", ok=False)
    assert error.code == 2 and "--stop" in error.error_line()


def test_generation_config_says_how_tokens_are_chosen(twell, trained, tmp_path):
    """Where the command line does not."""
    model = tmp_path / "m"
    shutil.copytree((trained[0] / "latest").resolve(), model)
    ask = ["--prompt", "The cat", "--max-tokens", 20, "--seed", 5]

    def text(said, *more):
        (model / "generation_config.json").write_text(json.dumps(said))
        return generate(twell, model, *ask, *more).json["text"]

    greedy = text({}, "--temperature", 0)
    assert text({}) != greedy
    assert text({"do_sample": False, "temperature": 0.9}) == greedy
    assert text({"do_sample": True, "top_k": 1}) == greedy
    assert text({"min_p": 1.0}) == greedy
    assert text({"temperature": 0.0}) == greedy
    assert text({"top_k": 1}, "--top-k", 0) == text({})
    assert text({"repetition_penalty": 100.0}, "--temperature", 0) != greedy
    (model / "generation_config.json").write_text('{"top_p": "x"}')
    error = generate(twell, model, *ask, ok=False).error_line()
    assert "generation_config.json: top_p" in error


CONFIGS = {
    "suppress_tokens": {"suppress_tokens": [ord("e"), 5000, -1]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [ord("y")]},
    "bad words": {"bad_words_ids": [[ord("y")], [EOT]]},
    "bias": {"sequence_bias": [[[ord("s")], -30.0], [[ord("q")], 4.5]]},
    "bias and bad word": {"sequence_bias": [[[ord("q")], 30.0]], "bad_words_ids": [[ord("q")]]},
    "least length": {"min_new_tokens": 6},
    "least length beyond the most": {"min_new_tokens": 50},
    "most": {"max_new_tokens": 2},
    "several ends": {"eos_token_id": [EOT, ord("s")], "min_new_tokens": 2},
    "penalty and biases": {"repetition_penalty": 20.0, "suppress_tokens": [ord("y")], "min_new_tokens": 4},
    "nothing": {"bad_words_ids": None, "suppress_tokens": [], "sequence_bias": None, "stop_strings": None},
}


@pytest.mark.filterwarnings("ignore:Unfeasible length")
@pytest.mark.parametrize("name", CONFIGS)
def test_texts_are_those_of_transformers(twell, tmp_path, name):
    """In a batch and alone, the likeliest token and the only one that top_p 0 leaves."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = make_chat(tmp_path / "m")
    said = {"eos_token_id": EOT, "do_sample": False, **CONFIGS[name]}
    most = said.get("max_new_tokens", 9)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    known = {**said, "suppress_tokens": [t for t in said.get("suppress_tokens") or [] if t == t % 258] or None}
    config = transformers.GenerationConfig(**{**known, "pad_token_id": EOT, "max_new_tokens": most})
    want = [theirs.generate(torch.tensor([list(prompt)]), generation_config=config)[0, len(prompt):].tolist()
            for prompt in (b">", b"ay")]  # fmt: skip
    for sampling in ({"do_sample": False}, {"do_sample": True, "top_p": 0, "top_k": 0}):
        (model / "generation_config.json").write_text(json.dumps({**said, **sampling}))
        ask = ["--prompt", ">", "--prompt", "ay", *([] if "max_new_tokens" in said else ["--max-tokens", 9])]
        done = generate(twell, model, *ask)
        assert [s["token_ids"] for s in done.json["sequences"]] == want
        assert "note:" not in done.err
    assert generate(twell, model, *ask[2:]).json["sequences"][0]["token_ids"] == want[1]


def test_what_of_generation_config_is_not_heeded_is_told_once(twell, tmp_path):
    model = make_chat(tmp_path / "m")
    file = model / "generation_config.json"
    said = {"no_repeat_ngram_size": 2, "forced_eos_token_id": 3, "bad_words_ids": [[1, 2], [3, 4]]}
    file.write_text(json.dumps(said))
    done = generate(twell, model, "--prompt", ">", "--prompt", ">")
    notes = [line for line in done.err.splitlines() if line.startswith("note:")]
    assert notes == [f"note: {file}: bad_words_ids, no_repeat_ngram_size, forced_eos_token_id are not heeded here"]
    file.write_text(json.dumps({"suppress_tokens": list(range(258))}))
    error = generate(twell, model, "--prompt", ">", ok=False).error_line()
    assert str(model) in error and "generation_config.json forbids every token" in error
    file.write_text(json.dumps({"stop_strings": ["es"]}))
    ask = ["--prompt", ">", "--temperature", 0]
    assert generate(twell, model, *ask).json["text"] == "y"
    assert generate(twell, model, *ask, "--stop", "s").json["text"] == "ye"  # instead of the file's
