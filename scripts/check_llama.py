"""Does the real llama.cpp compute what firn computes, and does it apply firn's adapters?

    check_llama.py FIRN WORK_FOLDER

For a random model of each architecture (firn init), F32 and packed (packed: llama.cpp gets the weights written out by
`firn quantize IN OUT f32`, since on packed ones it rounds activations to 8 bits): logits of the base, and of the base with
an adapter trained for a few steps on every class of tensors. Bound: 1e-9 normalized mean squared error; for the change that
the adapter makes, 1e-6 of its own size. The last line is "N passed, N failed".
"""
import json
import os
import random
import subprocess
import sys

import numpy as np

from llama_logprobs import Llama, Model, logits_of

FIRN, WORK = sys.argv[1], sys.argv[2]
MODELS = [("tiny-llama", "f32"), ("tiny", "f32"), ("tiny-qwen3moe", "f32"), ("tiny-olmoe", "f32"), ("tiny-llama3", "f32"),
          ("tiny-qwen2", "f32"), ("tiny-qwen3", "f32"), ("tiny-smollm3", "f32"), ("tiny-qwen2moe", "f32"),
          ("tiny-granite", "f32"), ("tiny-granitemoe", "f32"), ("tiny-glm4moe", "f32"), ("tiny-ernie", "f32"),
          ("tiny-gpt-oss", "f32"), ("tiny-bailingmoe2", "f32"),
          ("tiny-llama", "q4_1"), ("tiny", "q4_0"), ("tiny-qwen3moe", "q4_K"), ("tiny-olmoe", "iq4_nl")]
BOUND, CHANGE_BOUND = 1e-9, 1e-6
passed = failed = 0


def firn(*args):
    done = subprocess.run([FIRN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"firn {' '.join(args)}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def check(name, error, bound):
    global passed, failed
    good = error <= bound
    passed, failed = passed + good, failed + (not good)
    print(f"{'ok  ' if good else 'FAIL'} {name:44} {error:.2e} (bound {bound:.0e})", flush=True)


def nmse(x, ref):
    return float(((x - ref) ** 2).sum() / (ref ** 2).sum())


def data_set(path):
    words = "snow packs toward ice and grains freeze into one another when the wind falls".split()
    rng = random.Random(1)
    with open(path, "w") as f:
        for _ in range(24):
            text = [" ".join(rng.choices(words, k=8)) for _ in range(2)]
            f.write(json.dumps({"messages": [{"role": "user", "content": text[0]},
                                             {"role": "assistant", "content": text[1]}]}) + "\n")


def one(llama, like, kind):
    folder = f"{WORK}/{like}-{kind}"
    os.makedirs(folder, exist_ok=True)
    model, plain, run = f"{folder}/model.gguf", f"{folder}/plain.gguf", f"{folder}/run"
    subprocess.run(["rm", "-rf", run])
    firn("init", "--like", like, "--type", kind, "--seed", "3", model)
    firn("finetune", "--model", model, "--data", f"{WORK}/data.jsonl", "--output", run, "--targets", "all", "--steps", "3",
         "--context", "128", "--learning-rate", "1e-2", "--schedule", "constant", "--warmup", "0", "--eval-split", "0",
         "--rank", "4", "--threads", "1")
    if kind == "f32":
        plain = model
    else:
        firn("quantize", model, plain, "f32")
    peer = Model(llama, plain)
    rng = random.Random(5)
    sequences = [[rng.randrange(3, peer.n_vocab) for _ in range(n)] for n in (48, 33)]
    with open(f"{folder}/tokens.json", "w") as f:
        json.dump(sequences, f)
    ours, theirs = [], []
    for adapter in (None, f"{run}/adapter.gguf"):
        out = f"{folder}/logits.f32"
        firn("logits", model, "--tokens", f"{folder}/tokens.json", "--output", out,
             *(["--adapter", adapter] if adapter else []))
        ours.append(np.fromfile(out, "<f4").astype(np.float64))
        rows = logits_of(peer, sequences, [(adapter, 1.0)] if adapter else [], threads=1)
        theirs.append(np.concatenate([r.ravel() for r in rows]).astype(np.float64))
    check(f"{like} {kind}: base", nmse(ours[0], theirs[0]), BOUND)
    check(f"{like} {kind}: with the adapter", nmse(ours[1], theirs[1]), BOUND)
    check(f"{like} {kind}: the adapter's change", nmse(ours[1] - ours[0], theirs[1] - theirs[0]), CHANGE_BOUND)


def main():
    global failed
    os.makedirs(WORK, exist_ok=True)
    data_set(f"{WORK}/data.jsonl")
    llama = Llama()
    for like, kind in MODELS:
        try:
            one(llama, like, kind)
        except (RuntimeError, OSError) as why:
            print(f"FAIL {like} {kind}: {why}")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
