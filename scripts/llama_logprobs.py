#!/usr/bin/env python3
"""Logits, token ids and greedy text from the real llama.cpp, for comparison with firn.

    pip install xllamacpp==2026.10.11549 numpy        (x86-64 Linux, prebuilt; llama.cpp b11549)

Needs Python 3.10 or newer and the system's libgomp.so.1 (Debian: libgomp1).

    llama_logprobs.py MODEL.gguf --tokens SEQS.json --out LOGITS.f32 [--lora ADAPTER.gguf[=SCALE]]... [--compare REF.f32]
    llama_logprobs.py MODEL.gguf --tokenize 'some text'
    llama_logprobs.py MODEL.gguf --tokenize --file text.txt
    llama_logprobs.py MODEL.gguf --generate N (--prompt 'some text' | --tokens SEQS.json) [--lora ADAPTER.gguf[=SCALE]]...

SEQS.json is a list of token sequences, or an object with such a list under "tokens" (a case.json is one). LOGITS.f32 gets
little-endian float32 [n_seq][n_tok][n_vocab]; sequences of unequal length simply follow each other. If the object also has
"loss_mask", the masked loss is printed. Output on stdout is one JSON object; errors are one sentence on stderr, exit code 1.

How llama.cpp is run: CPU only, F32 KV cache, flash attention off, every sequence in one batch and alone in the cache,
weights in the file's own layout (no repacking). F32 weights are then multiplied in F32. With quantized weights llama.cpp
also rounds the activations to 8 bits, so its logits differ from exact arithmetic on the same packed weights.

The wheel is a Python extension which also exports llama.cpp's C API. It is called here through ctypes, so the two parameter
structs below belong to that version alone; their defaults are checked before use and any other layout is refused.
"""
import argparse
import ctypes as C
import importlib.metadata
import importlib.util
import json
import os
import sys

PACKAGE, VERSION = "xllamacpp", "2026.10.11549"
TYPE_F32 = 0                # enum ggml_type and enum llama_ftype alike
FLASH_ATTENTION_OFF = 0     # enum llama_flash_attn_type


def die(sentence):
    sys.exit("llama_logprobs: " + sentence)


class ModelParams(C.Structure):
    _fields_ = [("devices", C.c_void_p), ("tensor_buft_overrides", C.c_void_p), ("n_gpu_layers", C.c_int32),
                ("split_mode", C.c_int32), ("load_mode", C.c_int32), ("lazy_mode", C.c_int32), ("main_gpu", C.c_int32),
                ("tensor_split", C.c_void_p), ("progress_callback", C.c_void_p), ("progress_callback_user_data", C.c_void_p),
                ("kv_overrides", C.c_void_p), ("vocab_only", C.c_bool), ("check_tensors", C.c_bool),
                ("use_extra_bufts", C.c_bool), ("no_host", C.c_bool), ("no_alloc", C.c_bool), ("load_mtp", C.c_bool),
                ("spare", C.c_uint8 * 64)]


class ContextParams(C.Structure):
    _fields_ = [("n_ctx", C.c_uint32), ("n_batch", C.c_uint32), ("n_ubatch", C.c_uint32), ("n_seq_max", C.c_uint32),
                ("n_rs_seq", C.c_uint32), ("n_outputs_max", C.c_uint32), ("n_outputs_max_per_seq", C.c_uint32),
                ("n_threads", C.c_int32), ("n_threads_batch", C.c_int32), ("ctx_type", C.c_int32),
                ("rope_scaling_type", C.c_int32), ("pooling_type", C.c_int32), ("attention_type", C.c_int32),
                ("flash_attn_type", C.c_int32), ("rope_freq_base", C.c_float), ("rope_freq_scale", C.c_float),
                ("yarn_ext_factor", C.c_float), ("yarn_attn_factor", C.c_float), ("yarn_beta_fast", C.c_float),
                ("yarn_beta_slow", C.c_float), ("yarn_orig_ctx", C.c_uint32), ("defrag_thold", C.c_float),
                ("cb_eval", C.c_void_p), ("cb_eval_user_data", C.c_void_p), ("type_k", C.c_int32), ("type_v", C.c_int32),
                ("moe_cache_size", C.c_size_t), ("abort_callback", C.c_void_p), ("abort_callback_data", C.c_void_p),
                ("embeddings", C.c_bool), ("offload_kqv", C.c_bool), ("no_perf", C.c_bool), ("op_offload", C.c_bool),
                ("swa_full", C.c_bool), ("kv_unified", C.c_bool), ("samplers", C.c_void_p), ("n_samplers", C.c_size_t),
                ("ctx_other", C.c_void_p), ("spare", C.c_uint8 * 64)]


class Batch(C.Structure):
    _fields_ = [("n_tokens", C.c_int32), ("token", C.POINTER(C.c_int32)), ("embd", C.POINTER(C.c_float)),
                ("pos", C.POINTER(C.c_int32)), ("n_seq_id", C.POINTER(C.c_int32)),
                ("seq_id", C.POINTER(C.POINTER(C.c_int32))), ("logits", C.POINTER(C.c_int8))]


LogCallback = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
EvalCallback = C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_bool, C.c_void_p)      # tensor, ask, user: see ggml-backend.h


class Llama:
    """The part of llama.cpp's C API that is needed here."""

    def __init__(self, verbose=False):
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None:
            die(f"needs real llama.cpp from the package {PACKAGE}; install it with: pip install {PACKAGE}=={VERSION}")
        try:
            module = __import__(PACKAGE + "." + PACKAGE, fromlist=["__file__"])
            self.lib = lib = C.CDLL(module.__file__)
        except (ImportError, OSError) as why:
            die(f"cannot load the package {PACKAGE}: {why}; install it with: pip install --force-reinstall {PACKAGE}=={VERSION}")
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")     # a failed assertion says so and aborts, without calling a debugger
        self.log, self.verbose = [], verbose
        self._callback = LogCallback(self._on_log)      # kept alive: llama.cpp holds the pointer
        p, i32 = C.c_void_p, C.c_int32
        for name, result, args in [
                ("llama_log_set", None, [LogCallback, p]), ("llama_backend_init", None, []),
                ("llama_model_default_params", ModelParams, []), ("llama_context_default_params", ContextParams, []),
                ("llama_model_load_from_file", p, [C.c_char_p, ModelParams]), ("llama_model_free", None, [p]),
                ("llama_init_from_model", p, [p, ContextParams]), ("llama_free", None, [p]),
                ("llama_model_get_vocab", p, [p]), ("llama_vocab_n_tokens", i32, [p]), ("llama_vocab_is_eog", C.c_bool, [p, i32]),
                ("llama_tokenize", i32, [p, C.c_char_p, i32, C.POINTER(i32), i32, C.c_bool, C.c_bool]),
                ("llama_detokenize", i32, [p, C.POINTER(i32), i32, C.c_char_p, i32, C.c_bool, C.c_bool]),
                ("llama_get_memory", p, [p]), ("llama_memory_clear", None, [p, C.c_bool]),
                ("llama_batch_init", Batch, [i32, i32, i32]), ("llama_batch_free", None, [Batch]),
                ("llama_decode", i32, [p, Batch]), ("llama_get_logits_ith", C.POINTER(C.c_float), [p, i32]),
                ("llama_adapter_lora_init", p, [p, C.c_char_p]),
                ("llama_set_adapters_lora", i32, [p, C.POINTER(p), C.c_size_t, C.POINTER(C.c_float)])]:
            try:
                f = getattr(lib, name)
            except AttributeError:
                die(f"the installed {PACKAGE} has no {name}; this tool is written for version {VERSION}")
            f.restype, f.argtypes = result, args
        lib.llama_log_set(self._callback, None)
        lib.llama_backend_init()
        self._check_layout()

    def _on_log(self, level, text, _):
        if self.verbose:
            sys.stderr.write(text.decode("utf-8", "replace"))
        elif level >= 3:
            self.log.append(text.decode("utf-8", "replace").strip())

    def _check_layout(self):
        """Defaults with unusual values sit at the ends and in the middle of both structs; a shifted field would show here."""
        c, m = self.lib.llama_context_default_params(), self.lib.llama_model_default_params()
        found = (c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max, c.flash_attn_type, c.yarn_ext_factor, c.defrag_thold, c.type_k,
                 c.type_v, c.embeddings, c.offload_kqv, c.op_offload, c.swa_full, c.kv_unified, c.n_samplers,
                 m.n_gpu_layers, m.split_mode, m.vocab_only, m.use_extra_bufts, m.no_alloc)
        expected = (512, 2048, 512, 1, -1, -1.0, -1.0, 1, 1, False, True, True, True, False, 0, -1, 1, False, True, False)
        if found != expected:
            die(f"the installed {PACKAGE} lays out llama.cpp's parameters differently from version {VERSION}; "
                f"install that one: pip install {PACKAGE}=={VERSION}")

    @property
    def version(self):
        installed = importlib.metadata.version(PACKAGE)     # its last part is llama.cpp's build number
        return f"llama.cpp b{installed.split('.')[-1]} ({PACKAGE} {installed})"

    def why(self):
        return " | ".join(dict.fromkeys(line for line in self.log if line)) or "llama.cpp gave no reason"


class Model:
    """fast: as llama.cpp's own programs run it (weights repacked, F16 cache, its choice of attention), for speed; else as
    the head of this file says, for comparison."""

    def __init__(self, llama, path, vocab_only=False, fast=False):
        if not os.path.isfile(path):
            die(f"no such model file: {path}")
        self.llama, self.lib, self.path = llama, llama.lib, path
        p = self.lib.llama_model_default_params()
        p.n_gpu_layers, p.vocab_only, p.use_extra_bufts = 0, vocab_only, fast
        self.fast = fast
        llama.log.clear()
        self.handle = self.lib.llama_model_load_from_file(os.fsencode(path), p)
        if not self.handle:
            die(f"llama.cpp does not load {path}: {llama.why()}")
        self.vocab = self.lib.llama_model_get_vocab(self.handle)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text, add_special, parse_special):
        data = text.encode("utf-8", "surrogateescape")
        room = len(data) + 16
        while True:
            ids = (C.c_int32 * room)()
            n = self.lib.llama_tokenize(self.vocab, data, len(data), ids, room, add_special, parse_special)
            if n >= 0:
                return list(ids[:n])
            room = -n

    def detokenize(self, ids, special=True):
        array, room = (C.c_int32 * len(ids))(*ids), 16 + 16 * len(ids)
        while True:
            buf = C.create_string_buffer(room)
            n = self.lib.llama_detokenize(self.vocab, array, len(ids), buf, room, False, special)
            if n >= 0:
                return buf.raw[:n].decode("utf-8", "replace")
            room = -n

    def context(self, n_tokens, threads, adapters, callback=None):
        return Context(self, n_tokens, threads, adapters, callback)

    def close(self):
        self.lib.llama_model_free(self.handle)


class Context:
    """adapters: list of (path, scale). callback: an EvalCallback, asked about every tensor that is computed."""

    def __init__(self, model, n_tokens, threads, adapters, callback=None):
        self.model, self.lib, llama = model, model.lib, model.llama
        p = self.lib.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = n_tokens, n_tokens, n_tokens
        p.n_threads = p.n_threads_batch = threads
        if model.fast:
            p.n_ubatch = min(n_tokens, 512)
        else:
            p.flash_attn_type, p.type_k, p.type_v = FLASH_ATTENTION_OFF, TYPE_F32, TYPE_F32
        p.offload_kqv = p.op_offload = False
        p.cb_eval = C.cast(callback, C.c_void_p) if callback else None
        llama.log.clear()
        self.handle = self.lib.llama_init_from_model(model.handle, p)
        if not self.handle:
            die(f"llama.cpp makes no context for {model.path}: {llama.why()}")
        handles = []
        for path, _ in adapters:
            if not os.path.isfile(path):
                die(f"no such adapter file: {path}")
            llama.log.clear()
            handles.append(self.lib.llama_adapter_lora_init(model.handle, os.fsencode(path)))
            if not handles[-1]:
                die(f"llama.cpp does not load the adapter {path}: {llama.why()}")
        if handles:
            n = len(handles)
            if self.lib.llama_set_adapters_lora(self.handle, (C.c_void_p * n)(*handles), n,
                                                (C.c_float * n)(*[scale for _, scale in adapters])):
                die("llama.cpp refuses the adapter: " + llama.why())
        self.batch, self.room = self.lib.llama_batch_init(n_tokens, 0, 1), n_tokens

    def run(self, ids, first_position, all_positions):
        """Decode ids; float32 logits [len(ids) or 1][n_vocab] of all positions or of the last."""
        import numpy as np
        bad = [t for t in ids if not 0 <= t < self.model.n_vocab]
        if bad:
            die(f"token {bad[0]} is outside the vocabulary of {self.model.n_vocab}")
        b = self.batch
        b.n_tokens = len(ids)
        for i, token in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0] = token, first_position + i, 1, 0
            b.logits[i] = all_positions or i == len(ids) - 1
        self.model.llama.log.clear()
        status = self.lib.llama_decode(self.handle, b)
        if status:
            die(f"llama_decode returned {status}: {self.model.llama.why()}")
        rows = range(len(ids)) if all_positions else [len(ids) - 1]
        return np.stack([np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.handle, i), (self.model.n_vocab,)).copy()
                         for i in rows])

    def close(self):
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.handle)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.handle), True)


def logits_of(model, sequences, adapters=(), threads=2, callback=None, after=None):
    """List of float32 arrays [n_tok][n_vocab], one per sequence; after() is called behind each."""
    context = model.context(max(map(len, sequences)), threads, adapters, callback)
    out = []
    for ids in sequences:
        context.clear()
        out.append(context.run(ids, 0, True))
        if after:
            after()
    context.close()
    return out


def masked_loss(logits, sequences, masks):
    """Mean over the positions whose mask is 1 of -log p(token | earlier tokens)."""
    import numpy as np
    total, count = 0.0, 0
    for rows, ids, mask in zip(logits, sequences, masks):
        x = rows.astype(np.float64)
        top = x.max(-1)
        log_z = top + np.log(np.exp(x - top[:, None]).sum(-1))
        for t in range(1, len(ids)):
            if mask[t]:
                total += log_z[t - 1] - x[t - 1, ids[t]]
                count += 1
    return total / count if count else float("nan")


def greedy(model, ids, n, adapters=(), threads=2):
    """Up to n token ids continuing ids; ends early after an end-of-generation token."""
    context = model.context(len(ids) + n, threads, adapters)
    out, step, position = [], list(ids), 0
    while len(out) < n:
        row = context.run(step, position, False)[0]
        position += len(step)
        out.append(int(row.argmax()))
        step = out[-1:]
        if model.lib.llama_vocab_is_eog(model.vocab, out[-1]):
            break
    context.close()
    return out


def read_sequences(path):
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
    except (OSError, ValueError) as why:
        die(f"cannot read token sequences from {path}: {why}")
    sequences = data.get("tokens") if isinstance(data, dict) else data
    if isinstance(sequences, list) and sequences and all(isinstance(t, int) for t in sequences):
        sequences = [sequences]
    if not (isinstance(sequences, list) and sequences
            and all(isinstance(s, list) and s and all(isinstance(t, int) for t in s) for s in sequences)):
        die(f"{path} should hold a list of non-empty token id lists, or an object with one under \"tokens\"")
    return sequences, data.get("loss_mask") if isinstance(data, dict) else None


def parse_adapter(text):
    path, sep, scale = text.rpartition("=")
    if not sep:
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        return text, 1.0


def main():
    ap = argparse.ArgumentParser(description="Logits, token ids and greedy text from the real llama.cpp.",
                                 epilog="See the top of this file for the formats.")
    ap.add_argument("model", help="GGUF model")
    ap.add_argument("--tokens", metavar="SEQS.json", help="token sequences")
    ap.add_argument("--out", metavar="LOGITS.f32", help="where the logits go")
    ap.add_argument("--compare", metavar="REF.f32", help="with --out: also print the error against these logits")
    ap.add_argument("--lora", metavar="ADAPTER.gguf[=SCALE]", action="append", default=[], help="GGUF LoRA adapter")
    ap.add_argument("--tokenize", metavar="TEXT", nargs="?", const="", default=None, help="print the token ids of a text")
    ap.add_argument("--file", metavar="FILE", help="take the text to tokenize from a file")
    ap.add_argument("--generate", metavar="N", type=int, help="continue greedily by up to N tokens")
    ap.add_argument("--prompt", metavar="TEXT", help="text to continue; special tokens in it are recognised")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--verbose", action="store_true", help="show llama.cpp's log on stderr")
    a = ap.parse_args()
    if sum([a.out is not None, a.tokenize is not None or a.file is not None, a.generate is not None]) != 1:
        ap.error("give exactly one of --out, --tokenize/--file, --generate")
    llama = Llama(a.verbose)
    try:
        import numpy  # noqa: F401  (used by the functions above)
    except ImportError:
        die("needs the package numpy; install it with: pip install numpy")
    adapters = [parse_adapter(x) for x in a.lora]

    if a.tokenize is not None or a.file is not None:
        text = a.tokenize
        if a.file is not None:
            try:
                with open(a.file, "rb") as f:
                    text = f.read().decode("utf-8", "surrogateescape")
            except OSError as why:
                die(f"cannot read {a.file}: {why.strerror}")
        model = Model(llama, a.model, vocab_only=True)
        report = {"version": llama.version}
        for name, add, parse in (("plain", False, False), ("add_special", True, False),
                                 ("parse_special", False, True), ("add_and_parse_special", True, True)):
            report[name] = model.tokenize(text, add, parse)
        print(json.dumps(report))
        return

    sequences, masks = read_sequences(a.tokens) if a.tokens else (None, None)
    if a.generate is not None:
        if (a.prompt is None) == (sequences is None):
            ap.error("--generate needs either --prompt or --tokens")
        if a.generate < 1:
            ap.error("--generate needs a positive number")
        model = Model(llama, a.model)
        prompts = sequences or [model.tokenize(a.prompt, True, True)]
        if not prompts[0]:
            die("the prompt has no tokens")
        results = []
        for ids in prompts:
            new = greedy(model, ids, a.generate, adapters, a.threads)
            results.append({"prompt": ids, "tokens": new, "text": model.detokenize(new)})
        print(json.dumps({"version": llama.version, "results": results}, ensure_ascii=False))
        return

    if sequences is None:
        ap.error("--out needs --tokens")
    model = Model(llama, a.model)
    logits = logits_of(model, sequences, adapters, a.threads)
    with open(a.out, "wb") as f:
        for rows in logits:
            f.write(rows.astype("<f4").tobytes())
    report = {"version": llama.version, "n_seq": len(sequences), "n_tok": [len(s) for s in sequences], "n_vocab": model.n_vocab}
    if masks:
        report["loss"] = masked_loss(logits, sequences, masks)
    if a.compare:
        import numpy as np
        x, r = np.concatenate([v.ravel() for v in logits]).astype(np.float64), np.fromfile(a.compare, "<f4").astype(np.float64)
        if x.shape != r.shape:
            die(f"{a.compare} has {r.size} values, the model gave {x.size}")
        report.update(nmse=float(((x - r) ** 2).sum() / (r ** 2).sum()), max_abs=float(np.abs(x - r).max()))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
