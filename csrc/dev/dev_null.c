/* Stands in for dev_cuda*.c in a build without CUDA: everything that can fail does, with the status
 * of sk_dev_need, and touches nothing. */
#include "dev/dev.h"
#include "dev/floor.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" // there is nothing to do with them

static sk_code none(sk_status *st)
{
    sk_dev_env env;
    sk_dev_probe(&env);
    return sk_dev_env_check(&env, 0, st);
}

void sk_dev_probe(sk_dev_env *out) { *out = (sk_dev_env){.built = false}; }

sk_code sk_dev_info_get(int32_t index, sk_dev_info *out, sk_status *st) { return none(st); }

sk_code sk_dev_open(sk_dev **out, int32_t index, sk_status *st) { return none(st); }

void sk_dev_close(sk_dev *d) {}

struct CUstream_st *sk_dev_stream(const sk_dev *d) { return NULL; }

struct CUstream_st *sk_dev_branch_stream(sk_dev *d, int32_t branch) { return NULL; }

const sk_dev_info *sk_dev_about(const sk_dev *d) { return NULL; }

sk_code sk_dev_check(int32_t error, const char *what, int32_t step, sk_status *st)
{
    return error ? none(st) : SK_OK;
}

sk_code sk_dev_sync(sk_dev *d, sk_status *st) { return none(st); }

int32_t sk_dev_busy(sk_dev *d) { return -SK_DEV_NO_DEVICE; }

/* Memory */

sk_code sk_dev_memory(sk_dev *d, uint64_t *free_bytes, uint64_t *total_bytes, sk_status *st)
{
    return none(st);
}

sk_code sk_dev_alloc(sk_dev *d, uint64_t bytes, const char *what, uint8_t **out, sk_status *st)
{
    return none(st);
}

void sk_dev_free(sk_dev *d, uint8_t *p) {}

sk_code sk_dev_pin(sk_dev *d, uint64_t bytes, const char *what, void **host, uint8_t **device,
                   sk_status *st)
{
    return none(st);
}

void sk_dev_unpin(sk_dev *d, void *host) {}

sk_code sk_dev_write(sk_dev *d, uint8_t *dst, const void *src, uint64_t n, sk_status *st)
{
    return none(st);
}

sk_code sk_dev_read(sk_dev *d, void *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    return none(st);
}

sk_code sk_dev_fill(sk_dev *d, uint8_t *dst, int32_t byte, uint64_t n, sk_status *st)
{
    return none(st);
}

sk_code sk_dev_copy(sk_dev *d, uint8_t *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    return none(st);
}

/* Graphs, branches, timing */

sk_code sk_dev_capture(sk_dev *d, sk_code (*body)(void *ctx, sk_status *st), void *ctx,
                       sk_dev_graph **out, sk_status *st)
{
    return none(st);
}

sk_code sk_dev_graph_launch(sk_dev *d, sk_dev_graph *g, sk_status *st) { return none(st); }

int64_t sk_dev_graph_nodes(const sk_dev_graph *g) { return 0; }

int64_t sk_dev_graph_edges(const sk_dev_graph *g, int64_t *programmatic)
{
    if (programmatic) *programmatic = 0;
    return 0;
}

void sk_dev_graph_drop(sk_dev_graph *g) {}

sk_code sk_dev_fork(sk_dev *d, int32_t branch, sk_status *st) { return none(st); }

sk_code sk_dev_join(sk_dev *d, int32_t branch, sk_status *st) { return none(st); }

sk_code sk_dev_mark(sk_dev *d, int32_t event, sk_status *st) { return none(st); }

sk_code sk_dev_elapsed(sk_dev *d, int32_t from, int32_t to, double *us, sk_status *st)
{
    return none(st);
}

/* The floor */

sk_code sk_floor_run(int32_t device, const sk_floor_case *c, double *us, sk_floor_about *about,
                     sk_status *st)
{
    sk_code rc = sk_floor_check(c, st);
    return rc != SK_OK ? rc : none(st);
}

sk_code sk_floor_put_read(sk_dev *d, const uint8_t *p, uint64_t bytes, int32_t shape, bool edge,
                          uint32_t *sink, sk_status *st)
{
    return none(st);
}
