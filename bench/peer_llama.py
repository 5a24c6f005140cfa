"""bench/peer-llama: tokens/s of a 512-token prompt and of generating after it, by firn and by llama.cpp.

firn is timed from outside, by differences: the short prompt's time is taken off, so that loading does not count.
"""
import statistics
import subprocess
import sys
import time

from llama_logprobs import Llama, Model

FIRN, MODEL, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3])
N_PROMPT, N_NEW, RUNS = 512, 48, 3


def firn_seconds(prompt, n):
    start = time.perf_counter()
    subprocess.run([FIRN, "generate", MODEL, "-p", prompt, "-n", str(n), "--threads", str(THREADS)],
                   stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def llama_seconds(model, ids):
    context = model.context(len(ids) + N_NEW, THREADS, [])
    start = time.perf_counter()
    row = context.run(ids, 0, False)[0]
    prompt = time.perf_counter() - start
    start = time.perf_counter()
    for i in range(N_NEW):
        row = context.run([int(row.argmax())], len(ids) + i, False)[0]
    new = time.perf_counter() - start
    model.lib.llama_batch_free(context.batch)
    model.lib.llama_free(context.handle)
    return prompt, new


model = Model(Llama(), MODEL)
words = "Once upon a time there was a small town near the sea and its people told each other stories about"
text = words
while len(model.tokenize(text, True, True)) < N_PROMPT:
    text += " " + words
ids = model.tokenize(text, True, True)
ours, theirs = [], []
for _ in range(RUNS):
    short, full, longer = firn_seconds("Once", 1), firn_seconds(text, 1), firn_seconds(text, 1 + N_NEW)
    ours.append((len(ids) / (full - short), N_NEW / (longer - full)))
    prompt, new = llama_seconds(model, ids)
    theirs.append((len(ids) / prompt, N_NEW / new))
for i, what in enumerate((f"prompt of {len(ids)} tokens", f"generation of {N_NEW} tokens")):
    a, b = (statistics.median(r[i] for r in rows) for rows in (ours, theirs))
    print(f"{what:26} firn {a:8.1f}  llama.cpp {b:8.1f} tokens/s   firn/llama.cpp {a / b:.2f}")
