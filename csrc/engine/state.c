/* Saving, restoring and copying the settled state of a slot.
 *
 * The blob is canonical: a header, then for every state buffer in table order the bytes of the slot
 * that are committed. What lies beyond the committed rows is not in it, so two states are equal
 * exactly when their blobs are. It does not depend on the number of slots or the context length. */
#include "engine/session_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define BLOB_MAGIC   0x54534b53u // "SKST"
#define BLOB_VERSION 1u
#define NO_ANCHOR    (-1) // an empty slot

typedef struct blob_head {
    uint32_t magic, version;
    uint64_t n_bytes; // of the whole blob
    int32_t n, anchor;
    uint8_t layout[SK_SHA256_BYTES]; // model geometry, numerics and buffers
} blob_head;

_Static_assert(sizeof(blob_head) == 56, "blob header");

static uint64_t kept_bytes(const sk_session *s, size_t buf, int32_t n)
{
    const sk_buf *b = &s->prog.space.bufs[buf];
    uint64_t slot_bytes = b->bytes / (uint64_t)b->dim[0];
    if (b->role != SK_ROLE_STATE || b->keep == SK_KEEP_NONE) return 0;
    if (b->keep == SK_KEEP_ALL) return slot_bytes;
    return slot_bytes / (uint64_t)b->dim[1] * (uint64_t)((n + b->keep_extra) / b->keep_unit);
}

/* What a hybrid model has beside the rest. Not the bytes of the struct: it has holes. */
static void add_hybrid(sk_sha256 *sha, const sk_config *c)
{
    const sk_hybrid *h = &c->hybrid;
    const int32_t all[] = {
        h->n_stream,  h->low_rank,        h->index_heads, h->index_dim,  h->ratio,     h->blocks,
        h->key_heads, h->value_heads,     h->key_dim,     h->value_dim,  h->taps,      h->n_expert,
        h->n_used,    h->norm_topk,       h->ffn_expert,  h->ffn_shared, h->ple_layer, h->ngram,
        h->ple_dim,   h->heads_per_ngram, h->ple_taps,    h->ple_eos,
    };
    if (!h->n_stream) return;
    sk_sha256_add(sha, all, sizeof all);
    sk_sha256_add(sha, h->sparse, (size_t)c->n_layer);
}

/* Weights that say what is where in a state: factors on the rotary frequencies, and the order of
 * the heads in a recurrence. */
static bool tells_layout(const sk_buf *b)
{
    return b->role == SK_ROLE_WEIGHT &&
           (strstr(b->name, "rope_freq") || strstr(b->name, "key_map"));
}

/* A state is meaningful for the same architecture, geometry, numerics and state buffers. */
static void layout_digest(const sk_session *s, uint8_t out[SK_SHA256_BYTES])
{
    const sk_config *c = sk_model_config(s->prog.model);
    char line[256];
    sk_sha256 sha;
    sk_sha256_init(&sha);
    (void)snprintf(line, sizeof line, "%s %d %d %d %d %d %d %d %d %d %.9g %.9g %.9g %.9g %.9g;",
                   c->arch, (int)c->n_layer, (int)c->dim, (int)c->n_head, (int)c->n_kv,
                   (int)c->head_dim, (int)c->ffn, (int)c->vocab, (int)c->window,
                   (int)c->window_pattern, (double)c->rope_base, (double)c->rope_base_local,
                   (double)c->rope_scale, (double)c->attn_scale, (double)c->rms_eps);
    sk_sha256_add(&sha, line, strlen(line));
    add_hybrid(&sha, c);
    if (s->prog.mtp && s->prog.options.drafter.per_stream) sk_sha256_add(&sha, "per_stream;", 11);
    for (size_t i = 0; i < s->prog.space.n; i++) {
        const sk_buf *b = &s->prog.space.bufs[i];
        uint64_t unit = kept_bytes(s, i, sk_max_i32(1, b->keep_unit));
        if (tells_layout(b)) sk_sha256_add(&sha, b->source, b->bytes);
        if (!unit) continue;
        (void)snprintf(line, sizeof line, "%s %d %d %llu;", b->name, (int)b->dtype, (int)b->keep,
                       (unsigned long long)unit);
        sk_sha256_add(&sha, line, strlen(line));
    }
    sk_sha256_end(&sha, out);
}

sk_code sk_session_save(sk_session *s, int32_t slot, uint8_t **out, uint64_t *n_bytes,
                        sk_status *st)
{
    blob_head head = {.magic = BLOB_MAGIC, .version = BLOB_VERSION, .n_bytes = sizeof head};
    uint8_t *blob = NULL, *at;
    sk_code rc = SK_OK;
    sk_slot sl;
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    if (s->host[slot].phase == SK_PHASE_PREFILL)
        return SK_FAIL(st, SK_STATE, "slot %d: expected complete prefill, found some left",
                       (int)slot);
    SK_TRY(sk_session_settle(s, slot, SK_LICENCE_ALL, st));
    SK_TRY(sk_slot_read(s, slot, &sl, st));
    head.n = sl.n;
    head.anchor = s->host[slot].holds ? sl.anchor : NO_ANCHOR;
    for (size_t i = 0; i < s->prog.space.n; i++) head.n_bytes += kept_bytes(s, i, head.n);
    layout_digest(s, head.layout);
    SK_TRY(sk_mem_new((void **)&blob, head.n_bytes, 1, "saved state", st));
    memcpy(blob, &head, sizeof head);
    at = blob + sizeof head;
    for (size_t i = 0; rc == SK_OK && i < s->prog.space.n; i++) {
        uint64_t keep = kept_bytes(s, i, head.n), whole;
        if (!keep) continue;
        rc = sk_place_read(&s->place, at, sk_slot_bytes(s, (int32_t)i, slot, &whole), keep, st);
        at += keep;
    }
    if (rc != SK_OK) {
        sk_mem_free(blob);
        return rc;
    }
    *out = blob;
    *n_bytes = head.n_bytes;
    return SK_OK;
}

static sk_code check_blob(const sk_session *s, const uint8_t *blob, uint64_t n_bytes,
                          blob_head *head, sk_status *st)
{
    uint8_t layout[SK_SHA256_BYTES];
    uint64_t want = sizeof *head;
    if (n_bytes < sizeof *head)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", 0,
                             "saved state: expected at least %zu bytes, found %llu", sizeof *head,
                             (unsigned long long)n_bytes);
    memcpy(head, blob, sizeof *head);
    if (head->magic != BLOB_MAGIC || head->version != BLOB_VERSION)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_MAGIC", 0,
                             "saved state: expected magic %08x version %u, found %08x version %u",
                             BLOB_MAGIC, BLOB_VERSION, head->magic, head->version);
    layout_digest(s, layout);
    if (memcmp(layout, head->layout, sizeof layout) != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_LAYOUT", 0,
                             "saved state: expected one of this model and numerics, found another");
    if (head->n < 0 || head->n > s->prog.options.ctx)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_LENGTH", 0,
                             "saved state: expected at most %d positions, found %d",
                             (int)s->prog.options.ctx, (int)head->n);
    if (head->anchor != NO_ANCHOR || head->n > 0)
        SK_TRY(sk_session_check_ids(s, &head->anchor, 1, st));
    for (size_t i = 0; i < s->prog.space.n; i++) want += kept_bytes(s, i, head->n);
    if (want != n_bytes || head->n_bytes != n_bytes)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", 0,
                             "saved state: expected %llu bytes, found %llu",
                             (unsigned long long)want, (unsigned long long)n_bytes);
    return SK_OK;
}

/* The window feeds lookups of the vocabulary, so its tokens are checked like any caller's. */
static sk_code check_tokens(const sk_session *s, const uint8_t *bytes, int32_t n, int32_t *last,
                            sk_status *st)
{
    for (int32_t i = 0; i < n; i++) { // the blob is not aligned
        memcpy(last, bytes + (size_t)i * sizeof *last, sizeof *last);
        SK_TRY(sk_session_check_ids(s, last, 1, st));
    }
    return SK_OK;
}

static sk_code restore_rows(sk_session *s, int32_t slot, const uint8_t *bytes, int32_t n,
                            int32_t *anchor, sk_status *st)
{
    for (size_t i = 0; i < s->prog.space.n; i++) {
        uint64_t keep = kept_bytes(s, i, n), whole;
        if (!keep) continue;
        if ((int32_t)i == s->prog.rb.tokens) SK_TRY(check_tokens(s, bytes, n + 1, anchor, st));
        SK_TRY(
            sk_place_write(&s->place, sk_slot_bytes(s, (int32_t)i, slot, &whole), bytes, keep, st));
        bytes += keep;
    }
    return SK_OK;
}

sk_code sk_session_restore(sk_session *s, int32_t slot, const uint8_t *blob, uint64_t n_bytes,
                           sk_status *st)
{
    blob_head head;
    sk_slot sl = {0};
    sk_code rc;
    SK_TRY(sk_session_check_slot(s, slot, true, st));
    SK_TRY(check_blob(s, blob, n_bytes, &head, st));
    SK_TRY(sk_session_reset(s, slot, st));
    rc = restore_rows(s, slot, blob + sizeof head, head.n, &sl.anchor, st);
    if (rc != SK_OK) {
        SK_TRY(sk_session_reset(s, slot, NULL));
        return rc;
    }
    if (head.anchor == NO_ANCHOR) return sk_session_reset(s, slot, st);
    sl.n = head.n;
    SK_TRY(sk_slot_write(s, slot, &sl, st));
    s->host[slot].holds = true;
    return SK_OK;
}

sk_code sk_session_copy(sk_session *s, int32_t from, int32_t to, sk_status *st)
{
    sk_slot src, dst = {0};
    SK_TRY(sk_session_check_slot(s, from, false, st));
    SK_TRY(sk_session_check_slot(s, to, true, st));
    if (from == to)
        return SK_FAIL(st, SK_INVALID, "slots: expected two different ones, found %d", (int)from);
    if (s->host[from].phase == SK_PHASE_PREFILL)
        return SK_FAIL(st, SK_STATE, "slot %d: expected complete prefill, found some left",
                       (int)from);
    SK_TRY(sk_session_settle(s, from, SK_LICENCE_ALL, st));
    SK_TRY(sk_session_reset(s, to, st));
    SK_TRY(sk_slot_read(s, from, &src, st));
    for (size_t i = 0; i < s->prog.space.n; i++) {
        uint64_t keep = kept_bytes(s, i, src.n), whole;
        const uint8_t *a;
        if (!keep) continue;
        a = sk_slot_bytes(s, (int32_t)i, from, &whole);
        SK_TRY(sk_place_copy(&s->place, sk_slot_bytes(s, (int32_t)i, to, &whole), a, keep, st));
    }
    dst.n = src.n;
    dst.anchor = src.anchor;
    SK_TRY(sk_slot_write(s, to, &dst, st));
    s->host[to].holds = s->host[from].holds;
    return SK_OK;
}
