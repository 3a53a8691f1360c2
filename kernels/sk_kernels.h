/* Launchers of the kernels: the only header that C and CUDA share about them.
 *
 * A launcher enqueues on the stream and returns 0 or the CUDA error number. It never allocates,
 * synchronises, reads device memory on the host, touches the default stream or sets device state,
 * so it can be recorded. Pointers in the arguments are device pointers; weights of rank 2 and 3 are
 * packed (kernels/linear/pack.cuh), everything else is as the contract says. Arguments have passed
 * sk_op_check and sk_k_check. */
#ifndef SK_KERNELS_H
#define SK_KERNELS_H

#include "op/args.h"

struct CUstream_st; // what cudaStream_t points to
struct sk_synth;

#ifdef __cplusplus
extern "C" {
#endif

/* How a step is launched. Constants of a recording: whatever changes by round is in device memory.
 */
typedef struct sk_launch {
    struct CUstream_st *stream;
    uint8_t *work;       // scratch of this step, undefined before it and after it
    uint64_t work_bytes; // at least sk_k_work_bytes of the step
    uint32_t *sync;      // [SK_SYNC_WORDS] zero before every step, and zero again after it
    int32_t ctx_bound;   // tier: every position of the pass is below it
    int32_t n_sm;        // multiprocessors of the device
    int32_t edge; // 1: programmatic edge, the step may start before its predecessor has ended
    // 1: whatever wrote the row table and the count has ended when the step starts, so that kernels
    // may read them ahead of the dependency wait.
    int32_t rows_ready;
    // 1: so has whatever wrote the work list of experts.
    int32_t list_ready;
    // 1: so has whatever wrote what the step has of its slots from earlier rounds: matrices,
    // windows, pending rows and how many of them are kept.
    int32_t state_ready;
    // 1: ops of several launches take fewer of them where there is a kernel for that; the same bits
    int32_t fused;
    // 1: the kernel may let its successor start ahead of its own wait, as it reads nothing there
    // but constants.
    int32_t open_early;
} sk_launch;

#define SK_SYNC_WORDS 4096

/* One launcher per op, sk_k_<op>(arguments, launch). */
#define SK_OP(name, fields) int32_t sk_k_##name(const sk_##name##_args *a, const sk_launch *l);
#include "op/ops.def"

/* Several steps in fewer launches, with the results of one after the other. round_open: `none` or
 * `planted` is NULL. */
int32_t sk_k_round_open(const sk_ctl_read_args *ctl, const sk_commit_args *commit,
                        const sk_draft_none_args *none, const sk_draft_planted_args *planted,
                        const sk_round_rows_args *rows, const sk_launch *l);
int32_t sk_k_round_close(const sk_accept_args *accept, const sk_publish_args *publish,
                         const sk_launch *l);
int32_t sk_k_inject_down(const sk_hyper_inject_args *inject, const sk_hyper_down_args *down,
                         const sk_launch *l);

/* Raises the limits that kernels need (dynamic shared memory, carve-out); once per device, before
 * the first launch. */
int32_t sk_k_setup(void);

/* 1 when the code that runs on the current device has the dependency wait (sm_90 and newer);
 * without it programmatic edges must not be used. Negative: minus the CUDA error number. */
int32_t sk_k_has_edges(void);

/* ---- packed weights: the order in which the products consume them ------------------------------
 */

/* What is only computed is in csrc/op/cuda/sizes.c, by the kernels' own sizes.h, and there in every
 * build: sk_k_packs .. sk_k_packed_bytes, sk_k_part_unit, sk_k_gathers, sk_k_*_work.
 *
 * 1 when weights of this sk_dtype have kernels. */
int32_t sk_k_packs(int32_t dtype);
/* 1 when such weights may have scales beside them. */
int32_t sk_k_scales(int32_t dtype);
/* 1 when linear and linear_add take such weights with any number of columns, not only 32 at a time.
 */
int32_t sk_k_has_uneven(int32_t dtype);
/* 1 when those of experts have. Theirs are [e, n, k]: e packed matrices one after the other. */
int32_t sk_k_has_experts(int32_t dtype);
/* Bytes of a packed weight [n, k]: those of the file, rows padded to whole tiles of 16 and columns
 * to whole units of the type. */
uint64_t sk_k_packed_bytes(int32_t dtype, int64_t n, int64_t k);
/* Rows [row, row + rows) of a weight, given in file order (raw, row stride = row bytes), into their
 * places; row is a multiple of 16. Padding is zeroed. */
int32_t sk_k_pack(int32_t dtype, const uint8_t *raw, uint8_t *packed, int64_t row, int64_t rows,
                  int64_t n, int64_t k, struct CUstream_st *stream);
/* Blocks [first, first + n) of a synthetic weight (base/synth.h), or elements, in file order. */
int32_t sk_k_synth(const struct sk_synth *recipe, uint64_t first, uint64_t n, uint8_t *out,
                   struct CUstream_st *stream);
/* The inverse of sk_k_pack: rows back in file order. */
int32_t sk_k_unpack(int32_t dtype, const uint8_t *packed, uint8_t *raw, int64_t row, int64_t rows,
                    int64_t n, int64_t k, struct CUstream_st *stream);

/* Columns of which each part of linear_parts takes a multiple: a slice of the sum over K. 0: there
 * is no such product of this type with so many columns. */
int64_t sk_k_part_unit(int32_t dtype, int64_t k);

/* 1 when gather_heads has kernels for tables of this sk_dtype, which stay in file order. */
int32_t sk_k_gathers(int32_t dtype);

/* Scratch bytes; functions of shapes and the tier's bound only, and what is enough for one bound is
 * enough for all below it. */
uint64_t sk_k_linear_work(int64_t rows, int64_t k, int64_t n_out, int32_t n_hidden);
uint64_t sk_k_attend_work(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                          int32_t ctx_bound);
uint64_t sk_k_block_topk_work(const sk_block_topk_args *a, int32_t ctx_bound);
uint64_t sk_k_attend_blocks_work(const sk_attend_blocks_args *a, int32_t ctx_bound);
uint64_t sk_k_hyper_down_work(const sk_hyper_down_args *a);
uint64_t sk_k_hyper_mix_work(const sk_hyper_mix_args *a);

#ifdef __cplusplus
}
#endif

#endif
