/* Building a plan, printing it, and its digest. */
#include "plan/plan.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sk_plan_init(sk_plan *p, const char *name, const sk_space *space)
{
    memset(p, 0, sizeof *p);
    (void)snprintf(p->name, sizeof p->name, "%s", name);
    p->space = space;
}

void sk_plan_fini(sk_plan *p)
{
    sk_mem_free(p->steps);
    sk_mem_free(p->args);
    sk_mem_free(p->branches);
    sk_mem_free(p->results);
    sk_mem_free(p->lives);
    memset(p, 0, sizeof *p);
}

static sk_code grow_args(sk_plan *p, size_t bytes, sk_status *st)
{
    while (p->args_cap - p->args_bytes < bytes)
        SK_TRY(sk_mem_grow((void **)&p->args, p->args_cap, &p->args_cap, 1, "step arguments", st));
    return SK_OK;
}

sk_code sk_plan_append(sk_plan *p, enum sk_op op, const void *args, sk_stage stage, int32_t branch,
                       const char *label, sk_status *st)
{
    size_t bytes = (sk_ops[op].args_bytes + 15) / 16 * 16;
    sk_step step = {.op = op, .stage = stage, .branch = branch, .args_at = p->args_bytes};
    SK_TRY(grow_args(p, bytes, st));
    SK_TRY(sk_mem_grow((void **)&p->steps, p->n_steps, &p->steps_cap, sizeof *p->steps,
                       "plan steps", st));
    (void)snprintf(step.label, sizeof step.label, "%s", label);
    memcpy(p->args + p->args_bytes, args, sk_ops[op].args_bytes);
    p->args_bytes += bytes;
    p->steps[p->n_steps++] = step;
    return SK_OK;
}

/* Does an open branch have the lane? */
static bool is_taken(const sk_plan *p, int32_t lane)
{
    for (size_t i = 0; i < p->n_branches; i++)
        if (p->branches[i].join < 0 && p->branches[i].lane == lane) return true;
    return false;
}

sk_code sk_plan_fork(sk_plan *p, int32_t *branch, sk_status *st)
{
    sk_branch b = {(int32_t)p->n_branches + 1, (int32_t)p->n_steps, -1, 1};
    while (b.lane <= SK_LANES && is_taken(p, b.lane)) b.lane++;
    if (b.lane > SK_LANES)
        return SK_FAIL(st, SK_INVALID, "plan %s: expected at most %d open branches, found one more",
                       p->name, SK_LANES);
    SK_TRY(sk_mem_grow((void **)&p->branches, p->n_branches, &p->branches_cap, sizeof *p->branches,
                       "plan branches", st));
    p->branches[p->n_branches++] = b;
    *branch = b.number;
    return SK_OK;
}

sk_code sk_plan_join(sk_plan *p, int32_t branch, sk_status *st)
{
    if (branch < 1 || (size_t)branch > p->n_branches || p->branches[branch - 1].join >= 0)
        return SK_FAIL(st, SK_INVALID, "plan %s: branch %d is not open", p->name, (int)branch);
    p->branches[branch - 1].join = (int32_t)p->n_steps;
    return SK_OK;
}

sk_code sk_plan_result(sk_plan *p, int32_t buf, sk_status *st)
{
    SK_TRY(sk_mem_grow((void **)&p->results, p->n_results, &p->results_cap, sizeof *p->results,
                       "plan results", st));
    p->results[p->n_results++] = buf;
    return SK_OK;
}

const char *sk_stage_name(sk_stage stage)
{
    static const char *const names[SK_STAGE_COUNT] = {"control", "commit", "draft",
                                                      "verify",  "accept", "publish"};
    return (unsigned)stage < SK_STAGE_COUNT ? names[stage] : "?";
}

/* ---- text ---------------------------------------------------------------------------------- */

typedef struct text {
    char *p;
    size_t n, cap;
    sk_status *st;
    sk_code rc;
} text;

static void put(text *t, const char *fmt, ...) SK_PRINTF(2, 3);
static void put(text *t, const char *fmt, ...)
{
    va_list ap;
    int n;
    if (t->rc != SK_OK) return;
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    while (t->rc == SK_OK && t->cap - t->n <= (size_t)n)
        t->rc = sk_mem_grow((void **)&t->p, t->cap, &t->cap, 1, "plan text", t->st);
    if (t->rc != SK_OK) return;
    va_start(ap, fmt);
    (void)vsnprintf(t->p + t->n, t->cap - t->n, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}

static void put_shape(text *t, int32_t rank, const int64_t *dim)
{
    for (int32_t i = 0; i < rank; i++) put(t, "%s%lld", i ? "," : "[", (long long)dim[i]);
    put(t, "]");
}

static void put_view(text *t, const sk_plan *p, const sk_field *f, const sk_view *v)
{
    const sk_buf *buf = &p->space->bufs[v->buf];
    sk_view dense = sk_view_dense(v->buf, v->dtype, v->rank, v->dim);
    put(t, " %s=%s%%%d:%s", f->name, f->mode & SK_WRITE ? (f->mode & SK_READ ? "&" : "*") : "",
        (int)v->buf, sk_dtype_name(v->dtype));
    put_shape(t, v->rank, v->dim);
    if (v->off) put(t, "+%llu", (unsigned long long)v->off);
    for (int32_t i = 0; i + 1 < v->rank; i++)
        if (v->stride[i] != dense.stride[i]) put(t, "/%d:%lld", (int)i, (long long)v->stride[i]);
    if (buf->role != SK_ROLE_TRANSIENT) put(t, "(%s)", buf->name);
}

static void put_step(text *t, const sk_plan *p, size_t i)
{
    const sk_step *s = &p->steps[i];
    const void *args = sk_plan_args(p, i);
    put(t, "%4zu %-7s %d %-22s %-14s", i, sk_stage_name(s->stage), (int)s->branch, s->label,
        sk_ops[s->op].name);
    for (const sk_field *f = sk_ops[s->op].fields; f->kind != SK_FIELD_END; f++) {
        const char *at = (const char *)args + f->at;
        if (f->kind == SK_FIELD_VIEW) {
            const sk_view *v = sk_field_view_const(args, f);
            if (sk_view_present(v)) put_view(t, p, f, v);
        } else if (f->kind == SK_FIELD_I32) {
            int32_t x;
            memcpy(&x, at, sizeof x);
            put(t, " %s=%d", f->name, (int)x);
        } else {
            float x;
            memcpy(&x, at, sizeof x);
            put(t, " %s=%.9g", f->name, (double)x);
        }
    }
    put(t, "\n");
}

/* What the digest covers: steps with all arguments, branches, and every buffer they name. */
static sk_code describe(const sk_plan *p, bool with_layout, text *t)
{
    put(t, "plan %s: %zu steps\n", p->name, p->n_steps);
    for (size_t i = 0; i < p->n_branches; i++)
        put(t, "branch %d: beside steps %d..%d\n", (int)p->branches[i].number,
            (int)p->branches[i].fork, (int)p->branches[i].join);
    for (size_t i = 0; i < p->n_steps; i++) put_step(t, p, i);
    if (with_layout) {
        put(t, "transients: %zu buffers in %llu bytes\n", p->n_lives,
            (unsigned long long)p->transient_bytes);
        for (size_t i = 0; i < p->n_lives; i++) {
            const sk_life *l = &p->lives[i];
            put(t, "  %%%d %-28s steps %d..%d at %llu + %llu\n", (int)l->buf,
                p->space->bufs[l->buf].name, (int)l->first, (int)l->last,
                (unsigned long long)l->off, (unsigned long long)p->space->bufs[l->buf].bytes);
        }
    }
    return t->rc;
}

sk_code sk_plan_dump(const sk_plan *p, char **out, sk_status *st)
{
    text t = {.st = st};
    if (describe(p, true, &t) != SK_OK) {
        sk_mem_free(t.p);
        return t.rc;
    }
    *out = t.p;
    return SK_OK;
}

sk_code sk_plan_finish(sk_plan *p, sk_status *st)
{
    text t = {.st = st};
    sk_sha256 sha;
    SK_TRY(sk_plan_verify(p, st));
    SK_TRY(sk_plan_lay_out(p, st));
    if (describe(p, false, &t) == SK_OK) {
        sk_sha256_init(&sha);
        sk_sha256_add(&sha, t.p, t.n);
        sk_sha256_end(&sha, p->digest);
    }
    sk_mem_free(t.p);
    return t.rc;
}
