"""bench/peer-llama: tokens/s of a prompt of about 512 tokens and of generating after it, by firn and by llama.cpp, in turn.

    peer_llama.py FIRN THREADS MODEL.gguf...

Both are timed around their own work, without loading: firn by `generate --stats` on the second of two equal prompts, llama.cpp
around llama_decode on its second run, with its own defaults (weights repacked, F16 cache). Medians of three rounds.
"""
import re
import statistics
import subprocess
import sys
import tempfile
import time

from llama_logprobs import Llama, Model

FIRN, THREADS, MODELS = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
N_PROMPT, N_NEW, ROUNDS = 512, 48, 3
WORDS = "Once upon a time there was a small town near the sea and its people told each other stories about"


def prompt_of(model):
    text = WORDS
    while len(model.tokenize(text, True, True)) < N_PROMPT:
        text += " " + WORDS
    return text


def firn_speeds(path, text):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(f"{text}\n{text}\n")
        f.flush()
        done = subprocess.run([FIRN, "generate", path, "--prompts", f.name, "-n", str(N_NEW), "--stats", "--threads",
                               str(THREADS)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"prompt +(\d+) tokens, +([\d.]+) tokens/s; said +(\d+), +([\d.]+) tokens/s", done.stderr)
    if len(found) != 2 or int(found[1][2]) < N_NEW // 2:
        sys.exit(f"peer_llama: firn said {done.stderr!r}")
    return float(found[1][1]), float(found[1][3])


def llama_speeds(model, ids):
    context = model.context(len(ids) + N_NEW, THREADS, [])
    for _ in range(2):
        context.clear()
        start = time.perf_counter()
        row = context.run(ids, 0, False)[0]
        prompt = len(ids) / (time.perf_counter() - start)
    start = time.perf_counter()
    for i in range(N_NEW):
        row = context.run([int(row.argmax())], len(ids) + i, False)[0]
    new = N_NEW / (time.perf_counter() - start)
    context.close()
    return prompt, new


def main():
    llama = Llama()
    print(f"{llama.version}, {THREADS} threads, tokens/s\n")
    print("| model | | firn | llama.cpp | firn/llama.cpp |\n|---|---|---|---|---|")
    for path in MODELS:
        model = Model(llama, path, fast=True)
        text = prompt_of(model)
        ids = model.tokenize(text, True, True)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(firn_speeds(path, text))
            theirs.append(llama_speeds(model, ids))
        for i, what in enumerate((f"prompt of {len(ids)} tokens", f"generation of {N_NEW} tokens")):
            a, b = (statistics.median(r[i] for r in rows) for rows in (ours, theirs))
            print(f"| {path.split('/')[-1]} | {what} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
        model.close()


main()
