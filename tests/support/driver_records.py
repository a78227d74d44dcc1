"""What the driver programs read and write: records of a length (u32) and that many bytes."""

import struct


def to_records(values):
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def from_records(data):
    out, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        out.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return out
