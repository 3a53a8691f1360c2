/* Chunks of decoded weights in the first-level cache, for steps of many rows: the decoders of all
 * types behind one function, and what else is done to a chunk. See fast_linear.h. */
#include "op/cpu/fast_linear.h"

#include "op/cpu/fast_decode.h"

#if SK_HAVE_AVX2

SK_INLINE void decode_chunk(sk_dtype type, const uint8_t *w_row, int64_t first, int64_t n,
                            int64_t step, float *code, float *scale, float *min)
{
    const int64_t vectors = sk_fast_group_vectors(type);
    const int64_t groups = sk_fast_block_groups(type);
    const int64_t block_elems = 8 * vectors * groups;
    for (int64_t b = 0; b < n / block_elems; b++) {
        const uint8_t *block = w_row + (first / block_elems + b) * sk_fast_block_bytes(type);
        if (groups > 1)
            sk_fast_scales(type, block, scale + b * groups, min + b * groups);
        else
            scale[b] = _mm256_cvtss_f32(sk_fast_scale(type, block, &min[b]));
        SK_UNROLL
        for (int64_t i = 0; i < groups; i++) {
            __m256 c[4];
            sk_fast_codes(type, block, i, c);
            SK_UNROLL
            for (int64_t v = 0; v < vectors; v++)
                _mm256_store_ps(code + ((b * groups + i) * vectors + v) * step, c[v]);
        }
    }
}

#define X(name)                                                                                    \
    SK_AVX2 static void decode_##name(const uint8_t *w_row, int64_t first, int64_t n,              \
                                      int64_t step, float *code, float *scale, float *min)         \
    {                                                                                              \
        decode_chunk(SK_##name, w_row, first, n, step, code, scale, min);                          \
    }
SK_FAST_TYPES(X)
#undef X

/* Types without a vector decoder: one group after the other. */
static void decode_any(sk_dtype type, const uint8_t *w_row, int64_t first, int64_t n, int64_t step,
                       float *code, float *scale, float *min)
{
    int64_t elems = sk_quant_group_elems(type);
    for (int64_t g = 0; g < n / elems; g++) {
        sk_group group;
        sk_quant_group(type, w_row, (uint64_t)(first / elems + g), (int32_t)elems, &group);
        for (int64_t v = 0; v < elems / 8; v++)
            memcpy(code + (g * elems / 8 + v) * step, group.code + 8 * v, 8 * sizeof *code);
        scale[g] = group.scale;
        min[g] = group.min;
    }
}

void sk_fast_decode_chunk(sk_dtype type, const uint8_t *w_row, int64_t first, int64_t n,
                          int64_t step, float *code, float *scale, float *min)
{
    switch (type) {
#define X(name)                                                                                    \
    case SK_##name:                                                                                \
        decode_##name(w_row, first, n, step, code, scale, min);                                    \
        break;
        SK_FAST_TYPES(X)
#undef X
    default:
        decode_any(type, w_row, first, n, step, code, scale, min);
        break;
    }
}

void sk_fast_scale_chunk(const float *on_top, int32_t scale_k, int64_t first, int64_t n,
                         int64_t elems, float *scale, float *min)
{
    for (int64_t g = 0; g < n / elems; g++) {
        const float s = on_top[(first + g * elems) / scale_k];
        scale[g] *= s;
        if (min) min[g] *= s;
    }
}

void sk_fast_add_tail(sk_dtype type, const uint8_t *w_row, const float *x, int64_t k, float on_top,
                      float *acc)
{
    int64_t first = k - k % SK_GROUP_MAX;
    float p[SK_LANES] = {0};
    sk_group group;
    sk_quant_group(type, w_row, (uint64_t)(first / SK_GROUP_MAX), (int32_t)(k - first), &group);
    group.scale *= on_top;
    for (int64_t j = 0; j < k - first; j++)
        p[j % SK_LANES] = __builtin_fmaf(group.code[j], x[first + j], p[j % SK_LANES]);
    for (int32_t l = 0; l < SK_LANES; l++) acc[l] = __builtin_fmaf(group.scale, p[l], acc[l]);
}

/* n_out outputs, a constant: chains of additions that hide each other's latency. A row is a lane,
 * so each keeps its own order. */
SK_INLINE void add_minima(int n_out, float (*min)[SK_CHUNK_GROUPS], float (*acc_min)[SK_TILE_ROWS],
                          int64_t r, const float *sx, int64_t stride, int64_t n_groups)
{
    __m256 acc[4];
    SK_UNROLL
    for (int o = 0; o < n_out; o++) acc[o] = _mm256_loadu_ps(&acc_min[o][r]);
    for (int64_t g = 0; g < n_groups; g++) {
        __m256 x = _mm256_loadu_ps(sx + g * stride);
        SK_UNROLL
        for (int o = 0; o < n_out; o++)
            acc[o] = _mm256_fmadd_ps(_mm256_broadcast_ss(&min[o][g]), x, acc[o]);
    }
    SK_UNROLL
    for (int o = 0; o < n_out; o++) _mm256_storeu_ps(&acc_min[o][r], acc[o]);
}

SK_AVX2 void sk_fast_add_minima(const sk_linear_job *j, int n_out, float (*min)[SK_CHUNK_GROUPS],
                                float (*acc_min)[SK_TILE_ROWS], int64_t first_row, int64_t n_rows,
                                int64_t first, int64_t n, int64_t elems)
{
    const float *sums = (elems == 16 ? j->sx16 : j->sx) + first / elems * j->sx_stride + first_row;
    for (int64_t r = 0; r < n_rows; r += SK_LANES) {
        int o = 0;
        for (; o + 4 <= n_out; o += 4)
            add_minima(4, min + o, acc_min + o, r, sums + r, j->sx_stride, n / elems);
        for (; o < n_out; o++)
            add_minima(1, min + o, acc_min + o, r, sums + r, j->sx_stride, n / elems);
    }
}
#endif
