/* SHA-256 against the examples of FIPS 180-4 and NIST's long ones, in pieces of every size. */
#include "unit/unit.h"

#include "core/sha256.h"

#include <string.h>

static void check(const char *message, size_t n, int times, const char *expected)
{
    for (size_t piece = 1; piece <= 130; piece += 43) {
        firn_sha256 h;
        char text[FIRN_SHA256_HEX];
        firn_sha256_init(&h);
        for (int t = 0; t < times; t++)
            for (size_t i = 0; i < n; i += piece)
                firn_sha256_add(&h, message + i, n - i < piece ? n - i : piece);
        firn_sha256_hex(&h, text);
        assert_string_equal(text, expected);
    }
}

static void known_answers(void **state)
{
    (void)state;
    check("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 1,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstno"
          "pqrstu",
          112, 1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    char a[1000];
    memset(a, 'a', sizeof a);
    check(a, sizeof a, 1000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
