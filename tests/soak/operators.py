"""Random shapes, strides, threads and activity through the operators, against float64.

Runs itself in a process of its own for each instruction tier:  operators.py TIER SEED COUNT
"""

import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Operators:
    name = "operators"
    promise = ("Every operator is within its derived bound of float64 on every instruction tier, for any "
               "shape, strides, activity and number of threads, also where OpenMP grants fewer")

    def __init__(self, tools, scratch, rng):
        self.tools = tools

    def round(self, rng, scratch):
        return self.tools.on_a_tier(__file__, rng, count=150)


def one(rng):
    """A random call; returns a description, for a failure."""
    import torch
    import twell
    from layers import UNIT, make_layer, reference

    dtype = rng.choice([torch.bfloat16, torch.float32])
    width = rng.choice([1, 2, 3, 16, 31, 33, 64, 100, 255, 256, 257, rng.randrange(1, 400)])
    neurons = rng.choice([1, 2, 15, 16, 17, 64, 100, 257, 512, rng.randrange(1, 900)])
    rows = rng.choice([0, 1, 1, 2, 3, 8, 16, 31, 64, 65, rng.randrange(1, 200)])
    density = rng.choice([1e-6, 0.003, 0.02, 0.1, 0.5, 0.9, 1 - 1e-6])
    gated = rng.random() < 0.7
    activation = rng.choice(["relu", "relu_squared", "fat_relu"])
    threshold = rng.choice([0.0, 0.25]) if activation == "fat_relu" else 0.0
    threads = rng.choice([1, 1, 2, 3, 4])
    torch.set_num_threads(threads)
    seed = rng.randrange(2**31)
    layer = make_layer(width, neurons, dtype, density, seed)
    x = layer.inputs(rows, seed=seed % 1000)

    def strided(t):
        """The same values, their rows further apart, with NaN between them."""
        if t is None or rng.random() < 0.4:
            return t
        wide = torch.full((t.shape[0], t.shape[1] + rng.randrange(1, 40)), float("nan"), dtype=t.dtype)
        at = rng.randrange(wide.shape[1] - t.shape[1] + 1)
        wide[:, at : at + t.shape[1]] = t
        return wide[:, at : at + t.shape[1]]

    up = layer.up if gated else None
    what = rng.choice(["ffn", "screened", "stats", "train", "linear"])
    name = (f"{what} {dtype} D={width} H={neurons} M={rows} density={density} gated={gated} {activation} "
            f"{threshold} threads={threads} seed={seed}")

    def expect(good, why):
        if not good:
            raise AssertionError(f"{name}: {why}")

    if what == "linear":
        y = twell.ops.linear(strided(x), twell.ops.pack_weight(strided(layer.gate)))
        wide = x.double() @ layer.gate.double().t()
        bound = 1.01 * (width + 2) * 2**-24 * (x.double().abs() @ layer.gate.double().abs().t())
        bound = bound + UNIT[dtype] * (wide.abs() + bound) + 2.0**-120
        expect(bool(((y.double() - wide).abs() <= bound).all()), "beyond its bound")
        return
    if what == "train":
        train(rng, expect, [strided(x), strided(layer.gate), strided(up), strided(layer.down)],
              [x, layer.gate, up, layer.down], activation, threshold)
        return
    want = reference(x, layer.gate, up, layer.down, activation, threshold)
    operands = [twell.ops.pack_weight(strided(layer.gate)), strided(up), strided(layer.down), None]
    if what == "screened":
        axis = x.float().mean(0) if rows and rng.random() < 0.5 else None
        operands[0], operands[3] = strided(layer.gate), twell.ops.screen_weight(layer.gate, axis)
    if what == "stats":
        y, row_nnz, counts, _ = twell.ops.ffn_stats(strided(x), *operands, activation, threshold)
        expect(int(row_nnz.sum()) == int(counts.sum()), "counts by row and by neuron differ")
        v = x.double() @ layer.gate.double().t()
        slack = 1.01 * (width + 2) * 2**-24 * (x.double().abs() @ layer.gate.double().abs().t()) + 2.0**-120
        sure = (v > threshold + slack).sum(1), (v >= threshold - slack).sum(1)
        if activation != "relu_squared":  # squares of small numbers may underflow
            expect(bool((sure[0] <= row_nnz).all()), "a neuron that fires is not counted")
        expect(bool((row_nnz <= sure[1]).all()), "a neuron that does not fire is counted")
    else:
        y = twell.ops.ffn(strided(x), *operands, activation, threshold)
    expect(y.shape == x.shape and y.dtype == dtype, "another shape or type")
    expect(bool(((y.double() - want.y).abs() <= want.bound).all()), "beyond its bound")


def train(rng, expect, given, plain, activation, threshold):
    import torch
    import twell
    from layers import UNIT, activate

    wide = [None if t is None else t.double().requires_grad_() for t in plain]
    x, gate, up, down = wide
    v = x @ gate.t()
    # Where a threshold is within rounding, either side is right, and their gradients differ.
    slack = (x.abs() @ gate.abs().t()) * 1.01 * (x.shape[1] + 2) * 2**-24
    if bool(((v - threshold).abs() <= slack + 1e-30).any()):
        return
    h = activate(v, activation, threshold)
    h = h if up is None else h * (x @ up.t())
    y = h @ down
    l1 = rng.choice([0.0, 0.01])
    dy = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    want = torch.autograd.grad((y * dy).sum() + l1 * h.abs().sum(), [t for t in wide if t is not None],
                               allow_unused=True)
    leaves = [None if t is None else t.detach().requires_grad_() for t in given]
    got_y, got_l1, *_ = twell.ops.ffn_train(*leaves, None, activation, threshold)
    got = torch.autograd.grad((got_y * dy.to(got_y.dtype)).sum() + l1 * got_l1,
                              [t for t in leaves if t is not None], allow_unused=True)
    # Magnitudes in place of values: where terms cancel, a rounding error is small beside them alone.
    # tests/python/test_train.py derives the 40.
    sizes = [None if t is None else t.double().abs().requires_grad_() for t in plain]
    x, gate, up, down = sizes
    h = (v.detach() > threshold) * (x @ gate.t())
    h = h.square() if activation == "relu_squared" else h
    h = h if up is None else h * (x @ up.t())
    y_size = h @ down
    bound = torch.autograd.grad((y_size * dy.abs()).sum() + l1 * h.sum(),
                                [t for t in sizes if t is not None], allow_unused=True)
    names = ["y", "dx", "dgate", *(["dup"] if up is not None else []), "ddown"]
    for name, ours, theirs, size in zip(names, (got_y, *got), (y, *want), (y_size, *bound)):
        error = float((ours.detach().double() - theirs.detach()).norm())
        expect(error <= 40 * UNIT[plain[0].dtype] * float(size.detach().norm()) + 1e-30, name)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "python")]
    generator = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        one(generator)
