/* Plans by hand: what is refused, where transients lie, what the digest covers. */
#include "tests/c/sk_test.h"

#include "base/mem.h"
#include "plan/build.h"
#include "plan/exec.h"

#include <string.h>

#define P 4
#define D 8

/* A small world: a weight, a state buffer, control rows, and a plan under construction. */
typedef struct world {
    sk_space space;
    sk_plan plan;
    sk_builder b;
    sk_status st;
    int32_t gain, keep, count, source;
    float gains[D];
} world;

static int32_t add(world *w, const char *name, sk_role role, int32_t dtype, int64_t a, int64_t b)
{
    int32_t out = -1;
    const int64_t dim[2] = {a, b};
    sk_code rc = sk_space_add(&w->space, name, role, dtype, b ? 2 : 1, dim, &out, &w->st);
    SK_EXPECT_OK(rc, &w->st);
    return out;
}

static void make(world *w)
{
    memset(w, 0, sizeof *w);
    w->st = (sk_status)SK_STATUS_INIT;
    for (int i = 0; i < D; i++) w->gains[i] = 1;
    sk_space_init(&w->space);
    SK_EXPECT_OK(sk_space_add_const(&w->space, "gain", SK_F32, 1, (int64_t[]){D}, w->gains,
                                    &w->gain, &w->st),
                 &w->st);
    w->keep = add(w, "keep", SK_ROLE_STATE, SK_F32, P, D);
    w->source = add(w, "source", SK_ROLE_CONTROL, SK_F32, P, D);
    w->count = add(w, "count", SK_ROLE_CONTROL, SK_I32, 1, 0);
    sk_plan_init(&w->plan, "test", &w->space);
    sk_b_init(&w->b, &w->space, &w->plan, SK_F32, P, &w->st);
    w->b.stage = SK_STAGE_VERIFY;
    w->b.count = sk_b_buf(&w->b, w->count);
    sk_b_at(&w->b, "t");
}

static void drop(world *w)
{
    sk_plan_fini(&w->plan);
    sk_space_fini(&w->space);
}

static sk_view norm(world *w, sk_view x) { return sk_b_rms_norm(&w->b, x, w->gain, 1e-5f, SK_F32); }

static const sk_life *life(const world *w, sk_view v)
{
    for (size_t i = 0; i < w->plan.n_lives; i++)
        if (w->plan.lives[i].buf == v.buf) return &w->plan.lives[i];
    return NULL;
}

static bool share_bytes(const world *w, sk_view a, sk_view b)
{
    const sk_life *x = life(w, a), *y = life(w, b);
    return x->off < y->off + w->space.bufs[b.buf].bytes &&
           y->off < x->off + w->space.bufs[a.buf].bytes;
}

static void transients_reuse_memory(void)
{
    world w;
    sk_view v[5];
    make(&w);
    v[0] = norm(&w, sk_b_buf(&w.b, w.source));
    for (int i = 1; i < 5; i++) v[i] = norm(&w, v[i - 1]);
    sk_b_result(&w.b, v[1]);
    if (SK_EXPECT_OK(sk_b_finish(&w.b), &w.st)) {
        SK_EXPECT_INT(5, (int64_t)w.plan.n_lives);
        SK_EXPECT(!share_bytes(&w, v[0], v[1])); // read while the other is written
        SK_EXPECT(!share_bytes(&w, v[1], v[2]));
        SK_EXPECT(share_bytes(&w, v[0], v[2]));  // dead by then
        SK_EXPECT(!share_bytes(&w, v[1], v[4])); // the host reads v[1] afterwards
        SK_EXPECT_INT(5, life(&w, v[1])->last);
        SK_EXPECT(w.plan.transient_bytes < 5 * 256 + 1);
    }
    drop(&w);
}

/* main: a = n(source); fork; side: s1 = n(a), s2 = n(s1); main: m1 = n(a), m2 = n(m1); join; m2 +=
 * s2 */
static void side_branches_get_their_own_memory(void)
{
    world w;
    sk_view a, s1, s2, m1, m2, after;
    int32_t side = 0;
    make(&w);
    a = norm(&w, sk_b_buf(&w.b, w.source));
    SK_EXPECT_OK(sk_plan_fork(&w.plan, &side, &w.st), &w.st);
    w.b.branch = side;
    s1 = norm(&w, a);
    s2 = norm(&w, s1);
    w.b.branch = 0;
    m1 = norm(&w, a);
    m2 = norm(&w, m1);
    SK_EXPECT_OK(sk_plan_join(&w.plan, side, &w.st), &w.st);
    sk_b_add(&w.b, m2, s2);
    after = norm(&w, m2);
    if (SK_EXPECT_OK(sk_b_finish(&w.b), &w.st)) {
        const sk_view all[] = {a, s1, s2, m1, m2};
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < i; k++)
                if (!(i == 4 && k == 0)) SK_EXPECT(!share_bytes(&w, all[i], all[k]));
        SK_EXPECT(share_bytes(&w, after, a)); // after the join everything may be reused
    }
    drop(&w);
}

static void runs_and_poisoning_changes_nothing(void)
{
    world w;
    sk_view x, y;
    float source[P * D], keep[P * D] = {0}, want[P * D];
    int32_t count = P;
    uint8_t *addr[16] = {0}, transients[4096], work[4096];
    sk_pool *pool = NULL;
    sk_bound bound = {0};
    make(&w);
    x = norm(&w, sk_b_buf(&w.b, w.source));
    y = norm(&w, x);
    sk_b_add(&w.b, y, x);
    sk_b_add(&w.b, sk_b_buf(&w.b, w.keep), y);
    SK_EXPECT_OK(sk_b_finish(&w.b), &w.st);
    for (int i = 0; i < P * D; i++) source[i] = (float)(i % 7) - 3.0f + (float)i / 64;
    addr[w.gain] = (uint8_t *)w.gains;
    addr[w.source] = (uint8_t *)source;
    addr[w.keep] = (uint8_t *)keep;
    addr[w.count] = (uint8_t *)&count;
    SK_EXPECT_OK(sk_pool_make(&pool, 1, &w.st), &w.st);
    SK_EXPECT(w.plan.transient_bytes <= sizeof transients);
    if (SK_EXPECT_OK(sk_bound_make(&bound, &w.plan, addr, transients, &w.st), &w.st)) {
        for (int poison = 0; poison < 2; poison++) {
            sk_exec ex = {sk_cpu_ops, {pool, work, sizeof work}, poison != 0};
            memset(keep, 0, sizeof keep);
            sk_exec_run(&ex, &bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
            if (!poison) memcpy(want, keep, sizeof keep);
            SK_EXPECT(memcmp(want, keep, sizeof keep) == 0 && keep[0] != 0);
            // Another stage range runs nothing.
            sk_exec_run(&ex, &bound, SK_STAGE_DRAFT, SK_STAGE_DRAFT);
            SK_EXPECT(memcmp(want, keep, sizeof keep) == 0);
        }
    }
    sk_bound_drop(&bound);
    sk_pool_drop(pool);
    drop(&w);
}

/* The head of a model both ways: logits and a choice, and the choice alone; and what a block adds.
 */
static void fused_steps(void)
{
    world w;
    sk_view logits, id, same_id;
    sk_norm by;
    sk_lin lin = {.bias = -1};
    float matrix[3 * D], source[P * D], keep[P * D];
    int32_t count = P;
    uint8_t *addr[16] = {0}, transients[4096];
    void *work = NULL;
    sk_pool *pool = NULL;
    sk_bound bound = {0};
    make(&w);
    by = (sk_norm){w.gain, 1e-5f};
    for (int i = 0; i < 3 * D; i++) matrix[i] = (float)(i * 5 % 11) - 5;
    for (int i = 0; i < P * D; i++) source[i] = (float)(i * 3 % 7) - 3.0f + (float)i / 64;
    SK_EXPECT_OK(
        sk_space_add_const(&w.space, "matrix", SK_F32, 2, (int64_t[]){3, D}, matrix, &lin.w, &w.st),
        &w.st);
    sk_b_norm_linear(&w.b, sk_b_buf(&w.b, w.source), by, &lin, 1, &logits);
    id = sk_b_argmax(&w.b, logits);
    same_id = sk_b_norm_argmax(&w.b, sk_b_buf(&w.b, w.source), by, &lin);
    sk_b_norm_add(&w.b, sk_b_buf(&w.b, w.keep), sk_b_buf(&w.b, w.source), by);
    sk_b_result(&w.b, id);
    sk_b_result(&w.b, same_id);
    SK_EXPECT_OK(sk_b_finish(&w.b), &w.st);
    addr[w.gain] = (uint8_t *)w.gains;
    addr[lin.w] = (uint8_t *)matrix;
    addr[w.source] = (uint8_t *)source;
    addr[w.keep] = (uint8_t *)keep;
    addr[w.count] = (uint8_t *)&count;
    SK_EXPECT_OK(sk_pool_make(&pool, 2, &w.st), &w.st);
    SK_EXPECT_OK(sk_mem_new_aligned(&work, sk_exec_work_bytes(&w.plan, 2), "scratch", &w.st),
                 &w.st);
    if (SK_EXPECT_OK(sk_bound_make(&bound, &w.plan, addr, transients, &w.st), &w.st)) {
        const char *const names[] = {"definition", "generic", "fast"};
        for (int i = 0; i < 3; i++) {
            sk_cpu_fn table[SK_OP_COUNT];
            sk_exec ex = {table, {pool, work, sk_exec_work_bytes(&w.plan, 2)}, true};
            SK_EXPECT(sk_cpu_table_find(table, names[i]));
            memset(keep, 0, sizeof keep);
            sk_exec_run(&ex, &bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
            SK_EXPECT(memcmp(sk_bound_find(&bound, id.buf), sk_bound_find(&bound, same_id.buf),
                             P * sizeof(int32_t)) == 0);
            for (int r = 0; r < P; r++) { // gains are 1: the mean square of a normed row is 1
                float squares = 0;
                for (int k = 0; k < D; k++) squares += keep[r * D + k] * keep[r * D + k] / D;
                SK_EXPECT(squares > 0.999f && squares < 1.001f);
            }
        }
    }
    sk_bound_drop(&bound);
    sk_pool_drop(pool);
    sk_mem_free(work);
    drop(&w);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void refused(world *w, const char *text, int step)
{
    SK_EXPECT_FAIL(SK_INVALID, NULL, sk_b_finish(&w->b), &w->st);
    if (!strstr(w->st.msg, text)) SK_EXPECT_STR(text, w->st.msg);
    SK_EXPECT_INT(step, w->st.step);
    drop(w);
}

static void refuses_reading_what_was_not_written(void)
{
    world w;
    make(&w);
    (void)norm(&w, sk_b_temp(&w.b, "never", SK_F32, 2, (int64_t[]){P, D}));
    refused(&w, "plan test: step 0 rms_norm (t): x = t.never: transient read before it is written",
            0);
}

static void refuses_writing_a_weight(void)
{
    world w;
    sk_view x;
    make(&w);
    x = norm(&w, sk_b_buf(&w.b, w.source));
    sk_b_add(&w.b,
             (sk_view){.buf = w.gain, .dtype = SK_F32, .rank = 2, .dim = {1, D}, .stride = {32}},
             x);
    refused(&w, "writes to a weight", 1);
}

static void refuses_a_view_outside_its_buffer(void)
{
    world w;
    sk_view x;
    make(&w);
    x = sk_b_buf(&w.b, w.source);
    x.off = 4;
    (void)norm(&w, x);
    refused(&w, "view outside its buffer", 0);
    make(&w);
    x = sk_b_buf(&w.b, w.source);
    x.buf = 99;
    (void)norm(&w, x);
    refused(&w, "no such buffer", 0);
}

static void refuses_a_missing_argument(void)
{
    world w;
    make(&w);
    w.b.count = (sk_view)SK_VIEW_NONE;
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    refused(&w, "missing", 0);
}

static void refuses_a_broken_contract(void)
{
    world w;
    make(&w);
    (void)sk_b_rms_norm(&w.b, sk_b_buf(&w.b, w.source), w.gain, -1, SK_F32);
    refused(&w, "eps", 0);
}

static void refuses_stages_out_of_order(void)
{
    world w;
    make(&w);
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    w.b.stage = SK_STAGE_DRAFT;
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    refused(&w, "stage out of order", 1);
}

static void refuses_an_unwritten_result(void)
{
    world w;
    make(&w);
    sk_b_result(&w.b, sk_b_temp(&w.b, "out", SK_F32, 1, (int64_t[]){D}));
    refused(&w, "result t.out is never written", -1);
}

static void refuses_races_between_branches(void)
{
    world w;
    sk_view a, keep;
    int32_t side = 0;
    make(&w);
    a = norm(&w, sk_b_buf(&w.b, w.source));
    keep = sk_b_buf(&w.b, w.keep);
    SK_EXPECT_OK(sk_plan_fork(&w.plan, &side, &w.st), &w.st);
    w.b.branch = side;
    sk_b_add(&w.b, keep, a);
    w.b.branch = 0;
    (void)norm(&w, keep);
    SK_EXPECT_OK(sk_plan_join(&w.plan, side, &w.st), &w.st);
    refused(&w, "race with a step of another branch", 1);
}

/* The lowest lane that no open branch has. */
static void open_branches_have_lanes_of_their_own(void)
{
    world w;
    int32_t side[SK_LANES + 2];
    make(&w);
    for (int32_t i = 0; i < SK_LANES; i++) {
        SK_EXPECT_OK(sk_plan_fork(&w.plan, &side[i], &w.st), &w.st);
        SK_EXPECT_INT(i + 1, w.plan.branches[i].lane);
    }
    SK_EXPECT_FAIL(SK_INVALID, NULL, sk_plan_fork(&w.plan, &side[SK_LANES], &w.st), &w.st);
    SK_EXPECT(strstr(w.st.msg, "expected at most 4 open branches, found one more"));
    w.st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_OK(sk_plan_join(&w.plan, side[1], &w.st), &w.st);
    SK_EXPECT_OK(sk_plan_fork(&w.plan, &side[SK_LANES], &w.st), &w.st);
    SK_EXPECT_INT(2, w.plan.branches[SK_LANES].lane);
    SK_EXPECT_INT(SK_LANES + 1, side[SK_LANES]);
    drop(&w);
}

static void refuses_open_and_misplaced_branches(void)
{
    world w;
    int32_t side = 0;
    make(&w);
    SK_EXPECT_OK(sk_plan_fork(&w.plan, &side, &w.st), &w.st);
    w.b.branch = side;
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    refused(&w, "branch 1 is never joined", -1);

    make(&w);
    SK_EXPECT_OK(sk_plan_fork(&w.plan, &side, &w.st), &w.st);
    SK_EXPECT_OK(sk_plan_join(&w.plan, side, &w.st), &w.st);
    w.b.branch = side;
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    refused(&w, "side step outside its fork and join", 0);

    make(&w);
    w.b.branch = 3;
    (void)norm(&w, sk_b_buf(&w.b, w.source));
    refused(&w, "no such branch", 0);

    make(&w);
    SK_EXPECT_FAIL(SK_INVALID, NULL, sk_plan_join(&w.plan, 1, &w.st), &w.st);
    drop(&w);
}

static void buffers_have_one_name_and_a_size(void)
{
    world w;
    int32_t out = -1;
    make(&w);
    SK_EXPECT_FAIL(
        SK_INVALID, NULL,
        sk_space_add(&w.space, "gain", SK_ROLE_STATE, SK_F32, 1, (int64_t[]){1}, &out, &w.st),
        &w.st);
    SK_EXPECT(strstr(w.st.msg, "buffer gain: defined twice") != NULL);
    w.st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_INVALID, NULL,
                   sk_space_add(&w.space, "huge", SK_ROLE_STATE, SK_F32, 3,
                                (int64_t[]){1ll << 40, 1ll << 20, 1ll << 20}, &out, &w.st),
                   &w.st);
    w.st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(
        SK_INVALID, NULL,
        sk_space_add(&w.space, "none", SK_ROLE_STATE, SK_F32, 1, (int64_t[]){0}, &out, &w.st),
        &w.st);
    SK_EXPECT_INT(-1, out);
    drop(&w);
}

/* ---- text and digest ----------------------------------------------------------------------- */

static void digest_of(float eps, bool twice, uint8_t out[SK_SHA256_BYTES], char **text)
{
    world w;
    sk_view x;
    make(&w);
    x = sk_b_rms_norm(&w.b, sk_b_buf(&w.b, w.source), w.gain, eps, SK_F32);
    if (twice) (void)norm(&w, x);
    SK_EXPECT_OK(sk_b_finish(&w.b), &w.st);
    memcpy(out, w.plan.digest, SK_SHA256_BYTES);
    if (text) SK_EXPECT_OK(sk_plan_dump(&w.plan, text, &w.st), &w.st);
    drop(&w);
}

static void the_digest_covers_what_is_computed(void)
{
    uint8_t a[SK_SHA256_BYTES], b[SK_SHA256_BYTES];
    char *text = NULL;
    digest_of(1e-5f, false, a, &text);
    digest_of(1e-5f, false, b, NULL);
    SK_EXPECT(memcmp(a, b, sizeof a) == 0);
    digest_of(1.0000001e-5f, false, b, NULL);
    SK_EXPECT(memcmp(a, b, sizeof a) != 0);
    digest_of(1e-5f, true, b, NULL);
    SK_EXPECT(memcmp(a, b, sizeof a) != 0);
    SK_EXPECT(text && strstr(text, "rms_norm") && strstr(text, "eps=9.99999975e-06") &&
              strstr(text, "(source)"));
    sk_mem_free(text);
}

static sk_code build_once(void *arg, sk_status *st)
{
    world w;
    char *text = NULL;
    sk_code rc;
    (void)arg;
    memset(&w, 0, sizeof w);
    sk_space_init(&w.space);
    sk_plan_init(&w.plan, "fault", &w.space);
    rc = sk_space_add_const(&w.space, "gain", SK_F32, 1, (int64_t[]){D}, w.gains, &w.gain, st);
    if (rc == SK_OK)
        rc = sk_space_add(&w.space, "source", SK_ROLE_CONTROL, SK_F32, 2, (int64_t[]){P, D},
                          &w.source, st);
    if (rc == SK_OK)
        rc = sk_space_add(&w.space, "count", SK_ROLE_CONTROL, SK_I32, 1, (int64_t[]){1}, &w.count,
                          st);
    if (rc == SK_OK) {
        sk_b_init(&w.b, &w.space, &w.plan, SK_F32, P, st);
        w.b.stage = SK_STAGE_VERIFY;
        w.b.count = sk_b_buf(&w.b, w.count);
        (void)norm(&w, norm(&w, sk_b_buf(&w.b, w.source)));
        rc = sk_b_finish(&w.b);
    }
    if (rc == SK_OK) rc = sk_plan_dump(&w.plan, &text, st);
    sk_mem_free(text);
    drop(&w);
    return rc;
}

/* A table of seven rows in pieces of three: the last has one, and nothing of it is read beyond. */
static void pieces_of_a_weight(void)
{
    enum { ROWS = 7, EACH = 3, N = 3 };
    float rows[ROWS * D];
    uint8_t far[N][EACH * D * sizeof(float) + 1];
    const size_t size[N] = {EACH, EACH, 1};
    for (int shift = 0; shift < 2; shift++) {
        world w;
        const uint8_t *pieces[N];
        int32_t out = -1, at = -1;
        const int64_t dim[2] = {ROWS, D};
        const sk_buf *b;
        make(&w);
        for (int i = 0; i < ROWS * D; i++) rows[i] = (float)i;
        for (int i = 0; i < N; i++) {
            uint8_t *p = far[i] + ((uintptr_t)far[i] + (uintptr_t)shift) % 2; // shift: misaligned
            if (shift && (uintptr_t)p % sizeof(float) == 0) p = far[i] + 1;
            memcpy(p, rows + (size_t)i * EACH * D, size[i] * D * sizeof(float));
            pieces[i] = p;
        }
        SK_EXPECT_OK(
            sk_space_add_pieces(&w.space, "table", SK_F32, 2, dim, EACH, pieces, &out, &at, &w.st),
            &w.st);
        b = &w.space.bufs[out];
        SK_EXPECT(memcmp(b->source, rows, sizeof rows) == 0);
        SK_EXPECT_INT(-1, at);
        drop(&w);
    }
}

/* The last piece may be shorter than the others by more than there are pieces. */
static void rows_of_pieces(void)
{
    enum { EACH = 1024, N = 4, LAST = 1000, WIDE = 2, ROWS = 3 * EACH + LAST };
    static float far[N][EACH + 1][WIDE]; // with a gap behind each
    const int64_t dim[3] = {ROWS, WIDE, 1};
    const uint8_t *pieces[N];
    world w;
    int32_t out, at;
    make(&w);
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < EACH; r++) far[i][r][0] = (float)(i * EACH + r);
        pieces[i] = (const uint8_t *)far[i];
    }
    for (int32_t rank = 2; rank <= 3; rank++) { // [rows, 2], or as many matrices [2, 1]
        const int64_t of_first = rank == 3 ? WIDE : 1;
        const sk_buf *b;
        SK_EXPECT_OK(sk_space_add_pieces(&w.space, rank == 2 ? "plane" : "matrices", SK_F32, rank,
                                         dim, EACH, pieces, &out, &at, &w.st),
                     &w.st);
        b = &w.space.bufs[out];
        for (int64_t row = 0, n; row < ROWS; row += n / of_first) {
            n = 700 * of_first;
            if (row + 700 > ROWS) n = (ROWS - row) * of_first;
            const uint8_t *from = sk_buf_rows(b, row * of_first, &n);
            SK_EXPECT(n > 0 && n % of_first == 0);
            for (int64_t k = 0; k < n / of_first; k++)
                SK_EXPECT(((const float *)(const void *)from)[k * WIDE] == (float)(row + k));
        }
    }
    drop(&w);
}

static void every_allocation_may_fail(void) { SK_EACH_FAULT(build_once, NULL); }

const sk_test sk_tests_plan[] = {
    {"transients_reuse_memory", transients_reuse_memory},
    {"side_branches_get_their_own_memory", side_branches_get_their_own_memory},
    {"runs_and_poisoning_changes_nothing", runs_and_poisoning_changes_nothing},
    {"fused_steps", fused_steps},
    {"refuses_reading_what_was_not_written", refuses_reading_what_was_not_written},
    {"refuses_writing_a_weight", refuses_writing_a_weight},
    {"refuses_a_view_outside_its_buffer", refuses_a_view_outside_its_buffer},
    {"refuses_a_missing_argument", refuses_a_missing_argument},
    {"refuses_a_broken_contract", refuses_a_broken_contract},
    {"refuses_stages_out_of_order", refuses_stages_out_of_order},
    {"refuses_an_unwritten_result", refuses_an_unwritten_result},
    {"refuses_races_between_branches", refuses_races_between_branches},
    {"open_branches_have_lanes_of_their_own", open_branches_have_lanes_of_their_own},
    {"refuses_open_and_misplaced_branches", refuses_open_and_misplaced_branches},
    {"buffers_have_one_name_and_a_size", buffers_have_one_name_and_a_size},
    {"the_digest_covers_what_is_computed", the_digest_covers_what_is_computed},
    {"pieces_of_a_weight", pieces_of_a_weight},
    {"rows_of_pieces", rows_of_pieces},
    {"every_allocation_may_fail", every_allocation_may_fail},
    {0},
};
