/* Reads a vocabulary from tokenizer.ggml.*: tokens, merges, special tokens, and what
 * llama.cpp corrects in files on its way. Nothing in the file is trusted: every id, type and length is checked. */
#include "text/vocab.h"
#include "text/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- lookups ---- */

/* A slot keeps half of the hash beside the id, so that most texts that are no token never touch a token. */
static firn_text_slot *text_slot(const firn_tokenizer *tok, const char *text, size_t n)
{
    const uint64_t hash = firn_secret_hash(&tok->secret, text, n);
    const uint32_t tag = (uint32_t)(hash >> 32);

    for (size_t i = hash & tok->text_mask;; i = (i + 1) & tok->text_mask) {
        firn_text_slot *slot = &tok->by_text[i];
        if (slot->id < 0 ||
            (slot->tag == tag && tok->tokens[slot->id].n_text == n && memcmp(tok->tokens[slot->id].text, text, n) == 0))
            return slot;
    }
}

int32_t firn_vocab_text(const firn_tokenizer *tok, const char *text, size_t n)
{
    return text_slot(tok, text, n)->id;
}

static size_t merge_slot(const firn_tokenizer *tok, int32_t left, int32_t right)
{
    const uint64_t hash = firn_secret_number(&tok->secret, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);

    for (size_t i = hash & tok->merge_mask;; i = (i + 1) & tok->merge_mask) {
        const firn_merge *m = &tok->merges[i];
        if (m->product < 0 || (m->left == left && m->right == right))
            return i;
    }
}

const firn_merge *firn_vocab_merge(const firn_tokenizer *tok, int32_t left, int32_t right)
{
    const firn_merge *m = &tok->merges[merge_slot(tok, left, right)];
    return m->product < 0 ? NULL : m;
}

/* ---- the GPT-2 byte alphabet: bytes 21-7E, A1-AC, AE-FF are themselves, the rest U+0100 and up in order ---- */

static uint32_t alphabet_of(int byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return (uint32_t)byte;
    return byte <= 0x20 ? 0x100 + (uint32_t)byte : byte == 0xAD ? 0x143 : 0x121 + (uint32_t)byte - 0x7F;
}

static int byte_of(uint32_t code)
{
    if (code < 0x100)
        return alphabet_of((int)code) == code ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    return code <= 0x142 ? (int)(code - 0x121 + 0x7F) : code == 0x143 ? 0xAD : -1;
}

size_t firn_vocab_alphabet(uint8_t byte, char text[2])
{
    const uint32_t code = alphabet_of(byte);

    if (code < 0x80) {
        text[0] = (char)code;
        return 1;
    }
    text[0] = (char)(0xC0 | code >> 6);
    text[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

/* A token text in the byte alphabet as bytes; false where it has other characters. `bytes` has room for n. */
static bool decode_alphabet(const char *text, size_t n, char *bytes, uint32_t *n_bytes)
{
    *n_bytes = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += firn_utf8_decode(text + i, n - i, &code);
        const int byte = byte_of(code);
        if (byte < 0)
            return false;
        bytes[(*n_bytes)++] = (char)byte;
    }
    return true;
}

/* ---- tokens ---- */

static const firn_kv *array_of(const firn_gguf *g, const char *key, firn_kv_type a, firn_kv_type b)
{
    const firn_kv *kv = firn_gguf_kv(g, key);
    return kv && kv->type == FIRN_KV_ARRAY && (kv->element == a || kv->element == b) ? kv : NULL;
}

/* An optional array with one element a token. */
static firn_status per_token(firn_context *ctx, const firn_gguf *g, const char *key, firn_kv_type a, firn_kv_type b,
                             int32_t n, const firn_kv **kv)
{
    *kv = array_of(g, key, a, b);
    if (!*kv && firn_gguf_kv(g, key))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is not an array of 32-bit numbers", key);
    if (*kv && (*kv)->n != (uint64_t)n)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has %llu elements for %d tokens", key, (unsigned long long)(*kv)->n,
                         (int)n);
    return FIRN_OK;
}

/* Where each token's text lies and what it is. */
static firn_status read_tokens(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    const firn_kv *types, *scores, *tokens = array_of(g, "tokenizer.ggml.tokens", FIRN_KV_STRING, FIRN_KV_STRING);

    if (!tokens)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens is %s, expected an array of strings",
                         firn_gguf_kv(g, "tokenizer.ggml.tokens") ? "something else" : "absent");
    if (tokens->n == 0 || tokens->n > 1 << 24)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tokenizer.ggml.tokens has %llu tokens, expected 1 to %d",
                         (unsigned long long)tokens->n, 1 << 24);
    tok->n = (int32_t)tokens->n;
    FIRN_TRY(per_token(ctx, g, "tokenizer.ggml.token_type", FIRN_KV_I32, FIRN_KV_U32, tok->n, &types));
    FIRN_TRY(per_token(ctx, g, "tokenizer.ggml.scores", FIRN_KV_F32, FIRN_KV_I32, tok->n, &scores));
    tok->tokens = firn_arena_zeroed(&tok->arena, (size_t)tok->n, sizeof *tok->tokens);
    if (!tok->tokens)
        return FIRN_ERR_MEMORY;
    for (int32_t i = 0; i < tok->n; i++) {
        firn_token *t = &tok->tokens[i];
        firn_string s = tokens->strings[i];
        char empty[24];
        int32_t type = FIRN_TOKEN_NORMAL;
        if (s.size > FIRN_TOKEN_MAX_BYTES)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "token %d has %zu bytes, expected at most %d", (int)i, s.size,
                             FIRN_TOKEN_MAX_BYTES);
        if (s.size == 0) {
            s.size = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%d]", (int)i);
            s.data = empty;
        }
        t->text = firn_arena_text(&tok->arena, s.data, s.size);
        if (!t->text)
            return FIRN_ERR_MEMORY;
        t->n_text = (uint32_t)s.size;
        if (types)
            memcpy(&type, (const char *)types->data + (size_t)i * 4, 4);
        if (type < FIRN_TOKEN_UNDEFINED || type > FIRN_TOKEN_BYTE)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "token %d has type %d, expected 0 to %d", (int)i, (int)type,
                             FIRN_TOKEN_BYTE);
        t->type = (firn_token_type)type;
        t->control = type == FIRN_TOKEN_CONTROL || type == FIRN_TOKEN_UNKNOWN;
        t->special = t->control || type == FIRN_TOKEN_USER_DEFINED;
        if (scores && scores->element == FIRN_KV_F32) {
            memcpy(&t->score, (const char *)scores->data + (size_t)i * 4, 4);
        } else if (scores) {
            int32_t score;
            memcpy(&score, (const char *)scores->data + (size_t)i * 4, 4);
            t->score = (float)score;
        }
        if (isnan(t->score))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "the score of token %d is not a number", (int)i);
        tok->max_bytes = t->n_text > tok->max_bytes ? t->n_text : tok->max_bytes;
    }
    size_t size = 16;
    while (size < (size_t)tok->n * 2)
        size *= 2;
    tok->by_text = firn_arena_alloc(&tok->arena, size * sizeof *tok->by_text);
    if (!tok->by_text)
        return FIRN_ERR_MEMORY;
    memset(tok->by_text, 0xFF, size * sizeof *tok->by_text);
    tok->text_mask = size - 1;
    for (int32_t i = 0; i < tok->n; i++) {
        const firn_token *t = &tok->tokens[i];
        firn_text_slot *slot = text_slot(tok, t->text, t->n_text);
        if (slot->id >= 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "tokens %d and %d have the same text '%.*s'", (int)slot->id, (int)i,
                             t->n_text < 60 ? (int)t->n_text : 60, t->text);
        *slot = (firn_text_slot){i, (uint32_t)(firn_secret_hash(&tok->secret, t->text, t->n_text) >> 32)};
    }
    return FIRN_OK;
}

/* ---- special tokens ---- */

/* An id that a key names; UINT32_MAX means none, as does an absent key with `value` -1. */
static firn_status read_id(firn_context *ctx, const firn_tokenizer *tok, const firn_gguf *g, const char *name,
                           int32_t *value)
{
    char key[64];
    uint32_t id = (uint32_t)*value;

    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    const bool given = firn_gguf_kv(g, key) != NULL;
    FIRN_TRY(firn_gguf_get_u32(ctx, g, key, false, &id));
    if (given && id != UINT32_MAX && id >= (uint32_t)tok->n)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is %u, expected an id below %d", key, id, (int)tok->n);
    *value = id < (uint32_t)tok->n ? (int32_t)id : -1;
    return FIRN_OK;
}

/* Tokens that llama.cpp knows by their text, whatever type the file gives them. */
static const char *const end_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    ("<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"),
};
#define DEEPSEEK_FIM(x)                                                                                                \
    "<\xEF\xBD\x9C"                                                                                                    \
    "fim\xE2\x96\x81" x "\xEF\xBD\x9C>"
static const struct {
    const char *key;      /* an id that the file names settles it */
    bool end;             /* ends generation */
    const char *texts[8]; /* else the first token that has one of these */
} fill_in_middle[] = {
    {"fim_pre",
     false,
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", DEEPSEEK_FIM("begin"), "<PRE>", FIRN_SPACE_MARK "<PRE>",
      "<|code_prefix|>", "<|prefix|>"}},
    {"fim_suf",
     false,
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", DEEPSEEK_FIM("hole"), "<SUF>", FIRN_SPACE_MARK "<SUF>",
      "<|code_suffix|>", "<|suffix|>"}},
    {"fim_mid",
     false,
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", DEEPSEEK_FIM("end"), "<MID>", FIRN_SPACE_MARK "<MID>",
      "<|code_middle|>", "<|middle|>"}},
    {"fim_pad", true, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"fim_rep", true, {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"fim_sep", true, {"<|file_sep|>"}},
};

static int32_t find_cstr(const firn_tokenizer *tok, const char *text)
{
    return firn_vocab_text(tok, text, strlen(text));
}

static void make_control(firn_token *t)
{
    t->type = t->type == FIRN_TOKEN_UNKNOWN ? t->type : FIRN_TOKEN_CONTROL;
    t->control = t->special = true;
}

static void make_user_defined(firn_token *t)
{
    t->type = FIRN_TOKEN_USER_DEFINED;
    t->control = t->end = false;
    t->special = true;
}

static firn_status mark_specials(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    static const char *const keys[] = {"eot", "eom"};
    static const char *const harmony[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
    int32_t id;

    for (size_t i = 0; i < sizeof fill_in_middle / sizeof fill_in_middle[0]; i++) {
        id = -1;
        FIRN_TRY(read_id(ctx, tok, g, fill_in_middle[i].key, &id));
        for (int j = 0; j < 8 && id < 0 && fill_in_middle[i].texts[j]; j++) {
            id = find_cstr(tok, fill_in_middle[i].texts[j]);
            if (id >= 0)
                make_control(&tok->tokens[id]);
        }
        if (id >= 0)
            tok->tokens[id].end |= fill_in_middle[i].end;
    }
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
        id = find_cstr(tok, end_texts[i]);
        if (id >= 0) {
            make_control(&tok->tokens[id]);
            tok->tokens[id].end = true;
        }
    }
    for (size_t i = 0; i < sizeof harmony / sizeof harmony[0]; i++) {
        id = find_cstr(tok, harmony[i]);
        if (id >= 0) {
            const bool end = tok->tokens[id].end;
            make_user_defined(&tok->tokens[id]);
            tok->tokens[id].end = end;
        }
    }
    if (tok->eos >= 0)
        tok->tokens[tok->eos].end = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        id = -1;
        FIRN_TRY(read_id(ctx, tok, g, keys[i], &id));
        if (id >= 0)
            tok->tokens[id].end = true;
    }

    /* gpt-oss and solar-open end a message, not a turn, with <|end|>; gemma4's </s> is a word of its prompts. */
#define ENDS(text) (find_cstr(tok, text) >= 0 && tok->tokens[find_cstr(tok, text)].end)
    const bool call = ENDS("<|call|>") || ENDS("<|calls|>");
    if (ENDS("<|end|>") && call && (ENDS("<|return|>") || ENDS("<|flush|>")))
        make_user_defined(&tok->tokens[find_cstr(tok, "<|end|>")]);
    if (ENDS("</s>") && ENDS("<|tool_response>")) {
        firn_token *t = &tok->tokens[find_cstr(tok, "</s>")];
        t->type = FIRN_TOKEN_NORMAL;
        t->control = t->special = t->end = false;
    }
#undef ENDS
    for (int32_t i = 0; i < tok->n; i++)
        tok->n_ends += tok->tokens[i].end;
    tok->ends = firn_arena_alloc(&tok->arena, tok->n_ends * sizeof *tok->ends);
    if (!tok->ends)
        return FIRN_ERR_MEMORY;
    for (int32_t i = 0, n = 0; i < tok->n; i++)
        if (tok->tokens[i].end)
            tok->ends[n++] = i;
    return FIRN_OK;
}

/* Whitespace behind special tokens goes with them in Phi-3, which only the model's name tells. */
static firn_status mark_strips(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    static const char *const kept[] = {"<unk>", "<s>", "<|endoftext|>"};
    firn_string name = {"", 0};
    bool phi3 = false;

    if (firn_gguf_kv(g, "general.name"))
        FIRN_TRY(firn_gguf_get_string(ctx, g, "general.name", false, &name));
    for (size_t i = 0; i < name.size; i++)
        phi3 |= (name.size - i >= 5 && strncasecmp(name.data + i, "phi-3", 5) == 0) ||
                (name.size - i >= 4 && strncasecmp(name.data + i, "phi3", 4) == 0);
    for (int32_t i = 0; phi3 && i < tok->n; i++)
        tok->tokens[i].strip = tok->tokens[i].special;
    for (size_t i = 0; phi3 && i < sizeof kept / sizeof kept[0]; i++) {
        const int32_t id = find_cstr(tok, kept[i]);
        if (id >= 0)
            tok->tokens[id].strip = false;
    }
    return FIRN_OK;
}

/* ---- bytes and merges ---- */

/* What each token stands for in text: special tokens their text; else the byte alphabet or U+2581 undone. */
static firn_status decode_tokens(firn_context *ctx, firn_tokenizer *tok)
{
    const bool gpt2 = tok->model == FIRN_VOCAB_GPT2;
    char *scratch = firn_alloc(ctx, FIRN_TOKEN_MAX_BYTES);

    if (!scratch)
        return FIRN_ERR_MEMORY;
    firn_status status = FIRN_OK;
    for (int32_t i = 0; i < tok->n && status == FIRN_OK; i++) {
        firn_token *t = &tok->tokens[i];
        const bool raw = t->control || t->type == FIRN_TOKEN_USER_DEFINED;
        uint32_t n = 0;
        t->bytes = t->text;
        t->n_bytes = t->n_text;
        if (raw || (gpt2 && !decode_alphabet(t->text, t->n_text, scratch, &n)))
            continue;
        if (!gpt2 && t->type == FIRN_TOKEN_BYTE) {
            unsigned byte = 0;
            char close = 0;
            if (t->n_text != 6 || sscanf(t->text, "<0x%2x%c", &byte, &close) != 2 || close != '>') {
                status = firn_fail(ctx, FIRN_ERR_FORMAT, "byte token %d is '%.*s', expected <0x00> to <0xFF>", (int)i,
                                   t->n_text < 60 ? (int)t->n_text : 60, t->text);
                break;
            }
            scratch[n++] = (char)byte;
        } else if (!gpt2) {
            for (uint32_t j = 0; j < t->n_text;) {
                const bool mark = t->n_text - j >= 3 && memcmp(t->text + j, FIRN_SPACE_MARK, 3) == 0;
                scratch[n++] = mark ? ' ' : t->text[j];
                j += mark ? 3 : 1;
            }
        }
        char *bytes = firn_arena_text(&tok->arena, scratch, n);
        if (!bytes) {
            status = FIRN_ERR_MEMORY;
            break;
        }
        t->bytes = bytes;
        t->n_bytes = n;
    }
    firn_free(ctx, scratch);
    return status;
}

static firn_status read_merges(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    const firn_kv *kv = array_of(g, "tokenizer.ggml.merges", FIRN_KV_STRING, FIRN_KV_STRING);
    size_t size = 16;

    if (!kv)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tokenizer.ggml.merges is %s, expected an array of strings",
                         firn_gguf_kv(g, "tokenizer.ggml.merges") ? "something else" : "absent");
    if (kv->n > 1 << 26)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tokenizer.ggml.merges has %llu merges, expected at most %d",
                         (unsigned long long)kv->n, 1 << 26);
    while (size < kv->n * 2)
        size *= 2;
    tok->merges = firn_arena_alloc(&tok->arena, size * sizeof *tok->merges);
    if (!tok->merges)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < size; i++)
        tok->merges[i].product = -1;
    tok->merge_mask = size - 1;
    char joined[FIRN_TOKEN_MAX_BYTES];
    for (uint64_t i = 0; i < kv->n; i++) {
        const firn_string s = kv->strings[i];
        const char *space = s.size > 1 ? memchr(s.data + 1, ' ', s.size - 1) : NULL;
        int32_t left = -1, right = -1, product = -1;
        if (space && s.size <= FIRN_TOKEN_MAX_BYTES) {
            const size_t n = (size_t)(space - s.data), m = s.size - n - 1;
            left = firn_vocab_text(tok, s.data, n);
            right = firn_vocab_text(tok, space + 1, m);
            memcpy(joined, s.data, n);
            memcpy(joined + n, space + 1, m);
            product = firn_vocab_text(tok, joined, n + m);
        }
        if (left < 0 || right < 0 || product < 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT,
                             "merge %llu is '%.*s', expected two tokens with a space between that join to a token",
                             (unsigned long long)i, s.size < 100 ? (int)s.size : 100, s.data);
        firn_merge *m = &tok->merges[merge_slot(tok, left, right)];
        if (m->product < 0) /* of two alike the first counts */
            *m = (firn_merge){left, right, product, (uint32_t)i};
    }
    return FIRN_OK;
}

static void find_bytes(firn_tokenizer *tok)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t n;
        int32_t id = -1;
        if (tok->model == FIRN_VOCAB_GPT2) {
            n = firn_vocab_alphabet((uint8_t)byte, text);
        } else {
            n = (size_t)snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
            id = firn_vocab_text(tok, text, n);
            text[0] = (char)byte;
            n = id < 0 ? 1 : n;
        }
        tok->byte_ids[byte] = id < 0 ? firn_vocab_text(tok, text, n) : id;
    }
}

static void find_joins(firn_tokenizer *tok)
{
    for (int32_t i = 0; i < tok->n; i++) {
        const firn_token *t = &tok->tokens[i];
        for (uint32_t j = 1; j + 3 <= t->n_text; j++)
            if (memcmp(t->text + j, FIRN_SPACE_MARK, 3) == 0)
                tok->joins[(uint8_t)t->text[j - 1]] = true;
    }
}

/* ---- all of it ---- */

static firn_status read_model(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    firn_string model, pre = {"default", 7};

    FIRN_TRY(firn_gguf_get_string(ctx, g, "tokenizer.ggml.model", true, &model));
#define IS(name) (model.size == sizeof name - 1 && memcmp(model.data, name, model.size) == 0)
    if (IS("gpt2"))
        tok->model = FIRN_VOCAB_GPT2;
    else if (IS("gemma4"))
        tok->model = FIRN_VOCAB_GEMMA4;
    else if (IS("llama"))
        tok->model = FIRN_VOCAB_SPM;
    else
        return firn_fail(
            ctx, FIRN_ERR_UNSUPPORTED,
            "tokenizer model '%.*s' (tokenizer.ggml.model) is not supported, expected gpt2, llama or gemma4",
            model.size < 100 ? (int)model.size : 100, model.data);
#undef IS
    if (tok->model != FIRN_VOCAB_GPT2)
        return FIRN_OK;
    FIRN_TRY(firn_gguf_get_string(ctx, g, "tokenizer.ggml.pre", false, &pre));
    FIRN_TRY(firn_pre_create(ctx, pre.data, pre.size, &tok->pre));
    tok->pre_flags = firn_pre_flags(tok->pre);
    return FIRN_OK;
}

static firn_status read_all(firn_context *ctx, firn_tokenizer *tok, const firn_gguf *g)
{
    FIRN_TRY(read_model(ctx, tok, g));
    const bool spm = tok->model == FIRN_VOCAB_SPM;
    FIRN_TRY(read_tokens(ctx, tok, g));
    tok->bos = spm ? 1 : tok->pre_flags & FIRN_PRE_NO_BOS ? -1 : 11;
    tok->eos = spm ? 2 : 11;
    tok->unknown = spm ? 0 : -1;
    tok->padding = -1;
    FIRN_TRY(read_id(ctx, tok, g, "bos", &tok->bos));
    FIRN_TRY(read_id(ctx, tok, g, "eos", &tok->eos));
    FIRN_TRY(read_id(ctx, tok, g, "unknown", &tok->unknown));
    FIRN_TRY(read_id(ctx, tok, g, "padding", &tok->padding));
    tok->add_bos = spm || (tok->pre_flags & FIRN_PRE_ADD_BOS);
    tok->add_space_prefix = spm;
    FIRN_TRY(firn_gguf_get_bool(ctx, g, "tokenizer.ggml.add_bos_token", false, &tok->add_bos));
    FIRN_TRY(firn_gguf_get_bool(ctx, g, "tokenizer.ggml.add_eos_token", false, &tok->add_eos));
    FIRN_TRY(firn_gguf_get_bool(ctx, g, "tokenizer.ggml.add_space_prefix", false, &tok->add_space_prefix));
    tok->add_space_prefix &= spm;
    FIRN_TRY(mark_specials(ctx, tok, g));
    FIRN_TRY(mark_strips(ctx, tok, g));
    FIRN_TRY(decode_tokens(ctx, tok));
    if (!spm)
        FIRN_TRY(read_merges(ctx, tok, g));
    find_bytes(tok);
    if (tok->model != FIRN_VOCAB_GPT2)
        find_joins(tok);
    return firn_specials_build(ctx, tok);
}

firn_status firn_tokenizer_create(firn_context *ctx, const firn_gguf *gguf, firn_tokenizer **tokenizer)
{
    FIRN_GIVEN(ctx, ctx, gguf, tokenizer);
    firn_tokenizer *tok = firn_alloc_zeroed(ctx, 1, sizeof *tok), **out = tokenizer;

    *out = NULL;
    if (!tok)
        return FIRN_ERR_MEMORY;
    tok->ctx = ctx;
    tok->secret = firn_secret_draw();
    firn_arena_init(&tok->arena, ctx, 0);
    firn_status status = read_all(ctx, tok, gguf);
    if (status == FIRN_OK && tok->model == FIRN_VOCAB_GPT2) {
        firn_tokens mark = {0};
        status = firn_tokenize(ctx, tok, "\xEF\xBF\xBD", 3, 0, &mark);
        for (size_t i = 0; status == FIRN_OK && i < mark.n && i < 3; i++)
            tok->replacement[tok->n_replacement++] = mark.ids[i];
        firn_tokens_free(ctx, &mark);
    }
    if (status != FIRN_OK) {
        firn_tokenizer_destroy(tok);
        return status;
    }
    *out = tok;
    return FIRN_OK;
}

void firn_tokenizer_destroy(firn_tokenizer *tok)
{
    if (!tok)
        return;
    firn_pre_destroy(tok->ctx, tok->pre);
    firn_arena_clear(&tok->arena);
    firn_free(tok->ctx, tok);
}

/* ---- what it says ---- */

static const firn_token *token_at(const firn_tokenizer *tok, int32_t id)
{
    return tok && id >= 0 && id < tok->n ? &tok->tokens[id] : NULL;
}

/* Text that a caller may not have asked the length of. */
static const char *measured(const char *text, size_t length, size_t *n)
{
    if (n)
        *n = length;
    return text;
}

int32_t firn_tokenizer_size(const firn_tokenizer *tok)
{
    return tok ? tok->n : 0;
}

const char *firn_tokenizer_model(const firn_tokenizer *tok)
{
    if (!tok)
        return "";
    return tok->model == FIRN_VOCAB_GPT2 ? "gpt2" : tok->model == FIRN_VOCAB_GEMMA4 ? "gemma4" : "llama";
}

const char *firn_tokenizer_pre(const firn_tokenizer *tok)
{
    return tok && tok->pre ? firn_pre_name(tok->pre) : "";
}

const char *firn_token_text(const firn_tokenizer *tok, int32_t id, size_t *n)
{
    const firn_token *t = token_at(tok, id);

    return t ? measured(t->text, t->n_text, n) : measured(NULL, 0, n);
}

const char *firn_token_bytes(const firn_tokenizer *tok, int32_t id, size_t *n)
{
    const firn_token *t = token_at(tok, id);

    return t ? measured(t->bytes, t->n_bytes, n) : measured(NULL, 0, n);
}

firn_token_type firn_token_kind(const firn_tokenizer *tok, int32_t id)
{
    const firn_token *t = token_at(tok, id);
    return t ? t->type : FIRN_TOKEN_UNDEFINED;
}

int32_t firn_token_find(const firn_tokenizer *tok, const char *text, size_t n)
{
    return tok && text ? firn_vocab_text(tok, text, n) : -1;
}

int32_t firn_tokenizer_bos(const firn_tokenizer *tok)
{
    return tok ? tok->bos : -1;
}

int32_t firn_tokenizer_eos(const firn_tokenizer *tok)
{
    return tok ? tok->eos : -1;
}

int32_t firn_tokenizer_unknown(const firn_tokenizer *tok)
{
    return tok ? tok->unknown : -1;
}

int32_t firn_tokenizer_padding(const firn_tokenizer *tok)
{
    return tok ? tok->padding : -1;
}

bool firn_tokenizer_adds_bos(const firn_tokenizer *tok)
{
    return tok && tok->add_bos && tok->bos >= 0;
}

bool firn_tokenizer_adds_eos(const firn_tokenizer *tok)
{
    return tok && tok->add_eos && tok->eos >= 0;
}

bool firn_token_is_end(const firn_tokenizer *tok, int32_t id)
{
    const firn_token *t = token_at(tok, id);
    return t && t->end;
}

const int32_t *firn_tokenizer_ends(const firn_tokenizer *tok, size_t *n)
{
    if (n)
        *n = tok ? tok->n_ends : 0;
    return tok ? tok->ends : NULL;
}
