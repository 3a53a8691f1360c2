/* Weights with scales stored beside them: FP8 by block, row or tensor, and NVFP4. What a weight is
 * follows from the tensors that are there, never from what a configuration says about them.
 *
 *     X.weight + X.weight_scale_inv, X.weight_scale    value times scale, both names
 *     X.weight U8 + X.weight_scale F8_E4M3 + X.weight_scale_2           NVFP4, scale_2 multiplies
 *     X.weight_packed + X.weight_scale F8_E4M3 + X.weight_global_scale  NVFP4, 1 / global_scale
 *     GGUF: X.weight + X.scale                                          value times scale
 */
#include "model/weights.h"

#include "base/mem.h"
#include "base/quant.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_BLOCK 128
#define NVFP4_ELEMS   64 // of a block: 4 scale bytes, 32 code bytes
#define NVFP4_BYTES   36

/* A weight while it is bound. */
typedef struct lin {
    sk_binder *b;
    char base[SK_NAME_MAX - 12];   // as recipes call it, without ".weight"
    char hf[SK_TENSOR_NAME_MAX];   // as the file calls it, likewise; "" for GGUF
    char real[SK_TENSOR_NAME_MAX]; // the last name looked for
    int64_t n_out, n_in;
} lin;

/* The tensor beside the weight with the given ending. */
static const sk_tensor *beside(lin *l, const char *ending)
{
    (void)snprintf(l->real, sizeof l->real, "%.130s%s", l->b->hf ? l->hf : l->base, ending);
    return sk_ckpt_find_tensor(l->b->ck, l->real);
}

static sk_code bad_data(const lin *l, const sk_tensor *t, const char *expected, double found)
{
    return SK_FAIL_CHECK(l->b->st, SK_FORMAT, "BAD_DATA", t->file_off,
                         "%s: tensor %s: expected %s, found %.9g", sk_ckpt_path(l->b->ck), l->real,
                         expected, found);
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* Rows and columns of a scale block; 128 x 128 unless config.json says otherwise. */
static sk_code block_shape(const lin *l, int32_t out[2])
{
    static const char *const keys[] = {
        "quantization_config.weight_block_size",
        "quantization_config.config_groups.group_0.weights.block_structure"};
    for (size_t i = 0; i < SK_COUNT(keys); i++) {
        uint64_t n[2];
        bool found = false;
        SK_TRY(sk_meta_find_u64s(l->b->ck, keys[i], INT32_MAX, n, 2, &found, l->b->st));
        if (!found) continue;
        if (n[0] < 1 || n[1] < 1)
            return SK_FAIL_CHECK(l->b->st, SK_FORMAT, "BAD_HPARAM", 0,
                                 "%s: %s: expected two numbers above 0, found %llu and %llu",
                                 sk_ckpt_path(l->b->ck), keys[i], (unsigned long long)n[0],
                                 (unsigned long long)n[1]);
        out[0] = (int32_t)n[0];
        out[1] = (int32_t)n[1];
        return SK_OK;
    }
    out[0] = out[1] = DEFAULT_BLOCK;
    return SK_OK;
}

static int64_t blocks(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* What one element of the scale stands for, by the scale's shape. */
static sk_code scale_shape(const lin *l, const sk_tensor *t, sk_lin *out, int64_t dim[2])
{
    int32_t block[2];
    char expected[96];
    if (t->n_elems == 1) {
        out->scale_n = (int32_t)l->n_out;
        out->scale_k = (int32_t)l->n_in;
    } else if (t->n_elems == (uint64_t)l->n_out && t->n_dims >= 1 &&
               t->dim[0] == (uint64_t)l->n_out) {
        out->scale_n = 1;
        out->scale_k = (int32_t)l->n_in;
    } else {
        SK_TRY(block_shape(l, block));
        out->scale_n = block[0];
        out->scale_k = block[1];
    }
    dim[0] = blocks(l->n_out, out->scale_n);
    dim[1] = blocks(l->n_in, out->scale_k);
    if (t->n_elems == (uint64_t)dim[0] * (uint64_t)dim[1] &&
        (t->n_dims < 2 || dim[1] == 1 ||
         (t->n_dims == 2 && t->dim[0] == (uint64_t)dim[0] && t->dim[1] == (uint64_t)dim[1])))
        return SK_OK;
    (void)snprintf(expected, sizeof expected, "1], [%lld], [%lld,1] or [%lld,%lld",
                   (long long)l->n_out, (long long)l->n_out, (long long)dim[0], (long long)dim[1]);
    return sk_binder_bad_shape(l->b, l->real, expected, t);
}

static sk_code add_scale(lin *l, const sk_tensor *t, bool reciprocal, sk_lin *out)
{
    char name[SK_NAME_MAX], buf[SK_NAME_MAX];
    int64_t dim[2];
    float *values = NULL;
    sk_code rc = SK_OK;
    SK_TRY(sk_binder_read(l->b, t));
    if (t->type != SK_F32 && t->type != SK_BF16 && t->type != SK_F16)
        return SK_FAIL_CHECK(l->b->st, SK_FORMAT, "BAD_TYPE", t->file_off,
                             "%s: tensor %s: expected F32, BF16 or F16, found %s",
                             sk_ckpt_path(l->b->ck), l->real, sk_dtype_name(t->type));
    SK_TRY(scale_shape(l, t, out, dim));
    SK_TRY(sk_mem_new((void **)&values, (size_t)t->n_elems, sizeof *values, "scales", l->b->st));
    sk_quant_row(t->type, t->data, t->n_elems, values);
    for (uint64_t i = 0; rc == SK_OK && i < t->n_elems; i++) {
        if (reciprocal) values[i] = 1 / values[i];
        if (!isfinite(values[i]))
            rc = bad_data(l, t, reciprocal ? "reciprocals of scales" : "finite scales",
                          (double)values[i]);
    }
    (void)snprintf(name, sizeof name, "%s.scale", l->base);
    sk_binder_buffer(l->b, name, buf);
    if (rc == SK_OK)
        rc = sk_space_add_const(l->b->space, buf, SK_F32, 2, dim, values, &out->scale, l->b->st);
    if (rc == SK_OK) l->b->space->bufs[out->scale].as_is = true;
    sk_mem_free(values);
    return rc;
}

/* ---- NVFP4 ----------------------------------------------------------------------------------- */

/* One row: codes two to a byte in order, a scale byte for 16 elements. Out come blocks of 64 in the
 * layout of GGUF, whose halves of a byte are eight elements apart. Nothing is lost: codes and scale
 * bytes only change places. */
static void repack_row(const uint8_t *codes, const uint8_t *scales, int64_t n_in, uint8_t *out)
{
    for (int64_t g = 0; g < n_in / 16; g++) {
        uint8_t *block = out + g / 4 * NVFP4_BYTES;
        const uint8_t *from = codes + g * 8;
        uint8_t *to = block + 4 + g % 4 * 8;
        block[g % 4] = scales[g] & 0x7f; // -0 is the only one with a sign, see check_scales
        for (int r = 0; r < 8; r++) {
            uint8_t low = (uint8_t)(from[r / 2] >> 4 * (r & 1)) & 15;
            uint8_t high = (uint8_t)(from[4 + r / 2] >> 4 * (r & 1)) & 15;
            to[r] = (uint8_t)(low | high << 4);
        }
    }
}

/* GGUF's scales have no sign, and read 0x7f as zero. */
static sk_code check_scales(const lin *l, const sk_tensor *t)
{
    for (uint64_t i = 0; i < t->n_elems; i++)
        if (t->data[i] > 0x80 || t->data[i] == 0x7f)
            return bad_data(l, t, "scales that are numbers and not negative", (double)t->data[i]);
    return SK_OK;
}

static bool is_matrix(const sk_tensor *t, int64_t n, int64_t k)
{
    return t->n_dims == 2 && t->dim[0] == (uint64_t)n && t->dim[1] == (uint64_t)k;
}

static sk_code want_matrix(lin *l, const sk_tensor *t, sk_dtype type, int64_t k)
{
    char expected[48];
    if (t->type != type)
        return SK_FAIL_CHECK(l->b->st, SK_FORMAT, "BAD_TYPE", t->file_off,
                             "%s: tensor %s: expected %s, found %s", sk_ckpt_path(l->b->ck),
                             l->real, sk_dtype_name(type), sk_dtype_name(t->type));
    if (is_matrix(t, l->n_out, k)) return SK_OK;
    (void)snprintf(expected, sizeof expected, "%lld,%lld", (long long)l->n_out, (long long)k);
    return sk_binder_bad_shape(l->b, l->real, expected, t);
}

static sk_code add_blocks(lin *l, const sk_tensor *codes, const sk_tensor *scales, sk_lin *out)
{
    const int64_t dim[2] = {l->n_out, l->n_in};
    const size_t row = (size_t)(l->n_in / NVFP4_ELEMS) * NVFP4_BYTES;
    char name[SK_NAME_MAX], buf[SK_NAME_MAX];
    uint8_t *packed = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&packed, (size_t)l->n_out, row, "a repacked weight", l->b->st));
    for (int64_t o = 0; o < l->n_out; o++)
        repack_row(codes->data + o * (l->n_in / 2), scales->data + o * (l->n_in / 16), l->n_in,
                   packed + (size_t)o * row);
    (void)snprintf(name, sizeof name, "%s.weight", l->base);
    sk_binder_buffer(l->b, name, buf);
    rc = sk_space_add_const(l->b->space, buf, SK_NVFP4, 2, dim, packed, &out->w, l->b->st);
    sk_mem_free(packed);
    return rc;
}

/* `codes` were found as l->real. */
static sk_code bind_nvfp4(lin *l, const sk_tensor *codes, bool global, sk_lin *out)
{
    const sk_tensor *scales, *whole;
    if (l->n_in % NVFP4_ELEMS)
        return SK_FAIL(l->b->st, SK_UNSUPPORTED,
                       "%s: tensor %s: expected rows in multiples of 64 elements, found %lld",
                       sk_ckpt_path(l->b->ck), l->real, (long long)l->n_in);
    SK_TRY(want_matrix(l, codes, SK_U8, l->n_in / 2));
    SK_TRY(sk_binder_read(l->b, codes));
    scales = beside(l, ".weight_scale");
    if (!scales)
        return SK_FAIL_CHECK(l->b->st, SK_FORMAT, "MISSING_TENSOR", 0,
                             "%s: tensor %s: expected in the file, found none",
                             sk_ckpt_path(l->b->ck), l->real);
    SK_TRY(want_matrix(l, scales, SK_F8_E4M3, l->n_in / 16));
    SK_TRY(sk_binder_read(l->b, scales));
    SK_TRY(check_scales(l, scales));
    SK_TRY(add_blocks(l, codes, scales, out));
    whole = beside(l, global ? ".weight_global_scale" : ".weight_scale_2");
    if (whole && whole->n_elems == 1) return add_scale(l, whole, global, out);
    return SK_FAIL_CHECK(l->b->st, SK_FORMAT, whole ? "BAD_SHAPE" : "MISSING_TENSOR", 0,
                         "%s: tensor %s: expected one scale of the whole weight, found %s",
                         sk_ckpt_path(l->b->ck), l->real, whole ? "several" : "none");
}

/* ---- both ------------------------------------------------------------------------------------ */

static sk_code bind_weight(lin *l, sk_lin *out)
{
    static const char *const endings[] = {".weight_scale_inv", ".weight_scale"};
    const sk_tensor *t;
    if (l->b->hf) {
        const sk_tensor *scales = beside(l, ".weight_scale");
        bool by_group = scales && scales->type == SK_F8_E4M3;
        t = beside(l, ".weight_packed");
        if (t && (by_group || beside(l, ".weight_global_scale"))) {
            t = beside(l, ".weight_packed");
            return bind_nvfp4(l, t, true, out);
        }
        t = beside(l, ".weight");
        if (t && t->type == SK_U8 && by_group) return bind_nvfp4(l, t, false, out);
    }
    SK_TRY(sk_bind_matrix(l->b, l->n_out, l->n_in, &out->w, "%s.weight", l->base));
    if (!l->b->hf) {
        t = beside(l, ".input_scale"); // of activations
        if (t) sk_binder_mark(l->b, t);
        t = beside(l, ".scale");
        return t ? add_scale(l, t, false, out) : SK_OK;
    }
    for (size_t i = 0; i < SK_COUNT(endings); i++) {
        t = beside(l, endings[i]);
        if (t) return add_scale(l, t, false, out);
    }
    return SK_OK;
}

sk_code sk_bind_lin(sk_binder *b, int64_t n_out, int64_t n_in, sk_lin *out, const char *fmt, ...)
{
    lin l = {.b = b, .n_out = n_out, .n_in = n_in};
    char name[SK_NAME_MAX];
    sk_lin result = {.w = -1, .bias = -1, .scale = -1};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(l.base, sizeof l.base, fmt, ap);
    va_end(ap);
    (void)snprintf(name, sizeof name, "%s.weight", l.base);
    if (b->hf && sk_binder_name(b, name, l.hf)) l.hf[strlen(l.hf) - strlen(".weight")] = 0;
    SK_TRY(bind_weight(&l, &result));
    SK_TRY(sk_bind_vector_opt(b, n_out, &result.bias, "%s.bias", l.base));
    *out = result;
    return SK_OK;
}
