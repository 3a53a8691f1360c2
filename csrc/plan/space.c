/* See space.h. */
#include "plan/space.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void sk_space_init(sk_space *sp) { memset(sp, 0, sizeof *sp); }

void sk_space_fini(sk_space *sp)
{
    for (size_t i = 0; i < sp->n_owned; i++) sk_mem_free(sp->owned[i]);
    for (size_t i = 0; i < sp->n; i++) sk_mem_free(sp->bufs[i].pieces);
    sk_mem_free(sp->owned);
    sk_mem_free(sp->by_name);
    sk_mem_free(sp->bufs);
    memset(sp, 0, sizeof *sp);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* FNV-1a. Names are the recipes' own, so nobody chooses them to collide. */
static size_t first_place(const sk_space *sp, const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    return h & (sp->by_name_cap - 1);
}

int32_t sk_space_find(const sk_space *sp, const char *name)
{
    if (!sp->by_name_cap) return -1;
    for (size_t i = first_place(sp, name);; i = (i + 1) & (sp->by_name_cap - 1)) {
        const int32_t buf = sp->by_name[i];
        if (buf < 0) return -1;
        if ((size_t)buf < sp->n && strcmp(sp->bufs[buf].name, name) == 0) return buf;
    }
}

/* The place of a buffer that was cut off is as good as a free one. */
static void put_name(sk_space *sp, int32_t buf, const char *name)
{
    size_t i = first_place(sp, name);
    while (sp->by_name[i] >= 0 && (size_t)sp->by_name[i] < sp->n)
        i = (i + 1) & (sp->by_name_cap - 1);
    sp->by_name_n += sp->by_name[i] < 0;
    sp->by_name[i] = buf;
}

/* At most half of the places are taken. */
static sk_code room_for_name(sk_space *sp, sk_status *st)
{
    sk_space wider = *sp;
    if (2 * (sp->by_name_n + 1) <= sp->by_name_cap) return SK_OK;
    wider.by_name_cap = sp->by_name_cap ? 2 * sp->by_name_cap : 256;
    wider.by_name_n = 0;
    SK_TRY(sk_mem_new((void **)&wider.by_name, wider.by_name_cap, sizeof *wider.by_name,
                      "buffer names", st));
    for (size_t i = 0; i < wider.by_name_cap; i++) wider.by_name[i] = -1;
    for (size_t i = 0; i < sp->n; i++)
        if (sp->bufs[i].role != SK_ROLE_TRANSIENT) put_name(&wider, (int32_t)i, sp->bufs[i].name);
    sk_mem_free(sp->by_name);
    *sp = wider;
    return SK_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

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
    // Transients are looked up by nobody; all other names are unique.
    if (role != SK_ROLE_TRANSIENT && sk_space_find(sp, name) >= 0)
        return SK_FAIL(st, SK_INVALID, "buffer %s: defined twice", name);
    if (role != SK_ROLE_TRANSIENT) SK_TRY(room_for_name(sp, st));
    SK_TRY(sk_mem_grow((void **)&sp->bufs, sp->n, &sp->cap, sizeof *sp->bufs, "buffer table", st));
    (void)snprintf(buf.name, sizeof buf.name, "%s", name);
    memcpy(buf.dim, v.dim, sizeof buf.dim);
    sp->bufs[sp->n] = buf;
    if (role != SK_ROLE_TRANSIENT) put_name(sp, (int32_t)sp->n, name);
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

/* Memory of the space's own for a weight; NULL where sizes are all that is wanted. */
static sk_code own(sk_space *sp, int32_t buf, void **copy, sk_status *st)
{
    sk_buf *b = &sp->bufs[buf];
    b->computed = true;
    *copy = NULL;
    if (sp->sizes_only) return SK_OK;
    SK_TRY(sk_mem_grow((void **)&sp->owned, sp->n_owned, &sp->owned_cap, sizeof *sp->owned,
                       "constants", st));
    SK_TRY(sk_mem_new_aligned(copy, b->bytes, b->name, st));
    sp->owned[sp->n_owned++] = *copy;
    b->source = *copy;
    return SK_OK;
}

sk_code sk_space_add_const(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                           const int64_t *dim, const void *values, int32_t *out, sk_status *st)
{
    int32_t buf;
    void *copy = NULL;
    SK_TRY(sk_space_add(sp, name, SK_ROLE_WEIGHT, dtype, rank, dim, &buf, st));
    SK_TRY(own(sp, buf, &copy, st));
    if (copy) memcpy(copy, values, sp->bufs[buf].bytes);
    *out = buf;
    return SK_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool are_aligned(int32_t dtype, int32_t n, const uint8_t *const *pieces)
{
    const sk_dtype_info *info = sk_dtype_find(dtype);
    for (int32_t i = 0; i < n; i++)
        if (info->block_elems == 1 && (uintptr_t)pieces[i] % (uint32_t)info->block_bytes)
            return false;
    return true;
}

/* Brought together in memory of the space's own. */
static sk_code copy_pieces(sk_space *sp, int32_t buf, int32_t n, uint64_t piece_bytes,
                           const uint8_t *const *pieces, sk_status *st)
{
    const uint64_t bytes = sp->bufs[buf].bytes;
    void *copy = NULL;
    SK_TRY(own(sp, buf, &copy, st));
    for (int32_t i = 0; copy && i < n; i++) {
        const uint64_t from = (uint64_t)i * piece_bytes;
        const uint64_t left = bytes - from;
        memcpy((uint8_t *)copy + from, pieces[i], left < piece_bytes ? left : piece_bytes);
    }
    return SK_OK;
}

static sk_code add_distances(sk_space *sp, int32_t buf, int32_t *at, sk_status *st)
{
    const sk_buf *b = &sp->bufs[buf];
    const int64_t n = b->n_pieces;
    char name[SK_NAME_MAX];
    int64_t *far = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&far, (size_t)n, sizeof *far, "pieces of a weight", st));
    for (int64_t i = 0; i < n; i++)
        far[i] = (int64_t)((uintptr_t)b->pieces[i] - (uintptr_t)b->pieces[0]);
    (void)snprintf(name, sizeof name, "%.60s.at", b->name);
    rc = sk_space_add_const(sp, name, SK_I64, 1, &n, far, at, st);
    sk_mem_free(far);
    return rc;
}

sk_code sk_space_add_pieces(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                            const int64_t *dim, int64_t rows, const uint8_t *const *pieces,
                            int32_t *out, int32_t *at, sk_status *st)
{
    const int32_t n = (int32_t)((dim[0] + rows - 1) / rows);
    uint64_t each;
    bool together = true;
    sk_buf *b;
    *at = -1;
    SK_TRY(sk_space_add_weight(sp, name, dtype, rank, dim, pieces[0], out, st));
    each = sp->bufs[*out].bytes / (uint64_t)dim[0] * (uint64_t)rows;
    for (int32_t i = 1; i < n; i++)
        together = together && (uintptr_t)pieces[i] == (uintptr_t)pieces[i - 1] + each;
    if (!are_aligned(dtype, n, pieces)) return copy_pieces(sp, *out, n, each, pieces, st);
    if (together) return SK_OK;
    b = &sp->bufs[*out];
    SK_TRY(sk_mem_new((void **)&b->pieces, (size_t)n, sizeof *b->pieces, name, st));
    memcpy(b->pieces, pieces, (size_t)n * sizeof *pieces);
    b->n_pieces = n;
    b->piece_rows = rows;
    return add_distances(sp, *out, at, st);
}

const uint8_t *sk_buf_rows(const sk_buf *b, int64_t row, int64_t *n)
{
    const int64_t of_first = b->rank == 3 ? b->dim[1] : 1; // rows for one step along dim 0
    const uint64_t row_bytes = b->bytes / (uint64_t)(b->dim[0] * of_first);
    const int64_t each = b->piece_rows * of_first;
    if (!b->n_pieces) return b->source + (uint64_t)row * row_bytes;
    if (*n > each - row % each) *n = each - row % each;
    return b->pieces[row / each] + (uint64_t)(row % each) * row_bytes;
}

void sk_space_keep(sk_space *sp, int32_t buf, sk_keep keep, int32_t extra)
{
    sp->bufs[buf].keep = keep;
    sp->bufs[buf].keep_extra = extra;
    sp->bufs[buf].keep_unit = 1;
}

void sk_space_keep_blocks(sk_space *sp, int32_t buf, int32_t unit)
{
    sk_space_keep(sp, buf, SK_KEEP_ROWS, 0);
    sp->bufs[buf].keep_unit = unit;
}

sk_view sk_space_view(const sk_space *sp, int32_t buf)
{
    const sk_buf *b = &sp->bufs[buf];
    return sk_view_dense(buf, b->dtype, b->rank, b->dim);
}
