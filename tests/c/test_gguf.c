/* The GGUF directory and typed metadata, over bytes in memory; hostile files as such are the
 * business of tests/py/test_gguf_hostile.py. Here: every truncation, every failing allocation, and
 * what the C face promises beyond the Python one. */
#include "tests/c/sk_test.h"

#include "base/mem.h"
#include "base/order.h"
#include "base/reader.h"
#include "base/text.h"
#include "ckpt/ckpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a writer -------------------------------------------------------------------------------- */

typedef struct file {
    uint8_t bytes[4096];
    size_t n;
} file;

static void put(file *f, const void *p, size_t n)
{
    memcpy(f->bytes + f->n, p, n);
    f->n += n;
}

static void put_uint(file *f, uint64_t x, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) f->bytes[f->n++] = (uint8_t)(x >> 8 * i);
}

static void put_str(file *f, const char *s)
{
    put_uint(f, strlen(s), 8);
    put(f, s, strlen(s));
}

static void put_key(file *f, const char *key, sk_meta_type type)
{
    put_str(f, key);
    put_uint(f, type, 4);
}

static void put_array(file *f, const char *key, sk_meta_type type, uint64_t n)
{
    put_key(f, key, SK_META_ARRAY);
    put_uint(f, type, 4);
    put_uint(f, n, 8);
}

static void put_float(file *f, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_uint(f, bits, 4);
}

static void put_header(file *f, uint64_t n_tensors, uint64_t n_meta)
{
    f->n = 0;
    put(f, "GGUF", 4);
    put_uint(f, 3, 4);
    put_uint(f, n_tensors, 8);
    put_uint(f, n_meta, 8);
}

static void put_tensor(file *f, const char *name, uint64_t rows, uint64_t row, sk_dtype type,
                       uint64_t off)
{
    put_str(f, name);
    put_uint(f, 2, 4);
    put_uint(f, row, 8);
    put_uint(f, rows, 8);
    put_uint(f, (uint64_t)type, 4);
    put_uint(f, off, 8);
}

static void put_padding(file *f)
{
    while (f->n % 32 != 0) f->bytes[f->n++] = 0;
}

static void write_sample(file *f)
{
    put_header(f, 2, 12);
    put_key(f, "general.architecture", SK_META_STRING);
    put_str(f, "llama");
    put_key(f, "i8", SK_META_I8);
    put_uint(f, 0xff, 1);
    put_key(f, "u16", SK_META_U16);
    put_uint(f, 40000, 2);
    put_key(f, "i64", SK_META_I64);
    put_uint(f, UINT64_C(1) << 63, 8);
    put_key(f, "u64", SK_META_U64);
    put_uint(f, UINT64_MAX, 8);
    put_key(f, "f32", SK_META_F32);
    put_float(f, 0.25f);
    put_key(f, "nan", SK_META_F32);
    put_float(f, NAN);
    put_key(f, "bool", SK_META_BOOL);
    put_uint(f, 1, 1);
    put_array(f, "heads", SK_META_I32, 3);
    for (uint64_t i = 1; i < 4; i++) put_uint(f, i, 4);
    put_array(f, "limits", SK_META_F32, 2);
    put_float(f, 1.5f);
    put_float(f, -2);
    put_array(f, "tokens", SK_META_STRING, 2);
    put_str(f, "one");
    put_str(f, "");
    put_array(f, "none", SK_META_U8, 0);
    put_tensor(f, "b", 3, 32, SK_Q4_0, 0);
    put_tensor(f, "a", 1, 4, SK_F32, 64);
    put_padding(f);
    for (int i = 0; i < 54; i++) put_uint(f, (uint64_t)i, 1);
    put_padding(f);
    for (int i = 0; i < 16; i++) put_uint(f, 7, 1);
    put_padding(f);
}

static sk_code open_file(sk_ckpt **out, const file *f, sk_status *st)
{
    return sk_ckpt_open_bytes(out, f->bytes, f->n, "mem", true, st);
}

/* ---- contents -------------------------------------------------------------------------------- */

static void reads_the_directory(void)
{
    file f;
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    const sk_tensor *t;
    write_sample(&f);
    SK_REQUIRE(SK_EXPECT_OK(open_file(&ck, &f, &st), &st));
    SK_EXPECT_U64(2, sk_ckpt_n_tensors(ck));
    SK_EXPECT_U64(12, sk_ckpt_n_meta(ck));
    SK_EXPECT_U64(32, sk_ckpt_alignment(ck));
    SK_EXPECT_U64(f.n, sk_ckpt_file_bytes(ck));
    SK_EXPECT_STR("mem", sk_ckpt_path(ck));
    t = sk_ckpt_find_tensor(ck, "b");
    SK_EXPECT(t && t == sk_ckpt_tensor(ck, 0) && !sk_ckpt_tensor(ck, 2));
    SK_EXPECT(t->type == SK_Q4_0 && t->n_dims == 2 && t->dim[0] == 3 && t->dim[1] == 32);
    SK_EXPECT(t->dim[2] == 1 && t->dim[3] == 1);
    SK_EXPECT_U64(54, t->n_bytes);
    SK_EXPECT_U64(96, t->n_elems);
    SK_EXPECT(t->data == f.bytes + t->file_off && t->data[5] == 5);
    SK_EXPECT(sk_ckpt_find_tensor(ck, "a")->data[0] == 7);
    SK_EXPECT(!sk_ckpt_find_tensor(ck, "") && !sk_ckpt_find_tensor(ck, "c"));
    SK_EXPECT(sk_ckpt_find_meta(ck, "none")->n == 0 && !sk_ckpt_find_meta(ck, "nope"));
    sk_ckpt_close(ck);
}

static void reads_typed_values(void)
{
    file f;
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    uint64_t u = 5;
    uint64_t us[3] = {0};
    double d = 5;
    double ds[2] = {0};
    bool b = false;
    bool found = true;
    sk_str s;
    uint64_t at = 0;
    write_sample(&f);
    SK_REQUIRE(SK_EXPECT_OK(open_file(&ck, &f, &st), &st));
    SK_EXPECT_OK(sk_meta_need_u64(ck, "u16", 40000, &u, &st), &st);
    SK_EXPECT_U64(40000, u);
    SK_EXPECT_OK(sk_meta_find_u64(ck, "u64", UINT64_MAX, &u, &found, &st), &st);
    SK_EXPECT(u == UINT64_MAX && found);
    SK_EXPECT_OK(sk_meta_find_u64(ck, "missing", 1, &u, &found, &st), &st);
    SK_EXPECT(u == UINT64_MAX && !found);
    SK_EXPECT_OK(sk_meta_need_f64(ck, "f32", &d, &st), &st);
    SK_EXPECT(d == 0.25);
    SK_EXPECT_OK(sk_meta_find_bool(ck, "bool", &b, &found, &st), &st);
    SK_EXPECT(b && found);
    SK_EXPECT_OK(sk_meta_need_str(ck, "general.architecture", &s, &st), &st);
    SK_EXPECT(s.n == 5 && memcmp(s.p, "llama", 5) == 0);
    SK_EXPECT_OK(sk_meta_find_u64s(ck, "heads", 9, us, 3, &found, &st), &st);
    SK_EXPECT(us[0] == 1 && us[1] == 2 && us[2] == 3);
    SK_EXPECT_OK(sk_meta_find_u64s(ck, "u16", 50000, us, 3, &found, &st), &st);
    SK_EXPECT(us[0] == 40000 && us[2] == 40000);
    SK_EXPECT_OK(sk_meta_find_f64s(ck, "limits", ds, 2, &found, &st), &st);
    SK_EXPECT(ds[0] == 1.5 && ds[1] == -2);
    s = sk_meta_next_str(sk_ckpt_find_meta(ck, "tokens"), &at);
    SK_EXPECT(s.n == 3 && memcmp(s.p, "one", 3) == 0);
    s = sk_meta_next_str(sk_ckpt_find_meta(ck, "tokens"), &at);
    SK_EXPECT(s.n == 0 && at == sk_ckpt_find_meta(ck, "tokens")->n_bytes);
    sk_ckpt_close(ck);
}

static void refuse_u64(const sk_ckpt *ck, const char *key, const char *check, const char *text)
{
    sk_status st = SK_STATUS_INIT;
    uint64_t u = 5;
    SK_EXPECT_FAIL(SK_FORMAT, check, sk_meta_need_u64(ck, key, 39999, &u, &st), &st);
    SK_EXPECT_STR(text, st.msg);
    SK_EXPECT_U64(5, u);
}

static void refuses_wrong_types(void)
{
    file f;
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    uint64_t us[4];
    double d;
    bool b;
    bool found;
    sk_str s;
    write_sample(&f);
    SK_REQUIRE(SK_EXPECT_OK(open_file(&ck, &f, &st), &st));
    refuse_u64(ck, "missing", "MISSING_KEY",
               "mem: key missing: expected an integer, found no such key");
    refuse_u64(ck, "u16", "BAD_HPARAM",
               "mem: key u16: expected an integer from 0 to 39999, found 40000");
    refuse_u64(ck, "i8", "BAD_HPARAM",
               "mem: key i8: expected an integer from 0 to 39999, found -1");
    refuse_u64(ck, "i64", "BAD_HPARAM",
               "mem: key i64: expected an integer from 0 to 39999, found -9223372036854775808");
    refuse_u64(ck, "f32", "KEY_TYPE", "mem: key f32: expected an integer, found float32");
    refuse_u64(ck, "bool", "KEY_TYPE", "mem: key bool: expected an integer, found bool");
    refuse_u64(ck, "heads", "KEY_TYPE",
               "mem: key heads: expected an integer, found an array of int32");
    SK_EXPECT_FAIL(SK_FORMAT, "KEY_TYPE", sk_meta_need_f64(ck, "u16", &d, &st), &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "BAD_HPARAM", sk_meta_need_f64(ck, "nan", &d, &st), &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "KEY_TYPE", sk_meta_find_bool(ck, "i8", &b, &found, &st), &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "KEY_TYPE", sk_meta_find_str(ck, "tokens", &s, &found, &st), &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "MISSING_KEY", sk_meta_need_str(ck, "no", &s, &st), &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "BAD_HPARAM", sk_meta_find_u64s(ck, "heads", 9, us, 4, &found, &st),
                   &st);
    SK_EXPECT_STR("mem: key heads: expected one value or an array of 4, found 3 elements", st.msg);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "KEY_TYPE", sk_meta_find_u64s(ck, "limits", 9, us, 2, &found, &st),
                   &st);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_FORMAT, "BAD_HPARAM", sk_meta_find_u64s(ck, "none", 9, us, 2, &found, &st),
                   &st);
    sk_ckpt_close(ck);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Bytes of exactly the size of a prefix, on the heap: reading past them is an error under ASan. */
static void every_prefix_is_refused(void)
{
    file f;
    write_sample(&f);
    for (size_t n = 0; n + 16 < f.n; n++) {
        sk_status st = SK_STATUS_INIT;
        sk_ckpt *ck = NULL;
        uint8_t *part = malloc(n ? n : 1);
        SK_REQUIRE(part);
        memcpy(part, f.bytes, n);
        SK_EXPECT_FAIL(SK_FORMAT, NULL, sk_ckpt_open_bytes(&ck, part, n, "mem", false, &st), &st);
        SK_EXPECT(!ck && st.check && st.where <= n);
        free(part);
    }
}

static void every_byte_may_be_wrong(void)
{
    file f;
    write_sample(&f);
    for (size_t at = 0; at < f.n; at++) {
        for (int bit = 0; bit < 8; bit++) {
            sk_status st = SK_STATUS_INIT;
            sk_ckpt *ck = NULL;
            sk_code rc;
            f.bytes[at] ^= (uint8_t)(1 << bit);
            rc = open_file(&ck, &f, &st);
            SK_EXPECT(rc == st.code && (rc == SK_OK) == (ck != NULL));
            SK_EXPECT(rc == SK_OK || rc == SK_FORMAT || rc == SK_UNSUPPORTED);
            SK_EXPECT(rc == SK_OK || st.check);
            sk_ckpt_close(ck);
            f.bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
}

static sk_code open_and_close(void *arg, sk_status *st)
{
    const file *f = arg;
    sk_ckpt *ck = NULL;
    SK_TRY(open_file(&ck, f, st));
    sk_ckpt_close(ck);
    return SK_OK;
}

static sk_code open_path(void *arg, sk_status *st)
{
    sk_ckpt *ck = NULL;
    SK_TRY(sk_ckpt_open(&ck, arg, true, st));
    sk_ckpt_close(ck);
    return SK_OK;
}

static void every_fault_is_reported(void)
{
    file f;
    char path[] = "/tmp/sk_gguf_XXXXXX";
    int fd = mkstemp(path);
    write_sample(&f);
    SK_EXPECT(SK_EACH_FAULT(open_and_close, &f));
    SK_REQUIRE(fd >= 0);
    SK_EXPECT(write(fd, f.bytes, f.n) == (ssize_t)f.n);
    (void)close(fd);
    SK_EXPECT(SK_EACH_FAULT(open_path, path));
    (void)unlink(path);
}

static void paths(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    SK_EXPECT_FAIL(SK_IO, "IO", sk_ckpt_open(&ck, "/nowhere/at/all", false, &st), &st);
    SK_EXPECT(strncmp(st.msg, "/nowhere/at/all: open: ", 23) == 0 && st.native != 0);
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_IO, "IO", sk_ckpt_open(&ck, "/", false, &st), &st);
    SK_EXPECT(!ck);
    sk_ckpt_close(NULL);
}

/* ---- the helpers below ----------------------------------------------------------------------- */

static void cursor_is_sticky(void)
{
    static const uint8_t bytes[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    sk_reader r = {.bytes = bytes, .size = 9};
    SK_EXPECT_U64(1, sk_read_u8(&r));
    SK_EXPECT_U64(0x05040302, sk_read_u32(&r));
    SK_EXPECT(sk_take_bytes(&r, 0) == bytes + 5 && !r.short_by);
    SK_EXPECT_U64(0, sk_read_u64(&r));
    SK_EXPECT_U64(4, r.short_by);
    SK_EXPECT_U64(0, sk_read_u8(&r)); // a byte is there, but the cursor has failed
    SK_EXPECT(!sk_take_bytes(&r, 0) && r.pos == 5 && r.short_by == 4);
    r = (sk_reader){.bytes = bytes, .size = 9, .pos = 8};
    SK_EXPECT(!sk_take_bytes(&r, UINT64_MAX));
    SK_EXPECT_U64(UINT64_MAX - 1, r.short_by);
}

static void quotes(void)
{
    char out[12];
    SK_EXPECT_STR("a\\x00\\x9b\\\\", sk_quote(out, sizeof out, "a\0\x9b\\", 4) ? out : "");
    SK_EXPECT_STR("elevenbytes", sk_quote(out, sizeof out, "elevenbytes", 11));
    SK_EXPECT_STR("twelveby...", sk_quote(out, sizeof out, "twelvebytes!", 12));
    SK_EXPECT_STR("\\x01\\x02...", sk_quote(out, sizeof out, "\1\2\3\4", 4));
    SK_EXPECT_STR("", sk_quote(out, sizeof out, "", 0));
    SK_EXPECT_STR("a/b/c.gguf", sk_quote_path(out, sizeof out, "a/b/c.gguf"));
    SK_EXPECT_STR("...e/c.gguf", sk_quote_path(out, sizeof out, "some/where/c.gguf"));
}

static bool even_first(const void *items, uint32_t a, uint32_t b)
{
    const int *x = items;
    return x[a] % 2 < x[b] % 2;
}

static void order_is_stable(void)
{
    int items[100];
    for (uint32_t n = 0; n <= 100; n++) {
        uint32_t *order = NULL;
        sk_status st = SK_STATUS_INIT;
        for (uint32_t i = 0; i < n; i++) items[i] = (int)(i * i + 3 * i / 2);
        SK_REQUIRE(SK_EXPECT_OK(sk_order_make(&order, n, even_first, items, "x", &st), &st));
        for (uint32_t i = 1; i < n; i++) {
            SK_EXPECT(!even_first(items, order[i], order[i - 1]));
            SK_EXPECT(even_first(items, order[i - 1], order[i]) || order[i - 1] < order[i]);
        }
        sk_mem_free(order);
    }
}

const sk_test sk_tests_gguf[] = {{"reads_the_directory", reads_the_directory},
                                 {"reads_typed_values", reads_typed_values},
                                 {"refuses_wrong_types", refuses_wrong_types},
                                 {"every_prefix_is_refused", every_prefix_is_refused},
                                 {"every_byte_may_be_wrong", every_byte_may_be_wrong},
                                 {"every_fault_is_reported", every_fault_is_reported},
                                 {"paths", paths},
                                 {"cursor_is_sticky", cursor_is_sticky},
                                 {"quotes", quotes},
                                 {"order_is_stable", order_is_stable},
                                 {0}};
