"""Checkpoints, alone and in a run."""

import os
import shutil
import subprocess

import files
from files import cut, flip, manifest

INFO = "info @/c --json"
RUN_INFO = "info @/run --json"


def checkpoint(change):
    """A whole checkpoint, changed."""
    def make(here, program):
        files.model(here / "m")
        subprocess.run([program, "import", here / "m", "--out", here / "c", "--tokenizer", "esm2"], check=True, capture_output=True)
        change(here / "c")
    return make


def link_to_itself(folder):
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to("state.json")


def run(change):
    """A run of one whole checkpoint, step-00000001, changed."""
    def make(here, program):
        checkpoint(lambda _: None)(here, program)
        (here / "run/checkpoints").mkdir(parents=True)
        (here / "c").rename(here / "run/checkpoints/step-00000001")
        (here / "run/checkpoints/latest").write_text("step-00000001\n")
        change(here / "run/checkpoints")
    return make


def two_half_written_ones(folder):
    for step in (2, 3):
        shutil.copytree(folder / "step-00000001", folder / f"step-0000000{step}")
    (folder / "step-00000002/manifest.json").unlink()
    cut("parameters.safetensors", 100)(folder / "step-00000003")
    (folder / "latest").write_text("step-00000003\n")


CASES = [
    ("a checkpoint's manifest of nothing", checkpoint(cut("manifest.json", 0)), INFO, 3,
     "broken JSON: @/c/manifest.json: it is empty"),
    ("a checkpoint's manifest cut short", checkpoint(cut("manifest.json", 100)), INFO, 3,
     'broken JSON at byte 101: @/c/manifest.json: "last read: \'\\"parameters\'; expected string literal"'),
    ("a checkpoint's manifest that is a list", checkpoint(lambda c: (c / "manifest.json").write_text("[]")), INFO, 3,
     "a broken manifest: @/c/manifest.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint of another program", checkpoint(manifest(format="other")), INFO, 3,
     "not the manifest of a checkpoint: @/c/manifest.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint of another version", checkpoint(manifest(version=3)), INFO, 3,
     "a checkpoint of version 3, this program reads 2: @/c/manifest.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint's manifest that was altered", checkpoint(manifest(slices=[])), INFO, 3,
     "a wrong checksum: @/c/manifest.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint's part is missing", checkpoint(lambda c: (c / "parameters.safetensors").unlink()), INFO, 3,
     "a part is missing: @/c/parameters.safetensors: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint with a file too many", checkpoint(lambda c: (c / "more").write_text("x")), INFO, 3,
     "a file that does not belong here: @/c/more: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint with another program's hidden file", checkpoint(lambda c: (c / ".nfs0001").write_text("x")), INFO, 0,
     '{"parameters":952,'),
    ("a checkpoint that links to itself", lambda here, _: (here / "c").symlink_to("c"), INFO, 3,
     "cannot read the file: @/c/manifest.json: Too many levels of symbolic links"),
    ("a checkpoint's part that links to itself", checkpoint(link_to_itself), INFO, 3,
     "a part is missing: @/c/state.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint with a flipped bit", checkpoint(flip("parameters.safetensors")), INFO, 3,
     "a wrong checksum: @/c/parameters.safetensors: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint's part cut short", checkpoint(cut("parameters.safetensors", 100)), INFO, 3,
     "100 bytes instead of 4584: @/c/parameters.safetensors: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint's state altered", checkpoint(flip("state.json", 20)), INFO, 3,
     "a wrong checksum: @/c/state.json: take another checkpoint; this one cannot be trusted"),
    ("a checkpoint's configuration emptied", checkpoint(cut("config.toml", 0)), INFO, 3,
     "0 bytes instead of 4270: @/c/config.toml: take another checkpoint; this one cannot be trusted"),
    ("a run of broken checkpoints alone", run(lambda c: flip("parameters.safetensors")(c / "step-00000001")), RUN_INFO, 3,
     "no whole checkpoint: @/run/checkpoints: take another model; the last one: a wrong checksum: @/run/checkpoints/step-00000001/parameters.safetensors: take another checkpoint; this one cannot be trusted"),
    ("a run without a checkpoint", run(lambda c: shutil.rmtree(c / "step-00000001")), RUN_INFO, 3,
     "the run has no checkpoint yet: @/run: train it first"),
    ("latest points to nothing", run(lambda c: (c / "latest").write_text("step-00000009\n")), RUN_INFO, 0,
     '{"parameters":952,'),
    ("a checkpoint's folder that is a file", run(lambda c: (c / "step-00000002").write_text("x")), RUN_INFO, 0,
     '{"parameters":952,'),
    ("latest of Windows", run(lambda c: (c / "latest").write_bytes(b" step-00000001 \r\n")), RUN_INFO, 0,
     '{"parameters":952,'),
    ("a pipe for latest", run(lambda c: ((c / "latest").unlink(), os.mkfifo(c / "latest"))), RUN_INFO, 3,
     "cannot read the file: @/run/checkpoints/latest: it is not a regular file"),
    ("a latest of 50 MB", run(lambda c: (c / "latest").write_bytes(b"x" * 50_000_000)), RUN_INFO, 3,
     "a file of 50000000 bytes, where at most 4096 make sense: @/run/checkpoints/latest: is it the right file?"),
    ("latest points outside", run(lambda c: (c / "latest").write_text("../../m\n")), RUN_INFO, 0,
     '{"parameters":952,'),
    ("two half-written ones beside a whole one", run(two_half_written_ones), RUN_INFO, 0,
     '{"parameters":952,'),
]
