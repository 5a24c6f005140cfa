"""A real model, dense and upcycled to experts, firn beside the real llama.cpp.

    check_smollm2.py FIRN SMOLLM2.gguf WORK_FOLDER

Loss: `firn eval` on tests/data/prose.jsonl against the mean of -log p of llama.cpp's logits over the same windows, cut here
from llama.cpp's own tokens. On the weights written out by `firn quantize IN OUT f32` the two may differ by 0.01 %, on the
packed file, where llama.cpp rounds activations to 8 bits, by 0.5 %.

Words: greedy continuations of the 20 prompts of tests/data/prompts.txt by `firn generate` on the packed file. llama.cpp, on
the written-out weights, reads prompt and continuation and must find every token the likeliest, up to the first position
where firn's two best logits are closer than 1e-3.

WORK_FOLDER/smollm2.json receives the figures; the last line is "N passed, N failed".
"""
import json
import os
import sys

import numpy as np

from llama_logprobs import Llama, Model, logits_of
from peer import Checks, Firn

firn, SOURCE, WORK = Firn(sys.argv[1]), sys.argv[2], sys.argv[3]
DATA, PROMPTS = "tests/data/prose.jsonl", "tests/data/prompts.txt"
CONTEXT, NEW, NEAR = 256, 16, 1e-3
F32_BOUND, PACKED_BOUND = 1e-4, 5e-3
THREADS = 1         # llama.cpp's threads spin while they wait for each other: on a busy machine two are slower than one
checks = Checks()


def windows(model):
    """As firn cuts a long text: each window begins with the last token of the one before."""
    out = []
    with open(DATA, encoding="utf-8") as f:
        for line in f:
            ids = model.tokenize(json.loads(line)["text"], True, True)
            for begin in range(0, len(ids) - 1, CONTEXT - 1):
                out.append(ids[begin:begin + CONTEXT])
    return out


def loss_of(model):
    """Sum and number of -log p(token | those before it in the window)."""
    total = count = 0
    sequences = windows(model)
    for ids, rows in zip(sequences, logits_of(model, sequences, threads=THREADS)):
        x = rows[:-1].astype(np.float64)
        top = x.max(-1, keepdims=True)
        log_z = top[:, 0] + np.log(np.exp(x - top).sum(-1))
        total += (log_z - x[np.arange(len(x)), ids[1:]]).sum()
        count += len(ids) - 1
    return total / count, count


def check_loss(what, path, model, bound, **more):
    ours = json.loads(firn("eval", path, "--data", DATA, "--context", CONTEXT, "--json"))
    theirs, count = loss_of(model)
    checks.that(f"{what}: as many tokens ({count})", ours["target_tokens"] == count, f"firn counts {ours['target_tokens']}")
    checks.at_most(f"{what}: loss {ours['loss']:.6f}, llama.cpp {theirs:.6f}", abs(ours["loss"] / theirs - 1), bound,
                   measure="loss", loss=ours["loss"], tokens=count, **more)


def check_words(what, path, model, **more):
    said = [json.loads(line) for line in
            firn("generate", path, "--prompts", PROMPTS, "-n", NEW, "--json").splitlines()]
    checks.that(f"{what}: {len(said)} prompts", len(said) == 20)
    sequences = [s["prompt_tokens"] + s["tokens"] for s in said]
    theirs = logits_of(model, sequences, threads=THREADS)
    compared = ties = 0
    worst = np.inf
    for s, ids, ours, rows in zip(said, sequences, firn.logits(path, sequences, WORK), theirs):
        n = len(s["prompt_tokens"])
        for i in range(n, len(ids)):
            second, first = np.partition(ours[i - 1], -2)[-2:]
            if first - second < NEAR:
                ties += 1
                break
            worst = min(worst, first - second)
            compared += 1
            if rows[i - 1].argmax() != ids[i]:
                text = model.detokenize(ids[:n])
                checks.that(f"{what}: {text!r}", False, f"llama.cpp goes on otherwise at token {i - n} "
                            f"(firn's two best logits differ by {first - second:.2e})")
                break
    checks.that(f"{what}: {compared} tokens as llama.cpp has them ({ties} prompts end at a near tie; smallest gap {worst:.1e})",
                compared > 10 * len(said), "too few")
    checks.records.append({"what": what, "measure": "words", "tokens": compared, "prompts": len(said), "ties": ties, **more})


def main():
    os.makedirs(WORK, exist_ok=True)
    llama = Llama()
    mixture, plain = f"{WORK}/upcycled.gguf", f"{WORK}/plain.gguf"
    firn("upcycle", SOURCE, mixture, "--experts", 3, "--used", 2, "--seed", 1)
    for what, path in (("dense", SOURCE), ("upcycled", mixture)):
        firn("quantize", path, plain, "f32")
        packed = Model(llama, path)
        check_loss(f"{what} Q4_1", path, packed, PACKED_BOUND, form=what, type="Q4_1")
        packed.close()
        model = Model(llama, plain)
        check_loss(f"{what} F32", plain, model, F32_BOUND, form=what, type="F32")
        check_words(what, path, model, form=what)
        model.close()
        os.remove(plain)
    status = checks.finish(f"{WORK}/smollm2.json", llama_cpp=llama.version)
    os.remove(mixture)
    sys.exit(status)


main()
