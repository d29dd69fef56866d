"""What the tests of the program share: running it, and a store of random proteins."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

TINY = [
    "model.preset=tiny-protein", "model.layers=2", "model.hidden=32", "model.intermediate=24", "model.heads=4", "model.kv_heads=2",
    "model.experts=4", "model.context=64", "data.context=64", "train.batch_tokens=256", "train.validate_every=4",
    "train.checkpoint_every=3", "train.steps=12", "precision.recipe=fp32", "optimizer.lr=1e-2", "device.threads=1",
]


class Program:
    def __init__(self, path):
        self.path = path

    def run(self, *args, **kwargs):
        environment = dict(os.environ, **kwargs.pop("env", {}))
        return subprocess.run([self.path, *map(str, args)], capture_output=True, text=True, timeout=300, env=environment, **kwargs)

    def ok(self, *args, **kwargs):
        done = self.run(*args, **kwargs)
        assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def fails(self, status, says, *args, **kwargs):
        """Exits with `status`, with nothing on standard output and one line that holds `says` on standard error."""
        done = self.run(*args, **kwargs)
        lines = [line for line in done.stderr.splitlines() if line.startswith("cistron: error: ")]
        assert done.returncode == status, f"{args}: exit {done.returncode}, wanted {status}\n{done.stderr}"
        assert len(lines) == 1 and says in lines[0], f"{args}: wanted '{says}' in:\n{done.stderr}"
        assert done.stdout == "", f"{args}: standard output: {done.stdout}"
        return done


def write_fasta(path, records, seed=1, length=(5, 120)):
    generator = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        for i in range(records):
            residues = "".join(generator.choices("LAGVSERTIDPKQNFYMHWC", k=generator.randint(*length)))
            file.write(f">r{i} a protein\n{residues}\n")


def write_config(path, store, **settings):
    sections = {}
    for setting in TINY:
        key, value = setting.split("=")
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    sections.setdefault("data", {})["store"] = str(store)
    for key, value in settings.items():
        section, name = key.split("__")
        sections.setdefault(section, {})[name] = str(value)

    def quoted(value):
        return value if value.replace(".", "").replace("e-", "").isdigit() else json.dumps(value)

    with open(path, "w", encoding="utf-8") as file:
        for section, keys in sections.items():
            file.write(f"[{section}]\n" + "".join(f"{name} = {quoted(value)}\n" for name, value in keys.items()))


def metrics(run):
    """The lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def same_files(a, b):
    """Two folders that hold the same files with the same bytes, aside from a mark that a killed process may leave in what is whole."""
    def names(folder):
        return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != ".cistron-partial")

    return a.is_dir() and names(a) == names(b) and all((a / name).read_bytes() == (b / name).read_bytes() for name in names(a))


def main(tests):
    """Runs every `test_*` function of a module with (program, directory)."""
    import tempfile

    program = Program(sys.argv[1])
    failed = []
    for name, test in sorted(tests.items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory(prefix="cistron-") as directory:
            try:
                test(program, Path(directory))
                print("ok    ", name)
            except AssertionError as error:
                failed.append(name)
                print("FAILED", name, error)
    sys.exit(1 if failed else 0)
