/* What the kernels ask for beside the contracts, without kernels: sk_cuda_check as a build with
 * CUDA has it, over launchers that are never called. */
#include "tests/c/sk_test.h"

#include "op/cuda/cuda.h"

#include <string.h>

static int32_t never(const void *args, const sk_launch *l)
{
    (void)args;
    (void)l;
    return 1;
}

static const sk_cuda_fn launchers[SK_OP_COUNT] = {
#define SK_OP(name, fields) [SK_OP_##name] = never,
#include "op/ops.def"
};

static int32_t has_it(int32_t dtype) { return dtype == SK_Q8_0 || dtype == SK_BF16; }

static int32_t has_uneven(int32_t dtype) { return dtype == SK_BF16; }

static uint64_t no_linear_work(int64_t rows, int64_t k, int64_t n_out, int32_t n_hidden)
{
    (void)(rows + k + n_out + n_hidden);
    return 0;
}

static uint64_t no_attend_work(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                               int32_t ctx_bound)
{
    (void)(rows + heads + kv_heads + dim + ctx_bound);
    return 0;
}

static uint64_t no_sparse_work(const void *args, int32_t ctx_bound)
{
    (void)args;
    return (uint64_t)(ctx_bound - ctx_bound);
}

static uint64_t no_streams_work(const void *args)
{
    (void)args;
    return 0;
}

/* The file by other names: those that it has are null.c's in a build without CUDA. */
#define sk_cuda_ops             launchers
#define sk_cuda_check           check
#define sk_cuda_work_bytes      work_bytes
#define sk_cuda_is_packed       is_packed
#define sk_k_packs              has_it
#define sk_k_scales             has_it
#define sk_k_has_uneven         has_uneven
#define sk_k_has_experts        has_it
#define sk_k_linear_work        no_linear_work
#define sk_k_attend_work        no_attend_work
#define sk_k_gathers            has_it
#define sk_k_block_topk_work    no_sparse_work
#define sk_k_attend_blocks_work no_sparse_work
#define sk_k_hyper_down_work    no_streams_work
#define sk_k_hyper_mix_work     no_streams_work
sk_code check(enum sk_op op, const void *args, sk_status *st);
uint64_t work_bytes(enum sk_op op, const void *args, int32_t ctx_bound);
bool is_packed(int32_t rank);
#include "op/cuda/check.c"

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
    SK_EXPECT_OK(check(SK_OP_rms_norm, &a, &st), &st);
    a.x.stride[0] *= 2;
    SK_EXPECT_OK(check(SK_OP_rms_norm, &a, &st), &st);
    a.x.stride[1] *= 2;
    SK_EXPECT_OK(sk_op_check(SK_OP_rms_norm, &a, &st), &st);
    SK_EXPECT_OK(check(SK_OP_rms_norm, &a, &st), &st);
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
    SK_EXPECT_OK(check(SK_OP_expert_linear, &a, &st), &st);
    a.at = view(SK_I64, 1, 4, 0, 0);
    SK_EXPECT_OK(sk_op_check(SK_OP_expert_linear, &a, &st), &st);
    SK_EXPECT_OK(check(SK_OP_expert_linear, &a, &st), &st);
    sk_args_clear(SK_OP_expert_glu, &g);
    g.x = view(SK_BF16, 2, 4, 64, 0);
    g.list = a.list;
    g.n = a.n;
    g.w[0] = a.w;
    g.w[1] = view(SK_Q8_0, 3, 4, 16, 64);
    g.out = view(SK_BF16, 2, 8, 16, 0);
    SK_EXPECT_OK(check(SK_OP_expert_glu, &g, &glu), &glu);
    g.at[1] = a.at;
    SK_EXPECT_OK(check(SK_OP_expert_glu, &g, &glu), &glu);
    g.w[1].dtype = SK_Q4_0;
    SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, check(SK_OP_expert_glu, &g, &glu), &glu);
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
    SK_EXPECT_OK(check(SK_OP_hyper_mix, &mix, &st), &st);
    sk_args_clear(SK_OP_linear_argmax, &best);
    best.x = mix.low;
    best.w = mix.w;
    SK_EXPECT_FAIL(SK_UNSUPPORTED, NULL, check(SK_OP_linear_argmax, &best, &st), &st);
    SK_EXPECT_STR(refused, st.msg);
}

const sk_test sk_tests_cuda_check[] = {
    {"rows_of_no_whole_blocks", rows_of_no_whole_blocks},
    {"heads_that_are_apart", heads_that_are_apart},
    {"matrices_that_are_apart", matrices_that_are_apart},
    {0},
};
