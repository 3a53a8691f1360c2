/* Stands in for table.c and check.c in a build without CUDA, where no device can be opened, so that
 * nothing here is ever reached but the check. */
#include "op/cuda/cuda.h"

const sk_cuda_fn sk_cuda_ops[SK_OP_COUNT] = {0};

sk_code sk_cuda_check(enum sk_op op, const void *args, sk_status *st)
{
    (void)args;
    return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: this build has no kernels", sk_ops[op].name);
}

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

uint64_t sk_cuda_work_bytes(enum sk_op op, const void *args, int32_t ctx_bound)
{
    (void)op;
    (void)args;
    (void)ctx_bound;
    return 0;
}

bool sk_cuda_is_packed(int32_t rank) { return rank == 2 || rank == 3; }

int32_t sk_k_setup(void) { return 0; }

int32_t sk_k_has_edges(void) { return 0; }

int32_t sk_k_packs(int32_t dtype)
{
    (void)dtype;
    return 0;
}

int32_t sk_k_has_uneven(int32_t dtype)
{
    (void)dtype;
    return 0;
}

int32_t sk_k_has_experts(int32_t dtype)
{
    (void)dtype;
    return 0;
}

uint64_t sk_k_packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    (void)dtype;
    (void)n;
    (void)k;
    return 0;
}

int64_t sk_k_part_unit(int32_t dtype, int64_t k)
{
    (void)dtype;
    (void)k;
    return 0;
}

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
