/* See weights.h. */
#include "model/weights.h"

#include "base/mem.h"
#include "base/quant.h"
#include "model/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sk_code sk_binder_init(sk_binder *b, const sk_ckpt *ck, sk_space *space, const char *prefix,
                       sk_status *st)
{
    char arch[32];
    memset(b, 0, sizeof *b);
    b->ck = ck;
    b->space = space;
    b->prefix = prefix;
    b->st = st;
    b->draft = -1;
    b->nested = sk_ckpt_find_tensor(ck, "model.language_model.embed_tokens.weight") != NULL;
    SK_TRY(sk_config_arch(ck, arch, &b->hf, st));
    return sk_mem_new((void **)&b->used, sk_ckpt_n_tensors(ck), 1, "weight binding", st);
}

void sk_binder_fini(sk_binder *b)
{
    sk_mem_free(b->used);
    memset(b, 0, sizeof *b);
}

#define FORMAT_NAME(name, fmt)                                                                     \
    do {                                                                                           \
        va_list ap;                                                                                \
        va_start(ap, fmt);                                                                         \
        (void)vsnprintf(name, sizeof name, fmt, ap);                                               \
        va_end(ap);                                                                                \
    } while (0)

bool sk_binder_name(const sk_binder *b, const char *name, char real[SK_TENSOR_NAME_MAX])
{
    char plain[SK_TENSOR_NAME_MAX];
    if (!b->hf)
        (void)snprintf(real, SK_TENSOR_NAME_MAX, "%s", name);
    else if (!sk_hf_tensor(b->hf, name, b->draft, plain))
        return false;
    else if (b->nested && strncmp(plain, "model.", 6) == 0)
        (void)snprintf(real, SK_TENSOR_NAME_MAX, "model.language_model.%.130s", plain + 6);
    else
        (void)snprintf(real, SK_TENSOR_NAME_MAX, "%s", plain);
    return true;
}

const sk_tensor *sk_binder_find(const sk_binder *b, const char *name, char real[SK_TENSOR_NAME_MAX])
{
    return sk_binder_name(b, name, real) ? sk_ckpt_find_tensor(b->ck, real) : NULL;
}

bool sk_binder_has(const sk_binder *b, const char *fmt, ...)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX];
    FORMAT_NAME(name, fmt);
    return sk_binder_find(b, name, real) != NULL;
}

/* Tensors of a checkpoint are one array, so a pointer is an index. */
void sk_binder_mark(sk_binder *b, const sk_tensor *t) { b->used[t - sk_ckpt_tensor(b->ck, 0)] = 1; }

void sk_binder_take(sk_binder *b, const sk_tensor *t)
{
    b->used[t - sk_ckpt_tensor(b->ck, 0)] = SK_BOUND;
}

sk_code sk_binder_read(sk_binder *b, const sk_tensor *t)
{
    sk_binder_mark(b, t);
    return sk_ckpt_need(b->ck, t, b->st);
}

bool sk_binder_skip(sk_binder *b, const char *name)
{
    char real[SK_TENSOR_NAME_MAX];
    const sk_tensor *t = sk_binder_find(b, name, real);
    if (t) sk_binder_mark(b, t);
    return t != NULL;
}

void sk_binder_skip_all(sk_binder *b, const char *beginning)
{
    const size_t n = strlen(beginning);
    for (size_t i = 0; i < sk_ckpt_n_tensors(b->ck); i++) {
        const sk_tensor *t = sk_ckpt_tensor(b->ck, i);
        if (t->name.n >= n && memcmp(t->name.p, beginning, n) == 0) b->used[i] = 1;
    }
}

static void shape_text(char *out, size_t size, const sk_tensor *t)
{
    size_t at = 0;
    for (int32_t i = 0; i < t->n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? "," : "",
                               (unsigned long long)t->dim[i]);
    if (!t->n_dims) (void)snprintf(out, size, "scalar");
}

static sk_code need(sk_binder *b, const char *name, char real[SK_TENSOR_NAME_MAX],
                    const sk_tensor **out)
{
    const sk_tensor *t;
    (void)snprintf(real, SK_TENSOR_NAME_MAX, "%s", name); // should it have no other
    t = sk_binder_find(b, name, real);
    if (!t)
        return SK_FAIL_CHECK(b->st, SK_FORMAT, "MISSING_TENSOR", 0,
                             "%s: tensor %s: expected in the file, found none", sk_ckpt_path(b->ck),
                             real);
    sk_binder_take(b, t);
    if (!sk_dtype_is_weight(t->type))
        return SK_FAIL_CHECK(b->st, SK_UNSUPPORTED, "BAD_TYPE", t->file_off,
                             "%s: tensor %s: expected a type of weights, found %s",
                             sk_ckpt_path(b->ck), real, sk_dtype_name(t->type));
    *out = t;
    return SK_OK;
}

sk_code sk_binder_bad_shape(sk_binder *b, const char *real, const char *expected,
                            const sk_tensor *t)
{
    char found[96];
    shape_text(found, sizeof found, t);
    return SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_SHAPE", t->file_off,
                         "%s: tensor %s: expected [%s], found [%s] %s", sk_ckpt_path(b->ck), real,
                         expected, found, sk_dtype_name(t->type));
}

/* Trailing dimensions of 1 in file order are leading ones here: a shape is the same without them,
 * be it the file's or the one that is wanted. */
static bool is_shape(const sk_tensor *t, int32_t rank, const int64_t *dim)
{
    const int32_t extra = t->n_dims - rank;
    for (int32_t i = 0; i < t->n_dims; i++) {
        const uint64_t want = i < extra ? 1 : (uint64_t)dim[i - extra];
        if (t->dim[i] != want) return false;
    }
    for (int32_t i = 0; i < rank && i < -extra; i++)
        if (dim[i] != 1) return false;
    return true;
}

void sk_binder_buffer(const sk_binder *b, const char *name, char out[SK_NAME_MAX])
{
    (void)snprintf(out, SK_NAME_MAX, "%.15s%.47s", b->prefix, name);
}

/* Safetensors align nothing; ops want their elements aligned. */
static bool is_aligned(const sk_tensor *t)
{
    const sk_dtype_info *info = sk_dtype_find(t->type);
    return info->block_elems > 1 || (uintptr_t)t->data % (uint32_t)info->block_bytes == 0;
}

sk_code sk_bind_matrix(sk_binder *b, int64_t n_out, int64_t n_in, int32_t *out, const char *fmt,
                       ...)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX], buf[SK_NAME_MAX], expected[64];
    const int64_t dim[2] = {n_out, n_in};
    const sk_tensor *t;
    FORMAT_NAME(name, fmt);
    SK_TRY(need(b, name, real, &t));
    if (!is_shape(t, 2, dim)) {
        (void)snprintf(expected, sizeof expected, "%lld,%lld", (long long)n_out, (long long)n_in);
        return sk_binder_bad_shape(b, real, expected, t);
    }
    sk_binder_buffer(b, name, buf);
    if (!is_aligned(t)) {
        if (!b->space->sizes_only) SK_TRY(sk_binder_read(b, t));
        return sk_space_add_const(b->space, buf, t->type, 2, dim, t->data, out, b->st);
    }
    return sk_space_add_weight(b->space, buf, t->type, 2, dim, t->data, out, b->st);
}

/* Norms of some Hugging Face models are stored without the one that is added to them. Not that of
 * a recurrence, whose gain is all there is. */
static bool wants_one(const sk_binder *b, const char *name)
{
    static const char end[] = "norm.weight";
    size_t n = strlen(name);
    if (!b->hf || !b->hf->norm_plus_one || strstr(name, ".ssm_norm.")) return false;
    return strstr(name, ".ple_norm_") ||
           (n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0);
}

static sk_code bind_vector(sk_binder *b, int64_t n, int32_t *out, const char *name)
{
    char real[SK_TENSOR_NAME_MAX], buf[SK_NAME_MAX], expected[32];
    const sk_tensor *t;
    float *values = NULL;
    sk_code rc;
    SK_TRY(need(b, name, real, &t));
    if (!is_shape(t, 1, &n)) {
        (void)snprintf(expected, sizeof expected, "%lld", (long long)n);
        return sk_binder_bad_shape(b, real, expected, t);
    }
    sk_binder_buffer(b, name, buf);
    if (!b->space->sizes_only) SK_TRY(sk_binder_read(b, t)); // small, and the host looks at some
    if (t->type == SK_F32 && is_aligned(t) && !wants_one(b, name))
        return sk_space_add_weight(b->space, buf, SK_F32, 1, &n, t->data, out, b->st);
    if (b->space->sizes_only)
        return sk_space_add_const(b->space, buf, SK_F32, 1, &n, NULL, out, b->st);
    SK_TRY(sk_mem_new((void **)&values, (size_t)n, sizeof *values, name, b->st));
    sk_quant_row(t->type, t->data, (uint64_t)n, values);
    for (int64_t i = 0; i < n && wants_one(b, name); i++) values[i] += 1;
    rc = sk_space_add_const(b->space, buf, SK_F32, 1, &n, values, out, b->st);
    sk_mem_free(values);
    return rc;
}

sk_code sk_bind_vector(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
{
    char name[SK_NAME_MAX];
    FORMAT_NAME(name, fmt);
    return bind_vector(b, n, out, name);
}

sk_code sk_bind_vector_opt(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX];
    FORMAT_NAME(name, fmt);
    *out = -1;
    return sk_binder_find(b, name, real) ? bind_vector(b, n, out, name) : SK_OK;
}

/* ---- constants and stacks -------------------------------------------------------------------- */

static bool is_plane(const sk_tensor *t, int64_t rows, int64_t columns)
{
    int32_t at = 0;
    for (int32_t i = 0; i < t->n_dims; i++) {
        const uint64_t want = at == 0 ? (uint64_t)rows : (uint64_t)columns;
        if (t->dim[i] == 1 && (want != 1 || at > 1)) continue;
        if (at > 1 || t->dim[i] != want) return false;
        at++;
    }
    return t->n_elems == (uint64_t)rows * (uint64_t)columns;
}

sk_code sk_bind_values(sk_binder *b, int64_t rows, int64_t columns, float **out, const char *fmt,
                       ...)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX], expected[48];
    const sk_tensor *t;
    float *values = NULL;
    uint64_t row_bytes = 0;
    FORMAT_NAME(name, fmt);
    SK_TRY(need(b, name, real, &t));
    if (!is_plane(t, rows, columns)) {
        if (columns > 1)
            (void)snprintf(expected, sizeof expected, "%lld,%lld", (long long)rows,
                           (long long)columns);
        else
            (void)snprintf(expected, sizeof expected, "%lld", (long long)rows);
        return sk_binder_bad_shape(b, real, expected, t);
    }
    SK_TRY(sk_binder_read(b, t));
    SK_TRY(sk_mem_new((void **)&values, (size_t)t->n_elems, sizeof *values, name, b->st));
    // Row by row, as the file has them: blocks end with a row.
    const int64_t row = t->n_dims ? (int64_t)t->dim[t->n_dims - 1] : 1;
    (void)sk_dtype_row_bytes(t->type, (uint64_t)row, &row_bytes);
    for (uint64_t i = 0; i < t->n_elems / (uint64_t)row; i++)
        sk_quant_row(t->type, t->data + i * row_bytes, (uint64_t)row, values + i * (uint64_t)row);
    *out = values;
    return SK_OK;
}

sk_code sk_bind_const(sk_binder *b, const char *name, int32_t dtype, int32_t rank,
                      const int64_t *dim, const void *values, int32_t *out)
{
    char buf[SK_NAME_MAX];
    sk_binder_buffer(b, name, buf);
    SK_TRY(sk_space_add_const(b->space, buf, dtype, rank, dim, values, out, b->st));
    b->space->bufs[*out].as_is = true;
    return SK_OK;
}

/* The matrices are `pieces`. */
static sk_code add_stack(sk_binder *b, const sk_stack_shape *s, int32_t dtype,
                         const uint8_t *const *pieces, const char *name, int32_t *out, int32_t *at)
{
    const int64_t dim[3] = {s->n, s->n_out, s->n_in};
    char buf[SK_NAME_MAX];
    sk_binder_buffer(b, name, buf);
    return sk_space_add_pieces(b->space, buf, dtype, 3, dim, 1, pieces, out, at, b->st);
}

sk_code sk_bind_joined(sk_binder *b, const sk_stack_shape *s, const char *tensor, const char *name,
                       int32_t *out, int32_t *at)
{
    const int64_t whole = s->whole ? s->whole : s->n_out, dim[3] = {s->n, whole, s->n_in};
    char real[SK_TENSOR_NAME_MAX], expected[80];
    const uint8_t **pieces = NULL;
    const sk_tensor *t;
    uint64_t row = 0;
    sk_code rc;
    SK_TRY(need(b, tensor, real, &t));
    if (!is_shape(t, 3, dim)) {
        (void)snprintf(expected, sizeof expected, "%lld,%lld,%lld", (long long)s->n,
                       (long long)whole, (long long)s->n_in);
        return sk_binder_bad_shape(b, real, expected, t);
    }
    SK_TRY(sk_mem_new((void **)&pieces, (size_t)s->n, sizeof *pieces, name, b->st));
    (void)sk_dtype_row_bytes(t->type, (uint64_t)s->n_in, &row);
    for (int64_t i = 0; i < s->n; i++) pieces[i] = t->data + (uint64_t)(i * whole + s->from) * row;
    rc = add_stack(b, s, t->type, pieces, name, out, at);
    sk_mem_free(pieces);
    return rc;
}

sk_code sk_bind_each(sk_binder *b, const sk_stack_shape *s, sk_stack_name tensor, void *ctx,
                     const char *name, int32_t *out, int32_t *at)
{
    const int64_t dim[2] = {s->n_out, s->n_in};
    char each[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX], expected[64];
    const uint8_t **pieces = NULL;
    const sk_tensor *t = NULL;
    int32_t dtype = SK_DTYPE_NONE;
    sk_code rc = SK_OK;
    SK_TRY(sk_mem_new((void **)&pieces, (size_t)s->n, sizeof *pieces, name, b->st));
    for (int64_t i = 0; rc == SK_OK && i < s->n; i++) {
        tensor(each, ctx, i);
        rc = need(b, each, real, &t);
        if (rc != SK_OK) break;
        (void)snprintf(expected, sizeof expected, "%lld,%lld", (long long)s->n_out,
                       (long long)s->n_in);
        if (!is_shape(t, 2, dim))
            rc = sk_binder_bad_shape(b, real, expected, t);
        else if (i > 0 && t->type != (sk_dtype)dtype)
            rc = SK_FAIL_CHECK(b->st, SK_UNSUPPORTED, "BAD_TYPE", t->file_off,
                               "%s: tensor %s: expected %s as those before it, found %s",
                               sk_ckpt_path(b->ck), real, sk_dtype_name((sk_dtype)dtype),
                               sk_dtype_name(t->type));
        dtype = t->type;
        pieces[i] = t->data;
    }
    if (rc == SK_OK) rc = add_stack(b, s, dtype, pieces, name, out, at);
    sk_mem_free(pieces);
    return rc;
}

static bool is_no_weight(const sk_binder *b, const sk_tensor *t)
{
    static const char *const ends[] = {".input_scale", ".activation_scale", ".input_global_scale",
                                       ".k_scale",     ".v_scale",          ".rotary_emb.inv_freq"};
    for (size_t i = 0; b->hf && i < SK_COUNT(ends); i++) {
        size_t n = strlen(ends[i]);
        if (t->name.n > n && memcmp(t->name.p + t->name.n - n, ends[i], n) == 0) return true;
    }
    return false;
}

sk_code sk_binder_done(const sk_binder *b)
{
    char names[3 * SK_NAME_MAX + 8] = "";
    size_t n = 0, at = 0;
    for (size_t i = 0; i < sk_ckpt_n_tensors(b->ck); i++) {
        const sk_tensor *t = sk_ckpt_tensor(b->ck, i);
        if (b->used[i] || is_no_weight(b, t)) continue;
        if (n++ < 3)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%.*s", n > 1 ? ", " : "",
                                   (int)sk_min_size(t->name.n, SK_NAME_MAX - 1), t->name.p);
    }
    if (!n)
        return b->space->elsewhere ? SK_OK : sk_ckpt_need_marked(b->ck, b->used, SK_BOUND, b->st);
    return SK_FAIL_CHECK(b->st, SK_FORMAT, "UNEXPECTED_TENSOR", 0,
                         "%s: expected no tensor beyond the model's, found %zu: %s%s",
                         sk_ckpt_path(b->ck), n, names, n > 3 ? ", ..." : "");
}
