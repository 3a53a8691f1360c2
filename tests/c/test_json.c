/* The JSON reader: what it accepts, what it refuses, and that a damaged text never leaves its
 * bytes. */
#include "tests/c/sk_test.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of all tokens as letters; ends in "." (END) or "!" (BAD). */
static const char *kinds(const char *text)
{
    static const char letters[] = "!.{}[]nsdtf0";
    static char out[128];
    size_t at = 0;
    size_t n = strlen(text);
    char *own = malloc(n ? n : 1); // exactly sized: reading past it is an error under ASan
    sk_json j;
    if (!own) return "";
    memcpy(own, text, n);
    j = sk_json_over(own, n);
    for (;;) {
        sk_json_token t = sk_json_next(&j);
        if (at < sizeof out - 1) out[at++] = letters[t.kind];
        if (t.kind == SK_JSON_BAD || t.kind == SK_JSON_END) break;
    }
    out[at] = 0;
    free(own);
    return out;
}

static void accepts(void)
{
    SK_EXPECT_STR("{}.", kinds("{}"));
    SK_EXPECT_STR("[].", kinds(" \t\r\n[ ] \n"));
    SK_EXPECT_STR(
        "{nsn[ddd]n{}ntnfn0}.",
        kinds("{\"a\":\"b\",\"c\":[1,2.5,-1e-3],\"d\":{},\"e\":true,\"f\":false,\"g\":null}"));
    SK_EXPECT_STR("d.", kinds("0"));
    SK_EXPECT_STR("d.", kinds("-0"));
    SK_EXPECT_STR("d.", kinds("1E+2"));
    SK_EXPECT_STR("s.", kinds("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\uD83D\\uDE80\""));
    SK_EXPECT_STR("s.", kinds("\"\\u0000\"")); // in a value, not in a name
}

static void refuses(void)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{,}",
                                      "[,1]",
                                      "{a:1}",
                                      "{'a':1}",
                                      "{\"a\" 1}",
                                      "{\"a\":}",
                                      "[1 2]",
                                      "[1}",
                                      "{\"a\":1]",
                                      "01",
                                      "-",
                                      "1.",
                                      ".5",
                                      "+1",
                                      "1e",
                                      "1e+",
                                      "-01",
                                      "0x1",
                                      "NaN",
                                      "Infinity",
                                      "tru",
                                      "nul",
                                      "truefalse",
                                      "\"",
                                      "\"\\\"",
                                      "\"\\x41\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\uD800\"",
                                      "\"\\uDC00\"",
                                      "\"\\uD800x",
                                      "\"\\uD800\\u0041\"",
                                      "\"\\uD800\\uD800\"",
                                      "\"\n\"",
                                      "\"\t\"",
                                      "{} {}",
                                      "{}x",
                                      "// c\n{}",
                                      "{/**/}",
                                      "\xef\xbb\xbf{}",
                                      "\"\xff\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "{\"\\u0000\":1}",
                                      "{\"a\\u0000\":1}",
                                      "[1]]",
                                      "{1:2}",
                                      "[\"a\":1]",
                                      "{\"a\"}",
                                      "{\"a\":1 \"b\":2}"};
    for (size_t i = 0; i < SK_COUNT(bad); i++) {
        const char *got = kinds(bad[i]);
        if (got[strlen(got) - 1] != '!') (void)printf("accepted: %s\n", bad[i]);
        SK_EXPECT(got[strlen(got) - 1] == '!');
    }
}

static void depth(void)
{
    char text[2 * 40 + 1];
    for (int n = 1; n <= 40; n++) {
        const char *got;
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        text[2 * n] = 0;
        got = kinds(text);
        SK_EXPECT((got[strlen(got) - 1] == '.') == (n <= SK_JSON_DEPTH));
    }
}

static sk_json_token only(const char *text)
{
    sk_json j = sk_json_over(text, strlen(text));
    return sk_json_next(&j);
}

static void texts(void)
{
    char out[16];
    sk_json_token t = only("\"a\\u00e4\\uD83D\\uDE80\\n\\/\"");
    SK_REQUIRE(t.text_n == 9);
    sk_json_text(&t, out);
    SK_EXPECT(memcmp(out, "a\xc3\xa4\xf0\x9f\x9a\x80\n/", 9) == 0);
    SK_EXPECT(sk_json_is(&t, "a\xc3\xa4\xf0\x9f\x9a\x80\n/"));
    t = only("\"dtyp\\u0065\"");
    SK_EXPECT(sk_json_is(&t, "dtype") && !sk_json_is(&t, "dtypf") && !sk_json_is(&t, "dtyp"));
    t = only("12");
    SK_EXPECT(!sk_json_is(&t, "12"));
}

static void integers(void)
{
    static const char *const bad[] = {
        "1.0", "1e3",  "-0",   "-1", "18446744073709551616", "99999999999999999999999",
        "0.5", "true", "\"1\""};
    uint64_t x = 7;
    bool negative;
    sk_json_token t = only("18446744073709551615");
    SK_EXPECT(sk_json_u64(&t, &x) && x == UINT64_MAX);
    t = only("0");
    SK_EXPECT(sk_json_u64(&t, &x) && x == 0);
    t = only("-42");
    SK_EXPECT(sk_json_integer(&t, &x, &negative) && negative && x == 42);
    for (size_t i = 0; i < SK_COUNT(bad); i++) {
        t = only(bad[i]);
        SK_EXPECT(!sk_json_u64(&t, &x));
    }
}

static void floats(void)
{
    static const struct {
        const char *text;
        double x;
    } exact[] = {{"0", 0},
                 {"-0", -0.0},
                 {"1e-05", 1e-05},
                 {"1e-6", 1e-6},
                 {"0.1", 0.1},
                 {"500000.0", 5e5},
                 {"-2.5E+3", -2500},
                 {"1e22", 1e22},
                 {"0.08838834764831845", 0.08838834764831845},
                 {"1e400", (double)INFINITY},
                 {"1e-400", 0},
                 {"123456789012345678901234567890", 123456789012345678901234567890.0},
                 {"1e99999999999999999999", (double)INFINITY},
                 {"0e99999999", 0}};
    for (size_t i = 0; i < SK_COUNT(exact); i++) {
        sk_json_token t = only(exact[i].text);
        double x = sk_json_f64(&t);
        SK_EXPECT(x == exact[i].x && signbit(x) == signbit(exact[i].x));
    }
    for (int i = 0; i < 2000; i++) {
        char text[40];
        double want = ldexp((double)rand() / RAND_MAX + 0.5, rand() % 200 - 100);
        sk_json_token t;
        (void)snprintf(text, sizeof text, "%.17g", want);
        t = only(text);
        SK_EXPECT(fabs(sk_json_f64(&t) - want) <= fabs(want) * 0x1p-52);
    }
}

static void skips(void)
{
    static const char text[] = "{\"a\":[1,{\"b\":[]}],\"c\":2}";
    sk_json j = sk_json_over(text, sizeof text - 1);
    sk_json_token t = sk_json_next(&j);
    t = sk_json_next(&j);
    SK_EXPECT(sk_json_is(&t, "a"));
    t = sk_json_next(&j);
    SK_EXPECT(sk_json_skip(&j, &t));
    t = sk_json_next(&j);
    SK_EXPECT(sk_json_is(&t, "c"));
    t = sk_json_next(&j);
    SK_EXPECT(sk_json_skip(&j, &t));
    SK_EXPECT(sk_json_next(&j).kind == SK_JSON_OBJECT_END);
    SK_EXPECT(sk_json_next(&j).kind == SK_JSON_END);
    SK_EXPECT(sk_json_next(&j).kind == SK_JSON_END);
}

static void damage(void)
{
    static const char text[] = "{\"a\\u00e4\":[1.5e3,-2,{\"b\":\"\\uD83D\\uDE80\"}],\"c\":null}";
    char copy[sizeof text];
    for (size_t n = 0; n < sizeof text - 1; n++) {
        memcpy(copy, text, n);
        copy[n] = 0;
        SK_EXPECT(strchr(kinds(copy), '!'));
    }
    for (size_t at = 0; at < sizeof text - 1; at++)
        for (int c = 1; c < 256; c++) {
            memcpy(copy, text, sizeof text);
            copy[at] = (char)c;
            (void)kinds(copy);
        }
}

const sk_test sk_tests_json[] = {{"accepts", accepts}, {"refuses", refuses},   {"depth", depth},
                                 {"texts", texts},     {"integers", integers}, {"floats", floats},
                                 {"skips", skips},     {"damage", damage},     {0}};
