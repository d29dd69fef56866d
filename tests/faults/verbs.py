"""The verbs that write, as the tests of faults run them: what each starts from, and how to tell whether its output is whole."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))

from support import metrics, same_files, write_config, write_fasta

PROGRAM = sys.argv[1]


class Verb:
    """A command whose output is `out`. `before` puts the folder into the state before it; `whole` says whether the output is what it should
    be, and `kept` whether what was there before is still good."""

    def __init__(self, name, command, before, whole, kept):
        self.name, self.command, self.before, self.whole, self.kept = name, command, before, whole, kept

    def run(self, here, settings):
        """With the environment's `settings`, which may preload a library that makes it fail."""
        return subprocess.run([PROGRAM, *self.command(here)], capture_output=True, text=True, timeout=120,
                              env=os.environ | settings)


def ok(*command):
    done = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def fresh(here, *copies):
    """An empty work folder, with copies of these."""
    shutil.rmtree(here / "work", ignore_errors=True)
    (here / "work").mkdir()
    for name in copies:
        shutil.copytree(here / name, here / "work" / name)


def latest(run):
    """The step of the checkpoint that a reader finds; None where it finds none."""
    done = subprocess.run([PROGRAM, "info", run, "--json"], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["checkpoint_step"] if done.returncode == 0 else None


STEPS = 2
MARK = {"mark": 1}  # in the first step's metrics: a run that started afresh instead of resuming would lose it
SMALL = {"model__layers": 1, "model__hidden": 16, "model__intermediate": 8, "model__heads": 2, "model__kv_heads": 1, "model__experts": 2,
         "train__steps": STEPS, "train__batch_tokens": 64, "train__checkpoint_every": 1, "train__validate_every": 2,
         "train__validate_tokens": 64}


def checkpoint(step):
    return f"step-{step:08}"


def latest_named(run):
    return int((run / "checkpoints/latest").read_text().split("-")[1])


def make_material(here):
    write_fasta(here / "a.fasta", 12)
    ok("prepare", here / "a.fasta", "--tokenizer", "esm2", "--out", here / "store", "--valid-fraction", "0.2", "--quiet")
    write_config(here / "run.toml", here / "store", train__keep_last=1, **SMALL)
    ok("train", here / "run.toml", "--out", here / "run", "--quiet")
    ok("train", here / "run.toml", "--out", here / "half", "--quiet", "--set", "train.keep_last=2")
    ok("train", here / "run.toml", "--out", here / "behind", "--quiet", "--set", "train.save_behind=true")
    shutil.rmtree(here / "half/checkpoints" / checkpoint(STEPS))  # as if killed a step before the last
    (here / "half/checkpoints/latest").write_text(checkpoint(STEPS - 1) + "\n")
    first, *others = (here / "half/metrics.jsonl").read_text().splitlines()
    (here / "half/metrics.jsonl").write_text("\n".join([json.dumps(json.loads(first) | MARK), *others]) + "\n")
    ok("export", here / "run", "--out", here / "exported")
    ok("import", here / "exported", "--out", here / "imported")


def verbs(here):
    work = here / "work"

    def no_output(name):
        return lambda _: not (work / name).exists()

    def as_before(name):
        return lambda _: same_files(work / name, here / name)

    def trained(name, like="run", resumed=True):
        """As far as the undisturbed run, and to the same bits."""
        last = Path("checkpoints", checkpoint(STEPS))
        expected = metrics(here / like)
        expected[0] |= MARK if resumed else {}
        return lambda _: (work / name / "checkpoints/latest").is_file() and same_files(work / name / last, here / like / last) and (
            latest_named(work / name) == STEPS and metrics(work / name) == expected)

    prepare = ["prepare", f"{here}/a.fasta", "--tokenizer", "esm2", "--out", f"{work}/store", "--valid-fraction", "0.2", "--quiet"]
    export = ["export", f"{here}/run", "--out", f"{work}/exported"]

    bring = ["import", f"{here}/exported", "--out", f"{work}/imported"]

    def train(name, option="--resume"):
        return ["train", f"{here}/run.toml", "--out", f"{work}/{name}", "--quiet", option]

    return [
        Verb("prepare", lambda _: prepare, lambda _: fresh(here), as_before("store"), no_output("store")),
        Verb("prepare --force", lambda _: [*prepare, "--force"], lambda _: fresh(here, "store"), as_before("store"), as_before("store")),
        Verb("train", lambda _: train("run"), lambda _: fresh(here), trained("run", resumed=False), lambda _: True),
        Verb("train --force", lambda _: train("half", "--force"), lambda _: fresh(here, "half"), trained("half", like="run", resumed=False),
             lambda _: True),
        Verb("train --resume", lambda _: train("half"), lambda _: fresh(here, "half"), trained("half"),
             lambda _: latest(work / "half") in (STEPS - 1, STEPS)),
        Verb("train, saved behind", lambda _: [*train("half"), "--set", "train.save_behind=true"], lambda _: fresh(here, "half"),
             trained("half", like="behind"), lambda _: latest(work / "half") in (STEPS - 1, STEPS)),
        Verb("export", lambda _: export, lambda _: fresh(here), as_before("exported"), no_output("exported")),
        Verb("export --force", lambda _: [*export, "--force"], lambda _: fresh(here, "exported"), as_before("exported"),
             as_before("exported")),
        Verb("import", lambda _: bring, lambda _: fresh(here), as_before("imported"), no_output("imported")),
        Verb("import --force", lambda _: [*bring, "--force"], lambda _: fresh(here, "imported"), as_before("imported"),
             as_before("imported")),
    ]
