"""Files of the package `safetensors` read here, files written here read by it, and the same verdict
on damaged ones."""

import ctypes
import json
import random
import struct

import pytest

safetensors = pytest.importorskip("safetensors")

SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "int16": 2,
    "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "float64": 8,
    "int64": 8, "uint64": 8,
}  # fmt: skip


def random_tensors(rng):
    tensors = {}
    for i in range(rng.choice([0, 1, 2, 5, 40])):
        shape = [rng.choice([0, 1, 2, 3, 7, 64]) for _ in range(rng.choice([0, 1, 2, 3]))]
        dtype = rng.choice(list(SIZES))
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        name = rng.choice(["w", "layer.é", "a b", 'q"\\', "\u0001\u007f", "model.layers.0"]) + str(i)
        tensors[name] = {"dtype": dtype, "shape": shape, "data": rng.randbytes(size)}
    return tensors


def serialize(tensors, metadata):
    if not hasattr(safetensors, "TensorSpec"):  # before 0.8
        return safetensors.serialize(tensors, metadata)
    buffers, specs = [], {}
    for name, tensor in tensors.items():
        buffers.append(ctypes.create_string_buffer(tensor["data"], max(1, len(tensor["data"]))))
        specs[name] = safetensors.TensorSpec(
            dtype=tensor["dtype"],
            shape=tensor["shape"],
            data_ptr=ctypes.addressof(buffers[-1]),
            data_len=len(tensor["data"]),
        )
    return safetensors.serialize(specs, metadata)


def parse(described):
    """What the driver says of a file: metadata, and name -> (dtype, shape, bytes)."""
    metadata, tensors, at = {}, {}, 0
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F64": 8, "I64": 8, "U64": 8}
    while at < len(described):
        end = described.index(b"\n", at)
        line = described[at:end].decode()
        at = end + 1
        if line.startswith("meta "):
            _, key, value = line.split(" ", 2)
            metadata[key] = value
            continue
        # Names may hold spaces: dtype is the last word that is no number.
        words = line.split(" ")
        shape = []
        while words[-1].isdigit():
            shape.insert(0, int(words.pop()))
        dtype = words.pop()
        count = 1
        for dimension in shape:
            count *= dimension
        size = count * sizes.get(dtype, 2 if "16" in dtype else 4)
        tensors[" ".join(words)] = (dtype, shape, described[at : at + size])
        at += size + 1
    return metadata, tensors


def theirs(data):
    return {
        name: (t["dtype"], list(t["shape"]), bytes(t["data"]))
        for name, t in safetensors.deserialize(data)
    }


@pytest.mark.parametrize("seed", range(60))
def test_round_trips(driver, tmp_path, seed):
    rng = random.Random(seed)
    metadata = rng.choice([None, {"format": "pt"}])
    data = serialize(random_tensors(rng), metadata)
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    (described,) = driver("safetensors", records=[str(path).encode()])
    got_metadata, got = parse(described)
    assert got_metadata == (metadata or {})
    assert got == theirs(data)
    driver("copy", path, tmp_path / "one", 1 << 60)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == data
    # Shards: the same tensors in all.
    driver("copy", path, tmp_path / "many", 300)
    together = {}
    for shard in (tmp_path / "many").glob("*.safetensors"):
        together.update(theirs(shard.read_bytes()))
    assert together == theirs(data)


def edited_headers(rng):
    """Files whose header was changed in one place or two."""
    for _ in range(4000):
        tensors = {
            f"t{i}": {"dtype": rng.choice(["F32", "U8", "BF16"]), "shape": [rng.randrange(4)]}
            for i in range(rng.randrange(4))
        }
        at = 0
        for tensor in tensors.values():
            size = {"F32": 4, "U8": 1, "BF16": 2}[tensor["dtype"]] * tensor["shape"][0]
            tensor["data_offsets"] = [at, at + size]
            at += size
        for _ in range(rng.randrange(3)):
            edit(rng, tensors)
        header = json.dumps(tensors, separators=(",", ":"))
        if rng.random() < 0.3:
            spot = rng.randrange(len(header) + 1)
            put = rng.choice(["", "}", "{", ",", " ", '"', "0", "-"])
            header = header[:spot] + put + header[spot + rng.randrange(2) :]
        if rng.random() < 0.2:
            header = rng.choice([" " + header, header + "  ", header + "x", header + "\x00", ""])
        length = len(header.encode())
        if rng.random() < 0.1:
            length = rng.choice([0, 1, length - 1, length + 1, 100_000_001, 2**63, 2**64 - 1]) % 2**64
        data = bytes(max(0, at + rng.choice([0, 0, 0, 0, -1, 1])))
        yield (struct.pack("<Q", length) + header.encode() + data)[: rng.choice([None] * 9 + [7])]


def edit(rng, tensors):
    kind = rng.randrange(8)
    if kind == 0:
        tensors["__metadata__"] = rng.choice([{}, {"a": "b"}, {"a": 1}, None, [], "x", {"a": None}])
        return
    names = [n for n in tensors if isinstance(tensors[n], dict) and "shape" in tensors[n]]
    if not names:
        return
    name = rng.choice(names)
    tensor = tensors[name]
    if kind == 1:
        del tensor[rng.choice(list(tensor))]
    elif kind == 2:
        tensor["shape"] = rng.choice(
            [[], [-1], [1.5], ["1"], [2**63], [2**32, 2**32], [2**64], "x", [0, 2**62], [[1]], [None]]
        )
    elif kind == 3:
        tensor["data_offsets"] = rng.choice(
            [[], [0], [0, 1, 2], [-1, 3], [4, 0], [0, 2**63], [2**64 - 1, 3], "x", None]
        )
    elif kind == 4:
        tensor["dtype"] = rng.choice(["F33", "", "f32", 7, None, [], "I64", "BOOL"])
    elif kind == 5:
        tensor["more"] = rng.choice([1, None, {"x": [{}, []]}, [[1, {"dtype": 3}]], "s", 1.5, True])
    elif kind == 6:
        offsets = tensor.get("data_offsets")
        if isinstance(offsets, list) and offsets and isinstance(offsets[0], int):
            offsets[rng.randrange(len(offsets))] += rng.choice([-1, 1, 2])
    else:
        tensors[name] = rng.choice([None, [], "x", 3])


def test_same_verdict_on_damaged_files(driver, tmp_path):
    rng = random.Random(12)
    files = list(edited_headers(rng))
    paths = []
    for i, data in enumerate(files):
        paths.append(tmp_path / f"{i}.safetensors")
        paths[-1].write_bytes(data)
    verdicts = driver("safetensors-verdict", records=[str(p).encode() for p in paths])
    counts = {True: 0, False: 0}
    for data, path, verdict in zip(files, paths, verdicts):
        verdict = verdict.decode()
        try:
            safetensors.deserialize(data)
            accepted = True
        except safetensors.SafetensorError:
            accepted = False
        if verdict != "ok":
            assert verdict.startswith(str(path)) and "\n" not in verdict
            # Stricter here: one key twice, dimensions beyond i64, and the first byte, which the
            # format's description wants to be '{' while the package lets spaces go before it.
            if any(s in verdict for s in ("duplicate key", "too large", "begin with '{'")):
                continue
        assert (verdict == "ok") == accepted, (verdict, data)
        counts[accepted] += 1
    assert min(counts.values()) > 500, counts  # both verdicts were met
