"""One side of bench/peer-peft.

    peer_peft.py firn FOLDER STEPS COMMAND...      runs the command, reads its metrics.jsonl
    peer_peft.py peft FOLDER STEPS none|checkpointing
    peer_peft.py ratio FOLDER STEPS                compares what the runs before have left in FOLDER

PEFT's model has SmolLM2-135M's shape with 8 experts, 2 used (random weights: only time and memory are measured), F32. Its
joint gate_up adapter gets rank 2r with doubled alpha, so that both sides train the same number of values.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time

side, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
N_TOKENS, RANK = 512, 16


def report(name, seconds, peak_kib):
    rate = N_TOKENS / statistics.median(seconds)
    with open(f"{folder}/{name}.json", "w") as f:
        json.dump({"tokens_per_second": rate, "peak_mib": peak_kib / 1024}, f)
    print(f"{name:22} {rate:7.1f} tokens/s   peak resident {peak_kib / 1024:7.0f} MiB   "
          f"(median of {len(seconds)} steps, {min(seconds):.2f} to {max(seconds):.2f} s)")


def run_firn(command):
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with open(f"{folder}/out/metrics.jsonl") as f:
        rows = [json.loads(line) for line in f]
    report("firn", [r["tokens"] / r["tokens_per_second"] * N_TOKENS / r["tokens"] for r in rows if r["step"] > 2], peak)


def run_peft(checkpointing):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = MixtralConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                           num_attention_heads=9, num_key_value_heads=3, head_dim=64, num_local_experts=8,
                           num_experts_per_tok=2, tie_word_embeddings=True, max_position_embeddings=2048,
                           output_router_logits=False)
    model = MixtralForCausalLM(config).float()
    model.config.use_cache = False
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                      target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                      target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                      rank_pattern={".*gate_up_proj": 2 * RANK}, alpha_pattern={".*gate_up_proj": 4 * RANK})
    model = get_peft_model(model, lora)
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.0)
    seconds = []
    for step in range(steps + 2):
        ids = torch.randint(0, 49152, (1, N_TOKENS))
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    report("peft-checkpointing" if checkpointing else "peft", seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if side == "firn":
    run_firn(sys.argv[4:])
elif side == "peft":
    run_peft(sys.argv[4] == "checkpointing")
else:
    firn, peft = (json.load(open(f"{folder}/{n}.json")) for n in ("firn", "peft"))
    print(f"firn / PEFT: {firn['tokens_per_second'] / peft['tokens_per_second']:.2f}x the tokens/s in "
          f"{firn['peak_mib'] / peft['peak_mib']:.2f} of the peak resident memory")
