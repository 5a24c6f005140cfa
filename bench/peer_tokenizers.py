"""llama.cpp and Hugging Face's tokenizers on one text: see bench/peer-tokenizers.

Hugging Face's is built from the same file for byte-level BPE with the pre-tokenizers gpt-2, qwen2 and llama-bpe, whose published
patterns stand below; ids are compared with llama.cpp's."""
import ctypes as C
import os
import sys
import time

import gguf
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": WORDS % r"\p{N}",
    "llama-bpe": WORDS % r"\p{N}{1,3}",
}


def best(name, data, run):
    rate, ids = 0, None
    for _ in range(5):
        start = time.process_time()
        ids = run()
        rate = max(rate, len(data) / 1e6 / (time.process_time() - start))
    print("%-25s %8.2f MB %9d tokens %8.1f MB/s" % (name, len(data) / 1e6, len(ids), rate), flush=True)
    return ids


class ModelParams(C.Structure):  # of this build alone; only vocab_only is set
    _fields_ = [("before", C.c_void_p * 2), ("numbers", C.c_int32 * 5), ("split", C.c_void_p * 4), ("vocab_only", C.c_bool),
                ("after", C.c_uint8 * 79)]


def llama_cpp(path, data):
    import xllamacpp.xllamacpp as module
    lib = C.CDLL(module.__file__)
    log = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda *_: None)
    lib.llama_log_set(log, None)
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_model_load_from_file.restype = lib.llama_model_get_vocab.restype = C.c_void_p
    lib.llama_model_load_from_file.argtypes = [C.c_char_p, ModelParams]
    lib.llama_model_get_vocab.argtypes = [C.c_void_p]
    lib.llama_tokenize.argtypes = [C.c_void_p, C.c_char_p, C.c_int32, C.POINTER(C.c_int32), C.c_int32, C.c_bool, C.c_bool]
    params = lib.llama_model_default_params()
    params.vocab_only = True
    vocab = lib.llama_model_get_vocab(lib.llama_model_load_from_file(os.fsencode(path), params))
    room = (C.c_int32 * (len(data) + 16))()

    def run():
        return room[:lib.llama_tokenize(vocab, data, len(data), room, len(room), False, False)]
    return run


def hugging_face(path, data):
    fields = gguf.GGUFReader(path).fields
    strings = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    pre = strings("tokenizer.ggml.pre")[0] if "tokenizer.ggml.pre" in fields else ""
    if strings("tokenizer.ggml.model")[0] != "gpt2" or pre not in PATTERNS:
        return None
    vocab = {text: i for i, text in enumerate(strings("tokenizer.ggml.tokens"))}
    merges = [tuple(m.split(" ", 1)) for m in strings("tokenizer.ggml.merges")]
    t = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    text = data.decode()
    return lambda: t.encode(text, add_special_tokens=False).ids


def main():
    path, data = sys.argv[1], open(sys.argv[2], "rb").read()
    ids = best("llama.cpp b11549", data, llama_cpp(path, data))
    run = hugging_face(path, data)
    if not run:
        print("tokenizers                (no published pattern here for this vocabulary)")
    elif best("tokenizers " + tokenizers.__version__, data, run) != ids:
        print("the two give different ids")


main()
