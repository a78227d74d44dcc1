"""Renders a model's chat template by Jinja, as transformers does: a request in JSON on standard input, the
text or what is wrong in JSON on standard output. twell runs it in an interpreter of its own.

A template is code of whoever made the model. It runs in Jinja's sandbox, sees the messages and the special
tokens, and can change nothing.
"""

import datetime
import json
import pathlib
import resource
import sys

NAMES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
# Of real templates a long conversation takes some megabytes. Who waits for the answer limits the time.
BYTES = 2 << 30


class Files:
    """Of a model: in a directory, or by their names in the request."""

    def __init__(self, request):
        self.directory, self.texts = request.get("directory"), request.get("files", {})

    def text(self, name):
        if self.directory is None:
            return self.texts.get(name)
        file = pathlib.Path(self.directory, name)
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def json(self, name):
        return json.loads(self.text(name) or "{}")


def template_of(files):
    """Its text. A file of its own goes before tokenizer_config.json; of several by name, the one called
    default."""
    own = files.text(NAMES[0])
    if own is not None:
        return own
    for name in NAMES[1:]:
        found = files.json(name).get("chat_template")
        if isinstance(found, list):
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        if isinstance(found, str):
            return found
    raise ValueError(f"there is none in {NAMES[0]}, {NAMES[1]} or {NAMES[2]}")


# What transformers' classes of tokenizers call their tokens where no file says it.
_END = "<|endoftext|>"
DEFAULTS = {
    "Llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "CodeLlama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "GPT2": {"bos": _END, "eos": _END, "unk": _END},
    "GPTNeoX": {"bos": _END, "eos": _END, "unk": _END, "pad": "<|padding|>"},
    "Qwen2": {"eos": _END, "unk": _END, "pad": _END},
    "Gemma": {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"},
}
# The classes that models have where no file names one.
CLASSES = {"qwen2": "Qwen2", "qwen3": "Qwen2", "opt": "GPT2"}


def special_tokens(files):
    """bos_token and the like, which templates name."""
    model, said = files.json("config.json"), files.json("tokenizer_config.json")
    name = said.get("tokenizer_class") or model.get("tokenizer_class")
    name = name or CLASSES.get(model.get("model_type"), "")
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    found = {f"{key}_token": text for key, text in DEFAULTS.get(name, {}).items()}
    if "added_tokens_decoder" not in said:  # as in older files, whose tokens stand in one of their own
        said |= files.json("special_tokens_map.json")
    for key, value in said.items():
        if key.endswith("_token"):
            found[key] = value.get("content") if isinstance(value, dict) else value
    return {key: text for key, text in found.items() if isinstance(text, str) and text}


def environment():
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what a model has said; its text is what is within."""

        tags = frozenset({"generation"})

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


def render(request):
    files = Files(request)
    template = environment().from_string(template_of(files))
    about = {"tools": None, "documents": None, **special_tokens(files)}
    text = template.render(messages=request["messages"], add_generation_prompt=True, **about)
    return {"text": text}


def main():
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    try:
        answer = render(json.loads(sys.stdin.buffer.read()))  # UTF-8, whatever the locale
    except ImportError:
        answer = {"error": "needs Jinja: pip install jinja2"}
    except MemoryError:
        answer = {"error": f"takes more than {BYTES >> 30} GB of memory"}
    except Exception as error:  # whatever a template does
        answer = {"error": f"{error}" or type(error).__name__}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
