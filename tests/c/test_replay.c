/* What rounds on a device rest on and can be tried without one: the rings, the capacities of a
 * program, and what the stand-ins for the kernels refuse. */
#include "tests/c/sk_test.h"

#include "engine/program.h"
#include "graph/walk.h"
#include "replay/rings.h"
#include "tests/c/tiny_model.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- rings --------------------------------------------------------------------------------- */

#define N 4

static sk_ctl_entry entries[N];
static sk_done records[N];
static const sk_rings rings = {.ctl = entries, .done = records, .n = N};

static void clear_rings(void)
{
    memset(entries, 0, sizeof entries);
    memset(records, 0, sizeof records);
    for (int i = 0; i < N; i++) {
        entries[i].seq = entries[i].seq_end = -1;
        records[i].seq = records[i].seq_end = -1;
    }
}

static void an_entry_is_whole(void)
{
    const sk_ctl_slot slot[2] = {{3, 0}, {SK_LICENCE_WAIT, 1}};
    const sk_ctl_entry *e = &entries[9 % N];
    clear_rings();
    memset(entries, 0x5a, sizeof entries);
    sk_rings_put(&rings, 9, slot, 2);
    SK_EXPECT_INT(9, e->seq);
    SK_EXPECT_INT(9, e->seq_end);
    SK_EXPECT_INT(0, e->valid);
    SK_EXPECT(memcmp(e->slot, slot, sizeof slot) == 0);
    for (int i = 2; i < SK_SLOTS_MAX; i++) {
        SK_EXPECT_INT(SK_LICENCE_ALL, e->slot[i].licence);
        SK_EXPECT_INT(0, e->slot[i].stop);
    }
    for (int i = 0; i < N; i++)
        if (i != 9 % N) SK_EXPECT_INT(0x5a5a5a5a5a5a5a5a, entries[i].seq);
    sk_rings_put(&rings, 9 + N, NULL, 0); // the next turn of the ring
    SK_EXPECT_INT(9 + N, e->seq);
    SK_EXPECT_INT(SK_LICENCE_ALL, e->slot[0].licence);
}

static void half_a_record_is_none(void)
{
    sk_done *d = &records[6 % N];
    clear_rings();
    SK_EXPECT(sk_rings_find(&rings, 6) == NULL);
    d->seq_end = 6; // the device writes this one first
    SK_EXPECT(sk_rings_find(&rings, 6) == NULL);
    d->seq = 6;
    SK_EXPECT(sk_rings_find(&rings, 6) == d);
    SK_EXPECT(sk_rings_find(&rings, 6 + N) == NULL); // same place, other rounds
    SK_EXPECT(sk_rings_find(&rings, 6 - N) == NULL);
    d->seq_end = 6 + N; // being overwritten
    SK_EXPECT(sk_rings_find(&rings, 6) == NULL);
    SK_EXPECT(sk_rings_find(&rings, 6 + N) == NULL);
    d->seq = 6 + N;
    SK_EXPECT(sk_rings_find(&rings, 6 + N) == d);
}

static void waiting_ends(void)
{
    const sk_done *found = NULL;
    sk_status st = SK_STATUS_INIT;
    clear_rings();
    records[1].seq = records[1].seq_end = 5;
    SK_EXPECT_OK(sk_rings_wait(&rings, NULL, 5, "round 5", &found, &st), &st); // asks no device
    SK_EXPECT(found == &records[1]);
    // The device is asked after a while, and here it answers that there is none.
    SK_EXPECT_FAIL(SK_UNSUPPORTED, "NO_CUDA_BUILD",
                   sk_rings_wait(&rings, NULL, 6, "round 6", &found, &st), &st);
    SK_EXPECT(found == NULL);
}

#define ROUNDS 3000

static int64_t taken; // records before this one have been read

/* As a device: at most N records that nobody has read. */
static void *write_records(void *unused)
{
    for (int64_t k = 0; k < ROUNDS; k++) {
        sk_done *d = &records[k % N];
        while (__atomic_load_n(&taken, __ATOMIC_ACQUIRE) + N <= k) (void)sched_yield();
        d->n_rows = (int32_t)k;
        for (int i = 0; i < SK_SLOTS_MAX; i++) d->slot[i].pos = (int32_t)(k + i);
        __atomic_store_n(&d->seq_end, k, __ATOMIC_RELEASE);
        __atomic_store_n(&d->seq, k, __ATOMIC_RELEASE);
    }
    return unused;
}

static void records_arrive_whole_and_in_order(void)
{
    pthread_t writer;
    clear_rings();
    taken = 0;
    SK_REQUIRE(pthread_create(&writer, NULL, write_records, NULL) == 0);
    for (int64_t k = 0; k < ROUNDS; k++) {
        const sk_done *d;
        bool whole = true;
        while (!(d = sk_rings_find(&rings, k))) (void)sched_yield();
        for (int i = 0; i < SK_SLOTS_MAX; i++) whole &= d->slot[i].pos == (int32_t)(k + i);
        if (!whole || d->n_rows != k) SK_EXPECT_INT(k, d->n_rows);
        __atomic_store_n(&taken, k + 1, __ATOMIC_RELEASE);
    }
    (void)pthread_join(writer, NULL);
}

/* ---- the kernels' stand-ins ---------------------------------------------------------------- */

static void without_kernels_nothing_runs(void)
{
    const sk_launch l = {0};
    for (int op = 0; op < SK_OP_COUNT; op++) {
        const enum sk_op ops[SK_CUDA_GROUP_MAX] = {(enum sk_op)op, SK_OP_publish};
        const void *args[SK_CUDA_GROUP_MAX] = {0};
        SK_EXPECT(!sk_cuda_ops[op]);
        SK_EXPECT_INT(1, sk_cuda_group_find(ops, 2));
        SK_EXPECT(sk_cuda_group_run(ops, args, 1, &l) != 0);
    }
    SK_EXPECT(sk_cuda_is_packed(2) && !sk_cuda_is_packed(1));
    SK_EXPECT_INT(0, sk_k_has_edges());
    SK_EXPECT(sk_k_pack(SK_BF16, NULL, NULL, 0, 16, 16, 64, NULL) != 0);
    SK_EXPECT(sk_k_unpack(SK_BF16, NULL, NULL, 0, 16, 16, 64, NULL) != 0);
}

/* ---- programs ------------------------------------------------------------------------------ */

static sk_options options_of(int32_t slots, int32_t k, int32_t device)
{
    return (sk_options){.slots = slots,
                        .ctx = CTX,
                        .prefill_chunk = 4,
                        .threads = 1,
                        .device = device,
                        .drafter = {k ? SK_DRAFTER_NGRAM : SK_DRAFTER_NONE, k, 3, 1}};
}

/* `want`: the capacities, 0 ends them. */
static void expect_capacities(const sk_ckpt *ck, const sk_options *o, const int32_t *want)
{
    sk_status st = SK_STATUS_INIT;
    sk_program p;
    int32_t n = 0;
    if (!SK_EXPECT_OK(sk_program_open(&p, ck, o, &st), &st)) return;
    for (; want[n]; n++)
        for (int32_t full = 0; full < 2 && 2 * n + 1 < p.n_rounds; full++) {
            const sk_round_plan *r = &p.rounds[2 * n + 1 - full];
            const int32_t smaller = want[n + 1]; // the next one holds that many, or there is none
            SK_EXPECT_INT(want[n], r->n_rows);
            SK_EXPECT_INT(full, r->full);
            SK_EXPECT(full == (r->logits >= 0));
            SK_EXPECT_INT(2 * n + 1 - full, sk_program_round_find(&p, want[n], full));
            SK_EXPECT_INT(2 * n + 1 - full, sk_program_round_find(&p, smaller + 1, full));
        }
    SK_EXPECT_INT(2 * n, p.n_rounds);
    SK_EXPECT_INT(2 * n - 2, sk_program_round_find(&p, 0, true));
    sk_program_close(&p);
}

static void capacities_hold_their_rows(void)
{
    static const struct {
        int32_t slots, k, device;
        bool asked;
        int32_t want[8];
    } cases[] = {
        {16, 3, 0, false, {64, 40, 20, 10, 5}}, // none below a slot's rows
        {16, 3, -1, false, {64}},               // the CPU has one
        {16, 3, -1, true, {64, 40, 20, 10, 5}}, // unless asked
        {1, 0, 0, false, {1}},
        {4, 0, 0, false, {4, 2, 1}},
        {10, 1, 0, false, {20, 10, 5, 2}},
        {64, 15, 0, false, {1024, 40, 20}}, // the most there is
    };
    char path[64];
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    SK_REQUIRE(sk_test_model(path));
    if (SK_EXPECT_OK(sk_ckpt_open(&ck, path, true, &st), &st))
        for (size_t i = 0; i < SK_COUNT(cases); i++) {
            sk_options o = options_of(cases[i].slots, cases[i].k, cases[i].device);
            o.capacities = cases[i].asked;
            expect_capacities(ck, &o, cases[i].want);
        }
    sk_ckpt_close(ck);
    (void)remove(path);
}

static void expect_refused(const sk_ckpt *ck, sk_options o, sk_code code, const char *text)
{
    sk_status st = SK_STATUS_INIT;
    sk_program p;
    SK_EXPECT_FAIL(code, NULL, sk_program_open(&p, ck, &o, &st), &st);
    SK_EXPECT_STR(text, st.msg);
}

static void options_are_checked(void)
{
    char path[64];
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    sk_options o = options_of(1, 0, -2);
    SK_REQUIRE(sk_test_model(path));
    if (SK_EXPECT_OK(sk_ckpt_open(&ck, path, true, &st), &st)) {
        expect_refused(ck, o, SK_INVALID, "device: expected at least -1, found -2");
        o.device = 3;
        o.f32 = true;
        expect_refused(ck, o, SK_UNSUPPORTED, "numerics f32: expected device cpu, found cuda:3");
        o.mode = (sk_mode)3;
        expect_refused(ck, o, SK_INVALID, "mode: expected 0 .. 2, found 3");
    }
    sk_ckpt_close(ck);
    (void)remove(path);
}

/* Rows of 16 elements have no products, and the status says which step met one first. */
static void a_walk_is_refused_before_it_begins(void)
{
    const sk_options o = options_of(2, 3, 0);
    char path[64];
    sk_ckpt *ck = NULL;
    sk_status st = SK_STATUS_INIT;
    sk_program p;
    SK_REQUIRE(sk_test_model(path));
    if (SK_EXPECT_OK(sk_ckpt_open(&ck, path, true, &st), &st) &&
        SK_EXPECT_OK(sk_program_open(&p, ck, &o, &st), &st)) {
        const sk_plan *plan = &p.rounds[1].plan;
        SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, sk_walk_check(plan, &st), &st);
        SK_REQUIRE(st.step >= 0 && (size_t)st.step < plan->n_steps);
        SK_EXPECT(strstr(st.msg, sk_ops[plan->steps[st.step].op].name) == st.msg);
        SK_EXPECT(strstr(st.msg, "expected a multiple of 32 columns, found 16") != NULL);
        SK_EXPECT(sk_walk_work_bytes(plan, CTX) > 0);
        sk_program_close(&p);
    }
    sk_ckpt_close(ck);
    (void)remove(path);
}

static void a_direct_walk_is_not_recorded(void)
{
    const sk_walk w = {.direct = true};
    const sk_plan plan = {.name = "round"};
    const sk_bound b = {.plan = &plan};
    sk_status st = SK_STATUS_INIT;
    sk_dev_graph *g = NULL;
    SK_EXPECT_FAIL(SK_STATE, NULL,
                   sk_walk_record(&w, &b, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, 512, &g, &st), &st);
    SK_EXPECT(!g);
}

const sk_test sk_tests_replay[] = {
    {"an_entry_is_whole", an_entry_is_whole},
    {"half_a_record_is_none", half_a_record_is_none},
    {"waiting_ends", waiting_ends},
    {"records_arrive_whole_and_in_order", records_arrive_whole_and_in_order},
    {"without_kernels_nothing_runs", without_kernels_nothing_runs},
    {"capacities_hold_their_rows", capacities_hold_their_rows},
    {"options_are_checked", options_are_checked},
    {"a_walk_is_refused_before_it_begins", a_walk_is_refused_before_it_begins},
    {"a_direct_walk_is_not_recorded", a_direct_walk_is_not_recorded},
    {0},
};
