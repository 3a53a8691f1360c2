/* Stands in for table.c, group.c and the kernels in a build without CUDA, where no device can be
 * opened, so that nothing here is ever reached. */
#include "op/cuda/cuda.h"

const sk_cuda_fn sk_cuda_ops[SK_OP_COUNT] = {0};

int32_t sk_cuda_group_find(const enum sk_op *ops, int32_t n)
{
    (void)ops;
    (void)n;
    return 1;
}

int32_t sk_cuda_group_run(const enum sk_op *ops, const void *const *args, int32_t n,
                          const sk_launch *l)
{
    (void)ops;
    (void)args;
    (void)n;
    (void)l;
    return 1;
}

int32_t sk_k_setup(void) { return 0; }

int32_t sk_k_has_edges(void) { return 0; }

int32_t sk_k_pack(int32_t dtype, const uint8_t *raw, uint8_t *packed, int64_t row, int64_t rows,
                  int64_t n, int64_t k, struct CUstream_st *stream)
{
    (void)dtype;
    (void)raw;
    (void)packed;
    (void)row;
    (void)rows;
    (void)n;
    (void)k;
    (void)stream;
    return 1;
}

int32_t sk_k_synth(const struct sk_synth *recipe, uint64_t first, uint64_t n, uint8_t *out,
                   struct CUstream_st *stream)
{
    (void)recipe;
    (void)first;
    (void)n;
    (void)out;
    (void)stream;
    return 1;
}

int32_t sk_k_unpack(int32_t dtype, const uint8_t *packed, uint8_t *raw, int64_t row, int64_t rows,
                    int64_t n, int64_t k, struct CUstream_st *stream)
{
    (void)dtype;
    (void)packed;
    (void)raw;
    (void)row;
    (void)rows;
    (void)n;
    (void)k;
    (void)stream;
    return 1;
}
