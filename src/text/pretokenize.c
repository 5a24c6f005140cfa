/* Pre-tokenizers: one table row each, at the end of this file.
 *
 * A row is a list of stages; each cuts the pieces that the stage before it left, into its matches and the gaps between
 * them. What a stage matches was published by each model as a regular expression, which is read as llama.cpp reads it.
 * A text is first written as its *kinds*, one byte a character: ASCII is itself, other White_Space is 0x0B, and the rest
 * shrinks to its Unicode class. On kinds a stage is
 *     a scanner by hand   for the expressions that llama.cpp scans by hand with full Unicode classes, and
 *     a PCRE2 pattern     for the others; \p{L} is a class of bytes here, so that \p{Lu} and kin do not exist;
 * and where an expression names code points, it is a run of characters in a table of ranges.
 *
 * Everything is linear in the length of a piece: patterns backtrack over single characters only, a match that fails
 * behind a long run skips it ((*SKIP)), and where groups repeat they are possessive. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"
#include "text/unicode.h"

#include <pcre2.h>
#include <string.h>

/* ---- kinds ---- */

enum {
    KIND_SPACE = 0x0B, /* White_Space that is not ASCII */
    KIND_LETTER = 0x80,
    KIND_HAN, /* a letter in the ranges that kimi-k2 calls Han */
    KIND_NUMBER,
    KIND_MARK,
    KIND_PUNCTUATION,
    KIND_SYMBOL, /* and bytes that are not UTF-8: U+FFFD is a symbol */
    KIND_OTHER,
    KIND_HAN_OTHER, /* in those ranges, but not assigned */
};

/* The insides of bracket expressions, for patterns. */
#define L "A-Za-z\\x80\\x81"
#define N "0-9\\x82"
#define M "\\x83"
#define P "!-#%-*,-/:;?@\\[-\\]_{}\\x84"
#define S "$+<=>\\^`|~\\x85"
/* What published patterns mean by upper and lower case, as llama.cpp reads them: [^a-z] and [^A-Z] among letters. */
#define UPPER "A-Z\\x80\\x81"
#define LOWER "a-z\\x80\\x81"

#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define BLANKS      "\\s+(?!\\S)|\\s+"
#define PUNCT_BLOCK "[" P "$+<=>\\^~|"

static inline bool is_newline(uint8_t k)
{
    return k == '\n' || k == '\r';
}

static inline bool is_space(uint8_t k)
{
    return k == ' ' || (k >= 0x09 && k <= 0x0D);
}

static inline bool is_letter(uint8_t k)
{
    return (uint8_t)((k | 0x20) - 'a') < 26 || k == KIND_LETTER || k == KIND_HAN;
}

static inline bool is_number(uint8_t k)
{
    return (uint8_t)(k - '0') < 10 || k == KIND_NUMBER;
}

static inline bool is_han(uint8_t k)
{
    return k == KIND_HAN || k == KIND_HAN_OTHER;
}

typedef struct {
    uint32_t first, last;
} code_range;

/* Up to a range whose first is 0. Ascending. */
static bool in_ranges(const code_range *ranges, uint32_t code)
{
    for (; ranges->first; ranges++)
        if (code <= ranges->last)
            return code >= ranges->first;
    return false;
}

static const code_range han_ranges[] = {{0x3400, 0x4DBF},
                                        {0x4E00, 0x9FFF},
                                        {0xF900, 0xFAFF},
                                        {0x20000, 0x2A6DF},
                                        {0x2A700, 0x2EBEF},
                                        {0x2F800, 0x2FA1F},
                                        {0, 0}};

static uint8_t kind_of(uint32_t code)
{
    static const uint8_t kinds[] = {
        [FIRN_UNICODE_OTHER] = KIND_OTHER,   [FIRN_UNICODE_SPACE] = KIND_SPACE,
        [FIRN_UNICODE_LETTER] = KIND_LETTER, [FIRN_UNICODE_NUMBER] = KIND_NUMBER,
        [FIRN_UNICODE_MARK] = KIND_MARK,     [FIRN_UNICODE_PUNCTUATION] = KIND_PUNCTUATION,
        [FIRN_UNICODE_SYMBOL] = KIND_SYMBOL,
    };
    if (code == UINT32_MAX)
        return KIND_SYMBOL;
    const uint8_t kind = kinds[firn_unicode_classify(code)];
    if (code >= 0x3400 && (kind == KIND_LETTER || kind == KIND_OTHER) && in_ranges(han_ranges, code))
        return kind == KIND_LETTER ? KIND_HAN : KIND_HAN_OTHER;
    return kind;
}

/* ---- scanners: the end of the match that begins at i; every character is in one ---- */

static size_t contraction(const uint8_t *k, size_t i, size_t end, uint8_t fold)
{
    if (k[i] != '\'' || end - i < 2)
        return i;
    const uint8_t a = k[i + 1] | fold, b = end - i > 2 ? k[i + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return i + 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? i + 3 : i;
}

/* \s+(?!\S)|\s+ at whitespace: the last character of a run stays for what follows it. */
static size_t blanks(const uint8_t *k, size_t i, size_t end)
{
    size_t p = i;

    while (p < end && is_space(k[p]))
        p++;
    return p < end && p - i > 1 ? p - 1 : p;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t blanks_lines(const uint8_t *k, size_t i, size_t end)
{
    size_t p = i, line_end = i;

    while (p < end && is_space(k[p])) {
        p++;
        if (is_newline(k[p - 1]))
            line_end = p;
    }
    if (line_end > i)
        return line_end;
    return p < end && p - i > 1 ? p - 1 : p;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t scan_gpt2(const uint8_t *k, size_t i, size_t end)
{
    size_t p = contraction(k, i, end, 0);

    if (p > i)
        return p;
    p = i + (k[i] == ' ' && i + 1 < end);
    if (is_letter(k[p])) {
        while (p < end && is_letter(k[p]))
            p++;
        return p;
    }
    if (is_number(k[p])) {
        while (p < end && is_number(k[p]))
            p++;
        return p;
    }
    if (is_space(k[p]))
        return blanks(k, i, end);
    while (p < end && !is_space(k[p]) && !is_letter(k[p]) && !is_number(k[p]))
        p++;
    return p;
}

/* (?i:C)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where with `marks` a mark is part of a word. */
static inline size_t scan_words(const uint8_t *k, size_t i, size_t end, size_t digits, bool marks)
{
#define WORDY(x) (is_letter(x) || (marks && (x) == KIND_MARK))
    size_t p = contraction(k, i, end, 0x20);

    if (p > i)
        return p;
    p = i;
    if (is_number(k[p])) {
        while (p < end && p - i < digits && is_number(k[p]))
            p++;
        return p;
    }
    p += !WORDY(k[i]) && !is_newline(k[i]) && i + 1 < end;
    if (WORDY(k[p])) {
        while (p < end && WORDY(k[p]))
            p++;
        return p;
    }
    p = i + (k[i] == ' ' && i + 1 < end);
    if (is_space(k[p]) || is_number(k[p]))
        return blanks_lines(k, i, end);
    while (p < end && !is_space(k[p]) && !WORDY(k[p]) && !is_number(k[p]))
        p++;
    while (p < end && is_newline(k[p]))
        p++;
    return p;
#undef WORDY
}

static size_t scan_llama3(const uint8_t *k, size_t i, size_t end)
{
    return scan_words(k, i, end, 3, false);
}

static size_t scan_qwen2(const uint8_t *k, size_t i, size_t end)
{
    return scan_words(k, i, end, 1, false);
}

static size_t scan_qwen35(const uint8_t *k, size_t i, size_t end)
{
    return scan_words(k, i, end, 1, true);
}

/* Han+|[^\r\n\p{L}\p{N}]?(letters but Han)+(?i:C)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t scan_kimi(const uint8_t *k, size_t i, size_t end)
{
    size_t p = i;

    while (p < end && is_han(k[p]))
        p++;
    if (p > i)
        return p;
    while (p < end && p - i < 3 && is_number(k[p]))
        p++;
    if (p > i)
        return p;
    p += !is_letter(k[i]) && !is_newline(k[i]) && i + 1 < end;
    if (is_letter(k[p]) && !is_han(k[p])) {
        while (p < end && is_letter(k[p]) && !is_han(k[p]))
            p++;
        return p < end ? contraction(k, p, end, 0x20) : p;
    }
    p = i + (k[i] == ' ' && i + 1 < end);
    if (is_space(k[p]) || is_letter(k[p]) || is_number(k[p]))
        return blanks_lines(k, i, end);
    while (p < end && !is_space(k[p]) && !is_letter(k[p]) && !is_number(k[p]))
        p++;
    while (p < end && is_newline(k[p]))
        p++;
    return p;
}

/* Digits in threes from the right end of their run. llama.cpp leaves what stands in front of a run in one piece with
 * its first, short group; it shows where the next stages look ahead. */
static size_t scan_afmoe(const uint8_t *k, size_t i, size_t end)
{
    size_t begin = i, p;

    if (i > 0 && is_number(k[i]) && is_number(k[i - 1]))
        return i + 3;
    while (begin < end && !is_number(k[begin]))
        begin++;
    for (p = begin; p < end && is_number(k[p]);)
        p++;
    return p == begin ? end : begin + ((p - begin) % 3 ? (p - begin) % 3 : 3);
}

/* ---- the table ---- */

/* Cased letters, as deepseek-llm lists them. */
static const code_range latin[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
    {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
    {0x376, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
    {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},
    {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}, {0, 0}};
static const code_range deepseek_punctuation[] = {
    {0x21, 0x2F}, {0x3A, 0x7E}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}, {0, 0}};
/* Overlaps in what was published (U+0800 to U+4E00, then U+4E00 to U+9FA5) are joined. */
static const code_range deepseek_cjk[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}, {0, 0}};
static const code_range deepseek_v3_cjk[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}, {0, 0}};
/* Thai, Lao, Myanmar, Hangul, Khmer, radicals, kana, Han; what was published means U+F900 to U+FAFF, but writes its
 * first character as U+8C48, to which it is equivalent, so that all from there on is in. */
static const code_range afmoe_scripts[] = {{0x0E40, 0x0E7F}, {0x0E80, 0x0EFF}, {0x1000, 0x109F}, {0x1100, 0x11FF},
                                           {0x1780, 0x17FF}, {0x2F00, 0x2FDF}, {0x3040, 0x309F}, {0x30A0, 0x30FF},
                                           {0x3400, 0x4DBF}, {0x4E00, 0xFAFF}, {0xFF65, 0xFF9F}, {0, 0}};

typedef struct {
    size_t (*scan)(const uint8_t *kinds, size_t i, size_t end);
    const char *pattern;      /* or: PCRE2, over kinds */
    const code_range *ranges; /* or: a run of these characters, after one whitespace if `lead` */
    bool lead;
} stage;

#define SCAN(f)                                                                                                        \
    {                                                                                                                  \
        .scan = (f)                                                                                                    \
    }
#define PATTERN(p)                                                                                                     \
    {                                                                                                                  \
        .pattern = (p)                                                                                                 \
    }
#define RUN(r)                                                                                                         \
    {                                                                                                                  \
        .ranges = (r)                                                                                                  \
    }
#define SPACE_RUN(r)                                                                                                   \
    {                                                                                                                  \
        .ranges = (r), .lead = true                                                                                    \
    }

#define DIGIT PATTERN("[" N "]")
#define DEEPSEEK_V3_END                                                                                                \
    PATTERN("[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n" L P S "]?[" L M "]+| ?[" P S "]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS)
#define CASED(upper, lower, contraction_, digits)                                                                      \
    PATTERN("[^\\r\\n" L N "]?[" UPPER "]*[" LOWER "]+" contraction_ "|[^\\r\\n" L N "]?[" UPPER "]+[" LOWER           \
            "]*" contraction_ "|" digits "| ?[^\\s" L N "]+[\\r\\n/]*|\\s*[\\r\\n]+|" BLANKS)

enum { MAX_STAGES = 6, MAX_NAMES = 16 };

typedef struct {
    const char *names[MAX_NAMES];
    unsigned flags;
    stage stages[MAX_STAGES];
} row;

static const row rows[] = {
    {{"llama-bpe", "llama3", "llama-v3", "lfm2", "pixtral", "falcon3", "falcon-h1", "midm-2.0", "jina-v5-nano"},
     FIRN_PRE_IGNORE_MERGES | FIRN_PRE_ADD_BOS,
     {SCAN(scan_llama3)}},
    {{"glm4", "glm5"}, FIRN_PRE_IGNORE_MERGES | FIRN_PRE_NO_BOS, {SCAN(scan_llama3)}},
    {{"chatglm-bpe"}, FIRN_PRE_NO_BOS, {SCAN(scan_llama3)}},
    {{"dbrx", "smaug-bpe"}, 0, {SCAN(scan_llama3)}},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"}, 0, {SCAN(scan_qwen2)}},
    {{"qwen35"}, 0, {SCAN(scan_qwen35)}},
    {{"gpt-2", "olmo", "mpt", "phi-2", "exaone4", "gigachat", "mellum", "jais", "trillion", "granite-docling"},
     0,
     {SCAN(scan_gpt2)}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     0,
     {DIGIT, SCAN(scan_gpt2)}},
    {{"deepseek-llm"},
     0,
     {PATTERN("[\\r\\n]"), SPACE_RUN(latin), SPACE_RUN(deepseek_punctuation), PATTERN("\\s++(?:\\z|(*SKIP)(*FAIL))"),
      RUN(deepseek_cjk), PATTERN("[" N "]+")}},
    {{"deepseek-coder"},
     0,
     {PATTERN("[\\r\\n]"), PATTERN("\\s?[" L "]+"), PATTERN("\\s?[" P "]+"), RUN(deepseek_cjk), DIGIT}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
     0,
     {PATTERN("[" N "]{1,3}"), RUN(deepseek_v3_cjk), DEEPSEEK_V3_END}},
    {{"kimi-k2"}, 0, {SCAN(scan_kimi)}},
    {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, 0, {CASED(UPPER, LOWER, "(?:" CONTRACTION ")?", "[" N "]{1,3}")}},
    {{"tekken"}, FIRN_PRE_IGNORE_MERGES | FIRN_PRE_ADD_BOS, {CASED(UPPER, LOWER, "", "[" N "]")}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"},
     0,
     {PATTERN(CONTRACTION "|[^\\r\\n" L N "]?[" L "]+|[" N "]| ?[^\\s" L N "]+[\\r\\n]*|\\s*[\\r\\n]|" BLANKS)}},
    {{"falcon"}, 0, {PATTERN(PUNCT_BLOCK "`]+"), SCAN(scan_gpt2), PATTERN("[0-9][0-9][0-9]")}},
    {{"seed-coder"},
     0,
     {PATTERN(CONTRACTION "|[^\\r\\n" L N "]?[" L "]+|[" N "]| ?[^\\s" L N "]+|\\s*[\\r\\n]+|" BLANKS)}},
    {{"laguna"}, 0, {PATTERN("[^\\n]+|\\n+"), SCAN(scan_qwen2)}},
    {{"exaone-moe"},
     0,
     {PATTERN(CONTRACTION "|[^\\r\\n" L N "]?[" L "](?:[" L M "]+| [" L "])*+|[" N "]| ?[^\\s" L N
                          "]+[\\r\\n/]?|\\s*[\\r\\n]|" BLANKS)}},
    {{"afmoe"}, 0, {SCAN(scan_afmoe), RUN(afmoe_scripts), DEEPSEEK_V3_END}},
    {{"default"}, 0, {PATTERN(PUNCT_BLOCK "]+"), SCAN(scan_gpt2), PATTERN("[" N "]+"), PATTERN("[0-9][0-9][0-9]")}},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

struct firn_pre {
    const row *row;
    const char *name;
    int n_stages;
    pcre2_general_context *general;
    pcre2_code *codes[MAX_STAGES]; /* of the pattern stages */
};

const char *firn_pre_known(int i)
{
    for (int r = 0; r < N_ROWS; r++)
        for (int j = 0; j < MAX_NAMES && rows[r].names[j]; j++)
            if (i-- == 0)
                return rows[r].names[j];
    return NULL;
}

unsigned firn_pre_flags(const firn_pre *pre)
{
    return pre->row->flags;
}

const char *firn_pre_name(const firn_pre *pre)
{
    return pre->name;
}

static void *pcre2_alloc(size_t size, void *ctx)
{
    return firn_alloc(ctx, size);
}

static void pcre2_release(void *memory, void *ctx)
{
    firn_free(ctx, memory);
}

static firn_status compile(firn_context *ctx, firn_pre *pre, int i)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_compile_context *how = pcre2_compile_context_create(pre->general);

    pre->codes[i] = how ? pcre2_compile((PCRE2_SPTR)pre->row->stages[i].pattern, PCRE2_ZERO_TERMINATED,
                                        PCRE2_DOLLAR_ENDONLY, &error, &offset, how)
                        : NULL;
    pcre2_compile_context_free(how);
    if (!pre->codes[i])
        return firn_fail(ctx, FIRN_ERR_MEMORY, "cannot compile the pattern of pre-tokenizer '%s' (out of memory)",
                         pre->name);
    pcre2_jit_compile(pre->codes[i], PCRE2_JIT_COMPLETE); /* where there is no JIT, the interpreter gives the same */
    return FIRN_OK;
}

firn_status firn_pre_create(firn_context *ctx, const char *name, size_t n, firn_pre **out)
{
    const row *found = NULL;
    const char *known = NULL;

    for (int r = 0; r < N_ROWS && !found; r++)
        for (int j = 0; j < MAX_NAMES && rows[r].names[j] && !found; j++)
            if (strlen(rows[r].names[j]) == n && memcmp(rows[r].names[j], name, n) == 0) {
                found = &rows[r];
                known = rows[r].names[j];
            }
    if (!found)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not supported",
                         n < 100 ? (int)n : 100, name);
    firn_pre *pre = firn_alloc_zeroed(ctx, 1, sizeof *pre);
    if (!pre)
        return FIRN_ERR_MEMORY;
    pre->row = found;
    pre->name = known;
    pre->general = pcre2_general_context_create(pcre2_alloc, pcre2_release, ctx);
    firn_status status = pre->general ? FIRN_OK : FIRN_ERR_MEMORY;
    while (status == FIRN_OK && pre->n_stages < MAX_STAGES) {
        const stage *s = &found->stages[pre->n_stages];
        if (!s->scan && !s->pattern && !s->ranges)
            break;
        if (s->pattern)
            status = compile(ctx, pre, pre->n_stages);
        pre->n_stages++;
    }
    if (status != FIRN_OK) {
        firn_pre_destroy(ctx, pre);
        return status;
    }
    *out = pre;
    return FIRN_OK;
}

void firn_pre_destroy(firn_context *ctx, firn_pre *pre)
{
    if (!pre)
        return;
    for (int i = 0; i < MAX_STAGES; i++)
        pcre2_code_free(pre->codes[i]);
    pcre2_general_context_free(pre->general);
    firn_free(ctx, pre);
}

/* ---- cutting ---- */

struct firn_cutter {
    firn_context *ctx;
    const firn_pre *pre;
    pcre2_general_context *general;
    pcre2_match_context *limits;
    pcre2_match_data *match;
    const char *text;
    uint8_t *kinds;
    uint32_t *at; /* character to byte, one more than there are characters; NULL while the text is ASCII */
    size_t kinds_capacity, at_capacity;
    bool ascii;
    firn_word word;
    void *argument;
};

firn_status firn_cutter_create(firn_context *ctx, const firn_pre *pre, firn_cutter **out)
{
    firn_cutter *c = firn_alloc_zeroed(ctx, 1, sizeof *c);

    if (!c)
        return FIRN_ERR_MEMORY;
    c->ctx = ctx;
    c->pre = pre;
    c->general = pcre2_general_context_create(pcre2_alloc, pcre2_release, ctx);
    c->limits = c->general ? pcre2_match_context_create(c->general) : NULL;
    c->match = c->limits ? pcre2_match_data_create(1, c->general) : NULL;
    if (!c->match) {
        firn_cutter_destroy(c);
        return FIRN_ERR_MEMORY;
    }
    /* The limits are against patterns of strangers; ours are linear, and a word may be long. */
    pcre2_set_match_limit(c->limits, UINT32_MAX);
    pcre2_set_depth_limit(c->limits, UINT32_MAX);
    pcre2_set_heap_limit(c->limits, UINT32_MAX);
    *out = c;
    return FIRN_OK;
}

void firn_cutter_destroy(firn_cutter *c)
{
    if (!c)
        return;
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->limits);
    pcre2_general_context_free(c->general);
    firn_free(c->ctx, c->kinds);
    firn_free(c->ctx, c->at);
    firn_free(c->ctx, c);
}

/* The first match of a run in [i, end): *begin and *stop, both `end` where there is none. */
static void find_run(const firn_cutter *c, const stage *s, size_t i, size_t end, size_t *begin, size_t *stop)
{
    bool space = false; /* the character before i is whitespace that may lead */

    for (size_t p = i; p < end; p++) {
        const uint8_t kind = c->kinds[p];
        uint32_t code = kind;
        if (kind >= 0x80)
            firn_utf8_decode(c->text + c->at[p], c->at[p + 1] - c->at[p], &code);
        if (in_ranges(s->ranges, code)) {
            if (*begin == end)
                *begin = p - space;
            *stop = p + 1;
        } else if (*begin != end) {
            return;
        }
        space = s->lead && is_space(kind);
    }
}

/* The first match of stage s in [i, end), within a piece that begins at `from`. False: there is none, or PCRE2 failed
 * and says so through *status. */
static bool find(firn_cutter *c, int s, size_t i, size_t end, size_t *begin, size_t *stop, firn_status *status)
{
    const stage *at = &c->pre->row->stages[s];

    if (at->scan) {
        *begin = i;
        *stop = at->scan(c->kinds, i, end);
        return true;
    }
    *begin = *stop = end;
    if (at->ranges) {
        find_run(c, at, i, end, begin, stop);
        return *begin < end;
    }
    int rc = pcre2_match(c->pre->codes[s], c->kinds, end, i, 0, c->match, c->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(c->pre->codes[s], c->kinds, end, i, PCRE2_NO_JIT, c->match, c->limits);
    if (rc < 0) {
        if (rc != PCRE2_ERROR_NOMATCH)
            *status = firn_fail(c->ctx, FIRN_ERR_MEMORY, "cutting text into words failed (PCRE2 error %d)", rc);
        return false;
    }
    *begin = pcre2_get_ovector_pointer(c->match)[0];
    *stop = pcre2_get_ovector_pointer(c->match)[1];
    return *stop > *begin;
}

static firn_status cut_piece(firn_cutter *c, int s, size_t begin, size_t end)
{
    firn_status status = FIRN_OK;

    if (s == c->pre->n_stages)
        return c->ascii ? c->word(c->argument, begin, end) : c->word(c->argument, c->at[begin], c->at[end]);
    for (size_t i = begin; i < end && status == FIRN_OK;) {
        size_t first, stop;
        if (!find(c, s, i, end, &first, &stop, &status))
            return status == FIRN_OK ? cut_piece(c, s + 1, i, end) : status;
        if (first > i)
            status = cut_piece(c, s + 1, i, first);
        if (status == FIRN_OK)
            status = cut_piece(c, s + 1, first, stop);
        i = stop;
    }
    return status;
}

firn_status firn_cut(firn_cutter *c, const char *text, size_t n, firn_word word, void *argument)
{
    size_t ascii = 0, count;

    if (n == 0)
        return FIRN_OK;
    if (n > c->kinds_capacity) {
        firn_free(c->ctx, c->kinds);
        c->kinds_capacity = 0;
        c->kinds = firn_alloc(c->ctx, n);
        if (!c->kinds)
            return FIRN_ERR_MEMORY;
        c->kinds_capacity = n;
    }
    while (ascii < n && !(text[ascii] & 0x80)) {
        c->kinds[ascii] = (uint8_t)text[ascii];
        ascii++;
    }
    count = ascii;
    c->ascii = ascii == n;
    if (!c->ascii) {
        if (n + 1 > c->at_capacity) {
            firn_free(c->ctx, c->at);
            c->at_capacity = 0;
            c->at = firn_alloc(c->ctx, (n + 1) * sizeof *c->at);
            if (!c->at)
                return FIRN_ERR_MEMORY;
            c->at_capacity = n + 1;
        }
        for (size_t i = 0; i < ascii; i++)
            c->at[i] = (uint32_t)i;
        for (size_t i = ascii; i < n;) {
            uint32_t code = (uint8_t)text[i];
            c->at[count] = (uint32_t)i;
            i += code < 0x80 ? 1 : firn_utf8_decode(text + i, n - i, &code);
            c->kinds[count++] = code < 0x80 ? (uint8_t)code : kind_of(code);
        }
        c->at[count] = (uint32_t)n;
    }
    c->text = text;
    c->word = word;
    c->argument = argument;
    return cut_piece(c, 0, 0, count);
}
