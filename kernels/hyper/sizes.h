/* How the products of hyper_down are done, and the scratch of both halves of a hyper-connection. */
#ifndef SK_HYPER_SIZES_H
#define SK_HYPER_SIZES_H

#include "kernels/linear/sizes.h"

#define SK_HYPER_OWN_OUTPUTS 8  // of a product that needs no launch of its own
#define SK_HYPER_FUSED_ROWS  40 // most rows of the kernel that does all in one launch

typedef enum sk_hyper_product {
    SK_HYPER_NONE,
    SK_HYPER_OWN,   // by the kernel that scales the streams
    SK_HYPER_PARTS, // linear_parts, a part a stream
    SK_HYPER_ROWS   // linear, every stream a row of its own with zeros elsewhere
} sk_hyper_product;

/* How the product with w[j] is done. */
static inline sk_hyper_product sk_hyper_product_of(const sk_hyper_down_args *a, int32_t j)
{
    const int64_t streams = a->s.dim[1], dim = a->s.dim[2];
    const sk_view *w = &a->w[j];
    int64_t unit;
    if (!sk_view_present(w)) return SK_HYPER_NONE;
    if (j == 1 && w->dtype == SK_F32 && streams <= SK_HYPER_OWN_OUTPUTS && dim % 4 == 0)
        return SK_HYPER_OWN;
    unit = sk_part_unit(w->dtype, streams * dim);
    return unit > 0 && dim % unit == 0 ? SK_HYPER_PARTS : SK_HYPER_ROWS;
}

/* Where things lie in the step's scratch, from the rows that are live, I32, at 0 on. */
typedef struct sk_hyper_scratch {
    int32_t has_all, has_one;
    uint64_t all;   // BF16 [P, S*D]
    uint64_t one;   // BF16 [P*S, S*D]
    uint64_t parts; // F32 [S, P, outputs of all products in parts]
    uint64_t other; // F32 [P, S, outputs of all other products], one behind the other
    uint64_t bytes;
} sk_hyper_scratch;

static inline sk_hyper_scratch sk_hyper_scratch_of(const sk_hyper_down_args *a)
{
    const uint64_t rows = (uint64_t)a->s.dim[0], n = (uint64_t)a->s.dim[1];
    const uint64_t columns = n * (uint64_t)a->s.dim[2];
    uint64_t n_parts = 0, n_other = 0;
    sk_hyper_scratch s = {0, 0, 0, 0, 0, 0, 0};
    for (int32_t j = 0; j < 2; j++) {
        const sk_hyper_product p = sk_hyper_product_of(a, j);
        if (p == SK_HYPER_NONE) continue;
        if (p == SK_HYPER_PARTS)
            n_parts += (uint64_t)a->w[j].dim[0];
        else
            n_other += (uint64_t)a->w[j].dim[0];
        s.has_one = s.has_one || p == SK_HYPER_ROWS;
    }
    s.has_all = n_parts > 0;
    s.all = sk_work_aligned(4);
    s.one = s.all + (s.has_all ? sk_work_aligned(rows * columns * 2) : 0);
    s.parts = s.one + (s.has_one ? sk_work_aligned(rows * n * columns * 2) : 0);
    s.other = s.parts + sk_work_aligned(rows * n * n_parts * 4);
    s.bytes = s.other + sk_work_aligned(rows * n * n_other * 4);
    return s;
}

/* Sums of the mix: F32 [P, outputs]. */
static inline uint64_t sk_hyper_mix_work(const sk_hyper_mix_args *a)
{
    return (uint64_t)(a->s.dim[0] * a->w.dim[0] * 4);
}

#endif
