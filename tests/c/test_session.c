/* A whole session over a tiny model made in memory: fault points, digest of SHA-256, states. */
#include "tests/c/sk_test.h"

#include "base/mem.h"
#include "base/sha256.h"
#include "engine/session.h"
#include "tests/c/tiny_model.h"

#include <stdio.h>
#include <string.h>

/* ---- scenarios ----------------------------------------------------------------------------- */

static const sk_options options = {.slots = 2,
                                   .ctx = CTX,
                                   .prefill_chunk = 4,
                                   .threads = 2,
                                   .device = -1,
                                   .drafter = {SK_DRAFTER_NGRAM, 3, 3, 1}};
static const sk_request request = {.max_tokens = 12};

/* One request from start to finish in `slot`; its tokens into out. */
static sk_code run(sk_session *s, int32_t slot, const int32_t *ids, int64_t n, int32_t *out,
                   sk_status *st)
{
    int32_t n_out = 0, finish = 0;
    int64_t left = 1;
    SK_TRY(sk_session_start(s, slot, ids, n, &request, false, st));
    while (left) SK_TRY(sk_session_prefill(s, slot, 1, &left, st));
    while (!finish) {
        const sk_done *done;
        SK_TRY(sk_session_round(s, NULL, true, 0, &done, st));
        memcpy(out + n_out, done->slot[slot].tok, (size_t)done->slot[slot].n * sizeof *out);
        n_out += done->slot[slot].n;
        finish = done->slot[slot].finish;
    }
    return sk_session_finish(s, slot, SK_LICENCE_ALL, st);
}

static const int32_t prompt[] = {1, 2, 3, 1, 2, 3, 4, 1, 2};

static sk_code whole_life(void *arg, sk_status *st)
{
    int32_t out[12], n = 3, drafts[SK_WIDTH_MAX];
    sk_ckpt *ck = NULL;
    sk_session *s = NULL;
    uint8_t *blob = NULL;
    uint64_t n_bytes = 0;
    float logits[3 * VOCAB];
    uint8_t want[SK_TAP_LAYER + LAYERS] = {[SK_TAP_LOGITS] = 1};
    void *taps[SK_TAP_LAYER + LAYERS] = {[SK_TAP_LOGITS] = logits};
    sk_code rc = sk_ckpt_open(&ck, arg, false, st);
    if (rc == SK_OK) rc = sk_session_open(&s, ck, &options, st);
    if (rc == SK_OK) rc = run(s, 0, prompt, SK_COUNT(prompt), out, st);
    if (rc == SK_OK) rc = sk_session_save(s, 0, &blob, &n_bytes, st);
    if (rc == SK_OK) rc = sk_session_restore(s, 1, blob, n_bytes, st);
    if (rc == SK_OK) rc = sk_session_draft(s, 1, prompt, SK_COUNT(prompt), drafts, &n, st);
    if (rc == SK_OK) rc = sk_session_score_begin(s, 1, want, st);
    if (rc == SK_OK) rc = sk_session_score_step(s, prompt, 3, prompt[3], taps, st);
    sk_mem_free(blob);
    sk_session_close(s); // closes the open scoring too
    sk_ckpt_close(ck);
    return rc;
}

static void every_fault_is_a_clean_error(void)
{
    char path[64];
    SK_REQUIRE(sk_test_model(path));
    SK_EACH_FAULT(whole_life, path);
    (void)remove(path);
}

/* Open a session on a fresh model; false when the test cannot go on. */
static bool open_model(char path[64], sk_ckpt **ck, sk_session **s, sk_status *st)
{
    *st = (sk_status)SK_STATUS_INIT;
    *ck = NULL;
    *s = NULL;
    return SK_EXPECT(sk_test_model(path)) && SK_EXPECT_OK(sk_ckpt_open(ck, path, true, st), st) &&
           SK_EXPECT_OK(sk_session_open(s, *ck, &options, st), st);
}

static void close_model(const char *path, sk_ckpt *ck, sk_session *s)
{
    sk_session_close(s);
    sk_ckpt_close(ck);
    (void)remove(path);
}

static void slots_share_nothing(void)
{
    int32_t a[12], b[12];
    char path[64];
    sk_session *s;
    sk_ckpt *ck;
    sk_status st;
    if (open_model(path, &ck, &s, &st)) {
        SK_EXPECT_OK(run(s, 0, prompt, SK_COUNT(prompt), a, &st), &st);
        SK_EXPECT_OK(run(s, 1, prompt, SK_COUNT(prompt), b, &st), &st);
        SK_EXPECT(memcmp(a, b, sizeof a) == 0);
    }
    close_model(path, ck, s);
}

static void memory_is_accounted_for(void)
{
    char path[64];
    sk_session *s;
    sk_ckpt *ck;
    sk_status st;
    sk_mem_item item;
    uint64_t weights = 0, n = 0;
    if (open_model(path, &ck, &s, &st)) {
        for (; sk_session_memory(s, n, &item); n++)
            if (strstr(item.owner, "mapped")) weights = item.bytes;
        SK_EXPECT(n > 5);
        for (size_t i = 0; i < sk_ckpt_n_tensors(ck); i++)
            weights -= sk_ckpt_tensor(ck, i)->n_bytes;
        SK_EXPECT_U64(0, weights);
    }
    close_model(path, ck, s);
}

static void sha256_of(const char *text, size_t piece, const char *want)
{
    uint8_t digest[SK_SHA256_BYTES];
    char hex[65];
    size_t n = strlen(text);
    sk_sha256 sha;
    sk_sha256_init(&sha);
    for (size_t at = 0; at < n; at += piece)
        sk_sha256_add(&sha, text + at, sk_min_size(piece, n - at));
    sk_sha256_end(&sha, digest);
    for (int i = 0; i < SK_SHA256_BYTES; i++) (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    SK_EXPECT_STR(want, hex);
}

/* The examples of FIPS 180-4's companion document, in pieces of several sizes. */
static void sha256_known_answers(void)
{
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    for (size_t piece = 1; piece < 70; piece += 11) {
        sha256_of("", piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        sha256_of("abc", piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        sha256_of(two, piece, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
}

const sk_test sk_tests_session[] = {
    {"every_fault_is_a_clean_error", every_fault_is_a_clean_error},
    {"slots_share_nothing", slots_share_nothing},
    {"memory_is_accounted_for", memory_is_accounted_for},
    {"sha256_known_answers", sha256_known_answers},
    {0},
};
