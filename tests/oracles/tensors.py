"""Reads and writes safetensors files of float32, with Python's standard library only."""

import array
import json
import math
import sys


def count(shape):
    return math.prod(shape)


def floats(raw):
    """Converts little-endian bytes to an array of float32."""
    values = array.array("f")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def write_safetensors(path, tensors):
    """Writes `tensors`, {name: (shape, values)}, as float32."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, _) in tensors.items():
        size = 4 * count(shape)
        header[name] = {"dtype": "F32", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors.values():
            values = array.array("f", values)
            if sys.byteorder == "big":
                values.byteswap()
            file.write(values.tobytes())


def read_safetensors(path):
    """Reads {name: (shape, values)} from a file that holds float32 only."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    result = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        values = floats(data[begin:end])
        if len(values) != count(entry["shape"]):
            raise ValueError(f"{path}: {name} has {len(values)} elements, not {entry['shape']}")
        result[name] = (tuple(entry["shape"]), values)
    return result
