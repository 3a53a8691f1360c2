/* Teacher-forced scoring: the decode path fed with given tokens, a fixed number of rows at a time.
 *
 * A row's bits do not depend on how many rows go through a pass, so the number of rows here is a
 * matter of speed alone. */
#include "engine/session_impl.h"

#include "base/mem.h"

#include <string.h>

#define SCORE_ROWS 16

int32_t sk_session_score_rows(const sk_session *s)
{
    (void)s;
    return SCORE_ROWS;
}

static sk_code take_memory(sk_session *s, sk_status *st)
{
    const sk_pass *pass = &s->score.pass;
    const sk_buf *bufs = s->prog.space.bufs;
    uint8_t **addr = NULL, *at;
    sk_code rc;
    uint64_t work = sk_exec_work_bytes(&pass->plan, s->prog.options.threads);
    if (work > s->work.bytes) {
        sk_block larger;
        SK_TRY(sk_block_init(&larger, work, "scratch", st));
        sk_block_fini(&s->work);
        s->work = larger;
        s->exec.cpu.work = larger.p;
        s->exec.cpu.work_bytes = work;
    }
    SK_TRY(sk_block_init(&s->score_transients, pass->plan.transient_bytes, "score transients", st));
    SK_TRY(sk_block_init(&s->score_control,
                         bufs[pass->rows].bytes + bufs[pass->ids].bytes + bufs[pass->count].bytes,
                         "score rows", st));
    SK_TRY(sk_mem_new((void **)&addr, s->prog.space.n, sizeof *addr, "buffer addresses", st));
    memcpy(addr, s->addr, s->n_addr * sizeof *addr);
    at = s->score_control.p;
    addr[pass->rows] = at;
    addr[pass->ids] = at + bufs[pass->rows].bytes;
    addr[pass->count] = at + bufs[pass->rows].bytes + bufs[pass->ids].bytes;
    rc = sk_bound_make(&s->score_bound, &pass->plan, addr, s->score_transients.p, st);
    sk_mem_free(addr);
    return rc;
}

sk_code sk_session_score_begin(sk_session *s, int32_t slot, bool logits, const uint8_t *layer,
                               sk_status *st)
{
    sk_code rc;
    SK_TRY(sk_session_check_slot(s, slot, true, st));
    SK_TRY(sk_session_reset(s, slot, st));
    SK_TRY(sk_score_open(&s->score, &s->prog, SCORE_ROWS, logits, layer, st));
    s->scoring = true;
    s->score_slot = slot;
    s->score_pos = 0;
    rc = take_memory(s, st);
    if (rc != SK_OK) sk_session_score_end(s);
    return rc;
}

void sk_session_score_end(sk_session *s)
{
    if (!s->scoring) return;
    sk_bound_drop(&s->score_bound);
    sk_block_fini(&s->score_transients);
    sk_block_fini(&s->score_control);
    sk_score_close(&s->score, &s->prog);
    s->scoring = false;
    // The slot held nothing when scoring began and holds nothing now.
    if (sk_session_reset(s, s->score_slot, NULL) != SK_OK) return;
}

static void copy_out(const sk_session *s, int32_t buf, int32_t n, float *out)
{
    const sk_buf *b = &s->prog.space.bufs[buf];
    memcpy(out, sk_bound_find(&s->score_bound, buf), (size_t)n * (size_t)b->dim[1] * sizeof *out);
}

sk_code sk_session_score_step(sk_session *s, const int32_t *ids, int32_t n, float *logits,
                              float *const *out, sk_status *st)
{
    const sk_pass *pass = &s->score.pass;
    const int32_t n_layer = sk_model_config(s->prog.model)->n_layer;
    sk_row *rows = s->score_control.p;
    int32_t *pass_ids = (int32_t *)(void *)(rows + pass->n_rows);
    if (!s->scoring)
        return SK_FAIL(st, SK_STATE, "score: expected an open scoring pass, found none");
    if (n < 1 || n > pass->n_rows || s->score_pos + n > s->prog.options.ctx)
        return SK_FAIL(st, SK_INVALID,
                       "score: expected 1 .. %d tokens in a context of %d, found %d at %d",
                       (int)pass->n_rows, (int)s->prog.options.ctx, (int)n, (int)s->score_pos);
    SK_TRY(sk_session_check_ids(s, ids, n, st));
    for (int32_t i = 0; i < n_layer; i++)
        if (s->score.taps[i] >= 0 && out && !out[i])
            return SK_FAIL(st, SK_INVALID, "score: expected room for layer %d, found none", (int)i);
    for (int32_t i = 0; i < pass->n_rows; i++) {
        rows[i] = i < n ? (sk_row){s->score_slot, s->score_pos + i, i} : (sk_row){-1, 0, 0};
        pass_ids[i] = i < n ? ids[i] : 0;
    }
    pass_ids[pass->n_rows] = n; // count follows ids
    sk_exec_run(&s->exec, &s->score_bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
    s->score_pos += n;
    if (logits && s->score.logits >= 0) copy_out(s, s->score.logits, n, logits);
    for (int32_t i = 0; out && i < n_layer; i++)
        if (s->score.taps[i] >= 0) copy_out(s, s->score.taps[i], n, out[i]);
    return SK_OK;
}
