"""What scripts/gpu_check paper measures, as data: the paper's tables and figures that synthetic models can give.

plan() lists the steps, the most important first. A step makes a model or measures one that an earlier step made.
"""

import dataclasses

# Layers of the paper's models, and the mean non-zeros of 5,632 neurons at its recommended setting. It prints none for
# 1B: 33 lies between those of its neighbours.
LAYERS = {"0.5b": 8, "1b": 18, "1.5b": 28, "2b": 38}
NNZ = {"2b": 24.0, "1.5b": 29.0, "1b": 33.0, "0.5b": 39.0}
WIDTH, NEURONS, VOCAB = 2048, 5632, 49152
# Other levels of activity, those that tell most first: without an L1 penalty, then the two ends of what it gives.
LEVELS = (911.0, 15.0, 200.0, 61.0, 99.0)

# Seconds on an H100, with loading and everything else that stands around a measurement.
MAKE_S = {"0.5b": 6, "1b": 9, "1.5b": 12, "2b": 15}
PREFILL_S = {"0.5b": 11, "1b": 16, "1.5b": 22, "2b": 28}
TRAIN_S = {"0.5b": 18, "1b": 27, "1.5b": 36, "2b": 45}
DECODE_S = {"0.5b": 10, "2b": 18}

FIT = ("--batch", "1", "--fit")  # as many sequences a pass as the memory holds


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much a call of each benchmark computes, and options that make the models smaller."""

    batches: tuple[int, ...]  # sequences of a prefill; where there are several, each is a step
    prompt: int  # tokens of each
    decode_prompt: int
    decode: int
    decode_batches: tuple[int, ...]
    context: int  # tokens of a sequence in training
    accumulation: int  # sequences of a step
    passes: tuple[str, ...]  # how many of them a pass has
    text_tokens: int
    repeats: int
    seconds: float
    shape: tuple[str, ...] = ()
    neurons: int = NEURONS
    names_batches: bool = False  # the names of prefills have their batch
    names_prompt: int = 0  # and this length, where it is not the plan's


GPU = Sizes(batches=(8,), prompt=2048, decode_prompt=512, decode=64, decode_batches=(1, 16), context=2048,
            accumulation=16, passes=FIT, text_tokens=8192, repeats=5, seconds=0.3)  # fmt: skip
# Two cores take a minute for what a GPU does in a tenth of a second.
CPU = dataclasses.replace(GPU, batches=(1, 4), names_batches=True, prompt=512, decode=16, decode_batches=(1, 4),
                          accumulation=1, passes=("--batch", "1"), repeats=5, seconds=0.1)  # fmt: skip
# A dry run: the same command lines on models that take no time. What fills the context on a GPU fills it here.
TOY = Sizes(batches=(2,), prompt=64, decode_prompt=60, decode=4, decode_batches=(1, 3), context=64, accumulation=2,
            passes=FIT, text_tokens=256, repeats=1, seconds=0.001, neurons=176,
            shape=("--layers", "2", "--width", "64", "--neurons", "176", "--heads", "2", "--vocab", "300",
                   "--context", "64", "--sample-tokens", "2048"))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Model:
    preset: str
    nnz: float
    gated: bool = True

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.nnz:g}" + ("" if self.gated else "-no-gate")

    @property
    def bytes(self) -> int:
        """On disk, in bf16."""
        matrices = 3 if self.gated else 2
        layer = matrices * WIDTH * NEURONS + 4 * WIDTH * WIDTH
        return 2 * (LAYERS[self.preset] * layer + VOCAB * WIDTH)


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    gives: str  # what of the paper
    kind: str  # model, prefill, decode, layers, train or stats: what its JSON has
    model: Model
    command: tuple[str, ...]  # of twell; {model}, {text} and {json} are paths
    expected: int  # seconds on an H100
    tokens: int = 0  # of a call, where the answer says them

    @property
    def limit(self) -> int:
        """Seconds after which it is ended: late, since nothing is left then."""
        return 3 * self.expected + 30


def make(model: Model, sizes: Sizes, device: str) -> Step:
    # Of fewer neurons as large a share fires, and one at least.
    nnz = max(1.0, round(model.nnz * sizes.neurons / NEURONS, 2))
    command = ("synth", "--preset", model.preset, *([] if model.gated else ["--no-gated"]), "--nnz", f"{nnz:g}",
               "--profile", "paper", *sizes.shape, "--device", device, "--out", "{model}",
               "--json", "{json}")  # fmt: skip
    gives = f"a random model of the shape of {model.preset}, in which {model.nnz:g} of {NEURONS} neurons fire"
    return Step(f"model/{model.name}", gives, "model", model, command, MAKE_S[model.preset])


def bench(model: Model, sizes: Sizes, device: str, batch: int, prompt: int, decode: int, *more: str) -> tuple[str, ...]:
    return ("bench", "model", "--model", "{model}", "--batch", str(batch), "--prompt-tokens", str(prompt),
            "--decode-tokens", str(decode), *more, "--device", device, "--repeats", str(sizes.repeats),
            "--seconds", f"{sizes.seconds:g}", "--json", "{json}")  # fmt: skip


def prefill(name: str, gives: str, model: Model, sizes: Sizes, device: str, by_layer: bool = False) -> list[Step]:
    """A step for each batch."""
    steps = []
    for batch in sizes.batches:
        more = ("--only", "prefill", *(["--by-layer"] if by_layer else []))
        command = bench(model, sizes, device, batch, sizes.prompt, sizes.decode, *more)
        full = name + (f"/batch{batch}" if sizes.names_batches else "")
        full += f"/prompt{sizes.names_prompt}" if sizes.names_prompt else ""
        kind = "layers" if by_layer else "prefill"
        steps.append(Step(full, gives, kind, model, command, PREFILL_S[model.preset], tokens=batch * sizes.prompt))
    return steps


def train(name: str, gives: str, model: Model, sizes: Sizes, device: str, *more: str) -> Step:
    command = ("bench", "train", "--model", "{model}", "--device", device, "--context", str(sizes.context),
               *sizes.passes, "--accumulation", str(sizes.accumulation), *more,
               "--repeats", str(sizes.repeats), "--json", "{json}")  # fmt: skip
    expected = TRAIN_S[model.preset] + (10 if more else 0)
    return Step(name, gives, "train", model, command, expected, tokens=sizes.context * sizes.accumulation)


def decode(preset: str, sizes: Sizes, device: str) -> list[Step]:
    model = Model(preset, NNZ[preset])
    steps = []
    for batch in sizes.decode_batches:
        command = bench(model, sizes, device, batch, sizes.decode_prompt, sizes.decode, "--only", "decode")
        steps.append(Step(f"decode/{preset}/batch{batch}", "not in the paper: decoding", "decode", model, command,
                          DECODE_S[preset], tokens=batch))  # fmt: skip
    return steps


def measurements(sizes: Sizes, device: str) -> list[Step]:
    models = {preset: Model(preset, nnz) for preset, nnz in NNZ.items()}
    steps: list[Step] = []
    for preset, model in models.items():
        steps += prefill(f"table1/{preset}", "Table 1: forward execution and energy a token", model, sizes, device)
    for preset, model in models.items():
        steps.append(train(f"train/{preset}", "Table 1: training step and peak memory", model, sizes, device))
    steps.append(train("recompute/2b", "training step and peak memory with recomputation", models["2b"], sizes, device,
                       "--recompute"))  # fmt: skip
    steps += decode("2b", sizes, device)
    steps += prefill("no-gate/1.5b", "layers without a gate: forward", Model("1.5b", NNZ["1.5b"], gated=False), sizes,
                     device)  # fmt: skip
    steps += prefill("layers/1.5b", "speedup of each layer against its non-zeros", models["1.5b"], sizes, device,
                     by_layer=True)  # fmt: skip
    steps += decode("0.5b", sizes, device)
    for nnz in LEVELS:
        steps += prefill(f"nnz/1.5b/{nnz:g}", "speed and energy against activity, by non-zeros alone",
                         Model("1.5b", nnz), sizes, device)  # fmt: skip
    model = models["1.5b"]
    command = ("stats", "--model", "{model}", "--text", "{text}", "--max-tokens", str(sizes.text_tokens), "--window",
               str(sizes.context), "--device", device, "--json", "{json}")  # fmt: skip
    steps.append(Step("positions/1.5b", "non-zeros by position in the sequence", "stats", model, command, 10))
    return steps


def matches(name: str, wanted: list[str]) -> bool:
    """The name, or what it begins with, up to a slash."""
    return not wanted or any(name == one or name.startswith(one + "/") for one in wanted)


def plan(sizes: Sizes, device: str, only: list[str] | None = None) -> list[Step]:
    """The steps that are wanted, each model made in front of the first that needs it."""
    steps: list[Step] = []
    made = set()
    for step in measurements(sizes, device):
        if not matches(step.name, only or []):
            continue
        if step.model not in made:
            made.add(step.model)
            steps.append(make(step.model, sizes, device))
        steps.append(step)
    return steps
