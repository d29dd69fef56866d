"""Token stores, through `cistron train`."""

import subprocess

from files import cut, flip, manifest

TRAIN = ("train @/c.toml --out @/run")


def store(change):
    """A whole store, changed; and a configuration that trains on it."""
    def make(here, program):
        (here / "a.fasta").write_text("".join(f">r{i}\nMKTLAGVSE{'ACDEFGHIKL'[i]}\n" for i in range(10)))
        subprocess.run([program, "prepare", here / "a.fasta", "--tokenizer", "esm2", "--out", here / "store", "--valid-fraction", "0.3"],
                       check=True, capture_output=True)
        (here / "c.toml").write_text(
            '[model]\npreset = "tiny-protein"\nlayers = 1\nhidden = 8\nintermediate = 4\nheads = 2\nkv_heads = 1\nhead_dim = 4\n'
            'context = 32\n[train]\nsteps = 1\nbatch_tokens = 64\n[precision]\nrecipe = "fp32"\n'
            f'[data]\nstore = "{here}/store"\n')
        change(here / "store")
    return make


def exchange(folder):
    (folder / "train/tokens.bin").rename(folder / "t")
    (folder / "valid/tokens.bin").rename(folder / "train/tokens.bin")
    (folder / "t").rename(folder / "valid/tokens.bin")


CASES = [
    ("a store without its manifest", store(lambda s: (s / "manifest.json").unlink()), TRAIN, 3,
     "not a token store: @/store: cistron prepare makes one"),
    ("a store's manifest of nothing", store(cut("manifest.json", 0)), TRAIN, 3,
     "broken JSON: @/store/manifest.json: it is empty"),
    ("a store's manifest cut short", store(cut("manifest.json", 40)), TRAIN, 3,
     'broken JSON at byte 41: @/store/manifest.json: "expected string literal"'),
    ("a store's manifest that is a list", store(lambda s: (s / "manifest.json").write_text("[]")), TRAIN, 3,
     "not a token store's manifest: @/store/manifest.json: make the store again with cistron prepare"),
    ("a store of another program", store(manifest(format="other")), TRAIN, 3,
     "not a token store's manifest: @/store/manifest.json: make the store again with cistron prepare"),
    ("a store of another version", store(manifest(version=2)), TRAIN, 3,
     "the store is of version 2, this program reads 1: @/store/manifest.json: make the store again with cistron prepare"),
    ("a store's manifest that was altered", store(manifest(tokenizer="nucleotide")), TRAIN, 3,
     "the manifest was altered: @/store/manifest.json: make the store again with cistron prepare"),
    ("tokens that are missing", store(lambda s: (s / "train/tokens.bin").unlink()), TRAIN, 3,
     "cannot read the file: @/store/train/tokens.bin: No such file or directory"),
    ("tokens cut short", store(cut("train/tokens.bin", 70)), TRAIN, 3,
     "the file's length is not what its header says: @/store/train/tokens.bin: make the store again with cistron prepare"),
    ("tokens without a header", store(cut("train/tokens.bin", 10)), TRAIN, 3,
     "the file is cut short: @/store/train/tokens.bin: make the store again with cistron prepare"),
    ("tokens of another program", store(flip("train/tokens.bin", 0)), TRAIN, 3,
     "not a file of a token store: @/store/train/tokens.bin: make the store again with cistron prepare"),
    ("tokens of another version", store(flip("train/tokens.bin", 8)), TRAIN, 3,
     "the file is of version 17, this program reads 1: @/store/train/tokens.bin: make the store again with cistron prepare"),
    ("tokens with a flipped bit", store(flip("train/tokens.bin", 80)), TRAIN, 3,
     "the checksum does not fit the contents: @/store/train/tokens.bin: make the store again with cistron prepare"),
    ("records with a flipped bit", store(flip("valid/records.bin", 90)), TRAIN, 3,
     "the checksum does not fit the contents: @/store/valid/records.bin: make the store again with cistron prepare"),
    ("a header of the records with a flipped bit", store(flip("valid/records.bin", 60)), TRAIN, 3,
     "the file is not the one that the manifest describes: @/store/valid/records.bin: make the store again with cistron prepare"),
    ("the splits' tokens exchanged", store(exchange), TRAIN, 3,
     "the file is not the one that the manifest describes: @/store/train/tokens.bin: make the store again with cistron prepare"),
]
