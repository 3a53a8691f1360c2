/* What the kernels ask for beside the contracts, and the scratch that steps take: in every build
 * the same, kernels or not. */
#include "tests/c/sk_test.h"

#include "op/cuda/cuda.h"

#include "kernels/attend/sizes.h"
#include "kernels/sparse/sizes.h"

#include <string.h>

static sk_view view(int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c)
{
    static int32_t buf;
    return sk_view_dense(buf++, dtype, rank, (int64_t[]){a, b, c});
}

/* Slices of wider heads, which the contract allows. */
static void heads_that_are_apart(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_rms_norm_args a;
    sk_args_clear(SK_OP_rms_norm, &a);
    a.x = view(SK_F32, 3, 4, 2, 32);
    a.gain = view(SK_F32, 1, 32, 0, 0);
    a.count = view(SK_I32, 1, 1, 0, 0);
    a.out = view(SK_F32, 3, 4, 2, 32);
    a.eps = 1e-6f;
    SK_EXPECT_OK(sk_cuda_check(SK_OP_rms_norm, &a, &st), &st);
    a.x.stride[0] *= 2;
    SK_EXPECT_OK(sk_cuda_check(SK_OP_rms_norm, &a, &st), &st);
    a.x.stride[1] *= 2;
    SK_EXPECT_OK(sk_op_check(SK_OP_rms_norm, &a, &st), &st);
    SK_EXPECT_OK(sk_cuda_check(SK_OP_rms_norm, &a, &st), &st);
}

/* Matrices of experts that do not follow each other in the file: on the device they do. */
static void matrices_that_are_apart(void)
{
    const size_t entry = sizeof(sk_route_entry);
    sk_status st = SK_STATUS_INIT, glu = SK_STATUS_INIT;
    sk_expert_linear_args a;
    sk_expert_glu_args g;
    sk_args_clear(SK_OP_expert_linear, &a);
    a.x = view(SK_BF16, 2, 8, 64, 0);
    a.list = view(SK_U8, 2, 8, (int64_t)entry, 0);
    a.n = view(SK_I32, 1, 1, 0, 0);
    a.w = view(SK_Q8_0, 3, 4, 16, 64);
    a.y = view(SK_F32, 2, 8, 16, 0);
    SK_EXPECT_OK(sk_cuda_check(SK_OP_expert_linear, &a, &st), &st);
    a.at = view(SK_I64, 1, 4, 0, 0);
    SK_EXPECT_OK(sk_op_check(SK_OP_expert_linear, &a, &st), &st);
    SK_EXPECT_OK(sk_cuda_check(SK_OP_expert_linear, &a, &st), &st);
    sk_args_clear(SK_OP_expert_glu, &g);
    g.x = view(SK_BF16, 2, 4, 64, 0);
    g.list = a.list;
    g.n = a.n;
    g.w[0] = a.w;
    g.w[1] = view(SK_Q8_0, 3, 4, 16, 64);
    g.out = view(SK_BF16, 2, 8, 16, 0);
    SK_EXPECT_OK(sk_cuda_check(SK_OP_expert_glu, &g, &glu), &glu);
    g.at[1] = a.at;
    SK_EXPECT_OK(sk_cuda_check(SK_OP_expert_glu, &g, &glu), &glu);
    g.w[1].dtype = SK_Q4_0;
    SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, sk_cuda_check(SK_OP_expert_glu, &g, &glu), &glu);
}

/* Weights of types and shapes that have no kernel, by op and field. */
static void weights_are_refused_by_name(void)
{
    sk_linear_args a;
    sk_args_clear(SK_OP_linear, &a);
    a.x = view(SK_BF16, 2, 4, 48, 0);
    a.count = view(SK_I32, 1, 1, 0, 0);
    a.w[0] = view(SK_Q8_0, 2, 16, 48, 0);
    a.y[0] = view(SK_F32, 2, 4, 16, 0);
    for (int i = 0; i < 2; i++) {
        sk_status st = SK_STATUS_INIT;
        SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, sk_cuda_check(SK_OP_linear, &a, &st), &st);
        SK_EXPECT(strcmp(st.msg, i ? "linear on CUDA: w[0]: expected a float of at most 32 bits or "
                                     "a block format, found F64"
                                   : "linear on CUDA: w[0]: expected a multiple of 32 columns, "
                                     "found 48") == 0);
        a.w[0] = view(SK_F64, 2, 16, 64, 0);
    }
}

/* Bytes of whole tiles of 16 rows and whole units of columns. */
static void packed_weights_are_padded(void)
{
    SK_EXPECT_U64(2 * 3 * 2304, sk_k_packed_bytes(SK_Q4_K, 17, 768));
    SK_EXPECT_U64(1 * 2 * 2048, sk_k_packed_bytes(SK_BF16, 1, 96));
    SK_EXPECT_U64(0, sk_k_packed_bytes(SK_I64, 16, 64));
    SK_EXPECT_INT(0, sk_k_packs(SK_I64));
    SK_EXPECT_INT(1, sk_k_packs(SK_F32));
    SK_EXPECT_INT(0, sk_k_has_experts(SK_F32));
    SK_EXPECT_INT(1, sk_k_gathers(SK_IQ4_NL));
    SK_EXPECT_INT(0, sk_k_gathers(SK_Q4_K));
}

/* What a launch of attention takes in a tier: rows at once, as the launcher counts them. */
static uint64_t taken(int64_t rows, int64_t heads, int64_t dim, int32_t bound)
{
    const int64_t each = sk_attend_row_bytes(heads, dim, bound);
    const int64_t turned = sk_attend_turned_bytes(rows, heads, dim);
    if (bound <= sk_attend_chunk_cells(dim)) return (uint64_t)turned;
    return (uint64_t)(turned + sk_attend_rows_at_once(rows, heads, dim, bound) * each);
}

/* A session takes the scratch of its context, and runs graphs of all tiers below it in it. */
static void scratch_of_a_context_serves_all_tiers(void)
{
    static const int32_t contexts[] = {600, 8192, 20000, 131072, 262144, 1000001};
    for (size_t c = 0; c < SK_COUNT(contexts); c++)
        for (int64_t rows = 1; rows <= 512; rows = rows * 2 + 1) {
            const uint64_t whole = sk_k_attend_work(rows, 32, 8, 128, contexts[c]);
            SK_EXPECT(taken(rows, 32, 128, contexts[c]) <= whole);
            for (int32_t tier = 512; tier < contexts[c]; tier *= 4)
                SK_EXPECT(taken(rows, 32, 128, tier) <= whole);
        }
}

static void scratch_of_scores_serves_all_tiers(void)
{
    sk_block_topk_args a;
    sk_args_clear(SK_OP_block_topk, &a);
    a.q = view(SK_BF16, 3, 512, 4, 128);
    a.pooled = view(SK_BF16, 3, 1, 65536, 128);
    a.out = view(SK_I32, 2, 512, 16, 0);
    a.ratio = 16;
    for (int32_t bound = 512; bound <= 1 << 20; bound = bound * 3 / 2) {
        const int64_t n = sk_blocks_max(&a, bound);
        const uint64_t whole = sk_k_block_topk_work(&a, bound);
        SK_EXPECT_U64(n > 16, whole > 0);
        for (int32_t tier = 512; n > 16 && tier <= bound; tier *= 4) {
            const int64_t blocks = sk_blocks_max(&a, tier);
            SK_EXPECT((uint64_t)(4 * blocks * sk_scored_rows(&a, tier)) <= whole);
        }
    }
}

/* Rows that are no whole number of blocks: where there is a kernel for them. */
static void rows_of_no_whole_blocks(void)
{
    const char *refused = "linear_argmax on CUDA: w: expected a multiple of 32 columns, found 48";
    sk_status st = SK_STATUS_INIT;
    sk_hyper_mix_args mix;
    sk_linear_argmax_args best;
    sk_args_clear(SK_OP_hyper_mix, &mix);
    mix.low = view(SK_BF16, 2, 4, 48, 0);
    mix.w = view(SK_BF16, 2, 64, 48, 0);
    mix.s = view(SK_F32, 3, 4, 2, 32);
    SK_EXPECT_OK(sk_cuda_check(SK_OP_hyper_mix, &mix, &st), &st);
    sk_args_clear(SK_OP_linear_argmax, &best);
    best.x = mix.low;
    best.w = mix.w;
    SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, sk_cuda_check(SK_OP_linear_argmax, &best, &st), &st);
    SK_EXPECT_STR(refused, st.msg);
}

const sk_test sk_tests_cuda_check[] = {
    {"rows_of_no_whole_blocks", rows_of_no_whole_blocks},
    {"heads_that_are_apart", heads_that_are_apart},
    {"matrices_that_are_apart", matrices_that_are_apart},
    {"weights_are_refused_by_name", weights_are_refused_by_name},
    {"packed_weights_are_padded", packed_weights_are_padded},
    {"scratch_of_a_context_serves_all_tiers", scratch_of_a_context_serves_all_tiers},
    {"scratch_of_scores_serves_all_tiers", scratch_of_scores_serves_all_tiers},
    {0},
};
