/* The CUDA backend: the table of launchers, and what they ask for beside the op's contract. */
#ifndef SK_CUDA_H
#define SK_CUDA_H

#include "kernels/sk_kernels.h"
#include "op/op.h"

#include <string.h>

/* Enqueues one op; 0 or a CUDA error number. Arguments are bound to device addresses and have
 * passed sk_op_check and sk_cuda_check. */
typedef int32_t (*sk_cuda_fn)(const void *args, const sk_launch *l);

extern const sk_cuda_fn sk_cuda_ops[SK_OP_COUNT];

/* Steps that are enqueued together: of the ops ops[0 .. n) the longest such group that they
 * begin with; 1 when there is none. */
#define SK_CUDA_GROUP_MAX 4
int32_t sk_cuda_group_find(const enum sk_op *ops, int32_t n);
/* Enqueues the group of `n` ops with their arguments; 0 or a CUDA error number. */
int32_t sk_cuda_group_run(const enum sk_op *ops, const void *const *args, int32_t n,
                          const sk_launch *l);

/* UNSUPPORTED, with "op: field: ...", for what has no kernel: activations in F32 (numerics f32 is
 * the CPU's), weight types that are not there yet, scales beside a weight, columns or heads that do
 * not fill the matrix units, heads or matrices that are apart. Needs no addresses. */
SK_MUST_USE sk_code sk_cuda_check(enum sk_op op, const void *args, sk_status *st);

/* Scratch of the step: a function of shapes and the tier's bound. */
uint64_t sk_cuda_work_bytes(enum sk_op op, const void *args, int32_t ctx_bound);

/* Scratch of a product [rows, k] with a weight [n, k] whose slices of the sum over K are left
 * apart. A launch with less does without: the same bits, later. 0: of no use. */
uint64_t sk_cuda_split_bytes(int32_t dtype, int64_t rows, int64_t n, int64_t k);

/* Is the field a matrix in packed order: a weight of a product, or a table of rows? */
static inline bool sk_cuda_takes_packed(enum sk_op op, const sk_field *f)
{
    if (op == SK_OP_gather_rows) return strcmp(f->name, "table") == 0;
    return f->name[0] == 'w' && (f->name[1] == '\0' || f->name[1] == '[');
}

/* Is this weight packed on the device? Matrices are, alone or one behind the other as those of
 * experts; vectors stay as they are. */
bool sk_cuda_is_packed(int32_t rank);

/* Bytes of a packed weight, [n, k] or [e, n, k]. */
static inline uint64_t sk_cuda_packed_bytes(int32_t dtype, int32_t rank, const int64_t *dim)
{
    const uint64_t each = sk_k_packed_bytes(dtype, dim[rank - 2], dim[rank - 1]);
    return rank == 3 ? (uint64_t)dim[0] * each : each;
}

#endif
