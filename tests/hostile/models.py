"""Models: safetensors, shard indexes, config.json, tokenizer_config.json."""

import json
import os
import struct

import files

IMPORT = "import @/m --out @/out"
Q = "model.layers.0.self_attn.q_proj.weight"


def weights(data):
    """The model with other bytes as its weights."""
    return lambda here, _: files.model(here / "m", weights=data)


def header(change, extra=0):
    """The model with a changed header; `extra` bytes more of data."""
    def make(here, _):
        entries, size = files.entries()
        changed = change(entries)
        files.model(here / "m", weights=files.safetensors(changed if changed is not None else entries, size + extra))
    return make


def entry(**values):
    """The model with another entry for one tensor."""
    return header(lambda entries: entries[Q].update(values))


def with_tensors(change, fill=None):
    """The model with other tensors; a tensor `fill` = (name, float) holds one other value."""
    def make(here, _):
        named = files.shapes()
        change(named)
        entries, size = files.entries(named)
        data = bytearray(struct.pack("<f", 0.5) * (size // 4))
        if fill is not None:
            struct.pack_into("<f", data, entries[fill[0]]["data_offsets"][0], fill[1])
        files.model(here / "m", weights=files.safetensors(entries, bytes(data)))
    return make


def config(**values):
    return lambda here, _: files.model(here / "m", config=files.CONFIG | values)


def config_text(text):
    def make(here, _):
        files.model(here / "m")
        (here / "m/config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return make


def without(key):
    return lambda here, _: files.model(here / "m", config={k: v for k, v in files.CONFIG.items() if k != key})


def index(change):
    """The sharded model with a changed weight_map."""
    def make(here, _):
        weight_map = files.sharded(here / "m")
        changed = change(weight_map)
        files.write_index(here / "m", changed if changed is not None else weight_map)
    return make


def only(name, data=b"x"):
    """A folder with config.json and one other file."""
    def make(here, _):
        files.model(here / "m")
        (here / "m/model.safetensors").unlink()
        (here / "m" / name).write_bytes(data)
    return make


def beside(name, text):
    """The whole model, and one file more."""
    def make(here, _):
        files.model(here / "m")
        (here / "m" / name).write_text(text)
    return make


def two_shards_hold_it(here, _):
    files.sharded(here / "m")
    named = files.shapes()
    both = {name: named[name] for name in list(named)[4:]}
    (here / "m/model-00002-of-00002.safetensors").write_bytes(files.safetensors(*files.entries(both)))


def many_over_the_same_bytes(entries):
    for i in range(20000):
        entries[f"t{i}"] = {"dtype": "F32", "shape": [33, 8], "data_offsets": [0, 1056]}


def with_empty_tensors(entries):
    end = max(tensor["data_offsets"][1] for tensor in entries.values())
    for i in range(400_000):
        entries[f"t{i}"] = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}


def with_experts(count):
    """A configuration and a router of so many, and the weights of two."""
    def make(here, _):
        named = files.shapes()
        named["model.layers.0.block_sparse_moe.gate.weight"] = [count, 8]
        files.model(here / "m", config=files.CONFIG | {"num_local_experts": count}, weights=files.safetensors(*files.entries(named)))
    return make


def link_to_itself(here, _):
    files.model(here / "m")
    (here / "m/tokenizer_config.json").symlink_to("tokenizer_config.json")


def twice(here, _):
    entries, size = files.entries()
    text = json.dumps(entries)
    files.model(here / "m", weights=files.safetensors(text[:-1] + "," + json.dumps({Q: entries[Q]})[1:], size))


def cut(here, _):
    whole = files.safetensors(*files.entries())
    files.model(here / "m", weights=whole[:-1])


CASES = [
    ("an empty safetensors file", weights(b""), IMPORT, 3,
     "too short for a safetensors file: @/m/model.safetensors: the file is damaged; get it again"),
    ("seven bytes", weights(b"\x01" * 7), IMPORT, 3,
     "too short for a safetensors file: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header of 2^64 - 1 bytes", weights(b"\xff" * 8 + b"{}"), IMPORT, 3,
     "a safetensors header of 18446744073709551615 bytes; at most 100000000 are allowed: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header of 100 MB and one byte", weights(struct.pack("<Q", 100_000_001) + b"{}"), IMPORT, 3,
     "a safetensors header of 100000001 bytes; at most 100000000 are allowed: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header longer than the file", weights(struct.pack("<Q", 100) + b"{}"), IMPORT, 3,
     "a safetensors header of 100 bytes is longer than the file: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header of nothing", weights(struct.pack("<Q", 0)), IMPORT, 3,
     "not a safetensors file: its header is no JSON object: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header that is a list", weights(files.safetensors("[]", 0)), IMPORT, 3,
     "not a safetensors file: its header is no JSON object: @/m/model.safetensors: the file is damaged; get it again"),
    ("a header cut short", weights(files.safetensors('{"a": {"dtype": "F3', 0)), IMPORT, 3,
     'broken JSON at byte 20: @/m/model.safetensors: "last read: \'\\"F3\'"'),
    ("a header that is not UTF-8", weights(files.safetensors(b'{"\xff": 1}', 0)), IMPORT, 3,
     'broken JSON at byte 3: @/m/model.safetensors: "last read: \'\\"\\ufffd\'; expected string literal"'),
    ("a header with a NUL", weights(files.safetensors(b'{"a\0": 1}', 0)), IMPORT, 3,
     "broken JSON: @/m/model.safetensors: it holds a NUL byte"),
    ("a header 500,000 deep", weights(files.safetensors('{"a":' * 500_000 + "1" + "}" * 500_000, 0)), IMPORT, 3,
     "JSON nested deeper than 64: @/m/model.safetensors: nothing valid is so deep"),
    ("a tensor that stands twice", twice, IMPORT, 3,
     'the key "model.layers.0.self_attn.q_proj.weight" stands twice in a JSON object: @/m/model.safetensors: remove one'),
    ("a tensor without a name's entry", header(lambda e: e.update({Q: 7})), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its entry does not hold dtype, shape and data_offsets alone: @/m/model.safetensors: the file is damaged; get it again'),
    ("a tensor without shape", header(lambda e: e[Q].pop("shape") and None), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its entry does not hold dtype, shape and data_offsets alone: @/m/model.safetensors: the file is damaged; get it again'),
    ("a tensor with a word more", entry(more=1), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its entry does not hold dtype, shape and data_offsets alone: @/m/model.safetensors: the file is damaged; get it again'),
    ("an unknown dtype", entry(dtype="F31"), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": unknown dtype "F31": @/m/model.safetensors: the file is damaged; get it again'),
    ("a dtype with a line feed", entry(dtype="F\n32"), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": unknown dtype "F\\n32": @/m/model.safetensors: the file is damaged; get it again'),
    ("begin behind end", entry(data_offsets=[300, 44]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its bytes begin at 300 and end at 44: @/m/model.safetensors: the file is damaged; get it again'),
    ("a negative offset", entry(data_offsets=[-256, 0]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its data_offsets holds what is not a whole number from 0 to 2^63 - 1: @/m/model.safetensors: the file is damaged; get it again'),
    ("an offset of 2^64", entry(data_offsets=[0, 2**64]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its data_offsets holds what is not a whole number from 0 to 2^63 - 1: @/m/model.safetensors: the file is damaged; get it again'),
    ("three offsets", entry(data_offsets=[0, 1, 2]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its data_offsets are not two numbers: @/m/model.safetensors: the file is damaged; get it again'),
    ("half an element", entry(shape=[8.5, 8]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its shape holds what is not a whole number from 0 to 2^63 - 1: @/m/model.safetensors: the file is damaged; get it again'),
    ("a negative dimension", entry(shape=[-8, -8]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its shape holds what is not a whole number from 0 to 2^63 - 1: @/m/model.safetensors: the file is damaged; get it again'),
    ("a shape that overflows", entry(shape=[2**40, 2**40]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its shape overflows: @/m/model.safetensors: the file is damaged; get it again'),
    ("a span that its shape does not fill", entry(shape=[8, 9]), IMPORT, 3,
     'tensor "model.layers.0.self_attn.q_proj.weight": its shape and dtype make 288 bytes, its data_offsets 256: @/m/model.safetensors: the file is damaged; get it again'),
    ("past the end of the file", cut, IMPORT, 3,
     'tensor "model.layers.0.block_sparse_moe.experts.1.w3.weight" reaches past the end of the file: @/m/model.safetensors: the file is damaged; get it again'),
    ("spans that overlap", entry(data_offsets=[0, 256]), IMPORT, 3,
     'tensor "model.embed_tokens.weight" overlaps another: @/m/model.safetensors: the file is damaged; get it again'),
    ("20,000 tensors over the same bytes", header(many_over_the_same_bytes), IMPORT, 3,
     'tensor "t3999" overlaps another: @/m/model.safetensors: the file is damaged; get it again'),
    ("a hole", header(lambda e: e.pop("model.norm.weight") and None), IMPORT, 3,
     'tensor "lm_head.weight" has a hole before it: @/m/model.safetensors: the file is damaged; get it again'),
    ("bytes of nobody at the end", header(lambda e: None, extra=4), IMPORT, 3,
     "4 bytes at the end belong to no tensor: @/m/model.safetensors: the file is damaged; get it again"),
    ("metadata that is no text", header(lambda e: e.update(__metadata__={"a": 1})), IMPORT, 3,
     '__metadata__ "a" is no string: @/m/model.safetensors: the file is damaged; get it again'),
    ("a zero dimension", with_tensors(lambda named: named.update({Q: [0, 8]})), IMPORT, 3,
     "tensor 'model.layers.0.self_attn.q_proj.weight' is [0, 8], config.json wants [8, 8]: @/m: the configuration belongs to another model"),
    ("another shape", with_tensors(lambda named: named.update({Q: [8, 4]})), IMPORT, 3,
     "tensor 'model.layers.0.self_attn.q_proj.weight' is [8, 4], config.json wants [8, 8]: @/m: the configuration belongs to another model"),
    ("whole numbers for weights", entry(dtype="I32"), IMPORT, 3,
     "tensor 'model.layers.0.self_attn.q_proj.weight' is of I32: @/m: F32, BF16 and F16 can be imported"),
    ("a tensor is missing", with_tensors(lambda named: named.pop("lm_head.weight")), IMPORT, 3,
     "tensor 'lm_head.weight' is missing: @/m: the model is incomplete"),
    ("a tensor too many", with_tensors(lambda named: named.update({"extra\n": [1]})), IMPORT, 3,
     "tensor 'extra ' has no place: @/m: is config.json of this model?"),
    ("a weight that is not a number", with_tensors(lambda named: None, fill=(Q, float("nan"))), IMPORT, 3,
     "tensor 'model.layers.0.self_attn.q_proj.weight' holds a value that is not finite: @/m: the model is broken; take an earlier one"),
    ("an infinite weight", with_tensors(lambda named: None, fill=("lm_head.weight", float("inf"))), IMPORT, 3,
     "tensor 'lm_head.weight' holds a value that is not finite: @/m: the model is broken; take an earlier one"),

    ("a shard above the folder", index(lambda m: m.update({Q: "../x.safetensors"})), IMPORT, 3,
     'the shard "../x.safetensors" is not a file beside the index: @/m/model.safetensors.index.json: the index is damaged; get it again'),
    ("a shard by an absolute path", index(lambda m: m.update({Q: "/etc/passwd"})), IMPORT, 3,
     'the shard "/etc/passwd" is not a file beside the index: @/m/model.safetensors.index.json: the index is damaged; get it again'),
    ("a shard without a name", index(lambda m: m.update({Q: ""})), IMPORT, 3,
     'the shard "" is not a file beside the index: @/m/model.safetensors.index.json: the index is damaged; get it again'),
    ("a shard that is a number", index(lambda m: m.update({Q: 1})), IMPORT, 3,
     "the weight_map names a shard by what is no string: @/m/model.safetensors.index.json: the index is damaged; get it again"),
    ("a shard that is missing", index(lambda m: m.update({Q: "model-00003-of-00002.safetensors"})), IMPORT, 3,
     'the shard "model-00003-of-00002.safetensors" is missing: @/m/model.safetensors.index.json: get the whole model'),
    ("a pickle in the index", index(lambda m: m.update({Q: "pytorch_model-00001-of-00002.bin"})), IMPORT, 3,
     "a pickle can run any program and is never read: pytorch_model-00001-of-00002.bin: convert it to safetensors (in Python: safetensors.torch.save_file)"),
    ("a tensor that the index forgets", index(lambda m: m.pop(Q) and None), IMPORT, 3,
     'the index does not place tensor "model.layers.0.self_attn.q_proj.weight" here: @/m/model-00002-of-00002.safetensors: index and shards belong to different models'),
    ("a tensor in the wrong shard", index(lambda m: m.update({Q: "model-00001-of-00002.safetensors"})), IMPORT, 3,
     'the index does not place tensor "model.layers.0.self_attn.q_proj.weight" here: @/m/model-00002-of-00002.safetensors: index and shards belong to different models'),
    ("a tensor that no shard has", index(lambda m: m.update({"ghost": "model-00001-of-00002.safetensors"})), IMPORT, 3,
     'the index places tensor "ghost" in "model-00001-of-00002.safetensors", which lacks it: @/m/model.safetensors.index.json: index and shards belong to different models'),
    ("a tensor in two shards", two_shards_hold_it, IMPORT, 3,
     'tensor "model.layers.0.post_attention_layernorm.weight" is in two shards: @/m/model-00002-of-00002.safetensors: keep one of them'),
    ("an index without weight_map", only("model.safetensors.index.json", b"{}"), IMPORT, 3,
     "a shard index without weight_map: @/m/model.safetensors.index.json: the index is damaged; get it again"),
    ("an index cut short", only("model.safetensors.index.json", b'{"weight_map": {'), IMPORT, 3,
     'broken JSON at byte 17: @/m/model.safetensors.index.json: "expected string literal"'),
    ("a pickle alone", only("pytorch_model.bin"), IMPORT, 3,
     "a pickle can run any program and is never read: @/m/pytorch_model.bin: convert it to safetensors (in Python: safetensors.torch.save_file)"),
    ("a pickle by its name", only("model.pt"), "import @/m/model.pt --out @/out", 3,
     "not a model: @/m/model.pt: give a run, a checkpoint, or a directory with Hugging Face's config.json"),
    ("a safetensors file by its name", only("a.safetensors", files.safetensors(*files.entries())), "import @/m/a.safetensors --out @/out", 3,
     "not a model: @/m/a.safetensors: give a run, a checkpoint, or a directory with Hugging Face's config.json"),
    ("no weights", only("readme.txt"), IMPORT, 3,
     "no model here: @/m: model.safetensors or model.safetensors.index.json is needed"),

    ("a pipe for the configuration", lambda here, _: (files.model(here / "m"), (here / "m/config.json").unlink(), os.mkfifo(here / "m/config.json")),
     IMPORT, 3, "cannot read the file: @/m/config.json: it is not a regular file"),
    ("RoPE of an older writer's type", config(rope_parameters={"type": "linear", "rope_theta": 1e4}), IMPORT, 3,
     "type 'linear' is not supported: @/m/config.json: only 'default' is"),
    ("RoPE with a factor", config(rope_parameters={"rope_theta": 1e4, "factor": 4.0}), IMPORT, 3,
     'rope_parameters "factor" is not supported: @/m/config.json: only plain RoPE is'),
    ("RoPE that is text", config(rope_parameters="linear"), IMPORT, 3,
     "'rope_parameters' is \"linear\": @/m/config.json: it has the wrong type"),
    ("an epsilon that no checkpoint can have", config(rms_norm_eps=1e-13), IMPORT, 3,
     "a model cannot have rms_eps = 1e-13: model: give a number from 1e-12 to 1: @/m/config.json: the file describes no model that can run"),
    ("a configuration without a size", without("hidden_size"), IMPORT, 3,
     "'hidden_size' is missing: @/m/config.json: a Mixtral config has it"),
    ("a size that is text", config(hidden_size="8"), IMPORT, 3,
     '\'hidden_size\' is "8": @/m/config.json: it has the wrong type'),
    ("a size that is broken", config(hidden_size=8.5), IMPORT, 3,
     "'hidden_size' is 8.5: @/m/config.json: it has the wrong type"),
    ("65,536 layers", config(num_hidden_layers=65536), IMPORT, 3,
     "a model cannot have layers = 65536: model: give a number from 1 to 2048: @/m/config.json: the file describes no model that can run"),
    ("2^63 layers", config(num_hidden_layers=1 << 63), IMPORT, 3,
     '"9223372036854775808" is no whole number of 64 bits: @/m/config.json: the file is damaged; get it again'),
    ("5,000,000 experts", config(num_local_experts=5_000_000), IMPORT, 3,
     "a model cannot have experts = 5000000: model: give a number from 1 to 65536: @/m/config.json: the file describes no model that can run"),
    ("2,048 layers that the file lacks", config(num_hidden_layers=2048), IMPORT, 3,
     "tensor 'model.layers.1.input_layernorm.weight' is missing: @/m: the model is incomplete"),
    ("60,000 experts that the file lacks", with_experts(60_000), IMPORT, 3,
     "tensor 'model.layers.0.block_sparse_moe.experts.2.w1.weight' is missing: @/m: the model is incomplete"),
    ("400,000 empty tensors", header(with_empty_tensors), IMPORT, 3,
     "tensor 't0' has no place: @/m: is config.json of this model?"),
    ("a context of one token", config(max_position_embeddings=1), "score @/m --tokenizer esm2 --fasta @/m/config.json", 3,
     "a model with a context of 1 token, which leaves none to predict: @/m: score with one of at least 2"),
    ("no layers", config(num_hidden_layers=0), IMPORT, 3,
     "a model cannot have layers = 0: model: give a number from 1 to 2048: @/m/config.json: the file describes no model that can run"),
    ("fewer than no layers", config(num_hidden_layers=-1), IMPORT, 3,
     "a model cannot have layers = -1: model: give a number from 1 to 2048: @/m/config.json: the file describes no model that can run"),
    ("heads that cannot share", config(num_key_value_heads=3), IMPORT, 3,
     "a model cannot have kv_heads = 3: model: it must divide heads = 2: @/m/config.json: the file describes no model that can run"),
    ("more experts chosen than there are", config(num_experts_per_tok=3), IMPORT, 3,
     "a model cannot have top_k = 3: model: there are only 2 experts: @/m/config.json: the file describes no model that can run"),
    ("a model too large for any machine", config(hidden_size=2**40, vocab_size=2**40), IMPORT, 3,
     "a model cannot have hidden = 1099511627776: model: give a number from 1 to 2147483647: @/m/config.json: the file describes no model that can run"),
    ("weights too large for this machine", config(hidden_size=2**22, vocab_size=2**22), IMPORT, 4,
     "not enough memory: 140738377547776 bytes are needed, N available: import it on a larger machine"),
    ("another family", config(model_type="llama"), IMPORT, 3,
     "model_type 'llama' is not supported: @/m/config.json: only 'mixtral' is"),
    ("another activation", config(hidden_act="gelu"), IMPORT, 3,
     "hidden_act 'gelu' is not supported: @/m/config.json: only 'silu' is"),
    ("a sliding window", config(sliding_window=4), IMPORT, 3,
     "sliding_window 4 is not supported: @/m/config.json: set it to null if the model never used it"),
    ("scaled positions", config(rope_scaling={"type": "linear", "factor": 2.0}), IMPORT, 3,
     "rope_scaling is not supported: @/m/config.json: only plain RoPE is"),
    ("two bases of the rotation", config(rope_parameters={"rope_type": "default", "rope_theta": 5.0}), IMPORT, 3,
     "rope_theta is 10000 and rope_parameters.rope_theta is 5: @/m/config.json: make them equal"),
    ("quantised weights", config(quantization_config={"bits": 4}), IMPORT, 3,
     "quantized weights are not supported: @/m/config.json: save the model in float32, bfloat16 or float16"),
    ("a configuration cut short", config_text('{"model_type": "mixtral",'), IMPORT, 3,
     'broken JSON at byte 26: @/m/config.json: "expected string literal"'),
    ("a configuration that is a list", config_text("[1, 2]"), IMPORT, 3,
     "not a JSON object: @/m/config.json: write the model again with save_pretrained"),
    ("a configuration that is empty", config_text(""), IMPORT, 3,
     "broken JSON: @/m/config.json: it is empty"),
    ("a configuration that is not UTF-8", config_text(b'{"model_type": "\xff"}'), IMPORT, 3,
     'broken JSON at byte 17: @/m/config.json: "last read: \'\\"\\ufffd\'"'),
    ("a key twice", config_text('{"model_type": "mixtral", "model_type": "mixtral"}'), IMPORT, 3,
     'the key "model_type" stands twice in a JSON object: @/m/config.json: remove one'),
    ("a configuration 100,000 deep", config_text("[" * 100_000), IMPORT, 3,
     "JSON nested deeper than 64: @/m/config.json: nothing valid is so deep"),
    ("a vocabulary smaller than the tokenizer's", config(vocab_size=32), "score @/m --fasta /dev/null --tokenizer esm2", 2,
     "the tokenizer esm2 has 33 tokens and the model 32: @/m: give the model's own with --tokenizer"),
    ("a tokenizer of another name", beside("tokenizer_config.json", '{"cistron_tokenizer": "esm9"}'), "info @/m", 3,
     "the model's tokenizer 'esm9' is unknown: @/m: give --tokenizer, one of esm2, nucleotide"),
    ("a tokenizer's configuration that links to itself", link_to_itself, "info @/m", 3,
     "cannot read the file: @/m/tokenizer_config.json: Too many levels of symbolic links"),
    ("a tokenizer's configuration cut short", beside("tokenizer_config.json", "{"), "info @/m", 3,
     'broken JSON at byte 2: @/m/tokenizer_config.json: "expected string literal"'),
    ("a tokenizer.json that nobody reads", beside("tokenizer.json", '{"model": {"merges": [["a", "zz"]]}}'), "info @/m --json", 0,
     '{"parameters":952,'),
    ("no tokenizer at all", beside("tokenizer_config.json", "{}"), "score @/m --fasta /dev/null", 2,
     "the model brings no tokenizer: @/m: give --tokenizer, one of esm2, nucleotide"),
]
