/* Forks and joins on a device, on a plan made for it. See once.h. */
#include "graph/once.h"

#include "base/layout.h"
#include "base/mem.h"
#include "graph/walk.h"

#include <string.h>

typedef struct branch_plan {
    sk_space space;
    sk_plan plan;
    int32_t x, y, count, copy;
} branch_plan;

static sk_code add_step(branch_plan *b, enum sk_op op, const void *args, int32_t branch,
                        sk_status *st)
{
    return sk_plan_append(&b->plan, op, args, SK_STAGE_VERIFY, branch, "branches", st);
}

static sk_code add_to_y(branch_plan *b, int32_t buf, sk_status *st)
{
    sk_add_args a;
    sk_args_clear(SK_OP_add, &a);
    a.x = sk_space_view(&b->space, buf);
    a.count = sk_space_view(&b->space, b->count);
    a.y = sk_space_view(&b->space, b->y);
    return add_step(b, SK_OP_add, &a, 0, st);
}

static sk_code build(branch_plan *b, int32_t n, sk_status *st)
{
    const int64_t dim[2] = {1, n}, one = 1;
    sk_copy_rows_args c;
    int32_t branch;
    SK_TRY(sk_space_add(&b->space, "x", SK_ROLE_CONTROL, SK_F32, 2, dim, &b->x, st));
    SK_TRY(sk_space_add(&b->space, "y", SK_ROLE_CONTROL, SK_F32, 2, dim, &b->y, st));
    SK_TRY(sk_space_add(&b->space, "count", SK_ROLE_CONTROL, SK_I32, 1, &one, &b->count, st));
    SK_TRY(sk_space_add(&b->space, "copy", SK_ROLE_TRANSIENT, SK_F32, 2, dim, &b->copy, st));
    sk_args_clear(SK_OP_copy_rows, &c);
    c.x = sk_space_view(&b->space, b->x);
    c.count = sk_space_view(&b->space, b->count);
    c.out = sk_space_view(&b->space, b->copy);
    SK_TRY(sk_plan_fork(&b->plan, &branch, st));
    SK_TRY(add_step(b, SK_OP_copy_rows, &c, branch, st));
    SK_TRY(add_to_y(b, b->x, st));
    SK_TRY(sk_plan_join(&b->plan, branch, st));
    SK_TRY(add_to_y(b, b->copy, st));
    return sk_plan_finish(&b->plan, st);
}

static sk_code replay(sk_dev *dev, const sk_walk *w, const sk_bound *bound, int32_t replays,
                      int64_t *nodes, sk_status *st)
{
    sk_dev_graph *g = NULL;
    sk_code rc = SK_OK;
    SK_TRY(sk_walk_run(w, bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, 0, st));
    SK_TRY(sk_walk_record(w, bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, 0, &g, st));
    *nodes = sk_dev_graph_nodes(g);
    for (int32_t i = 0; rc == SK_OK && i < replays; i++) rc = sk_dev_graph_launch(dev, g, st);
    if (rc == SK_OK) rc = sk_dev_sync(dev, st);
    sk_dev_graph_drop(g);
    return rc;
}

static sk_code run(sk_dev *dev, const branch_plan *b, uint8_t *block, const float *x, float *y,
                   int32_t replays, int64_t *nodes, sk_status *st)
{
    const uint64_t bytes = b->space.bufs[b->x].bytes;
    sk_layout l = {0};
    const int32_t live = 1;
    uint8_t *addr[4] = {NULL};
    sk_bound bound = {0};
    sk_walk w = {.dev = dev, .edges = sk_k_has_edges() > 0};
    sk_code rc;
    addr[b->x] = block + sk_layout_add(&l, bytes);
    addr[b->y] = block + sk_layout_add(&l, bytes);
    addr[b->count] = block + sk_layout_add(&l, sizeof live);
    w.sync = (uint32_t *)(void *)(block + sk_layout_add(&l, SK_SYNC_WORDS * sizeof(uint32_t)));
    SK_TRY(sk_dev_write(dev, addr[b->x], x, bytes, st));
    SK_TRY(sk_dev_write(dev, addr[b->y], y, bytes, st));
    SK_TRY(sk_dev_write(dev, addr[b->count], &live, sizeof live, st));
    SK_TRY(sk_bound_make(&bound, &b->plan, addr, block + sk_layout_add(&l, b->plan.transient_bytes),
                         st));
    rc = replay(dev, &w, &bound, replays, nodes, st);
    sk_bound_drop(&bound);
    return rc == SK_OK ? sk_dev_read(dev, y, addr[b->y], bytes, st) : rc;
}

sk_code sk_once_branches(sk_dev *dev, const float *x, float *y, int32_t n, int32_t replays,
                         int64_t *nodes, sk_status *st)
{
    branch_plan b = {.x = -1};
    uint8_t *block = NULL;
    sk_code rc;
    if (n < 1 || n > 1 << 20)
        return SK_FAIL(st, SK_INVALID, "branches: expected 1 .. %d elements, found %d", 1 << 20,
                       (int)n);
    sk_space_init(&b.space);
    sk_plan_init(&b.plan, "branches", &b.space);
    rc = build(&b, n, st);
    if (rc == SK_OK)
        rc = sk_dev_alloc(dev, 4 * b.space.bufs[b.x].bytes + SK_SYNC_WORDS * 4 + 4096,
                          "a plan with a branch", &block, st);
    if (rc == SK_OK) rc = run(dev, &b, block, x, y, replays, nodes, st);
    sk_dev_free(dev, block);
    sk_plan_fini(&b.plan);
    sk_space_fini(&b.space);
    return rc;
}
