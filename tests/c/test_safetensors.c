/* Safetensors files, folders with an index and split GGUF models in C: damage of every byte, every
 * prefix, and every fault while opening. What is refused by which name: the Python tests. */
#include "tests/c/sk_test.h"

#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char header[] =
    "{\"__metadata__\":{\"a\\u00e4\":\"b\"},"
    "\"w.0\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[4,12]},"
    "\"w\\u0031\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}} ";

#define FILE_BYTES (8 + sizeof header - 1 + 12)

static void write_sample(uint8_t out[FILE_BYTES])
{
    const uint64_t n = sizeof header - 1;
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(n >> 8 * i);
    memcpy(out + 8, header, (size_t)n);
    for (int i = 0; i < 12; i++) out[8 + n + (size_t)i] = (uint8_t)i;
}

static void reads_the_header(void)
{
    uint8_t bytes[FILE_BYTES];
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    const sk_tensor *t;
    uint64_t at = 0;
    write_sample(bytes);
    SK_REQUIRE(SK_EXPECT_OK(
        sk_ckpt_open_bytes(&ck, bytes, sizeof bytes, "x.safetensors", true, &st), &st));
    SK_EXPECT(sk_ckpt_format(ck) == SK_FORMAT_SAFETENSORS && sk_ckpt_n_tensors(ck) == 2);
    t = sk_ckpt_find_tensor(ck, "w.0");
    SK_REQUIRE(t);
    SK_EXPECT(t->type == SK_F32 && t->n_dims == 2 && t->dim[0] == 2 && t->n_elems == 2);
    SK_EXPECT(t->data == bytes + sizeof bytes - 8 && t->file_off == sizeof bytes - 8);
    t = sk_ckpt_find_tensor(ck, "w1");
    SK_EXPECT(t && t->type == SK_BF16 && t->data == bytes + sizeof bytes - 12);
    SK_EXPECT_U64(1, sk_ckpt_n_notes(ck));
    SK_EXPECT_U64(1, sk_meta_next_str(sk_ckpt_note(ck, 0), &at).n);
    SK_EXPECT(!sk_ckpt_find_meta(ck, "a") && !sk_ckpt_note(ck, 1) && !sk_ckpt_file_path(ck, 1));
    sk_ckpt_close(ck);
}

static void every_prefix_is_refused(void)
{
    uint8_t bytes[FILE_BYTES];
    write_sample(bytes);
    for (size_t n = 0; n < sizeof bytes; n++) {
        sk_status st = SK_STATUS_INIT;
        sk_ckpt *ck = NULL;
        uint8_t *part = malloc(n ? n : 1); // exactly sized: reading past it is an error under ASan
        SK_REQUIRE(part);
        memcpy(part, bytes, n);
        SK_EXPECT_FAIL(SK_FORMAT, NULL,
                       sk_ckpt_open_bytes(&ck, part, n, "x.safetensors", false, &st), &st);
        SK_EXPECT(!ck && st.check && st.where <= n);
        free(part);
    }
}

static void every_byte_may_be_wrong(void)
{
    uint8_t bytes[FILE_BYTES];
    write_sample(bytes);
    for (size_t at = 0; at < sizeof bytes; at++)
        for (int c = 0; c < 256; c++) {
            sk_status st = SK_STATUS_INIT;
            sk_ckpt *ck = NULL;
            const uint8_t was = bytes[at];
            sk_code rc;
            bytes[at] = (uint8_t)c;
            rc = sk_ckpt_open_bytes(&ck, bytes, sizeof bytes, "x.safetensors", true, &st);
            SK_EXPECT(rc == st.code && (rc == SK_OK) == (ck != NULL));
            SK_EXPECT(rc == SK_OK || ((rc == SK_FORMAT || rc == SK_UNSUPPORTED) && st.check));
            sk_ckpt_close(ck);
            bytes[at] = was;
        }
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool put(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[256];
    FILE *f;
    bool ok;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f) return false;
    ok = fwrite(bytes, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}

static sk_code open_path(void *path, sk_status *st)
{
    sk_ckpt *ck = NULL;
    SK_TRY(sk_ckpt_open(&ck, path, true, st));
    sk_ckpt_close(ck);
    return SK_OK;
}

static const char config[] = "{\"model_type\":\"x\",\"a\":{\"b\":[1,-2.5],\"c\":null},\"n\":-3}";
static const char map[] = "{\"metadata\":{},\"weight_map\":{\"w.0\":\"a.safetensors\","
                          "\"w1\":\"a.safetensors\",\"v\":\"b.safetensors\"}}";
static const char second[] =
    "{\"v\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}      ";

static void folders_under_faults(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", "config.json",
                                        "model.safetensors.index.json"};
    char folder[] = "/tmp/sk_folder_XXXXXX";
    char path[256];
    uint8_t bytes[FILE_BYTES];
    uint8_t other[8 + sizeof second - 1 + 1] = {sizeof second - 1};
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    double two[2];
    uint64_t n;
    bool found;
    SK_REQUIRE(mkdtemp(folder));
    write_sample(bytes);
    memcpy(other + 8, second, sizeof second - 1);
    SK_EXPECT(put(folder, names[0], bytes, sizeof bytes));
    SK_EXPECT(put(folder, names[1], other, sizeof other));
    SK_EXPECT(put(folder, names[2], config, sizeof config - 1));
    SK_EXPECT(put(folder, names[3], map, sizeof map - 1));
    if (SK_EXPECT_OK(sk_ckpt_open(&ck, folder, true, &st), &st)) {
        SK_EXPECT_U64(2, sk_ckpt_n_files(ck));
        SK_EXPECT_U64(3, sk_ckpt_n_tensors(ck));
        SK_EXPECT_OK(sk_meta_find_f64s(ck, "a.b", two, 2, &found, &st), &st);
        SK_EXPECT(found && two[0] == 1 && two[1] == -2.5 && !sk_ckpt_find_meta(ck, "a.c"));
        SK_EXPECT_FAIL(SK_FORMAT, "BAD_HPARAM", sk_meta_find_u64(ck, "n", 9, &n, &found, &st), &st);
        SK_EXPECT(strstr(st.msg, "config.json: key n") && strstr(st.msg, "found -3"));
        SK_EXPECT(sk_ckpt_config(ck, &n) && n == sizeof config - 1);
        sk_ckpt_close(ck);
    }
    SK_EXPECT(SK_EACH_FAULT(open_path, folder));
    for (size_t i = 0; i < SK_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

/* A shard of a split model of two: three keys, no tensors. */
static size_t write_shard(uint8_t *out, uint16_t no)
{
    static const char *const keys[] = {"split.no", "split.count", "split.tensors.count"};
    const uint32_t types[] = {SK_META_U16, SK_META_U16, SK_META_I32};
    const uint32_t values[] = {no, 2, 0};
    size_t n = 24;
    memset(out, 0, 256);
    memcpy(out, "GGUF\3", 5);
    out[16] = 3;
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(keys[i]);
        out[n] = (uint8_t)length;
        memcpy(out + n + 8, keys[i], length);
        n += 8 + length;
        out[n] = (uint8_t)types[i];
        out[n + 4] = (uint8_t)values[i];
        n += types[i] == SK_META_I32 ? 8 : 6;
    }
    return n;
}

static void splits_under_faults(void)
{
    static const char *const names[] = {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"};
    char folder[] = "/tmp/sk_split_XXXXXX";
    char path[256];
    uint8_t bytes[256];
    SK_REQUIRE(mkdtemp(folder));
    for (uint16_t i = 0; i < 2; i++) SK_EXPECT(put(folder, names[i], bytes, write_shard(bytes, i)));
    (void)snprintf(path, sizeof path, "%s/%s", folder, names[0]);
    SK_EXPECT(SK_EACH_FAULT(open_path, path));
    for (size_t i = 0; i < SK_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

const sk_test sk_tests_safetensors[] = {{"reads_the_header", reads_the_header},
                                        {"every_prefix_is_refused", every_prefix_is_refused},
                                        {"every_byte_may_be_wrong", every_byte_may_be_wrong},
                                        {"folders_under_faults", folders_under_faults},
                                        {"splits_under_faults", splits_under_faults},
                                        {0}};
