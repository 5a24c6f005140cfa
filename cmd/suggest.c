/* Suggestions: see suggest.h. The names of other tools are those of Hugging Face's trainer and PEFT, axolotl,
 * LLaMA-Factory, llama.cpp and mlx-lm, as their documentation has them. */
#include "suggest.h"

#include "core/nearest.h"

#include <ctype.h>
#include <string.h>

enum { MOST_NAMES = 128, NAME_BYTES = 48 };

/* One or more spellings, commas between, '-' for '_'; what firn calls it. */
static const struct {
    const char *theirs, *ours;
} aliases[] = {
    {"lr,learning-rate,eta", "--learning-rate"},
    {"lr-scheduler,lr-scheduler-type,scheduler", "--schedule"},
    {"warmup-steps", "--warmup"},
    {"max-steps,iters,num-steps", "--steps"},
    {"num-epochs,num-train-epochs,epoch", "--epochs"},
    {"max-length,max-seq-length,max-seq-len,sequence-len,cutoff-len,ctx-size,n-ctx,seq-len", "--context"},
    {"batch-size,micro-batch-size,per-device-train-batch-size,bs", "--batch"},
    {"gradient-accumulation-steps,grad-accumulation-steps,grad-accum", "--accumulate"},
    {"max-grad-norm,gradient-clip,grad-clip,clip-grad-norm", "--clip"},
    {"wd", "--weight-decay"},
    {"r,lora-r,lora-rank", "--rank"},
    {"lora-alpha", "--alpha"},
    {"rank-pattern", "--rank-of"},
    {"use-rslora", "--rslora"},
    {"loraplus-lr-ratio,loraplus-ratio", "--loraplus"},
    {"optim", "--optimizer"},
    {"target-modules,lora-target-modules,lora-target,modules", "--targets"},
    {"lora,lora-model-dir,adapter-path,adapter-name-or-path", "--adapter"},
    {"base-model,model-name-or-path,model-path,m", "--model"},
    {"dataset,datasets,train-data,train-file,train,dataset-path", "--data"},
    {"eval-dataset,eval-file,val-data,validation,valid,valid-data,test-data", "--eval-data"},
    {"val-size,val-set-size,validation-split", "--eval-split"},
    {"neftune-noise-alpha,neftune-alpha", "--neftune"},
    {"eval-steps", "--eval-every"},
    {"early-stopping-patience,early-stopping", "--patience"},
    {"load-best-model-at-end", "--final"},
    {"save-steps", "--save-every"},
    {"save-total-limit", "--keep"},
    {"output-dir,out,output-path,o", "--output"},
    {"resume-from-checkpoint", "--resume"},
    {"router-aux-loss-coef,aux-loss", "--router-aux-loss"},
    {"router-z-loss-coef,z-loss", "--router-z-loss"},
    {"bf16,fp16,dtype,torch-dtype", "--precision"},
    {"max-memory,memory,ram", "--memory-limit"},
    {"t,num-threads,n-threads", "--threads"},
    {"temperature", "--temp"},
    {"max-tokens,max-new-tokens,n-predict", "--tokens"},
    {"repetition-penalty", "--repeat-penalty"},
    {"system-prompt,sys", "--system"},
    {"interactive,conversation,cnv", "--chat"},
    {"file,f", "--prompts"},
};

static bool listed(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0))
            return true;
    }
    return false;
}

const char *cmd_suggest_option(const cmd_option *options, const char *word, size_t n)
{
    static char names[MOST_NAMES][NAME_BYTES];
    const char *list[MOST_NAMES];
    char plain[NAME_BYTES];
    size_t n_names = 0, k = 0;

    /* "-n,--tokens" is two names. */
    for (const cmd_option *o = options; o && o->name; o++)
        for (const char *at = o->name; *at && n_names < MOST_NAMES;) {
            const size_t length = strcspn(at, ",");
            if (length > 2 && length < NAME_BYTES) {
                memcpy(names[n_names], at, length);
                names[n_names][length] = 0;
                list[n_names] = names[n_names];
                n_names++;
            }
            at += length + (at[length] == ',');
        }
    while (n && *word == '-') {
        word++;
        n--;
    }
    if (n == 0 || n >= sizeof plain)
        return NULL;
    for (; k < n; k++)
        plain[k] = (char)(word[k] == '_' ? '-' : tolower((unsigned char)word[k]));
    plain[n] = 0;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        for (size_t j = 0; j < n_names && listed(aliases[i].theirs, plain); j++)
            if (strcmp(list[j], aliases[i].ours) == 0)
                return list[j];
    return firn_nearest(plain, list, n_names);
}
