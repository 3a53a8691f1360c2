/* See forced.h. */
#include "model/forced.h"

#include "base/mem.h"

#include <stdio.h>

/* splitmix64: a stream that is a function of where it starts. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int32_t below(uint64_t *state, int32_t n)
{
    return (int32_t)((next(state) >> 32) * (uint64_t)n >> 32);
}

static void swap(int32_t *all, int32_t i, int32_t j)
{
    const int32_t x = all[i];
    all[i] = all[j];
    all[j] = x;
}

sk_code sk_forced_routes(const sk_forced *f, int32_t layer, int32_t n_expert, int32_t n_used,
                         int32_t *out, sk_status *st)
{
    const uint32_t carry = f->routing == SK_ROUTING_PROFILE ? SK_FORCED_CARRY : 0;
    uint64_t state = (uint64_t)(uint32_t)f->seed << 32 | (uint32_t)layer;
    int32_t *all = NULL; // every expert once, those of the row in front
    (void)next(&state);
    SK_TRY(sk_mem_new((void **)&all, (size_t)n_expert, sizeof *all, "forced routes", st));
    for (int32_t e = 0; e < n_expert; e++) all[e] = e;
    for (int32_t r = 0; r < SK_FORCED_ENTRIES; r++) {
        int32_t kept = 0;
        for (int32_t j = 0; r > 0 && j < n_used; j++)
            if ((next(&state) & 0xffff) < carry) swap(all, j, kept++);
        for (; kept < n_used; kept++) swap(all, kept, kept + below(&state, n_expert - kept));
        for (int32_t j = 0; j < n_used; j++) *out++ = all[j];
    }
    sk_mem_free(all);
    return SK_OK;
}

sk_code sk_forced_bind(const sk_forced *f, sk_space *space, const char *prefix, int32_t layer,
                       int32_t n_expert, int32_t n_used, int32_t *out, sk_status *st)
{
    const int64_t dim[2] = {SK_FORCED_ENTRIES, n_used};
    char name[SK_NAME_MAX];
    int32_t *table = NULL;
    sk_code rc;
    (void)snprintf(name, sizeof name, "%sblk.%d.forced_routes", prefix, (int)layer);
    SK_TRY(sk_mem_new((void **)&table, SK_FORCED_ENTRIES * (size_t)n_used, sizeof *table,
                      "forced routes", st));
    rc = sk_forced_routes(f, layer, n_expert, n_used, table, st);
    if (rc == SK_OK) rc = sk_space_add_const(space, name, SK_I32, 2, dim, table, out, st);
    if (rc == SK_OK) space->bufs[*out].as_is = true;
    sk_mem_free(table);
    return rc;
}
