"""Layers that are frozen, thawed, converted, loaded, copied and pickled at random, each beside ordinary
linear layers that get the same treatment; with the world around them changing too.

Runs itself in a process of its own for each instruction tier:  lives.py TIER SEED COUNT
"""

import contextlib
import copy
import io
import pathlib
import random
import sys
import threading
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Lives:
    name = "layers"
    promise = ("A layer of Python holds the weights that ordinary linear layers would hold, and gives the dense "
               "layer's output within its bound, through any sequence of freezing, thawing, conversions, loads "
               "and copies, under any of PyTorch's switches and however many threads OpenMP grants")

    def __init__(self, tools, scratch, rng):
        self.tools = tools

    def round(self, rng, scratch):
        return self.tools.on_a_tier(__file__, rng, count=25)


@contextlib.contextmanager
def switches(rng):
    """Some of what a program may have set around a call; those of before afterwards."""
    import torch

    with contextlib.ExitStack() as stack:
        dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.use_deterministic_algorithms, deterministic)
        torch.set_num_threads(rng.choice([1, 2, 3, 4]))
        if rng.random() < 0.2:
            torch.set_default_dtype(rng.choice([torch.float64, torch.bfloat16]))
        if rng.random() < 0.2:
            torch.use_deterministic_algorithms(True)
        if rng.random() < 0.2:
            stack.enter_context(torch.device(rng.choice(["cpu", "meta"])))
        if rng.random() < 0.2:
            stack.enter_context(rng.choice([torch.no_grad, torch.inference_mode])())
        yield


def in_a_thread(call):
    """Its result, from a thread of its own."""
    out = []

    def run():
        try:
            out.append((call(), None))
        except BaseException as error:
            out.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = out[0]
    if error is not None:
        raise error
    return result


class Pair:
    """A layer, and the linear layers that it should be no different from."""

    def __init__(self, rng):
        import torch
        import twell
        from layers import make_layer

        self.rng, self.torch, self.twell = rng, torch, twell
        self.width, self.neurons = rng.randrange(1, 100), rng.randrange(1, 200)
        self.gated = rng.random() < 0.6
        self.activation = rng.choice(["relu", "relu_squared", "fat_relu"])
        self.threshold = rng.choice([0.0, 0.25]) if self.activation == "fat_relu" else 0.0
        self.density = rng.choice([0.01, 0.1, 0.5, 0.99])
        self.make = lambda seed, dtype: make_layer(self.width, self.neurons, dtype, self.density, seed)
        kind = twell.GatedFfn if self.gated else twell.Ffn
        self.names = [f"{name}.weight" for name in kind.NAMES]
        weights = self.weights(rng.choice([torch.float32, torch.bfloat16])).values()
        options = {"activation": self.activation, "threshold": self.threshold}
        self.layer = kind.from_dense(*(w.clone() for w in weights), **options).requires_grad_(False)
        self.plain = torch.nn.Module()
        for name, weight in zip(kind.NAMES, weights):
            linear = torch.nn.Linear(*weight.shape[::-1], bias=False, device="meta")
            linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
            setattr(self.plain, name, linear)
        self.done = [(
            f"D={self.width} H={self.neurons} gated={self.gated} {self.activation} "
            f"{self.threshold} density={self.density}"
        )]

    def weights(self, dtype):
        made = self.make(self.rng.randrange(2**31), dtype)
        first = [made.gate, made.up] if self.gated else [made.gate]
        weights = dict(zip(self.names, [*first, made.down.t().contiguous()]))
        if self.rng.random() < 0.1:
            weight = self.rng.choice(list(weights.values()))
            weight.view(-1)[self.rng.randrange(weight.numel())] = self.rng.choice([float("nan"), float("inf")])
        return weights

    def check(self):
        from layers import reference

        torch = self.torch
        ours, theirs = self.layer.state_dict(), self.plain.state_dict()
        assert list(ours) == list(theirs), f"keys {list(ours)}"
        for name, want in theirs.items():
            got = ours[name]
            assert got.dtype == want.dtype and got.shape == want.shape, f"{name}: {got.dtype} {got.shape}"
            same = torch.equal(got.nan_to_num(1e30), want.nan_to_num(1e30))
            assert same, f"{name}: other values than a linear layer would hold"
        dtype, *others = {w.dtype for w in theirs.values()}
        if others or dtype not in (torch.float32, torch.bfloat16):
            return  # linear layers fail there, or are no reference
        rows = self.rng.choice([0, 1, 2, 7, 33, 64])
        x = self.make(1, dtype).inputs(rows, seed=self.rng.randrange(1000))
        if rows and self.rng.random() < 0.1:
            x[self.rng.randrange(rows), self.rng.randrange(self.width)] = float("inf")
        with torch.device("cpu"):
            first, *up, down = theirs.values()
            want = reference(x, first, up[0] if up else None, down.t(), self.activation, self.threshold)
        with switches(self.rng):
            call = lambda: self.layer(x)  # noqa: E731
            y = in_a_thread(call) if self.rng.random() < 0.3 else call()
        assert y.shape == x.shape and y.dtype == dtype, f"output {y.dtype} {list(y.shape)}"
        if not self.layer.frozen:
            return
        y, finite = y.double(), want.y.isfinite() & want.bound.isfinite()
        by_pytorch = not all(bool(w.isfinite().all()) for w in theirs.values())
        if not by_pytorch:
            good = ((y - want.y).abs() <= want.bound) | ~finite
            assert bool(good.all()), f"beyond its bound by {float(((y - want.y).abs() / want.bound)[~good].max())}"
        if not by_pytorch or dtype == torch.float32:  # its tiles of bf16 carry NaN from row to row
            assert torch.equal(y.isnan(), want.y.isnan()), "NaN elsewhere than in a dense layer"

    def both(self, what, change):
        """The same change of both; where one fails so does the other, and then the layer is as it was."""
        before = {k: v.clone() for k, v in self.layer.state_dict().items()}
        self.done.append(what)
        results = []
        for module in (self.layer, self.plain):
            try:
                results.append((change(module), None))
            except (RuntimeError, ValueError, TypeError) as error:
                results.append((None, error))
        (layer, ours), (plain, theirs) = results
        assert ours is not None or theirs is None, f"taken, where linear layers say {theirs}"
        if ours is not None:  # refused, by itself or by both: then it is as it was, or as the other is
            self.done[-1] += " (refused)"
            now = self.layer.state_dict()
            same = all(self.torch.equal(now[k].nan_to_num(1e30), before[k].nan_to_num(1e30)) for k in before)
            if theirs is None or same:
                for name, value in before.items():
                    getattr(self.plain, name.split(".")[0]).weight = self.torch.nn.Parameter(value, False)
            return
        self.layer, self.plain = layer, plain

    def step(self):
        rng, torch = self.rng, self.torch
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64, torch.float16])
        what = rng.choice(["freeze", "sample", "thaw", "to", "load", "load", "part", "shapes", "deepcopy", "save",
                           "into a new one", "train", "share"])  # fmt: skip
        if what in ("freeze", "sample"):
            dtypes = {w.dtype for w in self.plain.state_dict().values()}
            sample = self.make(1, min(dtypes, key=str)).inputs(40) if what == "sample" else None
            self.done.append(what)
            try:
                self.layer.freeze(sample)
            except ValueError as error:
                assert len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16}, error
        elif what == "thaw":
            self.done.append(what)
            self.layer.thaw().requires_grad_(False)
        elif what == "to":
            self.both(f"to {dtype}", lambda m: m.to(dtype))
        elif what in ("load", "part", "shapes"):
            state, assign = self.weights(dtype), rng.random() < 0.5
            if what == "part":
                state = {k: v for k, v in state.items() if rng.random() < 0.5}
            if what == "shapes":
                name = rng.choice(self.names)
                state[name] = torch.zeros(3, 5)
            self.both(f"{what} {dtype} {list(state)} assign={assign}", lambda m: (m.load_state_dict(
                {k: v.clone() for k, v in state.items()}, strict=what != "part", assign=assign), m)[1])  # fmt: skip
        elif what == "deepcopy":
            self.both(what, copy.deepcopy)
        elif what == "save":
            def through_a_file(module):
                buffer = io.BytesIO()
                torch.save(module, buffer)
                buffer.seek(0)
                return torch.load(buffer, weights_only=False)

            self.both(what, through_a_file)
        elif what == "into a new one":
            state = self.layer.state_dict()
            self.done.append(what)
            self.layer.load_state_dict({k: v.clone() for k, v in state.items()})
        elif what == "train":
            self.done.append(what)
            self.layer.train(rng.random() < 0.5)
        elif what == "share":
            self.both(what, lambda m: m.share_memory())

    def live(self):
        for _ in range(self.rng.randrange(1, 9)):
            with switches(self.rng):
                pass  # entered and left: what they set must not last
            self.step()
            self.check()


def one(rng):
    pair = Pair(rng)
    try:
        pair.live()
    except Exception as error:
        raise AssertionError(f"{'; '.join(pair.done)}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "python")]
    warnings.filterwarnings("ignore", message=".*runs densely")
    generator = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        one(generator)
