"""Asks the held-out questions of the demo, checks the metrics, and compares llama.cpp with firn.

    demo_questions.py FIRN FOLDER HELDOUT.jsonl LIMIT TINY [PYTHON_WITH_LLAMA]

An answer counts when it holds the fact: the words under "fact" of the question's line, whatever the letter case. The run
passes when the evaluation loss fell to a tenth (tiny: the training loss halved) and nine of ten questions are answered, by
firn and by llama.cpp (tiny: llama.cpp gives firn's text).
"""
import json
import subprocess
import sys

FIRN, FOLDER, HELDOUT, LIMIT, TINY = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "true"
LLAMA = sys.argv[6] if len(sys.argv) > 6 else None
BASE, ADAPTER = FOLDER + "/base.gguf", FOLDER + "/out/adapter.gguf"
failures = []


def ask_firn(question):
    return subprocess.run([FIRN, "generate", BASE, "--adapter", ADAPTER, "--chat", "-p", question, "-n", "48"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def prompt_of(question):
    with open(FOLDER + "/messages.json", "w") as f:
        json.dump({"messages": [{"role": "user", "content": question}], "add_generation_prompt": True}, f)
    return subprocess.run([FIRN, "chat-template", "--model", BASE, "--messages", FOLDER + "/messages.json"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout


def ask_llama(question):
    """In a process of its own: firn needs no Python, so neither does this file need llama.cpp's."""
    done = subprocess.run([LLAMA, "scripts/llama_logprobs.py", BASE, "--generate", "48", "--prompt", prompt_of(question),
                           "--lora", ADAPTER], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["results"][0]["text"].replace("<|im_end|>", "").strip()


def expect(good, sentence):
    print(("ok    " if good else "FAIL  ") + sentence)
    if not good:
        failures.append(sentence)


with open(HELDOUT) as f:
    items = [json.loads(line) for line in f][:LIMIT]
right = {"firn": 0, "llama.cpp": 0}
same = 0
for item in items:
    question, fact = item["messages"][0]["content"], item["fact"]
    answers = {"firn": ask_firn(question)}
    if LLAMA:
        answers["llama.cpp"] = ask_llama(question)
        same += answers["firn"] == answers["llama.cpp"]
    for who, text in answers.items():
        good = fact.lower() in text.lower()
        right[who] += good
        print(f"{who:9} {'+' if good else '-'}  {question}  ->  {text}")

with open(FOLDER + "/out/metrics.jsonl") as f:
    metrics = [json.loads(line) for line in f]
if TINY:
    losses = [m["loss"] for m in metrics if m["step"] > 0]
    expect(losses[-1] <= losses[0] / 2, f"training loss fell from {losses[0]:.3f} to {losses[-1]:.3f} (wanted: half)")
    if LLAMA:
        expect(same >= len(items) - 1, f"llama.cpp gives firn's text for {same} of {len(items)} questions")
else:
    losses = [m["eval_loss"] for m in metrics if "eval_loss" in m]
    expect(losses[-1] < losses[0] / 10, f"evaluation loss fell from {losses[0]:.3f} to {losses[-1]:.4f} (wanted: a tenth)")
    for who, n in right.items():
        if who == "firn" or LLAMA:
            expect(n >= 0.9 * len(items), f"{who} answers {n} of {len(items)} held-out questions")
print(f"{3 if not TINY else 2} checks, {len(failures)} failed")
sys.exit(bool(failures))
