/* What the floor harness knows without a device. See floor.h. */
#include "dev/floor.h"

#include "kernels/floor/floor.h"

#include <string.h>

bool sk_floor_kind_find(const char *name, sk_floor_kind *out)
{
#define X(kind, text)                                                                              \
    if (strcmp(name, text) == 0) {                                                                 \
        *out = SK_FLOOR_##kind;                                                                    \
        return true;                                                                               \
    }
    SK_FLOOR_KINDS(X)
#undef X
    return false;
}

bool sk_floor_shape(int32_t i, int32_t *threads, int32_t *per_sm, int32_t *loads)
{
    static const int32_t shapes[][3] = {
#define X(threads, per_sm, loads) {threads, per_sm, loads},
        SK_F_SHAPES(X)
#undef X
    };
    if (i < 0 || (size_t)i >= SK_COUNT(shapes)) return false;
    *threads = shapes[i][0];
    *per_sm = shapes[i][1];
    *loads = shapes[i][2];
    return true;
}

/* Is the launch a chain, whose edges may be programmatic? */
static bool is_chain(sk_floor_kind kind)
{
    return kind == SK_FLOOR_EMPTY || kind == SK_FLOOR_SUBMIT || kind == SK_FLOOR_RETURN ||
           kind == SK_FLOOR_CHAIN;
}

static sk_code check_shape(const sk_floor_case *c, sk_status *st)
{
    int32_t threads, per_sm, loads;
    if (c->kind == SK_FLOOR_BARRIER) {
        if (c->shape < 1 || c->shape > 8)
            return SK_FAIL(st, SK_INVALID, "floor: %d blocks a multiprocessor: expected 1 to 8",
                           (int)c->shape);
    } else if (c->shape != -1 && !sk_floor_shape(c->shape, &threads, &per_sm, &loads)) {
        return SK_FAIL(st, SK_INVALID, "floor: launch shape %d: there is none with this number",
                       (int)c->shape);
    }
    return SK_OK;
}

sk_code sk_floor_check(const sk_floor_case *c, sk_status *st)
{
    const uint64_t most = UINT64_C(1) << 40;
    uint64_t bytes = c->bytes;
    if (c->n < 1 || c->n > SK_FLOOR_MAX_NODES)
        return SK_FAIL(st, SK_INVALID, "floor: n = %lld: expected 1 to %d", (long long)c->n,
                       SK_FLOOR_MAX_NODES);
    if (c->n_samples < 1 || c->n_samples > SK_FLOOR_MAX_SAMPLES)
        return SK_FAIL(st, SK_INVALID, "floor: %d samples: expected 1 to %d", (int)c->n_samples,
                       SK_FLOOR_MAX_SAMPLES);
    for (int64_t i = 0; c->node_bytes && i < c->n; i++)
        bytes = c->node_bytes[i] > bytes ? c->node_bytes[i] : bytes;
    if (bytes > most)
        return SK_FAIL(st, SK_INVALID, "floor: %llu bytes: expected at most %llu",
                       (unsigned long long)bytes, (unsigned long long)most);
    if (c->programmatic && !is_chain(c->kind))
        return SK_FAIL(st, SK_INVALID, "floor: programmatic edges: expected a chain of kernels");
    return check_shape(c, st);
}
