/* Template text to tokens, as jinja2's lexer cuts it with trim_blocks and lstrip_blocks on:
 * - line ends become "\n", and one at the end of the template is dropped;
 * - a newline right after a block or comment goes; `-%}` takes all white space after it, `+%}` nothing;
 * - white space between the start of a line and a block or comment goes; `{%-` takes all before it, `{%+` nothing;
 * - {% raw %} ... {% endraw %} is text. */
#include "core/utf8.h"
#include "jinja/tree.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    jinja_tokens *out;
    const char *s; /* line ends normalized */
    size_t size, at;
    int line;
    bool line_starting; /* what was consumed last ends in a newline */
    char open[256];     /* brackets that are open in this tag */
    size_t n_open;
} lexer;

static firn_status fail(const lexer *l, const char *what)
{
    return firn_fail(l->out->ctx, FIRN_ERR_FORMAT, "chat template, line %d: %s", l->line, what);
}

const jinja_string *firn_jinja_intern(jinja_tokens *t, const char *name, size_t size)
{
    if (2 * (t->n_names + 1) > t->names_size) {
        const size_t bigger = t->names_size ? 2 * t->names_size : 128;
        const jinja_string **names = firn_arena_zeroed(t->arena, bigger, sizeof *names);
        if (!names)
            return NULL;
        const jinja_string **old = t->names;
        const size_t old_size = t->names_size;
        t->names = names;
        t->names_size = bigger;
        t->n_names = 0;
        for (size_t i = 0; i < old_size; i++) {
            if (!old[i])
                continue;
            size_t slot = firn_secret_hash(&t->secret, old[i]->data, old[i]->size) & (bigger - 1);
            while (names[slot])
                slot = (slot + 1) & (bigger - 1);
            names[slot] = old[i];
            t->n_names++;
        }
    }
    size_t slot = firn_secret_hash(&t->secret, name, size) & (t->names_size - 1);
    for (; t->names[slot]; slot = (slot + 1) & (t->names_size - 1))
        if (t->names[slot]->size == size && memcmp(t->names[slot]->data, name, size) == 0)
            return t->names[slot];
    jinja_string *s = firn_arena_alloc(t->arena, sizeof *s);
    if (!s || !(s->data = firn_arena_text(t->arena, name, size)))
        return NULL;
    s->size = size;
    t->names[slot] = s;
    t->n_names++;
    return s;
}

static firn_status push(lexer *l, jinja_token token)
{
    jinja_tokens *t = l->out;

    FIRN_TRY(firn_grow(t->ctx, (void **)&t->tokens, t->n, &t->capacity, sizeof *t->tokens));
    token.line = l->line;
    t->tokens[t->n++] = token;
    return FIRN_OK;
}

static firn_status push_text(lexer *l, jinja_token_type type, const char *data, size_t size)
{
    jinja_string *text = firn_arena_alloc(l->out->arena, sizeof *text);

    if (!text)
        return FIRN_ERR_MEMORY;
    *text = (jinja_string){data, size};
    return push(l, (jinja_token){.type = type, .text = text});
}

/* Consumes n bytes. */
static void advance(lexer *l, size_t n)
{
    for (size_t i = 0; i < n; i++)
        l->line += l->s[l->at + i] == '\n';
    if (n)
        l->line_starting = l->s[l->at + n - 1] == '\n';
    l->at += n;
}

static bool starts(const lexer *l, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return l->size - at >= n && memcmp(l->s + at, what, n) == 0;
}

/* Bytes of white space from `at` on. */
static size_t spaces(const lexer *l, size_t at)
{
    size_t n = 0;

    while (at + n < l->size && firn_jinja_is_space(firn_jinja_char_at(l->s + at + n)))
        n += firn_jinja_char_size(l->s[at + n]);
    return n;
}

/* The text [begin, end) before a tag whose mark is `sign`; `line_starting` as it was before that text. */
static firn_status push_data(lexer *l, size_t begin, size_t end, char sign, bool block, bool line_starting)
{
    if (sign == '-') {
        while (end > begin) {
            const size_t n = firn_jinja_last_char(l->s + begin, end - begin);
            if (!firn_jinja_is_space(firn_jinja_char_at(l->s + end - n)))
                break;
            end -= n;
        }
    } else if (sign != '+' && block) {
        size_t start = end;
        while (start > begin && l->s[start - 1] != '\n')
            start--;
        if ((start > begin || line_starting) && start + spaces(l, start) >= end)
            end = start;
    }
    if (end == begin)
        return FIRN_OK;
    return push_text(l, JINJA_T_DATA, l->s + begin, end - begin);
}

/* The size of a tag's end at `at`, with what it trims: "%}" and the like; 0 when it is not there. */
static size_t tag_end(const lexer *l, size_t at, const char *end, bool trims)
{
    if (l->s[at] == '-' && at + 1 < l->size && starts(l, at + 1, end))
        return 3 + spaces(l, at + 3);
    if (trims && l->s[at] == '+' && at + 1 < l->size && starts(l, at + 1, end))
        return 3;
    if (starts(l, at, end))
        return 2 + (trims && at + 2 < l->size && l->s[at + 2] == '\n');
    return 0;
}

/* The size of "{%- word -%}" at `at`, 0 when something else stands there; *sign is the mark before the word. */
static size_t word_tag(const lexer *l, size_t at, const char *word, bool trims, char *sign)
{
    size_t i = at + 2;

    if (!starts(l, at, "{%"))
        return 0;
    *sign = 0;
    if (i < l->size && (l->s[i] == '-' || l->s[i] == '+'))
        *sign = l->s[i++];
    i += spaces(l, i);
    if (!starts(l, i, word))
        return 0;
    i += strlen(word);
    i += spaces(l, i);
    if (i >= l->size)
        return 0;
    if (!trims && l->s[i] == '+')
        return 0;
    size_t n = tag_end(l, i, "%}", trims);
    return n ? i + n - at : 0;
}

static firn_status lex_raw(lexer *l)
{
    const size_t begin = l->at;
    const bool line_starting = l->line_starting;
    char sign;

    for (size_t i = begin; i < l->size; i++) {
        const size_t n = l->s[i] == '{' ? word_tag(l, i, "endraw", true, &sign) : 0;
        if (n) {
            FIRN_TRY(push_data(l, begin, i, sign, true, line_starting));
            advance(l, i + n - begin);
            return FIRN_OK;
        }
    }
    return fail(l, "a raw block is not closed (no endraw)");
}

static firn_status lex_comment(lexer *l)
{
    for (size_t i = l->at; i < l->size; i++) {
        const size_t n = tag_end(l, i, "#}", true);
        if (n) {
            advance(l, i + n - l->at);
            return FIRN_OK;
        }
    }
    return fail(l, "a comment is not closed (no '#}')");
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(unsigned char c)
{
    return is_digit((char)c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
}

/* Digits with single underscores between them. */
static size_t digits(const lexer *l, size_t at)
{
    size_t n = 0;

    while (at + n < l->size && (is_digit(l->s[at + n]) || (l->s[at + n] == '_' && n && l->s[at + n - 1] != '_' &&
                                                           at + n + 1 < l->size && is_digit(l->s[at + n + 1]))))
        n++;
    return n;
}

static int digit_of(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

static firn_status lex_number(lexer *l)
{
    const char *s = l->s;
    const size_t begin = l->at;
    size_t end = begin + digits(l, begin);
    bool real = false;

    /* A number after a dot is an index ("x.0"), never the fraction's start. */
    if (begin == 0 || s[begin - 1] != '.') {
        size_t i = end;
        if (i + 1 < l->size && s[i] == '.' && is_digit(s[i + 1])) {
            i += 1 + digits(l, i + 1);
            end = i;
            real = true;
        }
        if (i < l->size && (s[i] == 'e' || s[i] == 'E')) {
            size_t k = i + 1;
            if (k < l->size && (s[k] == '+' || s[k] == '-'))
                k++;
            if (k < l->size && is_digit(s[k])) {
                end = k + digits(l, k);
                real = true;
            }
        }
    }
    if (real) {
        char text[512];
        size_t n = 0;
        for (size_t i = begin; i < end; i++)
            if (s[i] != '_' && n < sizeof text - 1)
                text[n++] = s[i];
        if (end - begin >= sizeof text)
            return fail(l, "a number has more than 500 digits");
        text[n] = 0;
        double value;
        if (!firn_jinja_parse_float(text, n, &value))
            return fail(l, "a number cannot be read");
        FIRN_TRY(push(l, (jinja_token){.type = JINJA_T_REAL, .real = value}));
        advance(l, end - begin);
        return FIRN_OK;
    }
    int base = 10;
    size_t first = begin;
    if (s[begin] == '0') {
        end = begin + 1;
        const char mark = end < l->size ? s[end] : 0;
        base = mark == 'x' || mark == 'X' ? 16 : mark == 'o' || mark == 'O' ? 8 : mark == 'b' || mark == 'B' ? 2 : 10;
        size_t i = end + 1;
        i += base != 10 && i < l->size && s[i] == '_';
        if (base != 10 && i < l->size && digit_of(s[i]) < base)
            first = i;
        else
            base = 1; /* only zeros may follow a zero */
        end = base == 1 ? begin : first;
        while (end < l->size && ((base == 1 ? s[end] == '0' : digit_of(s[end]) < base) ||
                                 (s[end] == '_' && end > first && end + 1 < l->size &&
                                  (base == 1 ? s[end + 1] == '0' : digit_of(s[end + 1]) < base))))
            end++;
    }
    int64_t value = 0;
    for (size_t i = first; i < end && base > 1; i++) {
        if (s[i] == '_')
            continue;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit_of(s[i]), &value))
            return fail(l, "a whole number does not fit 64 bits");
    }
    FIRN_TRY(push(l, (jinja_token){.type = JINJA_T_INTEGER, .integer = value}));
    advance(l, end - begin);
    return FIRN_OK;
}

/* One escape after its backslash at *i; what Python does not know stays as it stands. */
static firn_status unescape(lexer *l, firn_text *out, size_t *i, size_t end)
{
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = l->s[*i];
    const char *known = memchr(names, c, sizeof names - 1);
    const size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;

    if (known) {
        firn_text_putc(out, values[known - names]);
        *i += 1;
    } else if (c == '\n') {
        *i += 1;
    } else if (c >= '0' && c <= '7') {
        for (int k = 0; k < 3 && *i < end && l->s[*i] >= '0' && l->s[*i] <= '7'; k++)
            code = code * 8 + (uint32_t)(l->s[(*i)++] - '0');
        firn_text_codepoint(out, code);
    } else if (n_hex) {
        if (end - *i - 1 < n_hex)
            return fail(l, "an escape in a string is cut short");
        for (size_t k = 1; k <= n_hex; k++) {
            if (digit_of(l->s[*i + k]) > 15)
                return fail(l, "an escape in a string is not hexadecimal");
            code = code * 16 + (uint32_t)digit_of(l->s[*i + k]);
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            return fail(l, "an escape in a string names no character");
        firn_text_codepoint(out, code);
        *i += 1 + n_hex;
    } else if (c == 'N') {
        return fail(l, "characters by name (\\N{...}) are not supported");
    } else {
        firn_text_putc(out, '\\');
    }
    return FIRN_OK;
}

static firn_status lex_string(lexer *l)
{
    const char quote = l->s[l->at];
    size_t end = l->at + 1;
    bool escapes = false;

    while (end < l->size && l->s[end] != quote) {
        escapes |= l->s[end] == '\\';
        end += l->s[end] == '\\' ? 2 : 1;
    }
    if (end >= l->size)
        return fail(l, "a string is not closed");
    const size_t begin = l->at + 1;
    if (!escapes) {
        FIRN_TRY(push_text(l, JINJA_T_TEXT, l->s + begin, end - begin));
    } else {
        firn_text text;
        firn_text_init(&text, l->out->ctx, 0);
        firn_status status = FIRN_OK;
        for (size_t i = begin; i < end && status == FIRN_OK;) {
            if (l->s[i] != '\\') {
                firn_text_putc(&text, l->s[i++]);
            } else {
                i++;
                status = unescape(l, &text, &i, end);
            }
        }
        if (status == FIRN_OK)
            status = text.status;
        const char *copy = status == FIRN_OK ? firn_arena_text(l->out->arena, firn_text_cstr(&text), text.size) : NULL;
        const size_t size = text.size;
        firn_text_free(&text);
        FIRN_TRY(status);
        if (!copy)
            return FIRN_ERR_MEMORY;
        FIRN_TRY(push_text(l, JINJA_T_TEXT, copy, size));
    }
    advance(l, end + 1 - l->at);
    return FIRN_OK;
}

static firn_status lex_operator(lexer *l)
{
    static const struct {
        char text[3];
        jinja_token_type type;
    } operators[] = {
        {"//", JINJA_T_FLOORDIV}, {"**", JINJA_T_POW},      {"==", JINJA_T_EQ},    {"!=", JINJA_T_NE},
        {"<=", JINJA_T_LE},       {">=", JINJA_T_GE},       {"+", JINJA_T_ADD},    {"-", JINJA_T_SUB},
        {"/", JINJA_T_DIV},       {"*", JINJA_T_MUL},       {"%", JINJA_T_MOD},    {"~", JINJA_T_TILDE},
        {"[", JINJA_T_LBRACKET},  {"]", JINJA_T_RBRACKET},  {"(", JINJA_T_LPAREN}, {")", JINJA_T_RPAREN},
        {"{", JINJA_T_LBRACE},    {"}", JINJA_T_RBRACE},    {"<", JINJA_T_LT},     {">", JINJA_T_GT},
        {"=", JINJA_T_ASSIGN},    {".", JINJA_T_DOT},       {":", JINJA_T_COLON},  {"|", JINJA_T_PIPE},
        {",", JINJA_T_COMMA},     {";", JINJA_T_SEMICOLON},
    };
    const char c = l->s[l->at];

    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts(l, l->at, operators[i].text))
            continue;
        if (strchr("([{", c)) {
            if (l->n_open == sizeof l->open)
                return fail(l, "more than 256 brackets are open");
            l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (strchr(")]}", c)) {
            if (l->n_open == 0 || l->open[l->n_open - 1] != c)
                return firn_fail(l->out->ctx, FIRN_ERR_FORMAT, "chat template, line %d: unexpected '%c'", l->line, c);
            l->n_open--;
        }
        FIRN_TRY(push(l, (jinja_token){.type = operators[i].type}));
        advance(l, strlen(operators[i].text));
        return FIRN_OK;
    }
    return firn_fail(l->out->ctx, FIRN_ERR_FORMAT, "chat template, line %d: unexpected character '%c'", l->line,
                     c >= ' ' && c < 0x7F ? c : '?');
}

/* Tokens up to the end of a tag. */
static firn_status lex_tag(lexer *l, bool block)
{
    l->n_open = 0;
    while (l->at < l->size) {
        const size_t end = l->n_open ? 0 : tag_end(l, l->at, block ? "%}" : "}}", block);
        if (end) {
            FIRN_TRY(push(l, (jinja_token){.type = block ? JINJA_T_BLOCK_END : JINJA_T_VARIABLE_END}));
            advance(l, end);
            return FIRN_OK;
        }
        const unsigned char c = (unsigned char)l->s[l->at];
        const size_t white = spaces(l, l->at);
        if (white) {
            advance(l, white);
        } else if (is_digit((char)c)) {
            FIRN_TRY(lex_number(l));
        } else if (is_name(c)) {
            size_t n = 1;
            while (l->at + n < l->size && is_name((unsigned char)l->s[l->at + n]) && !spaces(l, l->at + n))
                n++;
            const jinja_string *name = firn_jinja_intern(l->out, l->s + l->at, n);
            if (!name)
                return FIRN_ERR_MEMORY;
            FIRN_TRY(push(l, (jinja_token){.type = JINJA_T_NAME, .text = name}));
            advance(l, n);
        } else if (c == '\'' || c == '"') {
            FIRN_TRY(lex_string(l));
        } else {
            FIRN_TRY(lex_operator(l));
        }
    }
    return FIRN_OK; /* the parser names the tag that is not closed */
}

firn_status firn_jinja_lex(jinja_tokens *tokens, const char *source, size_t size)
{
    char *s = firn_arena_alloc(tokens->arena, size + 1);
    size_t n = 0;

    if (!s)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < size; i++) {
        if (source[i] == '\r') {
            s[n++] = '\n';
            i += i + 1 < size && source[i + 1] == '\n';
        } else {
            s[n++] = source[i];
        }
    }
    n -= n && s[n - 1] == '\n';
    lexer l = {.out = tokens, .s = s, .size = n, .line = 1, .line_starting = true};
    size_t bad;
    if (!firn_utf8_valid(s, n, &bad))
        return firn_fail(tokens->ctx, FIRN_ERR_FORMAT, "chat template: byte %zu is not UTF-8", bad);

    while (l.at < l.size) {
        const size_t begin = l.at;
        const bool line_starting = l.line_starting;
        size_t i = begin;
        while (i < l.size && !(s[i] == '{' && i + 1 < l.size && strchr("{%#", s[i + 1]) && s[i + 1]))
            i++;
        if (i == l.size) {
            FIRN_TRY(push_text(&l, JINJA_T_DATA, s + begin, i - begin));
            advance(&l, i - begin);
            break;
        }
        char sign = 0;
        const size_t raw = word_tag(&l, i, "raw", false, &sign);
        if (!raw)
            sign = i + 2 < l.size && (s[i + 2] == '-' || s[i + 2] == '+') ? s[i + 2] : 0;
        const char kind = s[i + 1];
        FIRN_TRY(push_data(&l, begin, i, sign, kind != '{', line_starting));
        advance(&l, i - begin + (raw ? raw : sign ? 3u : 2u));
        if (raw) {
            FIRN_TRY(lex_raw(&l));
        } else if (kind == '#') {
            FIRN_TRY(lex_comment(&l));
        } else {
            FIRN_TRY(push(&l, (jinja_token){.type = kind == '%' ? JINJA_T_BLOCK_BEGIN : JINJA_T_VARIABLE_BEGIN}));
            FIRN_TRY(lex_tag(&l, kind == '%'));
        }
    }
    return push(&l, (jinja_token){.type = JINJA_T_EOF});
}
