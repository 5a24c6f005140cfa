"""For check_peft.py: the families that came to GGUF in 2026. For each architecture its configuration in transformers, and the
values of transformers' parameters, both from a GGUF file."""
import numpy as np
import torch
import transformers as T

FULL, WINDOW, SCAN = "full_attention", "sliding_attention", "linear_attention"


def common(f):
    """What most configurations have alike."""
    key = f.key
    return dict(
        vocab_size=key("vocab_size"), hidden_size=key("embedding_length"), num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"), max_position_embeddings=key("context_length"),
        tie_word_embeddings="output.weight" not in f.weights, pad_token_id=None, bos_token_id=0, eos_token_id=1)


def without(config, *names):
    return {k: v for k, v in config.items() if k not in names}


def rope(f, **more):
    return {"rope_type": "default", "rope_theta": f.key("rope.freq_base"), **more}


def yarn(f, **more):
    return {"rope_type": "yarn", "rope_theta": f.key("rope.freq_base"), "factor": f.key("rope.scaling.factor"), "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": f.key("rope.scaling.original_context_length"), **more}


def partial(f):
    return f.key("rope.dimension_count") / f.key("attention.key_length")


def sizes(f):
    """Of experts: how many, how many used, how wide."""
    return f.key("expert_count"), f.key("expert_used_count"), f.key("expert_feed_forward_length")


def steps(f, name, step):
    """Kinds of the blocks where every step-th attends to all."""
    return [FULL if (i + 1) % step == 0 else name for i in range(f.key("block_count"))]


def pairs_to_halves(heads):
    """Rows of each head from neighbouring pairs to halves."""
    def change(w):
        n = w.shape[0] // heads
        return w.reshape(heads, n // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    return change


def less_one(w):
    return w - 1


class State(dict):
    """{transformers parameter: value}; `layers` is what block parameters begin with, "{}" the block's number."""

    def __init__(self, f, layers="model.layers.{}.", ends=("model.embed_tokens.weight", "model.norm.weight"), norm="output_norm",
                 change=None):
        super().__init__()
        self.f, self.w, self.layers = f, f.weights, layers
        self[ends[0]] = self.w["token_embd.weight"]
        self[ends[1]] = (change or (lambda w: w))(self.w[norm + ".weight"])
        self["lm_head.weight"] = self.w.get("output.weight", self.w["token_embd.weight"])

    def blocks(self):
        return range(self.f.key("block_count"))

    def has(self, i, tensor):
        return f"blk.{i}.{tensor}" in self.w

    def get(self, i, tensor):
        return self.w[f"blk.{i}.{tensor}"]

    def put(self, i, parameter, value):
        self[self.layers.format(i) + parameter] = value

    def same(self, i, change=None, **names):
        """parameter__of__block=tensor, both ".weight"."""
        for parameter, tensor in names.items():
            value = self.get(i, tensor + ".weight")
            self.put(i, parameter.replace("__", ".") + ".weight", change(value) if change else value)

    def bias(self, i, parameter, tensor="exp_probs_b.bias"):
        if self.has(i, tensor):
            self.put(i, parameter, self.get(i, tensor))

    def heads(self, i, owner="self_attn", out="o_proj", norms=("q_norm", "k_norm"), change=None, permuted=False):
        counts = {"q": self.f.key("attention.head_count"), "k": self.f.key("attention.head_count_kv")}
        for x in "qkv":
            n = counts.get(x)
            n = n[i] if isinstance(n, list) else n
            if self.has(i, f"attn_{x}.weight"):
                self.same(i, pairs_to_halves(n) if permuted and n else None, **{f"{owner}__{x}_proj": f"attn_{x}"})
            if x != "v" and self.has(i, f"attn_{x}_norm.weight"):
                self.same(i, change, **{f"{owner}__{norms['qk'.index(x)]}": f"attn_{x}_norm"})
        self.same(i, **{f"{owner}__{out}": "attn_output"})

    def latent(self, i):
        if self.has(i, "attn_q_a.weight"):
            self.same(i, self_attn__q_a_proj="attn_q_a", self_attn__q_a_layernorm="attn_q_a_norm", self_attn__q_b_proj="attn_q_b")
        else:
            self.same(i, self_attn__q_proj="attn_q")
        self.same(i, self_attn__kv_a_proj_with_mqa="attn_kv_a_mqa", self_attn__kv_a_layernorm="attn_kv_a_norm",
                  self_attn__o_proj="attn_output")
        k, v = self.get(i, "attn_k_b.weight"), self.get(i, "attn_v_b.weight")
        self.put(i, "self_attn.kv_b_proj.weight", np.concatenate([k.swapaxes(1, 2), v], 1).reshape(-1, v.shape[-1]))

    def feed_forward(self, i, owner="mlp", suffix="", leaves=("gate_proj", "up_proj", "down_proj")):
        for leaf, x in zip(leaves, ("gate", "up", "down")):
            if self.has(i, f"ffn_{x}{suffix}.weight"):
                self.same(i, **{f"{owner.replace('.', '__')}__{leaf}": f"ffn_{x}{suffix}"})

    def experts(self, i, owner="mlp.experts", router="mlp.gate.weight"):
        self.put(i, router, self.get(i, "ffn_gate_inp.weight"))
        both = (self.get(i, "ffn_gate_up_exps.weight") if self.has(i, "ffn_gate_up_exps.weight") else
                np.concatenate([self.get(i, "ffn_gate_exps.weight"), self.get(i, "ffn_up_exps.weight")], 1))
        self.put(i, owner + ".gate_up_proj", both)
        self.put(i, owner + ".down_proj", self.get(i, "ffn_down_exps.weight"))

    def dense_or_experts(self, i, bias, router="mlp.gate.weight", bias_tensor="exp_probs_b.bias"):
        if not self.has(i, "ffn_gate_inp.weight"):
            return self.feed_forward(i)
        self.experts(i, router=router)
        self.feed_forward(i, "mlp.shared_experts", "_shexp")
        self.bias(i, bias, bias_tensor)

    def norms(self, i, second="ffn_norm", change=None):
        self.same(i, change, input_layernorm="attn_norm", post_attention_layernorm=second)


# ---- attention in every block

def minimax_m2(f):
    n, k, width = sizes(f)
    config = T.MiniMaxM2Config(**common(f), intermediate_size=width, num_local_experts=n, num_experts_per_tok=k,
                               head_dim=f.key("attention.key_length"), rope_parameters=rope(f, partial_rotary_factor=partial(f)))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.experts(i)
        s.bias(i, "mlp.e_score_correction_bias")
    return config, s


def qwen3vlmoe(f):
    """The text tower; what looks at images is there, with zeros, and does not run."""
    n, k, width = sizes(f)
    sections = f.key("rope.dimension_sections")
    text = T.Qwen3VLMoeTextConfig(
        **common(f), intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width, num_experts=n,
        num_experts_per_tok=k, head_dim=f.key("attention.key_length"),
        rope_parameters=rope(f, mrope_section=sections[:3], mrope_interleaved=True))
    vision = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=2, spatial_merge_size=1, temporal_patch_size=1,
                  out_hidden_size=f.key("embedding_length"), num_position_embeddings=4, deepstack_visual_indexes=[0])
    config = T.Qwen3VLMoeConfig(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=False)
    inner = "model.language_model."
    s = State(f, inner + "layers.{}.", (inner + "embed_tokens.weight", inner + "norm.weight"))
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.experts(i)
    with torch.device("meta"):
        for name, value in T.Qwen3VLMoeForConditionalGeneration(config).named_parameters():
            if ".visual." in name:
                s[name] = np.zeros(tuple(value.shape))
    pairs = f.key("attention.key_length") // 2

    def stand_still(model):
        """A pair that no section takes stands still in llama.cpp and here, and turns in transformers."""
        for i in range(pairs):
            if i >= 3 * sections[i % 3]:
                model.model.language_model.rotary_emb.inv_freq[i] = 0
    return config, s, stand_still


def latent_config(f):
    n, k, width = sizes(f)
    return dict(
        common(f), num_key_value_heads=f.key("attention.head_count"), intermediate_size=f.key("feed_forward_length"),
        moe_intermediate_size=width, n_routed_experts=n, num_experts_per_tok=k, n_shared_experts=f.key("expert_shared_count"),
        kv_lora_rank=f.key("attention.kv_lora_rank"), q_lora_rank=f.key("attention.q_lora_rank"),
        qk_nope_head_dim=f.key("attention.key_length_mla") - f.key("rope.dimension_count"),
        qk_rope_head_dim=f.key("rope.dimension_count"), v_head_dim=f.key("attention.value_length_mla"),
        first_k_dense_replace=f.key("leading_dense_block_count", 0), n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=f.key("expert_weights_scale"))


def mistral4(f):
    config = T.Mistral4Config(
        **latent_config(f), rope_interleave=True,
        rope_parameters=yarn(f, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=f.key("attention.temperature_scale"),
                             max_position_embeddings=f.key("context_length")))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.latent(i)
        s.dense_or_experts(i, None)

    def temperature(model):
        """One length serves both there; the angles have been computed by now."""
        model.config.rope_parameters["original_max_position_embeddings"] = f.key("attention.temperature_length")
    return config, s, temperature


def file_epsilon(f):
    """transformers gives the norms within latent attention an epsilon of 1e-6, llama.cpp that of the file."""
    def change(model):
        for name, module in model.named_modules():
            if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
                module.variance_epsilon = f.key("attention.layer_norm_rms_epsilon")
    return change


def glm_dsa(f):
    config = T.GlmMoeDsaConfig(
        **latent_config(f), index_topk=f.key("attention.indexer.top_k"), index_head_dim=f.key("attention.indexer.key_length"),
        index_n_heads=f.key("attention.indexer.head_count"), indexer_types=["full"] * f.key("block_count"), rope_parameters=rope(f))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.latent(i)
        indexer = "self_attn__indexer__"
        s.same(i, **{indexer + "wq_b": "indexer.attn_q_b", indexer + "wk": "indexer.attn_k", indexer + "k_norm": "indexer.k_norm",
                     indexer + "weights_proj": "indexer.proj"})
        s.put(i, "self_attn.indexer.k_norm.bias", s.get(i, "indexer.k_norm.bias"))
        s.dense_or_experts(i, "mlp.gate.e_score_correction_bias")
    return config, s, file_epsilon(f)


def dots1(f):
    n, k, width = sizes(f)
    config = T.Dots1Config(
        **common(f), intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width, n_routed_experts=n,
        num_experts_per_tok=k, n_shared_experts=f.key("expert_shared_count"), first_k_dense_replace=f.key("leading_dense_block_count"),
        norm_topk_prob=True, routed_scaling_factor=f.key("expert_weights_scale"), n_group=1, topk_group=1, sliding_window=None,
        head_dim=f.key("attention.key_length"), rope_parameters=rope(f))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.dense_or_experts(i, "mlp.gate.e_score_correction_bias")
    return config, s


def exaone_moe(f):
    n, k, width = sizes(f)
    config = T.ExaoneMoeConfig(
        **common(f), layer_types=steps(f, WINDOW, 4), sliding_window=f.key("attention.sliding_window"),
        intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width, num_experts=n, num_experts_per_tok=k,
        num_shared_experts=1, first_k_dense_replace=f.key("leading_dense_block_count"), norm_topk_prob=True,
        routed_scaling_factor=f.key("expert_weights_scale"), n_group=1, topk_group=1, head_dim=f.key("attention.key_length"),
        rope_parameters=rope(f))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.dense_or_experts(i, "mlp.gate.e_score_correction_bias")
    return config, s


def hunyuan_moe(f):
    n, k, width = sizes(f)
    config = T.HunYuanMoEV1Config(**common(f), intermediate_size=width, num_experts=n, moe_topk=k,
                                  head_dim=f.key("attention.key_length"), rope_parameters=rope(f))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i, norms=("query_layernorm", "key_layernorm"))
        s.experts(i, router="mlp.gate.wg.weight")
        s.feed_forward(i, "mlp.shared_mlp", "_shexp")
    return config, s


def hy_v3(f):
    n, k, width = sizes(f)
    lead = f.key("leading_dense_block_count")
    config = T.HYV3Config(
        **common(f), intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width, num_experts=n,
        num_experts_per_tok=k, num_shared_experts=1, router_scaling_factor=f.key("expert_weights_scale"),
        head_dim=f.key("attention.key_length"), rope_parameters=rope(f),
        mlp_layer_types=["dense"] * lead + ["sparse"] * (f.key("block_count") - lead))
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.dense_or_experts(i, "mlp.e_score_correction_bias", bias_tensor="exp_probs_b")
    return config, s


def mellum(f):
    n, k, width = sizes(f)
    config = T.MellumConfig(
        **common(f), layer_types=steps(f, WINDOW, 4), sliding_window=f.key("attention.sliding_window"),
        intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width, num_experts=n, num_experts_per_tok=k,
        norm_topk_prob=True, head_dim=f.key("attention.key_length"), rope_parameters={FULL: yarn(f), WINDOW: rope(f)})
    s = State(f)
    for i in s.blocks():
        s.norms(i)
        s.heads(i)
        s.experts(i)
    return config, s


def afmoe(f):
    n, k, width = sizes(f)
    config = T.AfmoeConfig(
        **common(f), intermediate_size=f.key("feed_forward_length"), moe_intermediate_size=width,
        num_dense_layers=f.key("leading_dense_block_count"), head_dim=f.key("attention.key_length"), num_experts=n,
        num_experts_per_tok=k, num_shared_experts=f.key("expert_shared_count"), route_scale=f.key("expert_weights_scale"),
        global_attn_every_n_layers=4, sliding_window=f.key("attention.sliding_window"), mup_enabled=True, rope_parameters=rope(f))
    s = State(f)
    for i in s.blocks():
        s.same(i, input_layernorm="attn_norm", post_attention_layernorm="post_attention_norm", pre_mlp_layernorm="ffn_norm",
               post_mlp_layernorm="post_ffw_norm", self_attn__gate_proj="attn_gate")
        s.heads(i)
        s.dense_or_experts(i, "mlp.expert_bias", "mlp.router.gate.weight")
    return config, s


def gemma4(f):
    key, per_layer = f.key, f.key("embedding_length_per_layer_input")
    windows = key("attention.sliding_window_pattern")
    kv, n = key("attention.head_count_kv"), key("expert_count")
    full = windows.index(False)
    joint = f"blk.{full}.attn_v.weight" not in f.weights
    experts = dict(enable_moe_block=True, num_experts=n, top_k_experts=key("expert_used_count"),
                   moe_intermediate_size=key("expert_feed_forward_length")) if n else {}
    ff = key("feed_forward_length")
    wide = isinstance(ff, list)
    config = T.Gemma4TextConfig(
        **{**common(f), "num_key_value_heads": kv[windows.index(True)]}, head_dim=key("attention.key_length_swa"),
        global_head_dim=key("attention.key_length"), num_global_key_value_heads=kv[full] if joint else None,
        attention_k_eq_v=joint, intermediate_size=ff[0] if wide else ff, use_double_wide_mlp=wide,
        sliding_window=key("attention.sliding_window"), final_logit_softcapping=30.0, hidden_size_per_layer_input=per_layer,
        vocab_size_per_layer_input=key("vocab_size"), num_kv_shared_layers=key("attention.shared_kv_layers"),
        layer_types=[WINDOW if w else FULL for w in windows],
        rope_parameters={WINDOW: {"rope_type": "default", "rope_theta": key("rope.freq_base_swa")},
                         FULL: {"rope_type": "proportional", "partial_rotary_factor": 1.0, "rope_theta": key("rope.freq_base")}},
        **experts)
    s = State(f)
    if per_layer:
        for parameter, tensor in (("embed_tokens_per_layer", "token_embd"), ("per_layer_model_projection", "model_proj"),
                                  ("per_layer_projection_norm", "proj_norm")):
            s[f"model.{parameter}.weight"] = f.weights[f"per_layer_{tensor}.weight"]
    for i in s.blocks():
        s.same(i, input_layernorm="attn_norm", post_attention_layernorm="post_attention_norm",
               pre_feedforward_layernorm="ffn_norm", post_feedforward_layernorm="post_ffw_norm")
        s.heads(i)
        s.feed_forward(i)
        s.put(i, "layer_scalar", s.get(i, "layer_output_scale.weight"))
        if per_layer:
            s.same(i, per_layer_input_gate="inp_gate", per_layer_projection="proj", post_per_layer_input_norm="post_norm")
        if n:
            s.same(i, post_feedforward_layernorm_1="post_ffw_norm_1", post_feedforward_layernorm_2="post_ffw_norm_2",
                   pre_feedforward_layernorm_2="pre_ffw_norm_2")
            s.experts(i, "experts", "router.proj.weight")
            s.put(i, "router.scale", s.get(i, "ffn_gate_inp.scale"))
            s.put(i, "router.per_expert_scale", s.get(i, "ffn_down_exps.scale"))

    def factors(model):
        """The file's divisors of the angles, in the place of transformers' own."""
        inv = getattr(model.model.rotary_emb, FULL + "_inv_freq")
        inv.copy_(inv / torch.from_numpy(f.weights["rope_freqs.weight"]))
    return config, s, factors


# ---- blocks with a state

def grouped(n_key, n_value, size, first=0, axis=0):
    """The file has the first value head of every key head, then the second ones; transformers those of a key head together."""
    def change(w):
        w = np.moveaxis(w, axis, 0)
        v = w[first:].reshape(n_value // n_key, n_key, size, *w.shape[1:]).swapaxes(0, 1).reshape(-1, *w.shape[1:])
        return np.moveaxis(np.concatenate([w[:first], v]), 0, axis)
    return change


def delta_net(s, i, tiled):
    key, owner = s.f.key, "linear_attn."
    nk, nv, size = key("ssm.group_count"), key("ssm.time_step_rank"), key("ssm.state_size")
    keys, values = nk * size, nv * size

    def order(entries, first=0, axis=0):
        return grouped(nk, nv, entries, first, axis) if tiled else lambda w: w

    if tiled:
        for parameter, tensor, change in (("in_proj_qkv", "attn_qkv", order(size, 2 * keys)), ("in_proj_z", "attn_gate", order(size)),
                                          ("in_proj_b", "ssm_beta", order(1)), ("in_proj_a", "ssm_alpha", order(1))):
            s.put(i, f"{owner}{parameter}.weight", change(s.get(i, tensor + ".weight")))
    else:
        s.put(i, owner + "in_proj_ba.weight", s.get(i, "ssm_ba.weight"))
        if s.has(i, "ssm_in.weight"):
            s.put(i, owner + "in_proj_qkvz.weight", s.get(i, "ssm_in.weight"))
        else:
            qkv, z = s.get(i, "attn_qkv.weight"), s.get(i, "attn_gate.weight")
            parts = [x.reshape(nk, -1, x.shape[-1]) for x in (*np.split(qkv, [keys, 2 * keys]), z)]
            s.put(i, owner + "in_proj_qkvz.weight", np.concatenate(parts, 1).reshape(-1, qkv.shape[-1]))
    s.put(i, owner + "conv1d.weight", order(size, 2 * keys)(s.get(i, "ssm_conv1d.weight"))[:, None])
    s.put(i, owner + "dt_bias", order(1)(s.get(i, "ssm_dt.bias")))
    s.put(i, owner + "A_log", np.log(-order(1)(s.get(i, "ssm_a"))))
    s.put(i, owner + "norm.weight", s.get(i, "ssm_norm.weight"))
    s.put(i, owner + "out_proj.weight", order(size, axis=1)(s.get(i, "ssm_out.weight")))


def delta_config(f):
    key = f.key
    return dict(common(f), head_dim=key("attention.key_length"), linear_conv_kernel_dim=key("ssm.conv_kernel"),
                linear_key_head_dim=key("ssm.state_size"), linear_value_head_dim=key("ssm.state_size"),
                linear_num_key_heads=key("ssm.group_count"), linear_num_value_heads=key("ssm.time_step_rank"),
                layer_types=steps(f, SCAN, key("full_attention_interval")))


def delta_state(f, config, tiled):
    s = State(f, change=less_one)
    for i, kind in enumerate(config.layer_types):
        s.norms(i, "post_attention_norm", less_one)
        if kind == FULL:
            s.heads(i, change=less_one)
        else:
            delta_net(s, i, tiled)
        if s.has(i, "ffn_gate_inp.weight"):
            s.experts(i)
            s.feed_forward(i, "mlp.shared_expert", "_shexp")
            s.put(i, "mlp.shared_expert_gate.weight", s.get(i, "ffn_gate_inp_shexp.weight")[None])
        else:
            s.feed_forward(i)
    return config, s


def delta_experts(f):
    n, k, width = sizes(f)
    return dict(moe_intermediate_size=width, shared_expert_intermediate_size=f.key("expert_shared_feed_forward_length"),
                num_experts=n, num_experts_per_tok=k)


def sections(f):
    return rope(f, partial_rotary_factor=partial(f), mrope_section=f.key("rope.dimension_sections")[:3], mrope_interleaved=True)


def qwen35(f):
    return delta_state(f, T.Qwen3_5TextConfig(**delta_config(f), intermediate_size=f.key("feed_forward_length"),
                                              rope_parameters=sections(f)), True)


def qwen35moe(f):
    return delta_state(f, T.Qwen3_5MoeTextConfig(**delta_config(f), **delta_experts(f), rope_parameters=sections(f)), True)


def qwen3next(f):
    return delta_state(f, T.Qwen3NextConfig(
        **delta_config(f), **delta_experts(f), intermediate_size=f.key("feed_forward_length"), norm_topk_prob=True,
        decoder_sparse_step=1, rope_parameters=rope(f, partial_rotary_factor=partial(f))), False)


def kimi_linear(f):
    n, k, width = sizes(f)
    key, kv = f.key, f.key("attention.head_count_kv")
    lead = key("leading_dense_block_count")
    config = T.KimiLinearConfig(
        **{**common(f), "num_key_value_heads": key("attention.head_count")}, intermediate_size=key("feed_forward_length"),
        moe_intermediate_size=width, num_local_experts=n, num_experts_per_tok=k, n_shared_experts=key("expert_shared_count"), n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=key("expert_weights_scale"),
        kv_lora_rank=key("attention.kv_lora_rank"), q_lora_rank=None,
        qk_nope_head_dim=key("attention.key_length_mla") - key("rope.dimension_count"), qk_rope_head_dim=key("rope.dimension_count"),
        v_head_dim=key("attention.value_length_mla"), linear_head_dim=key("kda.head_dim"),
        linear_num_heads=key("attention.head_count"), linear_conv_kernel_dim=key("ssm.conv_kernel"),
        layer_types=[FULL if g else SCAN for g in kv], mlp_layer_types=["dense"] * lead + ["sparse"] * (len(kv) - lead))
    s, owner = State(f), "self_attn."
    for i in s.blocks():
        s.norms(i)
        if kv[i]:
            s.latent(i)
        else:
            for parameter, tensor in (("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("b_proj", "ssm_beta"),
                                      ("forget_gate.f_a_proj", "ssm_f_a"), ("forget_gate.f_b_proj", "ssm_f_b"),
                                      ("g_a_proj", "ssm_g_a"), ("g_b_proj", "ssm_g_b"), ("o_proj", "attn_output"), ("o_norm", "ssm_norm")):
                s.put(i, f"{owner}{parameter}.weight", s.get(i, tensor + ".weight"))
            s.put(i, owner + "conv1d.weight", np.concatenate([s.get(i, f"ssm_conv1d_{x}.weight") for x in "qkv"]))
            s.put(i, owner + "forget_gate.A_log", np.log(-s.get(i, "ssm_a")).reshape(1, 1, -1, 1))
            s.put(i, owner + "forget_gate.dt_bias", s.get(i, "ssm_dt.bias"))
        s.dense_or_experts(i, "mlp.gate.e_score_correction_bias")
    return config, s


def lfm2(f):
    n, k, width = sizes(f)
    key, kv = f.key, f.key("attention.head_count_kv")
    kinds = [FULL if g else "conv" for g in kv]
    shared = dict(
        **without({**common(f), "num_key_value_heads": max(kv)}, "rms_norm_eps"), norm_eps=key("attention.layer_norm_rms_epsilon"),
        layer_types=kinds, conv_L_cache=key("shortconv.l_cache"), conv_bias=False, rope_parameters=rope(f))
    if n:
        config = T.Lfm2MoeConfig(**shared, num_dense_layers=key("leading_dense_block_count"), intermediate_size=key("feed_forward_length"),
                                 moe_intermediate_size=width, num_experts=n, num_experts_per_tok=k, use_expert_bias=True,
                                 routed_scaling_factor=1.0, norm_topk_prob=True)
    else:
        config = T.Lfm2Config(**shared, intermediate_size=key("feed_forward_length"), block_auto_adjust_ff_dim=False)
    s = State(f, ends=("model.embed_tokens.weight", "model.embedding_norm.weight"), norm="token_embd_norm")
    for i, kind in enumerate(kinds):
        s.same(i, operator_norm="attn_norm", ffn_norm="ffn_norm")
        if kind == "conv":
            s.same(i, conv__in_proj="shortconv.in_proj", conv__out_proj="shortconv.out_proj")
            s.put(i, "conv.conv.weight", s.get(i, "shortconv.conv.weight")[:, None])
        else:
            s.heads(i, out="out_proj", norms=("q_layernorm", "k_layernorm"))
        if s.has(i, "ffn_gate_inp.weight"):
            s.experts(i, "feed_forward.experts", "feed_forward.gate.weight")
            s.bias(i, "feed_forward.expert_bias")
        else:
            s.feed_forward(i, "feed_forward", leaves=("w1", "w3", "w2"))
    return config, s


def mamba(s, i, owner):
    s.same(i, **{f"{owner}__in_proj": "ssm_in", f"{owner}__out_proj": "ssm_out"})
    s.put(i, owner + ".conv1d.weight", s.get(i, "ssm_conv1d.weight")[:, None])
    s.put(i, owner + ".conv1d.bias", s.get(i, "ssm_conv1d.bias"))
    s.put(i, owner + ".dt_bias", s.get(i, "ssm_dt.bias"))
    s.put(i, owner + ".A_log", np.log(-s.get(i, "ssm_a")).ravel())
    s.put(i, owner + ".D", s.get(i, "ssm_d").ravel())
    s.put(i, owner + ".norm.weight", s.get(i, "ssm_norm.weight").ravel())


def nemotron_h(f):
    """transformers keeps Mamba's steps above time_step_min; llama.cpp and firn do not, nor does this model."""
    n, k, width = sizes(f)
    key, kv, ff = f.key, f.key("attention.head_count_kv"), f.key("feed_forward_length")
    kinds = [FULL if g else ("moe" if n else "mlp") if w else SCAN for g, w in zip(kv, ff)]
    experts = dict(n_routed_experts=n, num_experts_per_tok=k, n_shared_experts=1, moe_intermediate_size=width,
                   moe_shared_expert_intermediate_size=key("expert_shared_feed_forward_length"),
                   moe_latent_size=key("moe_latent_size"), routed_scaling_factor=key("expert_weights_scale"), n_group=1, topk_group=1,
                   norm_topk_prob=True) if n else {}
    config = T.NemotronHConfig(
        **without({**common(f), "num_key_value_heads": max(kv)}, "num_hidden_layers", "rms_norm_eps"),
        layer_norm_epsilon=key("attention.layer_norm_epsilon"), layers_block_type=kinds, head_dim=key("attention.key_length"),
        intermediate_size=max(ff), ssm_state_size=key("ssm.state_size"), mamba_num_heads=key("ssm.time_step_rank"),
        mamba_head_dim=key("ssm.inner_size") // key("ssm.time_step_rank"), n_groups=key("ssm.group_count"),
        conv_kernel=key("ssm.conv_kernel"), use_conv_bias=True, chunk_size=8, time_step_min=1e-30, **experts)
    s = State(f, ends=("model.embeddings.weight", "model.norm_f.weight"))
    for i, kind in enumerate(kinds):
        s.same(i, norm="attn_norm")
        if kind == SCAN:
            mamba(s, i, "mixer")
        elif kind == FULL:
            s.heads(i, "mixer", permuted=True)
        elif kind == "mlp":
            s.same(i, mixer__up_proj="ffn_up", mixer__down_proj="ffn_down")
        else:
            s.same(i, mixer__gate="ffn_gate_inp", mixer__shared_experts__up_proj="ffn_up_shexp",
                   mixer__shared_experts__down_proj="ffn_down_shexp")
            s.bias(i, "mixer.gate.e_score_correction_bias")
            if s.has(i, "ffn_latent_down.weight"):
                s.same(i, mixer__fc1_latent_proj="ffn_latent_down", mixer__fc2_latent_proj="ffn_latent_up")
            s.put(i, "mixer.experts.up_proj", s.get(i, "ffn_up_exps.weight"))
            s.put(i, "mixer.experts.down_proj", s.get(i, "ffn_down_exps.weight"))
    return config, s


def granitehybrid(f):
    n, k, width = sizes(f)
    key, kv = f.key, f.key("attention.head_count_kv")
    kinds = [FULL if g else SCAN for g in kv]
    config = T.GraniteMoeHybridConfig(
        **{**common(f), "num_key_value_heads": max(kv)}, layer_types=kinds, intermediate_size=width or key("feed_forward_length"),
        shared_intermediate_size=key("expert_shared_feed_forward_length") or key("feed_forward_length"), num_local_experts=n or 0,
        num_experts_per_tok=k or 0, position_embedding_type=None, mamba_n_heads=key("ssm.time_step_rank"),
        mamba_d_head=key("ssm.inner_size") // key("ssm.time_step_rank"), mamba_n_groups=key("ssm.group_count"),
        mamba_d_state=key("ssm.state_size"), mamba_d_conv=key("ssm.conv_kernel"), mamba_expand=2, mamba_chunk_size=8,
        mamba_conv_bias=True, mamba_proj_bias=False, embedding_multiplier=key("embedding_scale"), logits_scaling=key("logit_scale"),
        residual_multiplier=key("residual_scale"), attention_multiplier=key("attention.scale"))
    s = State(f)
    suffix = "_shexp" if n else ""
    for i, kind in enumerate(kinds):
        s.norms(i)
        if kind == SCAN:
            mamba(s, i, "mamba")
        else:
            s.heads(i, permuted=True)
        if n:
            s.experts(i, "block_sparse_moe.experts", "block_sparse_moe.router.weight")
        gate, up = (s.get(i, f"ffn_{x}{suffix}.weight") for x in ("gate", "up"))
        s.put(i, "shared_mlp.input_linear.weight", np.concatenate([gate, up]))
        s.put(i, "shared_mlp.output_linear.weight", s.get(i, f"ffn_down{suffix}.weight"))
    return config, s


# Each gives (configuration, state), and perhaps what is done to the model where llama.cpp computes otherwise.
FAMILIES = {
    "minimax-m2": minimax_m2, "qwen3vlmoe": qwen3vlmoe, "mistral4": mistral4, "glm-dsa": glm_dsa, "dots1": dots1,
    "exaone-moe": exaone_moe, "hunyuan-moe": hunyuan_moe, "hy_v3": hy_v3, "mellum": mellum, "afmoe": afmoe, "gemma4": gemma4,
    "qwen35": qwen35, "qwen35moe": qwen35moe, "qwen3next": qwen3next, "kimi-linear": kimi_linear, "lfm2": lfm2, "lfm2moe": lfm2,
    "nemotron_h": nemotron_h, "nemotron_h_moe": nemotron_h, "granitehybrid": granitehybrid,
}
