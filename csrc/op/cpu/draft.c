/* The drafters that are no model: none, planted, prompt lookup. Entries past n_draft are 0, and a
 * slot that is not active gets no proposal. */
#include "op/cpu/def.h"

#include <string.h>

static int32_t *ints_at(const sk_view *v, int64_t row)
{
    return (int32_t *)(void *)sk_view_row(v, row);
}

static int32_t *no_drafts(const sk_view *drafts, int64_t b)
{
    int32_t *d = ints_at(drafts, b);
    memset(d, 0, (size_t)drafts->dim[1] * sizeof *d);
    return d;
}

void sk_cpu_draft_none(const void *args, const sk_cpu *cpu)
{
    const sk_draft_none_args *a = args;
    (void)cpu;
    for (int64_t b = 0; b < a->drafts.dim[0]; b++) {
        (void)no_drafts(&a->drafts, b);
        ints_at(&a->n_draft, 0)[b] = 0;
    }
}

void sk_cpu_draft_planted(const void *args, const sk_cpu *cpu)
{
    const sk_draft_planted_args *a = args;
    const int32_t *accept = ints_at(&a->accept, 0);
    (void)cpu;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        const sk_slot *slot = (const sk_slot *)(const void *)sk_view_row(&a->slots, b);
        const sk_counters *c = (const sk_counters *)(const void *)sk_view_row(&a->counters, b);
        const int32_t *table = ints_at(&a->table, b);
        int32_t right = accept[(uint64_t)c->rounds % (uint64_t)a->accept.dim[0]];
        int32_t *drafts = no_drafts(&a->drafts, b);
        int32_t n = 0;
        while (slot->active && n < a->drafts.dim[1]) {
            int64_t at = (int64_t)slot->n + 1 + n;
            int32_t token = at < a->table.dim[1] ? table[at] : -1;
            if (token < 0) break;
            drafts[n] = n < right ? token : (int32_t)(((int64_t)token + 1) % a->vocab);
            n++;
        }
        ints_at(&a->n_draft, 0)[b] = n;
    }
}

/* The latest index before `last` at which the last m tokens of h[0..last] end too; -1: none. */
static int32_t match_before(const int32_t *h, int32_t last, int32_t m)
{
    for (int32_t e = last - 1; e >= m - 1; e--)
        if (h[e] == h[last] && memcmp(h + e - m + 1, h + last - m + 1, (size_t)m * sizeof *h) == 0)
            return e;
    return -1;
}

static int32_t lookup(const int32_t *h, int32_t last, const sk_draft_ngram_args *a, int32_t *drafts)
{
    int32_t n = (int32_t)a->drafts.dim[1];
    int32_t e = -1;
    for (int32_t m = sk_min_i32(a->n_max, last); m >= a->n_min && e < 0; m--)
        e = match_before(h, last, m);
    if (e < 0) return 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t from = e + 1 + i;
        drafts[i] = from <= last ? h[from] : drafts[from - last - 1];
    }
    return n;
}

void sk_cpu_draft_ngram(const void *args, const sk_cpu *cpu)
{
    const sk_draft_ngram_args *a = args;
    (void)cpu;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        const sk_slot *slot = (const sk_slot *)(const void *)sk_view_row(&a->slots, b);
        int32_t *drafts = no_drafts(&a->drafts, b);
        ints_at(&a->n_draft, 0)[b] =
            slot->active ? lookup(ints_at(&a->tokens, b), slot->n, a, drafts) : 0;
    }
}
