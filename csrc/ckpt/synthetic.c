/* See synthetic.h. One mapping stands for the file: the parser reads the directory at its
 * beginning, tensors point behind it, and pages come into being as tensors are filled. */
#define _DEFAULT_SOURCE // MAP_ANONYMOUS, MAP_NORESERVE and madvise are not of POSIX
#include "ckpt/synthetic.h"

#include "ckpt/ckpt_impl.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_BYTES (UINT64_C(1) << 22) // not worth a thread
#define PIECE_BYTES (UINT64_C(1) << 20)

typedef struct flag {
    atomic_bool set;
} flag;

struct sk_synthetic {
    uint8_t *bytes; // the mapping
    uint64_t size;
    sk_synth *recipes; // by tensor
    flag *filled;      // likewise
    size_t n;
    int32_t threads;
    pthread_mutex_t lock; // whoever fills
    bool has_lock;
};

void sk_synthetic_drop(sk_synthetic *s)
{
    if (!s) return;
    if (s->bytes) (void)munmap(s->bytes, (size_t)s->size);
    if (s->has_lock) (void)pthread_mutex_destroy(&s->lock);
    sk_mem_free(s->recipes);
    sk_mem_free(s->filled);
    sk_mem_free(s);
}

/* ---- opening --------------------------------------------------------------------------------- */

static sk_code reserve(sk_synthetic *s, const sk_synthetic_plan *plan, sk_status *st)
{
    char label[SK_LABEL_MAX];
    void *bytes = MAP_FAILED;
    (void)sk_quote_path(label, sizeof label, plan->label);
    if (plan->directory_bytes > plan->size || plan->size < 1 || plan->size > SIZE_MAX)
        return SK_FAIL(st, SK_INVALID,
                       "%s: size: expected at least the %" PRIu64 " bytes of the directory, found "
                       "%" PRIu64,
                       label, plan->directory_bytes, plan->size);
    errno = ENOMEM;
    if (!SK_FAULT())
        bytes = mmap(NULL, (size_t)plan->size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return SK_FAIL_ERRNO(st, SK_NOMEM, errno, "%s: expected addresses for %" PRIu64 " bytes",
                             label, plan->size);
    s->bytes = bytes;
    s->size = plan->size;
    memcpy(s->bytes, plan->directory, (size_t)plan->directory_bytes);
    return SK_OK;
}

static sk_code take_recipe(sk_ckpt *ck, const sk_synthetic_plan *plan, size_t i, sk_status *st)
{
    const sk_synth_recipe *r = &plan->recipes[i];
    sk_synth *to = &ck->synthetic->recipes[i];
    sk_tensor *t = &ck->tensors[i];
    char quoted[SK_QUOTE_MAX];
    const char *wanted =
        sk_synth_init(to, plan->seed, t->name.p, t->name.n, (int32_t)t->type, r->kind, r->a, r->b);
    if (wanted)
        return SK_FAIL_CHECK(st, SK_INVALID, "BAD_RECIPE", 0,
                             "%s: tensor %s: expected %s, found kind %" PRId32 ", %g and %g for %s",
                             ck->label, sk_quote(quoted, sizeof quoted, t->name.p, t->name.n),
                             wanted, r->kind, r->a, r->b, sk_dtype_name(t->type));
    t->synth = to;
    return SK_OK;
}

/* The checkpoint is open as if its file were there; what makes the contents comes in. */
static sk_code furnish(sk_ckpt *ck, const sk_synthetic_plan *plan, sk_status *st)
{
    sk_synthetic *s = ck->synthetic;
    if (plan->n != ck->n_tensors)
        return SK_FAIL(st, SK_INVALID,
                       "%s: recipes: expected one for each of %zu tensors, found "
                       "%zu",
                       ck->label, ck->n_tensors, plan->n);
    SK_TRY(sk_mem_new((void **)&s->recipes, plan->n, sizeof *s->recipes, "recipes", st));
    SK_TRY(sk_mem_new((void **)&s->filled, plan->n, sizeof *s->filled, "recipes", st));
    s->n = plan->n;
    for (size_t i = 0; i < plan->n; i++) {
        if (i && ck->tensors[i].file_off < ck->tensors[i - 1].file_off)
            return SK_FAIL(st, SK_INVALID,
                           "%s: directory: expected tensors in the order of their contents, found "
                           "number %zu before number %zu",
                           ck->label, i, i - 1);
        SK_TRY(take_recipe(ck, plan, i, st));
    }
    return SK_OK;
}

/* Bytes that were never in a file do not break the rules of one. */
static sk_code as_argument(sk_code rc, sk_status *st)
{
    if (rc != SK_FORMAT && rc != SK_UNSUPPORTED) return rc;
    if (st) st->code = SK_INVALID;
    return SK_INVALID;
}

static sk_code open_in(sk_ckpt **ck, sk_synthetic *s, const sk_synthetic_plan *plan, sk_status *st)
{
    if (plan->threads < 1 || plan->threads > 1024)
        return SK_FAIL(st, SK_INVALID, "threads: expected 1 .. 1024, found %" PRId32,
                       plan->threads);
    SK_TRY(reserve(s, plan, st));
    s->threads = plan->threads;
    if (SK_FAULT() || pthread_mutex_init(&s->lock, NULL) != 0)
        return SK_FAIL(st, SK_NOMEM, "synthetic checkpoint: expected a lock, found none");
    s->has_lock = true;
    return as_argument(sk_ckpt_open_bytes(ck, s->bytes, s->size, plan->label, false, st), st);
}

sk_code sk_synthetic_open(sk_ckpt **out, const sk_synthetic_plan *plan, sk_status *st)
{
    sk_synthetic *s = NULL;
    sk_ckpt *ck = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&s, 1, sizeof *s, "a synthetic checkpoint", st));
    rc = open_in(&ck, s, plan, st);
    if (rc != SK_OK) {
        sk_synthetic_drop(s);
        return rc;
    }
    ck->synthetic = s; // from here on closed with it
    rc = furnish(ck, plan, st);
    if (rc != SK_OK) {
        sk_ckpt_close(ck);
        return rc;
    }
    *out = ck;
    return SK_OK;
}

const sk_synth *sk_ckpt_recipe_at(const sk_ckpt *ck, const uint8_t *p, uint64_t *block)
{
    const sk_synthetic *s = ck->synthetic;
    size_t from = 0, to = s ? ck->n_tensors : 0;
    uint64_t off;
    if (!s || (uintptr_t)p < (uintptr_t)s->bytes || (uintptr_t)p - (uintptr_t)s->bytes >= s->size)
        return NULL;
    off = (uint64_t)((uintptr_t)p - (uintptr_t)s->bytes);
    while (to - from > 1) { // the last tensor that begins at or before it
        const size_t mid = from + (to - from) / 2;
        *(ck->tensors[mid].file_off <= off ? &from : &to) = mid;
    }
    if (from == to || off < ck->tensors[from].file_off) return NULL; // the directory
    off -= ck->tensors[from].file_off;
    if (off >= ck->tensors[from].n_bytes) return NULL; // padding
    *block = off / (uint64_t)s->recipes[from].block_bytes;
    return &s->recipes[from];
}

bool sk_ckpt_is_synthetic(const sk_ckpt *ck) { return ck->synthetic != NULL; }

/* ---- filling --------------------------------------------------------------------------------- */

typedef struct fill_job {
    const sk_synth *recipe;
    uint8_t *out;
} fill_job;

/* All pages of a piece at once: most of the time of filling goes into faults, one by one. Where the
 * system does not know how, or has no such pages, it is left to the faults. */
static void take_pages(uint8_t *p, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t lead = (uintptr_t)p % page;
    if (bytes >= page) (void)madvise(p - lead, (size_t)(bytes + lead), MADV_POPULATE_WRITE);
#else
    (void)p;
    (void)bytes;
#endif
}

static void fill_part(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const fill_job *job = ctx;
    const uint64_t each = (uint64_t)job->recipe->block_bytes, most = PIECE_BYTES / each;
    (void)worker;
    for (uint64_t at = (uint64_t)begin; at < (uint64_t)end;) {
        const uint64_t left = (uint64_t)end - at, n = left < most ? left : most;
        uint8_t *out = job->out + at * each;
        take_pages(out, n * each);
        sk_synth_fill(job->recipe, at, n, out);
        at += n;
    }
}

/* The lock is held. */
static void fill(const sk_ckpt *ck, size_t at, sk_pool *pool)
{
    sk_synthetic *s = ck->synthetic;
    const sk_tensor *t = &ck->tensors[at];
    const sk_synth *recipe = &s->recipes[at];
    const uint64_t each = (uint64_t)recipe->block_bytes, n = t->n_bytes / each;
    fill_job job = {recipe, s->bytes + t->file_off};
    if (!pool || t->n_bytes < SMALL_BYTES)
        fill_part(&job, 0, (int64_t)n, 0);
    else
        sk_pool_run(pool, (int64_t)n, (int64_t)(PIECE_BYTES / each), fill_part, &job);
    atomic_store_explicit(&s->filled[at].set, true, memory_order_release);
}

static bool is_missing(const sk_ckpt *ck, size_t at, const uint8_t *marks, uint8_t mark)
{
    return marks[at] == mark &&
           !atomic_load_explicit(&ck->synthetic->filled[at].set, memory_order_acquire);
}

/* What is missing of the marked tensors, after it has been held against what is there. */
static sk_code check_room(const sk_ckpt *ck, const uint8_t *marks, uint8_t mark, uint64_t *missing,
                          sk_status *st)
{
    uint64_t there;
    *missing = 0;
    for (size_t i = 0; i < ck->n_tensors; i++) // the sum is at most the size of the mapping
        if (is_missing(ck, i, marks, mark)) *missing += ck->tensors[i].n_bytes;
    there = *missing < SMALL_BYTES ? UINT64_MAX : sk_mem_available();
    if (*missing <= there) return SK_OK;
    return SK_FAIL(st, SK_NOMEM,
                   "%s: host memory: expected room for %" PRIu64 " bytes of weights to be made, "
                   "found %" PRIu64 " available",
                   ck->label, *missing, there);
}

/* The lock is held. */
static sk_code fill_marked(const sk_ckpt *ck, const uint8_t *marks, uint8_t mark, sk_status *st)
{
    sk_pool *pool = NULL;
    uint64_t missing;
    SK_TRY(check_room(ck, marks, mark, &missing, st));
    if (missing >= SMALL_BYTES && ck->synthetic->threads > 1)
        SK_TRY(sk_pool_make(&pool, ck->synthetic->threads, st));
    for (size_t i = 0; i < ck->n_tensors; i++)
        if (is_missing(ck, i, marks, mark)) fill(ck, i, pool);
    sk_pool_drop(pool);
    return SK_OK;
}

sk_code sk_ckpt_need_marked(const sk_ckpt *ck, const uint8_t *marks, uint8_t mark, sk_status *st)
{
    sk_code rc;
    if (!ck->synthetic) return SK_OK;
    (void)pthread_mutex_lock(&ck->synthetic->lock);
    rc = fill_marked(ck, marks, mark, st);
    (void)pthread_mutex_unlock(&ck->synthetic->lock);
    return rc;
}

sk_code sk_ckpt_need(const sk_ckpt *ck, const sk_tensor *t, sk_status *st)
{
    const size_t at = (size_t)(t - ck->tensors);
    uint8_t *marks = NULL;
    sk_code rc;
    if (!ck->synthetic ||
        atomic_load_explicit(&ck->synthetic->filled[at].set, memory_order_acquire))
        return SK_OK;
    SK_TRY(sk_mem_new((void **)&marks, ck->n_tensors, 1, "marks of tensors", st));
    marks[at] = 1;
    rc = sk_ckpt_need_marked(ck, marks, 1, st);
    sk_mem_free(marks);
    return rc;
}
