/* Teacher-forced scoring: the decode path fed with given tokens, a fixed number of rows at a time.
 *
 * A row's bits do not depend on how many rows go through a pass, so the number of rows here is a
 * matter of speed alone. */
#include "engine/session_impl.h"

#include "base/layout.h"
#include "base/mem.h"

#include <string.h>

#define SCORE_ROWS 16

int32_t sk_session_score_rows(const sk_session *s)
{
    (void)s;
    return SCORE_ROWS;
}

static sk_code grow_scratch(sk_session *s, uint64_t work, sk_status *st)
{
    sk_block larger;
    if (work <= s->work.bytes) return SK_OK;
    SK_TRY(sk_block_init(&larger, work, "scratch", st));
    sk_block_fini(&s->work);
    s->work = larger;
    s->exec.cpu.work = larger.p;
    s->exec.cpu.work_bytes = work;
    return SK_OK;
}

/* One block for the rows that the host writes and for the transients: on the CPU or on the device.
 */
static sk_code take_block(sk_session *s, uint64_t bytes, sk_status *st)
{
    const sk_plan *plan = &s->score.pass.plan;
    if (s->place.dev) {
        if (sk_walk_needed_bytes(plan, s->prog.options.ctx) > s->device.sizes.work)
            return SK_FAIL(st, SK_UNSUPPORTED, "score: expected scratch of at most %llu bytes",
                           (unsigned long long)s->device.sizes.work);
        SK_TRY(sk_walk_check(plan, st));
        SK_TRY(sk_dev_alloc(s->place.dev, bytes, "score transients", &s->score_base, st));
        return sk_dev_fill(s->place.dev, s->score_base, 0, bytes, st);
    }
    SK_TRY(grow_scratch(s, sk_exec_work_bytes(plan, s->prog.options.threads), st));
    SK_TRY(sk_block_init(&s->score_block, bytes, "score transients", st));
    s->score_base = s->score_block.p;
    return SK_OK;
}

static sk_code take_memory(sk_session *s, sk_status *st)
{
    const sk_pass *pass = &s->score.pass;
    const sk_buf *bufs = s->prog.space.bufs;
    const int32_t own[] = {pass->rows, pass->ids, pass->count};
    uint64_t at[SK_COUNT(own)], transients;
    sk_layout l = {0};
    uint8_t **addr = NULL;
    sk_code rc;
    for (size_t i = 0; i < SK_COUNT(own); i++) at[i] = sk_layout_add(&l, bufs[own[i]].bytes);
    transients = sk_layout_add(&l, pass->plan.transient_bytes);
    if (l.bad) return SK_FAIL(st, SK_NOMEM, "score: sizes exceed the address space");
    SK_TRY(take_block(s, l.used, st));
    SK_TRY(sk_mem_new((void **)&addr, s->prog.space.n, sizeof *addr, "buffer addresses", st));
    memcpy(addr, s->addr, s->n_addr * sizeof *addr);
    for (size_t i = 0; i < SK_COUNT(own); i++) addr[own[i]] = s->score_base + at[i];
    memcpy(s->score_addr, (uint8_t *[]){addr[own[0]], addr[own[1]], addr[own[2]]},
           sizeof s->score_addr);
    rc = sk_bound_make(&s->score_bound, &pass->plan, addr, s->score_base + transients, st);
    sk_mem_free(addr);
    return rc;
}

sk_code sk_session_score_begin(sk_session *s, int32_t slot, const uint8_t *want, sk_status *st)
{
    sk_code rc;
    SK_TRY(sk_session_check_slot(s, slot, true, st));
    SK_TRY(sk_session_reset(s, slot, st));
    SK_TRY(sk_score_open(&s->score, &s->prog, SCORE_ROWS, want, st));
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
    if (s->place.dev)
        sk_dev_free(s->place.dev, s->score_base);
    else
        sk_block_fini(&s->score_block);
    s->score_base = NULL;
    sk_score_close(&s->score, &s->prog);
    s->scoring = false;
    // The slot held nothing when scoring began and holds nothing now.
    if (sk_session_reset(s, s->score_slot, NULL) != SK_OK) return;
}

static sk_code copy_out(const sk_session *s, int32_t buf, int32_t n, void *out, sk_status *st)
{
    const sk_buf *b = &s->prog.space.bufs[buf];
    return sk_place_read(&s->place, out, sk_bound_find(&s->score_bound, buf),
                         (uint64_t)n * (uint64_t)b->dim[1] * 4, st); // F32 or I32
}

/* The tokens enter the window too, with the one after them: hashed embeddings look back in it, and
 * a draft head looks ahead. */
static sk_code write_rows(sk_session *s, const int32_t *ids, int32_t n, int32_t next, sk_status *st)
{
    sk_row rows[SCORE_ROWS];
    int32_t pass_ids[SCORE_ROWS];
    for (int32_t i = 0; i < SCORE_ROWS; i++) {
        rows[i] = i < n ? (sk_row){s->score_slot, s->score_pos + i, i} : (sk_row){-1, 0, 0};
        pass_ids[i] = i < n ? ids[i] : 0;
    }
    SK_TRY(sk_place_write(&s->place, s->score_addr[0], rows, sizeof rows, st));
    SK_TRY(sk_place_write(&s->place, s->score_addr[1], pass_ids, sizeof pass_ids, st));
    SK_TRY(sk_place_write(&s->place, sk_token_at(s, s->score_slot, s->score_pos), ids,
                          (uint64_t)n * sizeof *ids, st));
    SK_TRY(sk_place_write(&s->place, sk_token_at(s, s->score_slot, s->score_pos + n), &next,
                          sizeof next, st));
    return sk_place_write(&s->place, s->score_addr[2], &n, sizeof n, st);
}

sk_code sk_session_score_step(sk_session *s, const int32_t *ids, int32_t n, int32_t next,
                              void *const *out, sk_status *st)
{
    const sk_pass *pass = &s->score.pass;
    const int32_t n_taps = sk_program_n_taps(&s->prog);
    if (!s->scoring)
        return SK_FAIL(st, SK_STATE, "score: expected an open scoring pass, found none");
    if (n < 1 || n > pass->n_rows || s->score_pos + n > s->prog.options.ctx)
        return SK_FAIL(st, SK_INVALID,
                       "score: expected 1 .. %d tokens in a context of %d, found %d at %d",
                       (int)pass->n_rows, (int)s->prog.options.ctx, (int)n, (int)s->score_pos);
    SK_TRY(sk_session_check_ids(s, ids, n, st));
    if (next >= 0) SK_TRY(sk_session_check_ids(s, &next, 1, st));
    for (int32_t i = 0; i < n_taps; i++)
        if (s->score.taps[i] >= 0 && !out[i])
            return SK_FAIL(st, SK_INVALID, "score: expected room for output %d, found none",
                           (int)i);
    SK_TRY(write_rows(s, ids, n, next >= 0 ? next : 0, st));
    SK_TRY(sk_session_run(s, &s->score_bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, st));
    s->score_pos += n;
    for (int32_t i = 0; i < n_taps; i++)
        if (s->score.taps[i] >= 0) SK_TRY(copy_out(s, s->score.taps[i], n, out[i], st));
    return SK_OK;
}
