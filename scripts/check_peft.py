"""Do transformers and PEFT compute what firn computes, and does PEFT apply what `firn export` writes?

    check_peft.py FIRN WORK_FOLDER [NAME...]

For the small shapes of `firn init` that transformers has a model for: the GGUF's weights loaded into it, in float64, and
its logits beside firn's; then an adapter trained for a few steps on every class of tensors, exported, loaded by PEFT, and
the logits with it. A tensor of the export that PEFT does not place, or one that it expects and does not find, fails. Bound:
1e-10 normalized mean squared error (the figures are near 1e-13; transformers computes norms, rotations and routers in
float32 whatever the model is). deepseek2 is checked by the reference cases alone, bailingmoe2 is not part of transformers; the
families of 2026 are in peft_families.py. Where transformers computes otherwise than llama.cpp (docs/models.md), its model is made to
compute the same: epsilons of latent attention, pairs that do not turn, the steps of Mamba. The last line is "N passed, N failed".
"""
import json
import os
import random
import shutil
import subprocess
import sys
import warnings

import gguf
import numpy as np
import peft
import torch
import transformers
from peft_families import FAMILIES
from safetensors import safe_open

FIRN, WORK, ONLY = sys.argv[1], sys.argv[2], sys.argv[3:]
BOUND = 1e-10
PERMUTED = {"llama", "granite", "granitemoe", "smollm3"}
SHAPES = ["tiny-llama", "tiny", "tiny-qwen2", "tiny-qwen3", "tiny-smollm3", "tiny-qwen2moe", "tiny-qwen3moe", "tiny-olmoe",
          "tiny-granite", "tiny-granitemoe", "tiny-glm4moe", "tiny-ernie", "tiny-gpt-oss", "tiny-minimax-m2", "tiny-qwen3vlmoe",
          "tiny-mistral4", "tiny-glm-dsa", "tiny-dots1", "tiny-exaone-moe", "tiny-hunyuan-moe", "tiny-hy-v3", "tiny-mellum",
          "tiny-afmoe", "tiny-gemma4", "tiny-gemma4-moe", "tiny-gemma4-e", "tiny-qwen35", "tiny-qwen35moe", "tiny-qwen3next",
          "tiny-qwen3next-in", "tiny-kimi-linear", "tiny-lfm2", "tiny-lfm2moe", "tiny-nemotron-h", "tiny-nemotron-h-moe",
          "tiny-nemotron-h-moe-latent", "tiny-granitehybrid", "tiny-granitehybrid-dense"]


def firn(*args):
    done = subprocess.run([FIRN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"firn {' '.join(args)}: {done.stderr.strip().splitlines()[-1:]}")


class File:
    """Keys and weights of a GGUF file, shapes outermost first."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith(("GGUF.", "tokenizer."))}
        self.arch = self.keys["general.architecture"]
        self.weights = {t.name: np.array(t.data, dtype=np.float64).reshape([int(n) for n in reversed(t.shape)])
                        for t in reader.tensors}

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)


def configuration(f):
    """The transformers configuration of the file."""
    key, T = f.key, transformers
    rope = {"rope_type": "default", "rope_theta": key("rope.freq_base")}
    if key("rope.scaling.type") == "yarn":
        rope.update(rope_type="yarn", factor=key("rope.scaling.factor"), beta_fast=32.0, beta_slow=1.0, truncate=True,
                    original_max_position_embeddings=key("rope.scaling.original_context_length"))
    if key("rope.scaling.type") == "longrope":
        rope.update(rope_type="longrope", factor=1.0, attention_factor=1.0,
                    short_factor=f.weights["rope_factors_short.weight"].tolist(),
                    long_factor=f.weights["rope_factors_long.weight"].tolist(),
                    original_max_position_embeddings=key("rope.scaling.original_context_length"))
    common = dict(
        vocab_size=key("vocab_size"), hidden_size=key("embedding_length"), num_hidden_layers=key("block_count"),
        intermediate_size=key("feed_forward_length"), num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"), head_dim=key("attention.key_length"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"), max_position_embeddings=key("context_length"),
        rope_parameters=rope, tie_word_embeddings="output.weight" not in f.weights, pad_token_id=None, bos_token_id=0,
        eos_token_id=1)
    n, k, width = key("expert_count"), key("expert_used_count"), key("expert_feed_forward_length")
    shared = key("expert_shared_feed_forward_length")
    granite = dict(embedding_multiplier=key("embedding_scale"), residual_multiplier=key("residual_scale"),
                   attention_multiplier=key("attention.scale"), logits_scaling=key("logit_scale"))
    if f.arch == "llama":
        return T.MixtralConfig(**common, num_local_experts=n, num_experts_per_tok=k) if n else T.LlamaConfig(**common)
    if f.arch == "granitemoe":
        return T.GraniteMoeSharedConfig(**common, **granite, num_local_experts=n, num_experts_per_tok=k,
                                        shared_intermediate_size=shared)
    if f.arch == "glm4moe":
        rope["partial_rotary_factor"] = key("rope.dimension_count") / key("attention.key_length")
        return T.Glm4MoeConfig(
            **common, partial_rotary_factor=rope["partial_rotary_factor"], attention_bias=True,
            use_qk_norm="blk.0.attn_q_norm.weight" in f.weights, n_routed_experts=n, num_experts_per_tok=k,
            moe_intermediate_size=width, n_shared_experts=key("expert_shared_count"), n_group=1, topk_group=1,
            first_k_dense_replace=key("leading_dense_block_count"), norm_topk_prob=key("expert_weights_norm"),
            routed_scaling_factor=key("expert_weights_scale"))
    if f.arch == "ernie4_5-moe":
        return T.Ernie4_5_MoeConfig(
            **common, moe_num_experts=n, moe_k=k, moe_intermediate_size=width, moe_num_shared_experts=shared // width,
            moe_layer_start_index=key("leading_dense_block_count"), moe_layer_interval=1, moe_layer_end_index=-1,
            use_bias=False)
    return {
        "qwen2": lambda: T.Qwen2Config(**common),
        "qwen3": lambda: T.Qwen3Config(**common),
        "smollm3": lambda: T.SmolLM3Config(**common, no_rope_layer_interval=4),
        "granite": lambda: T.GraniteConfig(**common, **granite),
        "qwen2moe": lambda: T.Qwen2MoeConfig(
            **common, num_experts=n, num_experts_per_tok=k, moe_intermediate_size=width, norm_topk_prob=False,
            shared_expert_intermediate_size=shared),
        "qwen3moe": lambda: T.Qwen3MoeConfig(**common, num_experts=n, num_experts_per_tok=k, moe_intermediate_size=width,
                                             norm_topk_prob=True),
        "olmoe": lambda: T.OlmoeConfig(**common, num_experts=n, num_experts_per_tok=k, norm_topk_prob=False),
        "gpt-oss": lambda: T.GptOssConfig(**{**common, "intermediate_size": width}, num_local_experts=n, num_experts_per_tok=k,
                                          sliding_window=key("attention.sliding_window")),
    }[f.arch]()


def weight_of(f, name):
    """The value of transformers' parameter `name`, from the file."""
    w, parts = f.weights, name.split(".")
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": lambda: w["token_embd.weight"], "model.norm.weight": lambda: w["output_norm.weight"],
                "lm_head.weight": lambda: w.get("output.weight", w["token_embd.weight"])}[name]()
    block, what, suffix = f"blk.{parts[2]}.", ".".join(parts[3:-1]), parts[-1]

    def get(base, kind=suffix):
        if base in ("attn_q", "attn_k", "attn_v") and f"{block}attn_qkv.{kind}" in w:
            hd, heads, groups = f.key("attention.key_length"), f.key("attention.head_count"), f.key("attention.head_count_kv")
            at = {"attn_q": (0, heads), "attn_k": (heads, heads + groups), "attn_v": (heads + groups, heads + 2 * groups)}[base]
            return w[f"{block}attn_qkv.{kind}"][at[0] * hd:at[1] * hd]
        return w[f"{block}{base}.{kind}"]

    def rows(x, heads):
        """Rows of each head from neighbouring pairs to halves."""
        if f.arch not in PERMUTED:
            return x
        n = x.shape[0] // heads
        return x.reshape(heads, n // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

    def joint(kind):
        gate, up = get("ffn_gate_exps", kind), get("ffn_up_exps", kind)
        if f.arch != "gpt-oss":
            return np.concatenate([gate, up], 1)
        return np.stack([gate, up], 2).reshape(gate.shape[0], 2 * gate.shape[1], *gate.shape[2:])

    transposed = (lambda x: x.swapaxes(1, 2)) if f.arch == "gpt-oss" else (lambda x: x)
    ffn_norm = "post_attention_norm" if f"{block}post_attention_norm.weight" in w else "ffn_norm"
    experts = {"gate_up_proj": lambda: transposed(joint("weight")), "gate_up_proj_bias": lambda: joint("bias"),
               "down_proj": lambda: transposed(get("ffn_down_exps", "weight")),
               "down_proj_bias": lambda: get("ffn_down_exps", "bias"), "sinks": lambda: get("attn_sinks", "weight"),
               "e_score_correction_bias": lambda: get("exp_probs_b", "bias")}
    if suffix in experts:
        value = experts[suffix]()
        return value[None] if what.endswith("moe_statics") else value
    if what.endswith("shared_mlp.input_linear"):
        return np.concatenate([get("ffn_gate_shexp"), get("ffn_up_shexp")])
    if what.endswith("shared_expert_gate"):
        return get("ffn_gate_inp_shexp")[None]
    if what.endswith((".q_proj", ".k_proj")):
        q = what.endswith(".q_proj")
        return rows(get("attn_q" if q else "attn_k"), f.key("attention.head_count" if q else "attention.head_count_kv"))
    if ".shared_expert" in what:
        return get({"gate_proj": "ffn_gate_shexp", "up_proj": "ffn_up_shexp", "down_proj": "ffn_down_shexp"}[parts[-2]])
    return get({"v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
                "input_layernorm": "attn_norm", "post_attention_layernorm": ffn_norm, "gate_proj": "ffn_gate", "up_proj": "ffn_up",
                "down_proj": "ffn_down", "gate": "ffn_gate_inp", "router": "ffn_gate_inp",
                "output_linear": "ffn_down_shexp"}[parts[-2]])


def build(f):
    torch.set_default_dtype(torch.float64)
    config, state, *adjust = FAMILIES[f.arch](f) if f.arch in FAMILIES else (configuration(f), None)
    make = {"qwen3vlmoe": transformers.AutoModelForImageTextToText.from_config,
            "mistral4": transformers.Mistral4ForCausalLM._from_config}.get(f.arch, transformers.AutoModelForCausalLM.from_config)
    model = make(config, attn_implementation="eager", experts_implementation="eager")
    if state is None:
        state = {name: weight_of(f, name) for name in model.state_dict()}
    for name, value in state.items():
        module = model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, torch.nn.Linear) and "shared" in name and module.weight.shape != value.shape:
            # In a file the shared expert may be wider than the others, in some of transformers' models it may not.
            module.out_features, module.in_features = value.shape
            module.weight = torch.nn.Parameter(torch.empty(value.shape))
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in state.items()}, strict=True)
    for change in adjust:
        change(model)
    return model.eval()


def with_adapter(model, folder, arch):
    if arch.startswith("nemotron_h"):       # PEFT refuses one on Mamba's output, as firn export says
        peft.tuners.tuners_utils._check_lora_target_modules_mamba = lambda *_: None
    with safe_open(f"{folder}/adapter_model.safetensors", "pt") as s:
        there = {name: tuple(s.get_slice(name).get_shape()) for name in s.keys()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(model, folder)
        wanted = {name: tuple(t.shape) for name, t in peft.get_peft_model_state_dict(model, save_embedding_layers=False).items()}
    if there != wanted:
        raise RuntimeError(f"PEFT wants other tensors: {sorted(set(there.items()) ^ set(wanted.items()))[:2]}")
    return model


def logits(model, sequences):
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([s])).logits[0].double().numpy().ravel() for s in sequences])


def errors(name):
    """NMSE of the base, of the base with the adapter, and how much the adapter changes."""
    folder = f"{WORK}/{name}"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/model.gguf"
    shutil.rmtree(f"{folder}/run", ignore_errors=True)
    firn("init", "--like", name, "--type", "f32", "--seed", "5", path)
    f = File(path)
    rng = random.Random(5)
    sequences = [[rng.randrange(3, f.key("vocab_size")) for _ in range(n)] for n in (22, 17)]
    with open(f"{folder}/tokens.json", "w") as out:
        json.dump(sequences, out)
    with open(f"{folder}/data.jsonl", "w") as out:
        for _ in range(24):
            out.write(json.dumps({"text": " ".join(rng.choices("snow ice wind the of and to from".split(), k=40))}) + "\n")
    firn("finetune", "--model", path, "--data", f"{folder}/data.jsonl", "--output", f"{folder}/run", "--targets", "all",
         "--steps", "3", "--context", "128", "--learning-rate", "1e-2", "--schedule", "constant", "--warmup", "0",
         "--eval-split", "0", "--rank", "4", "--threads", "1")
    adapter, model, found = f"{folder}/run/adapter.gguf", build(f), []
    firn("export", path, adapter, f"{folder}/peft")
    for with_it in (False, True):
        out = f"{folder}/logits.f32"
        firn("logits", path, "--tokens", f"{folder}/tokens.json", "--output", out, *(["--adapter", adapter] if with_it else []))
        found.append((np.fromfile(out, "<f4").astype(np.float64),
                      logits(with_adapter(model, f"{folder}/peft", f.arch) if with_it else model, sequences)))
    change = float(((found[1][1] - found[0][1]) ** 2).sum() / (found[0][1] ** 2).sum())
    return [float(((x - r) ** 2).sum() / (r ** 2).sum()) for x, r in found] + [change]


def main():
    passed = failed = 0
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, PEFT {peft.__version__}, torch {torch.__version__}")
    for name in ONLY or SHAPES:
        try:
            base, adapted, change = errors(name)
            good = base <= BOUND and adapted <= BOUND < change
            print(f"{'ok  ' if good else 'FAIL'} {name:18} base {base:.1e}, with the adapter {adapted:.1e}, which changes {change:.1e}",
                  flush=True)
        except (RuntimeError, OSError, KeyError, TypeError, ValueError) as why:
            good = False
            print(f"FAIL {name}: {type(why).__name__}: {why}", flush=True)
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
