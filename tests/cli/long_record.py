#!/usr/bin/env python3
"""A record of 1,000,000 residues: prepared, trained on in windows, scored, in memory that grows with its length and no faster."""

import json
import os
import random
import subprocess

from support import main, write_config

SHORT, LONG = 100_000, 1_000_000
SANITIZED = {"ASAN_OPTIONS", "TSAN_OPTIONS"} & os.environ.keys()  # a sanitizer keeps what was freed for a while


def write_record(path, residues):
    path.write_text(">chromosome\n" + "".join(random.Random(1).choices("LAGVSERTIDPKQNFYMHWC", k=residues)) + "\n")


def peak_bytes(program, *args):
    """What the program prints, and the most memory that it held."""
    child = subprocess.Popen([program.path, *map(str, args)], stdout=subprocess.PIPE, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, f"{args}: status {status}"
    return out, 1024 * usage.ru_maxrss


def test_a_long_record(program, directory):
    peaks = {}
    for residues in (SHORT, LONG):
        fasta, store, run = (directory / f"{residues}.{kind}" for kind in ("fasta", "store", "run"))
        write_record(fasta, residues)
        _, prepare = peak_bytes(program, "prepare", fasta, "--tokenizer", "esm2", "--out", store)
        write_config(directory / "long.toml", store, model__layers=1, train__steps=3, train__validate_every=100)
        _, train = peak_bytes(program, "train", directory / "long.toml", "--out", run, "--quiet")
        out, score = peak_bytes(program, "score", run, "--fasta", fasta, "--json", "--quiet", "--threads", "1")
        line = json.loads(out)
        assert line["tokens"] == residues + 1, line  # every residue and the end token
        assert -5 < line["log_likelihood"] / line["tokens"] < -1, line
        peaks[residues] = {"prepare": prepare, "train": train, "score": score}
    # A residue is a byte, its token four, its score four; each lies in an array that may have doubled. A store's token is a byte.
    for verb, most in {"prepare": 16, "train": 8, "score": 24}.items():
        growth = (peaks[LONG][verb] - peaks[SHORT][verb]) / (LONG - SHORT)
        print(f"{verb}: {growth:.1f} bytes a residue")
        assert growth < most or SANITIZED, f"{verb} takes {growth} bytes a residue: {peaks}"


if __name__ == "__main__":
    main(globals())
