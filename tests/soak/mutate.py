"""Changes of bytes and of JSON documents."""

import json

EXTREMES = [0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 1e308, -1e-320, "", "x" * 300,
            None, True, [], {}, [[]], [0] * 2000, {"": 0}, "\u0000", "\ud800", "../../etc", 0.5]  # fmt: skip


def change_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        at = rng.randrange(len(data) + 1)
        length = rng.choice([1, 1, 2, 4, 8, 64])
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = rng.randbytes(length)
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at:at] = data[: rng.randrange(len(data) + 1)][-4096:]
        else:
            word = rng.choice([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
            data[at : at + 8] = word.to_bytes(8, "little")
    return bytes(data)


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def change_json(rng, data):
    """Another value, or none, or twice, at some places of a document."""
    document = json.loads(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        path = rng.choice(list(places(document))[:3000])
        if not path:
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        kind = rng.randrange(3)
        if kind == 0:
            del parent[path[-1]]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(rng.choice(EXTREMES))[:40]] = parent[path[-1]]
        else:
            parent[path[-1]] = rng.choice(EXTREMES)
    return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")


def change_safetensors(rng, data):
    """The header changed as JSON, with a length that fits."""
    length = int.from_bytes(data[:8], "little")
    header = change_json(rng, data[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + data[8 + length :]
