"""Does the real llama.cpp compute what firn computes, and does it apply firn's adapters?

    check_llama.py FIRN WORK_FOLDER [NAME...]

For every small shape of `firn init` (or those named), so for every architecture: a random model in F32, and one packed
(llama.cpp gets its weights written out by `firn quantize IN OUT f32`, since on packed ones it rounds activations to 8
bits): logits of the base, and of the base with an adapter trained for a few steps on every class of tensors that llama.cpp
applies, of mixed ranks, on the F32 model with rslora too; that one merged by `firn merge`, against the adapter. Bound: 1e-9 normalized mean squared error; for the change that the
adapter makes, 1e-6 of its own size. Greedy continuations of a few prompts, with the adapter, token by token, up to near ties. And
what `firn upcycle` makes of the dense ones.

Sequences in which a router's choice is a near tie (two candidates closer than 1e-5 in what is compared, at the last place
chosen) are left out, at most a tenth of them: there rounding decides which experts run. The gaps are read in llama.cpp's
graph while it computes. gemma4's GELU is a table of half precision in llama.cpp: its bounds are wider, and the rest is held to
the usual ones on a third model whose gates are so steep that GELU is 0 or its argument. WORK_FOLDER/models.json receives the figures; the last line is "N passed, N failed".
"""
import ctypes as C
import json
import os
import random
import re
import shutil
import sys

import numpy as np

from llama_logprobs import EvalCallback, Llama, Model, greedy, logits_of
from peer import Checks, Firn, nmse, scale_tensors

firn, WORK, ONLY = Firn(sys.argv[1]), sys.argv[2], sys.argv[3:]
BOUND, CHANGE_BOUND, NEAR, MOST_LEFT_OUT = 1e-9, 1e-6, 1e-5, 0.1
# Its GELU comes from a table in half precision, so that choices are near ties earlier, and some turn that no gap foretells.
# Per-layer inputs have one of their own in each block: twice as many.
TABLE = {"gemma4": 1e-5}
TABLE_CHANGE = {"tiny-gemma4-e": 2e-5}
STEEP, STEEP_GATES = 1e5, re.compile(r"blk\.\d+\.(ffn_gate|ffn_gate_exps|ffn_gate_up_exps|inp_gate)\.weight")
TABLE_NEAR, TABLE_LEFT_OUT = 3e-4, 0.8
PROMPTS, NEW, NEAR_WORDS = ["snow", "the wind", "grains freeze into", "ice", "a", "when the wind falls"], 24, 1e-3
TABLE_NEAR_WORDS = 5e-2
PACKED = ["q4_1", "q4_0", "q4_K", "iq4_nl", "mxfp4", "q6_K", "q5_0", "q3_K", "iq4_xs", "q8_0", "q2_K", "q5_K"]
LENGTHS = sorted(20 + 7 * i % 24 for i in range(58)) + [200, 480]
checks = Checks()


class RouterGaps:
    """Watches llama.cpp's graph: the smallest gap, over tokens and layers, between the last expert chosen and the best one
    not chosen; between groups of experts likewise."""
    NAME = re.compile(rb"(ffn_moe_probs(?:_biased)?)-(\d+)")      # views of them have more behind it

    def __init__(self, lib, info):
        self.lib, self.info, self.rows = lib, info, {}
        p = C.c_void_p
        for name, result, args in [("ggml_get_name", C.c_char_p, [p]), ("ggml_nbytes", C.c_size_t, [p]),
                                   ("ggml_backend_tensor_get", None, [p, p, C.c_size_t, C.c_size_t])]:
            f = getattr(lib, name)
            f.restype, f.argtypes = result, args
        self.callback = EvalCallback(self._look)

    def _look(self, tensor, ask, _):
        name = self.NAME.fullmatch(self.lib.ggml_get_name(tensor))
        if not name:
            return not ask
        if not ask:
            x = np.empty(self.lib.ggml_nbytes(tensor) // 4, np.float32)
            self.lib.ggml_backend_tensor_get(tensor, x.ctypes.data, 0, x.nbytes)
            kind, layer = name.groups()
            if kind == b"ffn_moe_probs_biased" or layer not in self.rows or self.rows[layer][0] == b"ffn_moe_probs":
                self.rows[layer] = kind, x.reshape(-1, self.info["experts"]).astype(np.float64)
        return True

    def take(self):
        """Of what ran since the last call."""
        gap, layers = np.inf, len(self.rows)
        for _, x in self.rows.values():
            groups, used = self.info["expert_groups"], self.info["expert_groups_used"]
            if groups > 1:
                score = np.sort(x.reshape(len(x), groups, -1), -1)[..., -2:].sum(-1)
                order = np.sort(score, -1)
                gap = min(gap, (order[:, -used] - order[:, -used - 1]).min())
                kept = score >= order[:, [-used]]
                x = np.where(np.repeat(kept, x.shape[1] // groups, 1), x, -np.inf)
            k = self.info["experts_used"]
            if k < x.shape[1]:
                order = np.sort(x, -1)
                gap = min(gap, (order[:, -k] - order[:, -k - 1]).min())
        self.rows = {}
        return gap, layers


def data_set(path):
    words = "snow packs toward ice and grains freeze into one another when the wind falls".split()
    rng = random.Random(1)
    with open(path, "w") as f:
        for _ in range(24):
            text = [" ".join(rng.choices(words, k=8)) for _ in range(2)]
            f.write(json.dumps({"messages": [{"role": "user", "content": text[0]},
                                             {"role": "assistant", "content": text[1]}]}) + "\n")


def run_peer(peer, info, sequences, adapters):
    """llama.cpp's logits, and for each sequence the smallest gap of its routers' choices."""
    if not info["experts"]:
        return logits_of(peer, sequences, adapters, threads=1), [np.inf] * len(sequences)
    gaps, found = RouterGaps(peer.lib, info), []
    rows = logits_of(peer, sequences, adapters, threads=1, callback=gaps.callback, after=lambda: found.append(gaps.take()))
    if {layers for _, layers in found} != {info["expert_blocks"]}:
        raise RuntimeError(f"llama.cpp's graph shows the routers of {sorted({n for _, n in found})} blocks, not of "
                           f"{info['expert_blocks']}")
    return rows, [gap for gap, _ in found]


def check_words(name, model, adapter, peer, info, near, folder):
    """firn's greedy tokens beside llama.cpp's, each with its cache, up to the first place where the two best logits, or a
    router's last two candidates, are a near tie."""
    prompts = f"{folder}/prompts.txt"
    with open(prompts, "w") as f:
        f.write("".join(p + "\n" for p in PROMPTS))
    said = [json.loads(line) for line in
            firn("generate", model, "--adapter", adapter, "--prompts", prompts, "-n", NEW, "--json", "--threads", 1).splitlines()]
    compared = ties = 0
    for s in said:
        ids = s["prompt_tokens"]
        theirs = greedy(peer, ids, NEW, [(adapter, 1.0)], threads=1)
        both = list(zip(s["tokens"], theirs))
        same = next((i for i, (a, b) in enumerate(both) if a != b), len(both))
        compared += same
        if same == len(both):
            continue
        prefix = ids + s["tokens"][:same]
        second, first = np.partition(firn.logits(model, [prefix], folder, adapter)[0][-1], -2)[-2:]
        _, gaps = run_peer(peer, info, [prefix], [(adapter, 1.0)])
        ties += 1
        if first - second >= near and gaps[0] >= NEAR:
            checks.that(f"{name}: words", False, f"llama.cpp goes on otherwise at token {same} of {s['prompt']!r} (firn's two best "
                        f"logits differ by {first - second:.2e})")
            return
    checks.that(f"{name}: {compared} words as llama.cpp has them ({ties} of {len(said)} prompts end at a near tie)",
                compared >= NEW, "too few")
    checks.records.append({"what": f"{name}: words", "measure": "words", "tokens": compared, "prompts": len(said), "ties": ties,
                           "shape": name.split()[0], "architecture": info["architecture"], "type": name.split()[1], "classes": []})


def check_merged(llama, name, model, adapter, sequences, adapted, bound, folder, record):
    """What `firn merge` writes, in llama.cpp alone: the logits that it gives with the adapter. In a packed type it loads."""
    merged = f"{folder}/merged.gguf"
    firn("merge", model, adapter, merged, "--no-check", "--threads", 1)
    peer = Model(llama, merged)
    rows = logits_of(peer, sequences, threads=1)
    peer.close()
    errors = [nmse(r, a) for r, a in zip(rows, adapted)]
    checks.at_most(f"{name}: merged", float(np.median(errors)), bound, **record)
    firn("merge", model, adapter, merged, "--type", "q8_0", "--no-check", "--threads", 1)
    peer = Model(llama, merged)
    rows = logits_of(peer, sequences[:1], threads=1)
    peer.close()
    checks.that(f"{name}: merged as q8_0, loads", bool(np.isfinite(rows[0]).all()), "logits that are not finite")


def one(llama, like, arch, kind):
    folder, name = f"{WORK}/{like}-{kind}", f"{like} {kind}"
    os.makedirs(folder, exist_ok=True)
    model, plain, run = f"{folder}/model.gguf", f"{folder}/plain.gguf", f"{folder}/run"
    shutil.rmtree(run, ignore_errors=True)
    steep = kind == "steep"
    tabled = arch in TABLE and not steep
    firn("init", "--like", like, "--type", "f32" if steep else kind, "--seed", 3, model)
    if steep:
        scale_tensors(model, STEEP_GATES, STEEP)
    firn("finetune", "--model", model, "--data", f"{WORK}/data.jsonl", "--output", run, "--targets", "all", "--steps", 3,
         "--context", 128, "--learning-rate", 1e-2, "--schedule", "constant", "--warmup", 0, "--eval-split", 0,
         "--rank", 4, "--rank-of", "blk.0.*=3", *(["--rslora"] if kind == "f32" else []), "--threads", 1)
    adapter = f"{run}/adapter.gguf"
    if kind in ("f32", "steep"):
        plain = model
    else:
        firn("quantize", model, plain, "f32")
    info, trained = json.loads(firn("info", "--json", model)), json.loads(firn("info", "--json", adapter))
    peer = Model(llama, plain)
    rng = random.Random(5)
    shortest = 1
    if info["rope_scaling"] == "longrope":
        shortest += info["original_context"]    # llama.cpp chooses the factors by the cache's size, firn by the sequence's
    sequences = [[rng.randrange(3, peer.n_vocab) for _ in range(max(n, shortest))] for n in LENGTHS]
    theirs, ours, clear = {}, {}, {}
    for which, adapters in (("base", []), ("adapter", [adapter])):
        theirs[which], gaps = run_peer(peer, info, sequences, [(a, 1.0) for a in adapters])
        ours[which] = firn.logits(model, sequences, folder, *adapters)
        clear[which] = [i for i, gap in enumerate(gaps) if gap >= (TABLE_NEAR if tabled else NEAR)]
        left_out = len(sequences) - len(clear[which])
        if info["experts"]:
            checks.that(f"{name}: {left_out} of {len(sequences)} sequences left out for near ties (smallest gap "
                        f"{min(gaps):.1e})", left_out <= (TABLE_LEFT_OUT if tabled else MOST_LEFT_OUT) * len(sequences), "too many")
    clear["change"] = sorted(set(clear["base"]) & set(clear["adapter"]))

    def one_of(rows, which, i):
        as_double = lambda w: np.asarray(rows[w][i], np.float64).ravel()
        return as_double("adapter") - as_double("base") if which == "change" else as_double(which)

    def error(which):
        """Of all sequences together; where a table turns choices that no gap foretells, of the one in the middle."""
        if tabled and info["experts"]:
            return float(np.median([nmse(one_of(ours, which, i), one_of(theirs, which, i)) for i in clear[which]]))
        together = lambda rows: np.concatenate([one_of(rows, which, i) for i in clear[which]])
        return nmse(together(ours), together(theirs))

    def record(which):
        return {"measure": which, "shape": like, "architecture": arch, "type": kind, "sequences": len(sequences),
                "clear": len(clear[which]), "tokens": sum(len(sequences[i]) for i in clear[which]),
                "classes": sorted(trained["classes"])}

    for which, what in (("base", "base"), ("adapter", "with the adapter")):
        checks.at_most(f"{name}: {what}", error(which), TABLE[arch] if tabled else BOUND, **record(which))
    checks.at_most(f"{name}: the adapter's change", error("change"),
                   TABLE_CHANGE.get(like, TABLE[arch]) if tabled else CHANGE_BOUND, **record("change"))
    check_words(name, model, adapter, peer, info, TABLE_NEAR_WORDS if tabled else NEAR_WORDS, folder)
    peer.close()
    if kind == "f32":
        check_merged(llama, name, model, adapter, [sequences[i] for i in clear["adapter"]],
                     [theirs["adapter"][i] for i in clear["adapter"]], TABLE[arch] if tabled else BOUND, folder,
                     dict(record("adapter"), measure="merged"))
    shutil.rmtree(folder)


def upcycled(llama, like):
    """llama.cpp on a dense model, and on what `firn upcycle` makes of it: the same logits, up to rounding."""
    dense, mixture = f"{WORK}/dense.gguf", f"{WORK}/mixture.gguf"
    firn("init", "--like", like, "--type", "f32", "--seed", 3, dense)
    firn("upcycle", dense, mixture, "--experts", 5, "--used", 3)
    rows = []
    for path in (dense, mixture):
        peer = Model(llama, path)
        rng = random.Random(5)
        rows.append(logits_of(peer, [[rng.randrange(3, peer.n_vocab) for _ in range(50)]], threads=1)[0])
        peer.close()
        os.remove(path)
    checks.at_most(f"{like} upcycled, in llama.cpp alone", nmse(rows[1], rows[0]), BOUND)


def main():
    os.makedirs(WORK, exist_ok=True)
    data_set(f"{WORK}/data.jsonl")
    llama = Llama()
    shapes = json.loads(firn("init", "--list", "--json"))
    archs = {a["name"] for a in json.loads(firn("info", "--architectures", "--json"))}
    small = [s for s in shapes if s["name"].startswith("tiny") and s["architecture"] in archs]
    if ONLY:
        small = [s for s in small if s["name"] in ONLY]
    else:
        lacking = archs - {s["architecture"] for s in small}
        checks.that("every architecture has a small shape", not lacking, ", ".join(sorted(lacking)))
    for i, s in enumerate(small):
        for kind in ("f32", PACKED[i % len(PACKED)]) + (("steep",) if s["architecture"] in TABLE else ()):
            try:
                one(llama, s["name"], s["architecture"], kind)
            except (RuntimeError, OSError) as why:
                checks.that(f"{s['name']} {kind}", False, str(why))
    for like in () if ONLY else ("tiny-llama", "tiny-qwen3", "tiny-granite", "tiny-granitehybrid-dense", "tiny-lfm2"):
        try:
            upcycled(llama, like)
        except (RuntimeError, OSError) as why:
            checks.that(f"{like} upcycled", False, str(why))
    sys.exit(checks.finish(f"{WORK}/models.json", llama_cpp=llama.version))


main()
