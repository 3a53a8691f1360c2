/* The plans of one engine over one buffer table: the round, the prefill pass, the scoring pass.
 *
 * Host only, no memory for data yet: capacities, digests and the inventory are known from here
 * before anything large is allocated. */
#ifndef SK_PROGRAM_H
#define SK_PROGRAM_H

#include "model/model.h"
#include "plan/round.h"

typedef struct sk_options {
    int32_t slots;         // B, 1 .. SK_SLOTS_MAX
    int32_t ctx;           // C, positions a slot can hold
    int32_t prefill_chunk; // rows of the prefill pass; chunk borders are its multiples
    int32_t threads;       // CPU threads, >= 1
    bool f32;              // numerics mode f32, else bf16
    char kernels[12];      // a table of sk_cpu_table_find; empty: "fast"
    bool poison;           // see sk_exec.poison
    sk_drafter drafter;
} sk_options;

/* A teacher-forced pass: the host writes rows, ids and count. */
typedef struct sk_pass {
    sk_plan plan;
    int32_t rows;   // control I32 [P, 3]
    int32_t ids;    // control I32 [P]
    int32_t count;  // control I32 [1]
    int32_t n_rows; // P
} sk_pass;

typedef struct sk_program {
    sk_options options;
    sk_space space;
    sk_model *model; // the target
    sk_round_bufs rb;
    sk_plan round;
    int32_t width;           // W
    int32_t n_rows;          // P of the round: B * W
    int32_t logits;          // transient F32 [P, V] of the round
    int32_t drafts, n_draft; // transients of the round
    sk_pass prefill;
} sk_program;

#define SK_RING 8 // entries of the control and completion rings

/* INVALID when an option is outside its domain. The checkpoint is borrowed for the program's life.
 */
SK_MUST_USE sk_code sk_program_open(sk_program *out, const sk_ckpt *ck, const sk_options *options,
                                    sk_status *st);
void sk_program_close(sk_program *p); // accepts a zeroed struct

/* A scoring pass that yields logits and, where `tap` is set, the residual stream after a layer. Its
 * buffers are appended to the program's space; sk_score_close removes them again, so at most one
 * such pass is open at a time. */
typedef struct sk_score {
    sk_pass pass;
    int32_t logits; // -1 when not wanted
    int32_t *taps;  // [n_layer] transient F32 [P, dim], -1 where not wanted
    size_t space_mark;
} sk_score;

SK_MUST_USE sk_code sk_score_open(sk_score *out, sk_program *p, int32_t n_rows, bool logits,
                                  const uint8_t *tap, sk_status *st);
void sk_score_close(sk_score *s, sk_program *p);

#endif
