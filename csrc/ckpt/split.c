/* Split GGUF models: shard 0 has all metadata, every shard its own tensors. Which files belong
 * together follows from the name that the user gave and from the number of shards, never from a
 * name in a file. */
#include "ckpt/ckpt_impl.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SUFFIX_BYTES 20 // "-00001-of-00003.gguf"

typedef struct split {
    uint64_t no, count, n_tensors;
    bool has_n_tensors;
} split;

/* A checkpoint of nothing but the metadata of one shard: what typed access wants. */
static sk_ckpt metadata_of(const sk_gguf *g, const char *label)
{
    return (sk_ckpt){.format = SK_FORMAT_GGUF,
                     .meta = g->meta,
                     .n_meta = g->n_meta,
                     .by_key = &g->by_key,
                     .meta_label = label,
                     .meta_bytes = g->bytes,
                     .meta_size = g->size};
}

static sk_code read_keys(const sk_ckpt *meta, split *s, sk_status *st)
{
    bool found;
    *s = (split){.count = 1};
    SK_TRY(sk_meta_find_u64(meta, "split.count", UINT16_MAX, &s->count, &found, st));
    SK_TRY(sk_meta_find_u64(meta, "split.no", UINT16_MAX, &s->no, &found, st));
    return sk_meta_find_u64(meta, "split.tensors.count", INT32_MAX, &s->n_tensors,
                            &s->has_n_tensors, st);
}

static sk_code bad_split(const char *label, const char *key, uint64_t expected, uint64_t found,
                         sk_status *st)
{
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                         "%s: key %s: expected %" PRIu64 ", found %" PRIu64, label, key, expected,
                         found);
}

static sk_code check_first(const sk_ckpt *ck, const split *s, bool alone, sk_status *st)
{
    if (s->count <= 1) {
        if (s->no == 0) return SK_OK;
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                             "%s: key split.no: expected 0 in a model of one file, found %" PRIu64,
                             ck->label, s->no);
    }
    if (alone)
        return SK_FAIL_CHECK(st, SK_UNSUPPORTED, "SPLIT_FILE", 0,
                             "%s: expected a model in one file, found split file %" PRIu64
                             " of %" PRIu64,
                             ck->label, s->no + 1, s->count);
    if (s->count > SK_MAX_FILES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                             "%s: key split.count: expected at most %u files, found %" PRIu64,
                             ck->label, SK_MAX_FILES, s->count);
    if (s->no != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                             "%s: key split.no: expected the first file of a split model, found "
                             "split file %" PRIu64 " of %" PRIu64,
                             ck->label, s->no + 1, s->count);
    if (!s->has_n_tensors)
        return SK_FAIL_CHECK(st, SK_FORMAT, "MISSING_KEY", 0,
                             "%s: key split.tensors.count: expected an integer, found no such key",
                             ck->label);
    return SK_OK;
}

static void suffix(char out[SUFFIX_BYTES + 1], uint64_t no, uint64_t count)
{
    (void)snprintf(out, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (unsigned)(no + 1) % 100000,
                   (unsigned)count % 100000);
}

/* The given name must be that of shard 0, so that those of the others follow from it. */
static sk_code check_name(const sk_ckpt *ck, const split *s, sk_status *st)
{
    char wanted[SUFFIX_BYTES + 1];
    size_t n = strlen(ck->path);
    suffix(wanted, 0, s->count);
    if (n > SUFFIX_BYTES && strcmp(ck->path + n - SUFFIX_BYTES, wanted) == 0) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                         "%s: split file 1 of %" PRIu64
                         ": expected a file name that ends in %s, found another",
                         ck->label, s->count, wanted);
}

static sk_code check_architecture(const sk_ckpt *ck, const sk_ckpt *other, sk_status *st)
{
    static const char key[] = "general.architecture";
    sk_str a = {NULL, 0};
    sk_str b = {NULL, 0};
    bool has_a;
    bool has_b;
    SK_TRY(sk_meta_find_str(other, key, &b, &has_b, st));
    if (!has_b) return SK_OK;
    SK_TRY(sk_meta_find_str(ck, key, &a, &has_a, st));
    if (has_a && a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, (size_t)a.n) == 0)) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                         "%s: key %s: expected the same as in the first file, found another",
                         other->meta_label, key);
}

static sk_code check_shard(const sk_ckpt *ck, size_t at, const split *first, sk_status *st)
{
    char label[SK_LABEL_MAX];
    sk_ckpt meta;
    split s;
    (void)sk_quote_path(label, sizeof label, ck->shards[at].path);
    meta = metadata_of(&ck->shards[at].gguf, label);
    SK_TRY(read_keys(&meta, &s, st));
    if (s.no != at) return bad_split(label, "split.no", at, s.no, st);
    if (s.count != first->count) return bad_split(label, "split.count", first->count, s.count, st);
    if (!s.has_n_tensors || s.n_tensors != first->n_tensors)
        return bad_split(label, "split.tensors.count", first->n_tensors, s.n_tensors, st);
    return check_architecture(ck, &meta, st);
}

sk_code sk_split_open(sk_ckpt *ck, bool strict, bool alone, sk_status *st)
{
    split s;
    uint64_t n_tensors = 0;
    SK_TRY(read_keys(ck, &s, st));
    SK_TRY(check_first(ck, &s, alone, st));
    if (s.count <= 1) return SK_OK;
    SK_TRY(check_name(ck, &s, st));
    SK_TRY(sk_ckpt_add_shards(ck, (size_t)s.count, st)); // keeps shard 0
    for (size_t i = 1; i < ck->n_shards; i++) {
        char *path = NULL;
        sk_code rc;
        SK_TRY(sk_path_copy(&path, ck->path, st));
        suffix(path + strlen(path) - SUFFIX_BYTES, i, s.count);
        rc = sk_shard_open(ck, i, path, strict, st);
        sk_mem_free(path);
        SK_TRY(rc);
        SK_TRY(check_shard(ck, i, &s, st));
    }
    for (size_t i = 0; i < ck->n_shards; i++) n_tensors += ck->shards[i].gguf.n_tensors;
    if (n_tensors != s.n_tensors)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_SPLIT", 0,
                             "%s: key split.tensors.count: expected the %" PRIu64
                             " tensors of all files, found %" PRIu64,
                             ck->label, n_tensors, s.n_tensors);
    return SK_OK;
}
