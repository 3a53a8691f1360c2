/* The plans of one engine over one buffer table: the round, the prefill pass, the scoring pass.
 *
 * Host only, no memory for data yet: capacities, digests and the inventory are known from here
 * before anything large is allocated. */
#ifndef SK_PROGRAM_H
#define SK_PROGRAM_H

#include "model/mtp.h"

/* GRAPH: recorded once, replayed. EAGER: launched step by step. DIRECT: one step at a time, waiting
 * and checking after each. The last two are for diagnosis. */
typedef enum sk_mode { SK_MODE_GRAPH, SK_MODE_EAGER, SK_MODE_DIRECT } sk_mode;

/* Told while weights go to a device: bytes done and bytes in all. False ends the loading. */
typedef struct sk_progress {
    bool (*tell)(void *ctx, uint64_t done, uint64_t total); // NULL: nobody listens
    void *ctx;
} sk_progress;

typedef struct sk_options {
    int32_t slots;         // B, 1 .. SK_SLOTS_MAX
    int32_t ctx;           // C, positions a slot can hold
    int32_t prefill_chunk; // rows of the prefill pass; chunk borders are its multiples
    int32_t threads;       // CPU threads, >= 1
    bool f32;              // numerics mode f32, else bf16
    char kernels[12];      // a table of sk_cpu_table_find; empty: "fast"
    bool poison;           // see sk_exec.poison
    int32_t device;        // CUDA device, or -1: the CPU
    sk_mode mode;          // how a device runs rounds
    bool edges;            // programmatic edges, where the device has them
    bool fused;            // fewer launches, where a device has kernels for that
    bool table_in_ram;     // a table of which few rows are read stays in pinned host memory
    bool capacities;       // rounds of smaller capacities too; a device has them anyway
    bool sizes_only;       // nothing will run: no weight is looked at but for what constants need
    sk_drafter drafter;
    const sk_ckpt *draft; // the drafter's own checkpoint, NULL: it is in the target's
    sk_forced forced;     // measuring; drafter.replaced follows from it
    sk_progress progress;
} sk_options;

/* A teacher-forced pass: the host writes rows, ids and count. */
typedef struct sk_pass {
    sk_plan plan;
    int32_t rows;   // control I32 [P, 3]
    int32_t ids;    // control I32 [P]
    int32_t count;  // control I32 [1]
    int32_t n_rows; // P
} sk_pass;

/* A round for up to n_rows rows. Two sampling classes: full writes the logits, greedy only the
 * choice; a row gets the same bits in both. */
typedef struct sk_round_plan {
    sk_plan plan;
    int32_t n_rows; // P
    bool full;
    int32_t logits;          // transient F32 [P, V], -1 in the greedy class
    int32_t drafts, n_draft; // transients
} sk_round_plan;

#define SK_ROUNDS_MAX 16

typedef struct sk_program {
    sk_options options;
    const sk_ckpt *ck; // the target's, borrowed
    sk_space space;
    sk_model *model; // the target
    sk_mtp *mtp;     // the draft head, or NULL
    sk_round_bufs rb;
    int32_t width;  // W
    int32_t n_rows; // largest P: B * W
    /* rounds[0] is the full class and rounds[1] the greedy one of the largest capacity; on a device
     * (or with options.capacities) pairs of smaller capacities follow, in descending order. */
    sk_round_plan rounds[SK_ROUNDS_MAX];
    int32_t n_rounds;
    sk_pass prefill;
} sk_program;

/* The plan of the smallest capacity that holds `rows` rows. */
int32_t sk_program_round_find(const sk_program *p, int32_t rows, bool full);

#define SK_RING 8 // entries of the control and completion rings

/* INVALID when an option is outside its domain. The checkpoint is borrowed for the program's life.
 */
SK_MUST_USE sk_code sk_program_open(sk_program *out, const sk_ckpt *ck, const sk_options *options,
                                    sk_status *st);
void sk_program_close(sk_program *p); // accepts a zeroed struct

/* What a scoring pass can yield, a row for each token. Layers follow. */
enum { SK_TAP_LOGITS, SK_TAP_MTP_LOGITS, SK_TAP_PLE_ROWS, SK_TAP_LAYER };

/* Number of taps, elements of a row of one (0: this model has no such thing), and their type: F32,
 * or I32 (SK_TAP_PLE_ROWS). */
int32_t sk_program_n_taps(const sk_program *p);
int64_t sk_program_tap_width(const sk_program *p, int32_t tap);

/* A scoring pass that yields what `want` flags. Its buffers are appended to the program's space;
 * sk_score_close removes them again, so at most one such pass is open at a time. */
typedef struct sk_score {
    sk_pass pass;
    int32_t *taps; // [n_taps] transients [P, width], -1 where not wanted
    size_t space_mark;
} sk_score;

SK_MUST_USE sk_code sk_score_open(sk_score *out, sk_program *p, int32_t n_rows, const uint8_t *want,
                                  sk_status *st);
void sk_score_close(sk_score *s, sk_program *p);

#endif
