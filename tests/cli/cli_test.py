"""The program as its user meets it: exit statuses, messages, keys of JSON, files. Usage: cli_test.py PROGRAM"""

import gzip
import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

from support import main, metrics, write_config, write_fasta


def prepared(program, directory, records=60):
    write_fasta(directory / "a.fasta", records)
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store", "--valid-fraction", "0.2")
    write_config(directory / "run.toml", directory / "store")
    return directory / "run.toml"


def trained(program, directory):
    config = prepared(program, directory)
    program.ok("train", config, "--out", directory / "run", "--quiet")
    return directory / "run"


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_ranks_train_resume_and_export(program, directory):
    config = prepared(program, directory)
    alone, two = directory / "alone", directory / "two"
    program.ok("train", config, "--out", alone, "--quiet")
    said = program.ok("train", config, "--out", two, "--ranks", "2").stderr
    assert "mesh 2 x 1 (dp x ep)" in said and "rank 1: memory" in said, said
    for mine, theirs in zip(metrics(two), metrics(alone), strict=True):
        key = "valid_loss" if "valid_loss" in mine else "loss"
        assert abs(mine[key] - theirs[key]) <= 1e-4 * theirs[key], (mine, theirs)  # lr is high: rounding grows
    assert (two / "checkpoints/step-00000012/optimizer-00001.safetensors").exists()
    program.ok("train", two / "config.toml", "--out", two, "--resume", "--ranks", "3", "--set", "train.steps=14", "--quiet")
    assert metrics(two)[-1]["step"] == 14
    assert objects(program.ok("info", two, "--json").stdout)[0]["checkpoint_step"] == 14
    program.ok("score", two, "--fasta", directory / "a.fasta", "--quiet")
    program.ok("export", two, "--out", directory / "exported")
    program.ok("import", directory / "exported", "--out", directory / "imported")
    program.ok("export", directory / "imported", "--out", directory / "again")
    file = "model.safetensors"
    assert (directory / "exported" / file).read_bytes() == (directory / "again" / file).read_bytes()


def test_saving_behind_training_changes_no_number(program, directory):
    config = prepared(program, directory)
    for name, *more in [("at_once",), ("behind", "--set", "train.save_behind=true")]:
        program.ok("train", config, "--out", directory / name, "--quiet", "--ranks", "2", *more)
    assert metrics(directory / "behind") == metrics(directory / "at_once")
    for name in ["parameters-00000.safetensors", "optimizer-00001.safetensors"]:
        at = "checkpoints/step-00000012/" + name
        assert (directory / "behind" / at).read_bytes() == (directory / "at_once" / at).read_bytes(), name


def test_plan(program, directory):
    config = prepared(program, directory)
    lines = objects(program.ok("plan", config, "--gpus", "4", "--json").stdout)
    assert [(line["layout"]["dp"], line["layout"]["ep"]) for line in lines] == [(4, 1), (2, 2), (1, 4)]
    for line in lines:
        memory = line["memory"]
        assert line["fits"] and line["layout"]["fsdp"] is True and line["step_milliseconds"] is None
        assert memory["total"] == sum(memory[key] for key in ["parameters", "gradients", "optimizer", "gathered", "activations"])
    tight = objects(program.ok("plan", config, "--gpus", "1", "--memory", str(lines[0]["memory"]["total"]), "--json").stdout)
    assert not tight[0]["fits"] and tight[0]["would_fit_with"], tight
    text = program.ok("plan", config, "--memory", str(lines[0]["memory"]["total"])).stdout
    assert "would fit with" in text and "FusedMlp" in text and "FusedNorm" in text, text


def test_help_and_version(program, directory):
    assert "backends: cpu" in program.ok("--version").stdout
    assert "Example" in program.ok("--help").stdout
    for verb in ["prepare", "train", "score", "generate", "export", "import", "info", "plan", "bench train", "bench kernels", "bench moe"]:
        text = program.ok(*verb.split(), "--help").stdout
        assert "Example" in text and "cistron " + verb in text, verb
        for option in ["--json", "--quiet", "--threads", "--device"]:
            assert option in text, (verb, option)


def test_usage_errors(program, directory):
    config = prepared(program, directory)
    run = directory / "run"
    program.fails(2, "A subcommand is required")
    program.fails(2, "did you mean 'train'", "trian")
    program.fails(2, "--out", "train", config)
    program.fails(2, "--wrong", "train", config, "--out", run, "--wrong")
    program.fails(2, "CUDA", "train", config, "--out", run, "--device", "cuda")
    program.fails(2, "--ranks", "train", config, "--out", run, "--ranks", "0")
    program.fails(2, "is not the number of ranks, 2", "train", config, "--out", run, "--ranks", "2", "--set", "parallel.dp=3")
    program.fails(2, "did you mean 'steps'", "train", config, "--out", run, "--set", "train.stepss=1")
    program.fails(2, "did you mean [optimizer]", "train", config, "--out", run, "--set", "optimiser.lr=1")
    program.fails(2, "out of range", "train", config, "--out", run, "--set", "optimizer.lr=-1")
    program.fails(2, "cannot read", "train", directory / "none.toml", "--out", run)
    program.fails(2, "unknown tokenizer", "prepare", directory / "a.fasta", "--tokenizer", "esm3", "--out", directory / "s2")
    program.fails(2, "exists", "prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "store")
    program.fails(2, "--seed: Value -1 not in range", "generate", run, "--seed", "-1")
    for size in (247, 255, 256, 5000):
        done = program.fails(2, "name", "prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / ("n" * size))
        assert len(done.stderr) <= len("cistron: error: ") + 1000 + 1, done.stderr
    for name in ("n" * 256, "n/" * 2100):
        program.fails(2, "too long", "train", config, "--out", directory / name)
    program.fails(2, "did you mean 'tiny-protein'", "bench", "train", "--preset", "tiny-protien")
    for verb in ["info", "score --fasta x", "generate", "export --out x", "import --out x"]:
        name, *rest = verb.split()
        program.fails(2, "is a shell variable unset?", name, "", *rest)
    assert not run.exists()


def test_the_ready_configurations_are_taken(program, directory):
    for config in sorted((Path(__file__).parents[2] / "configs").glob("*.toml")):
        program.fails(3, "not a token store", "train", config, "--out", directory / "run", "--set", f"data.store={directory}")


def test_bad_data(program, directory):
    config = prepared(program, directory)
    program.fails(3, "not a token store", "train", config, "--out", directory / "run", "--set", f"data.store={directory}")
    program.fails(3, "not a model", "info", directory)
    program.fails(3, "none.fasta", "prepare", directory / "none.fasta", "--tokenizer", "esm2", "--out", directory / "s2")
    (directory / "b.fasta").write_text(">x\nAC1D\n")
    program.fails(3, "b.fasta:2:3", "prepare", directory / "b.fasta", "--tokenizer", "esm2", "--out", directory / "s2")
    compressed = gzip.compress((directory / "a.fasta").read_bytes())
    (directory / "c.fasta.gz").write_bytes(compressed[: len(compressed) // 2])
    program.fails(3, "c.fasta.gz", "prepare", directory / "c.fasta.gz", "--tokenizer", "esm2", "--out", directory / "s2")
    tokens = directory / "store" / "train" / "tokens.bin"
    data = bytearray(tokens.read_bytes())
    data[-3] ^= 1
    tokens.write_bytes(data)
    program.fails(3, "tokens.bin", "train", config, "--out", directory / "run")
    assert not (directory / "run").exists() and not (directory / "s2").exists()


def test_prepare_json(program, directory):
    write_fasta(directory / "a.fasta", 20)
    done = program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "s", "--json")
    (report,) = objects(done.stdout)
    assert report["records"] == 20 and report["residues"] > 100
    program.ok("prepare", directory / "a.fasta", "--tokenizer", "esm2", "--out", directory / "s", "--force")


def test_train_files_and_json(program, directory):
    config = prepared(program, directory)
    run = directory / "run"
    done = program.ok("train", config, "--out", run, "--json")
    (result,) = objects(done.stdout)
    assert result["step"] == 12 and result["tokens"] == 12 * 256 and result["valid_loss"] < 3.5
    assert "step 12/12" in done.stderr and "\r" not in done.stderr and "\033" not in done.stderr
    lines = metrics(run)
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, 13))
    assert set(lines[0]) == {"step", "tokens", "loss", "aux_loss", "z_loss", "lr", "grad_norm", "router_entropy",
                             "expert_load_max_over_mean"}
    valid = [line for line in lines if "valid_loss" in line]
    assert [line["step"] for line in valid] == [4, 8, 12]
    assert set(valid[0]) == {"step", "valid_loss", "valid_perplexity", "valid_bits_per_token", "valid_tokens"}
    assert (run / "config.toml").exists() and list(run.glob("events.out.tfevents.*"))
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["latest", "step-00000006", "step-00000009", "step-00000012"], kept
    assert (run / "checkpoints" / "latest").read_text() == "step-00000012\n"
    program.fails(2, "--resume", "train", config, "--out", run)
    assert program.ok("train", config, "--out", run, "--resume", "--quiet").stderr == ""
    assert metrics(run) == lines
    program.ok("train", run / "config.toml", "--out", directory / "again", "--quiet")  # the resolved file is a configuration
    assert metrics(directory / "again") == lines


def test_info(program, directory):
    run = trained(program, directory)
    (info,) = objects(program.ok("info", run, "--json").stdout)
    assert set(info) == {"parameters", "active_parameters", "config", "checkpoint_step"}
    assert info["checkpoint_step"] == 12 and info["config"]["num_local_experts"] == 4
    (older,) = objects(program.ok("info", run / "checkpoints" / "step-00000009", "--json").stdout)
    assert older["checkpoint_step"] == 9 and older["parameters"] == info["parameters"]
    assert "parameters" in program.ok("info", run).stdout


def test_score(program, directory):
    run = trained(program, directory)
    with open(directory / "q.fasta", "w", encoding="ascii") as file:
        file.write(">short\nMK\n>long\n" + "MKVLAAGIC" * 40 + "\n>middle\nMKVLAAGIC\n")  # longer than the context of 64
    scores = objects(program.ok("score", run, "--fasta", directory / "q.fasta", "--json", "--per-position").stdout)
    assert [score["id"] for score in scores] == ["short", "long", "middle"]
    assert [score["tokens"] for score in scores] == [3, 361, 10]
    for score in scores:
        assert len(score["positions"]) == score["tokens"]
        assert math.isclose(sum(score["positions"]), score["log_likelihood"], rel_tol=1e-12)
        assert math.isclose(math.exp(-score["log_likelihood"] / score["tokens"]), score["perplexity"], rel_tol=1e-12)
    assert max(scores[1]["positions"]) < 0
    table = program.ok("score", run, "--fasta", directory / "q.fasta").stdout.splitlines()
    assert table[0] == "id\ttokens\tlog_likelihood\tperplexity" and len(table) == 4
    (directory / "one.fasta").write_text(">middle\nmkvlaagic\n")  # alone, and in lower case: the same bits
    (alone,) = objects(program.ok("score", run, "--fasta", directory / "one.fasta", "--json", "--per-position").stdout)
    assert alone == scores[2]
    assert set(objects(program.ok("score", run, "--fasta", directory / "one.fasta", "--json").stdout)[0]) == {
        "id", "tokens", "log_likelihood", "perplexity"}
    (directory / "bad.fasta").write_text(">x\nMK1\n")
    program.fails(3, "bad.fasta:2:3", "score", run, "--json", "--fasta", directory / "bad.fasta")
    program.fails(2, "mxfp8", "score", run, "--json", "--fasta", directory / "one.fasta", "--precision", "mxfp8")


def test_export_import(program, directory):
    run = trained(program, directory)
    exported, imported = directory / "hf", directory / "imported"
    program.ok("export", run, "--out", exported)
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]:
        assert (exported / name).exists(), name
    program.fails(2, "exists", "export", run, "--out", exported)
    program.ok("export", run, "--out", exported, "--force")
    program.ok("import", exported, "--out", imported)
    (directory / "one.fasta").write_text(">x\nMKVLAAGIC\n")
    results = [program.ok("score", model, "--fasta", directory / "one.fasta", "--json").stdout for model in [run, exported, imported]]
    assert results[0] == results[1] == results[2], results
    (exported / "tokenizer_config.json").unlink()
    program.fails(2, "--tokenizer", "score", exported, "--json", "--fasta", directory / "one.fasta")
    with_name = program.ok("score", exported, "--fasta", directory / "one.fasta", "--json", "--tokenizer", "esm2").stdout
    assert with_name == results[0]
    (exported / "model.safetensors").unlink()
    program.fails(3, "safetensors", "score", exported, "--json", "--fasta", directory / "one.fasta", "--tokenizer", "esm2")


def test_interrupts(program, directory):
    config = prepared(program, directory)
    settings = ["--set", "train.steps=40"]
    program.ok("train", config, "--out", directory / "whole", "--quiet", *settings)
    for number, status in [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138), (signal.SIGXCPU, 152)]:
        run = directory / f"run{status}"
        process = subprocess.Popen([program.path, "train", str(config), "--out", str(run), *settings], stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while time.time() < deadline and not (run / "metrics.jsonl").exists():
            time.sleep(0.001)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            continue  # it was through before the signal came
        assert process.returncode == status, (process.returncode, errors)
        assert f"cistron train {run}/config.toml --out {run} --resume" in errors
        assert (run / "checkpoints" / "latest").exists()
        program.ok("train", run / "config.toml", "--out", run, "--quiet", "--resume")
        assert metrics(run) == metrics(directory / "whole")


def test_what_is_shown_cannot_stop_a_run(program, directory):
    config = prepared(program, directory)
    command = f"'{program.path}' train '{config}' --out '{directory}/run%d'"
    ends = ["2>&-", "2>/dev/full", "2>&1 >/dev/null | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}"]
    for number, end in enumerate(ends):
        done = subprocess.run(["bash", "-c", f"{command % number} {end}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0, (end, done)
        assert len(metrics(directory / f"run{number}")) == 12 + 3, end
    wrong = subprocess.run(["bash", "-c", f"{command % 0} 2>/dev/full"])  # it exists
    assert wrong.returncode == 2, wrong
    limited = subprocess.run(["bash", "-c", f"ulimit -f 20; {command % 9}"], capture_output=True, text=True)
    assert limited.returncode == 4 and "cistron: error: " in limited.stderr, limited


def start(program, *args, **kwargs):
    return subprocess.Popen([program.path, *map(str, args)], **kwargs)


def wait_for(condition, seconds=60):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "waited too long"
        time.sleep(0.005)


def test_a_signal_that_is_ignored_stays_ignored(program, directory):
    config = prepared(program, directory)
    run = directory / "run"
    process = start(program, "train", config, "--out", run, "--quiet", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    wait_for(lambda: (run / "metrics.jsonl").exists())
    process.terminate()
    assert process.wait(timeout=60) == 0 and len(metrics(run)) == 12 + 3


def test_a_pipe_that_is_full(program, directory):
    """Training goes on, and ends at a signal, though nobody reads what it shows."""
    config = prepared(program, directory)
    run = directory / "run"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = start(program, "train", config, "--out", run, "--set", "train.steps=100000", "--set", "train.validate_every=1", stderr=writer)
    wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("\n") > 20)
    process.terminate()
    wait_for(lambda: (run / "checkpoints/latest").exists())
    time.sleep(0.2)
    os.read(reader, 1 << 20)
    assert process.wait(timeout=60) == 143
    os.close(reader)
    os.close(writer)


def test_a_reader_beside_a_run_that_prunes(program, directory):
    config = prepared(program, directory)
    run = directory / "run"
    process = start(program, "train", config, "--out", run, "--quiet", "--set", "train.steps=100000", "--set", "train.checkpoint_every=1",
                    "--set", "train.keep_last=1", "--set", "train.validate_every=0")
    wait_for(lambda: (run / "checkpoints/latest").exists())
    try:
        for _ in range(25):
            done = program.ok("info", run, "--json")
            assert done.stderr == "", done.stderr
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_stopped_for_longer_than_the_timeout(program, directory):
    config = prepared(program, directory)
    run = directory / "run"
    process = start(program, "train", config, "--out", run, "--quiet", "--ranks", 2, "--set", "parallel.timeout_seconds=1", "--set",
                    "train.steps=100000", "--set", "train.checkpoint_every=100000", stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (run / "metrics.jsonl").exists())
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors


def test_memory_that_the_shell_limits(program, directory):
    config = prepared(program, directory)
    for limit in (60000, 120000, 300000, 600000):
        for ranks in ([], ["--ranks", "2"]):
            command = " ".join([f"ulimit -v {limit}; exec '{program.path}' train '{config}' --out '{directory}/run' --force --quiet", *ranks])
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            said = sum(line.startswith("cistron: error: ") for line in done.stderr.splitlines())
            assert done.returncode in (0, 1, 4) and said == (done.returncode != 0), (limit, ranks, done)  # 1: no thread can be started


def test_time_that_the_shell_limits(program, directory):
    config, run = prepared(program, directory), directory / "run"
    write_fasta(directory / "long.fasta", 100_000)

    def limited(*command):
        line = " ".join(f"'{part}'" for part in [program.path, *command])
        return subprocess.run(["bash", "-c", f"ulimit -t 3; exec {line}"], capture_output=True, text=True, timeout=300)

    done = limited("train", config, "--out", run, "--quiet", "--set", "train.steps=1000000", "--set", "train.validate_every=0")
    assert done.returncode == 152 and "--resume" in done.stderr, (done.returncode, done.stderr)
    assert (run / "checkpoints/latest").exists()
    done = limited("score", run, "--fasta", directory / "long.fasta", "--quiet")
    assert (done.returncode, done.stderr) == (1, "cistron: error: the limit on the processor's time is reached: ulimit -t: raise it\n")


def test_a_finished_run(program, directory):
    run = trained(program, directory)
    done = program.ok("train", directory / "run.toml", "--out", run, "--resume", "--quiet")
    assert "finished already, at step 12, held-out loss" in done.stdout, done.stdout


def test_sizes_beyond_any_machine(program, directory):
    config = prepared(program, directory)
    program.fails(2, "--seq", "bench", "train", "--seq", 1)
    program.fails(2, "tokens in one piece", "bench", "train", "--batch", 1 << 30, "--seq", 1 << 30)
    program.fails(2, "2^50 parameters", "train", config, "--out", directory / "run", "--set", "model.hidden=1000000000")
    program.fails(4, "TB of memory", "train", config, "--out", directory / "run", "--set", "model.hidden=10000000")
    program.fails(2, "--out", "train", config, "--out", "")
    assert "cistron bench train" in program.ok("bench", "--help").stdout
    assert not (directory / "run").exists()


def test_what_is_not_ours_stays(program, directory):
    run = trained(program, directory)
    config = directory / "run.toml"
    lightning = directory / "pl"
    (lightning / "checkpoints").mkdir(parents=True)
    (lightning / "checkpoints/epoch=3.ckpt").write_text("w")
    program.fails(2, "not a run", "train", config, "--out", lightning, "--force", "--quiet")
    model = directory / "llama"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_text("w")
    program.fails(2, "something else", "export", run, "--out", model, "--force")
    program.ok("export", run, "--out", directory / "hf")
    (directory / "hf/notes.md").write_text("mine")
    program.fails(2, "holds more", "export", run, "--out", directory / "hf", "--force")
    last = run / "checkpoints/step-00000012"
    program.fails(2, "something else", "import", directory / "hf", "--out", last, "--force")
    program.fails(2, "lies in", "export", last, "--out", last / "hf")
    program.fails(2, "lies in a checkpoint", "import", directory / "hf", "--out", last / "x")
    program.fails(2, "no name of its own", "export", run, "--out", ".")
    assert (lightning / "checkpoints/epoch=3.ckpt").exists() and (directory / "hf/notes.md").exists()
    program.ok("info", last)


def test_a_run_whose_checkpoints_are_gone(program, directory):
    run = trained(program, directory)
    lines = metrics(run)
    for path in (run / "checkpoints").glob("step-*"):
        path.rename(directory / path.name)
    resume = ["train", directory / "run.toml", "--out", run, "--resume", "--quiet"]
    program.fails(3, "'latest' names is gone", *resume)
    (run / "checkpoints/latest").unlink()
    program.fails(3, "checkpoints are gone", *resume)
    assert metrics(run) == lines


def test_a_file_that_shrinks_while_it_is_read(program, directory):
    config = prepared(program, directory)
    process = subprocess.Popen([program.path, "train", str(config), "--out", str(directory / "run"), "--quiet", "--set", "train.steps=1000000",
                                "--set", "train.validate_every=0"], stderr=subprocess.PIPE, text=True)
    while not (directory / "run/metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    (directory / "store/train/tokens.bin").write_bytes(b"")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3 and "tokens.bin" in errors and len(errors.splitlines()) == 1, (process.returncode, errors)


def test_not_finite(program, directory):
    config = prepared(program, directory)
    done = program.fails(1, "not finite", "train", config, "--out", directory / "run", "--json", "--set", "optimizer.lr=1000",
                         "--set", "optimizer.weight_decay=1000", "--set", "optimizer.warmup=0", "--set", "train.steps=30")
    assert "first in '" in done.stderr
    assert any(line["loss"] is None for line in metrics(directory / "run") if "loss" in line)


def test_bench(program, directory):
    done = program.ok("bench", "train", "--layers", 1, "--batch", 2, "--seq", 32, "--recipe", "fp32", "--steps", 2, "--json")
    (line,) = objects(done.stdout)
    assert line["name"] == "train" and line["milliseconds"] > 0 and line["shape"]["layers"] == 1
    assert line["peak_resident_bytes"] > line["planned_bytes"] > 4 * 4 * 1_900_000
    assert "tokens/s" in program.ok("bench", "train", "--layers", 1, "--batch", 2, "--seq", 32, "--steps", 1).stdout
    program.fails(2, "kernel_benchmarks", "bench", "kernels", "--device", "cpu")


def test_bench_train_ladder(program, directory):
    common = ["bench", "train", "--layers", 1, "--batch", 2, "--seq", 32, "--steps", 1, "--device", "cpu", "--ablate"]
    rungs = objects(program.ok(*common, "--json").stdout)
    assert [rung["variant"] for rung in rungs] == ["loop", "grouped", "grouped", "fused", "fused"]
    assert all(rung["milliseconds"] > 0 and rung["host_syncs"] == 0 for rung in rungs)
    memory = {(rung["variant"], rung["recipe"]): rung["activation_bytes_per_token"] for rung in rungs}
    plain = rungs[0]["recipe"]
    assert memory["fused", plain] < memory["grouped", plain] <= memory["loop", plain]
    assert memory["fused", "mxfp8/128"] < memory["grouped", "mxfp8/128"]
    table = program.ok(*common, "--set", "model.intermediate=96").stdout
    assert "mxfp8/128  not run: " in table and table.count("not run") == 2, table
    program.fails(2, "excludes --", *common, "--recipe", "fp32")


def test_bench_moe(program, directory):
    common = ["bench", "moe", "--intermediate", 256, "--experts", 4, "--tokens", 96, "--turns", 2, "--json", "--device", "cpu"]
    rungs = objects(program.ok(*common, "--hidden", 128, "--ablate").stdout)
    assert [rung["variant"] for rung in rungs] == ["loop", "grouped", "grouped", "fused", "fused"]
    assert all(rung["milliseconds"] > 0 and rung["host_syncs"] == 0 for rung in rungs)
    saved = {(rung["variant"], rung["recipe"]): rung["bytes_saved_per_token"] for rung in rungs}
    plain = rungs[0]["recipe"]
    # Fused: beside the input nothing but gate and up of each choice, and the routing.
    width = 4 if plain == "fp32" else 2
    assert 0 <= saved["fused", plain] - 2 * 2 * 256 * width < 64
    assert saved["fused", plain] < saved["grouped", plain] <= saved["loop", plain]
    assert len(objects(program.ok(*common, "--hidden", 128).stdout)) == 2
    refused = objects(program.ok(*common, "--hidden", 96, "--ablate").stdout)
    assert "multiples of 128" in refused[2]["refused"] and "refused" not in refused[1]
    biased = objects(program.ok(*common, "--hidden", 128, "--biases").stdout)
    assert [rung["variant"] for rung in biased] == ["fused", "fused biased"] * 2
    assert biased[0]["bytes_saved_per_token"] == biased[1]["bytes_saved_per_token"]
    program.fails(2, "4 experts", "bench", "moe", "--experts", 4, "--top-k", 5)


if __name__ == "__main__":
    main(globals())
