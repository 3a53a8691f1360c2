/* See space.h. */
#include "plan/space.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void sk_space_init(sk_space *sp) { memset(sp, 0, sizeof *sp); }

void sk_space_fini(sk_space *sp)
{
    for (size_t i = 0; i < sp->n_owned; i++) sk_mem_free(sp->owned[i]);
    sk_mem_free(sp->owned);
    sk_mem_free(sp->bufs);
    memset(sp, 0, sizeof *sp);
}

int32_t sk_space_find(const sk_space *sp, const char *name)
{
    for (size_t i = 0; i < sp->n; i++)
        if (strcmp(sp->bufs[i].name, name) == 0) return (int32_t)i;
    return -1;
}

sk_code sk_space_add(sk_space *sp, const char *name, sk_role role, int32_t dtype, int32_t rank,
                     const int64_t *dim, int32_t *out, sk_status *st)
{
    sk_view v = sk_view_dense(0, dtype, rank, dim);
    sk_buf buf = {.role = role, .dtype = dtype, .rank = rank};
    if (!sk_view_span(&v, &buf.bytes))
        return SK_FAIL(st, SK_INVALID, "buffer %s: shape or size outside the allowed range", name);
    if (strlen(name) >= SK_NAME_MAX)
        return SK_FAIL(st, SK_INVALID, "buffer name %s: longer than %d bytes", name,
                       SK_NAME_MAX - 1);
    // Transients are looked up by nobody and there are many; all other names are few and unique.
    if (role != SK_ROLE_TRANSIENT && sk_space_find(sp, name) >= 0)
        return SK_FAIL(st, SK_INVALID, "buffer %s: defined twice", name);
    SK_TRY(sk_mem_grow((void **)&sp->bufs, sp->n, &sp->cap, sizeof *sp->bufs, "buffer table", st));
    (void)snprintf(buf.name, sizeof buf.name, "%s", name);
    memcpy(buf.dim, v.dim, sizeof buf.dim);
    sp->bufs[sp->n] = buf;
    *out = (int32_t)sp->n++;
    return SK_OK;
}

sk_code sk_space_add_weight(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                            const int64_t *dim, const uint8_t *source, int32_t *out, sk_status *st)
{
    SK_TRY(sk_space_add(sp, name, SK_ROLE_WEIGHT, dtype, rank, dim, out, st));
    sp->bufs[*out].source = source;
    return SK_OK;
}

sk_code sk_space_add_const(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                           const int64_t *dim, const void *values, int32_t *out, sk_status *st)
{
    int32_t buf;
    void *copy = NULL;
    SK_TRY(sk_mem_grow((void **)&sp->owned, sp->n_owned, &sp->owned_cap, sizeof *sp->owned,
                       "constants", st));
    SK_TRY(sk_space_add(sp, name, SK_ROLE_WEIGHT, dtype, rank, dim, &buf, st));
    SK_TRY(sk_mem_new_aligned(&copy, sp->bufs[buf].bytes, name, st));
    memcpy(copy, values, sp->bufs[buf].bytes);
    sp->owned[sp->n_owned++] = copy;
    sp->bufs[buf].source = copy;
    *out = buf;
    return SK_OK;
}

void sk_space_keep(sk_space *sp, int32_t buf, sk_keep keep, int32_t extra)
{
    sp->bufs[buf].keep = keep;
    sp->bufs[buf].keep_extra = extra;
}

sk_view sk_space_view(const sk_space *sp, int32_t buf)
{
    const sk_buf *b = &sp->bufs[buf];
    return sk_view_dense(buf, b->dtype, b->rank, b->dim);
}
