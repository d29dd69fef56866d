"""Small whole files of every kind, for the hostile ones to be made from."""

import gzip
import json
import struct
import zlib
from pathlib import Path

CONFIG = {
    "model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 16,
    "vocab_size": 33, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}


def shapes():
    """The tensors that CONFIG needs."""
    layer = "model.layers.0."
    named = {"model.embed_tokens.weight": [33, 8], "model.norm.weight": [8], "lm_head.weight": [33, 8]}
    named |= {layer + "input_layernorm.weight": [8], layer + "post_attention_layernorm.weight": [8]}
    named |= {layer + f"self_attn.{name}_proj.weight": [rows, 8] for name, rows in [("q", 8), ("k", 4), ("v", 4), ("o", 8)]}
    named[layer + "block_sparse_moe.gate.weight"] = [2, 8]
    for expert in range(2):
        for name, shape in [("w1", [4, 8]), ("w2", [8, 4]), ("w3", [4, 8])]:
            named[layer + f"block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    return named


def numel(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def entries(named=None):
    """A header for these tensors, end to end, in float32; and the size of their data."""
    header, at = {}, 0
    for name, shape in (named or shapes()).items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * numel(shape)]}
        at = header[name]["data_offsets"][1]
    return header, at


def safetensors(header, data):
    """The bytes of a file; `header` may be JSON text, bytes, or an object, `data` bytes or a count of them."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header)) + header + (struct.pack("<f", 0.5) * (data // 4) if isinstance(data, int) else data)


def model(directory, config=None, weights=None):
    """A Hugging Face directory, whole unless told otherwise. Without `weights`: its own."""
    directory = Path(directory)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config if config is not None else CONFIG))
    if weights is None:
        weights = safetensors(*entries())
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def sharded(directory):
    """The same model in two shards, as (weight_map, names of the first shard's tensors)."""
    directory = Path(directory)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    names = list(shapes())
    weight_map = {}
    for number, some in enumerate([names[:5], names[5:]]):
        shard = f"model-0000{number + 1}-of-00002.safetensors"
        (directory / shard).write_bytes(safetensors(*entries({name: shapes()[name] for name in some})))
        weight_map |= {name: shard for name in some}
    write_index(directory, weight_map)
    return weight_map


def write_index(directory, weight_map):
    (Path(directory) / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def bgzip(text, end_block=True):
    """One block of BGZF, and the empty one that ends a file."""
    def block(data):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(data) + packer.flush()
        size = struct.pack("<H", len(packed) + 25)
        return b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + size + packed + struct.pack("<II", zlib.crc32(data), len(data))
    return block(text) + (block(b"") if end_block else b"")


def gzipped(*members):
    return b"".join(gzip.compress(member, mtime=0) for member in members)


# Changes of a folder that was made whole.

def flip(name, at=-1):
    def change(folder):
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 0x10
        (folder / name).write_bytes(bytes(data))
    return change


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def manifest(**values):
    def change(folder):
        text = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(text | values))
    return change
