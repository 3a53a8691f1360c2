/* `_native.sizes`: what a session would take, by the functions by which it is opened, without one.
 */
#include "engine/device.h"
#include "py/ckpt_type.h"
#include "py/session_type.h"

static const char *area_name(sk_area area)
{
    static const char *const names[] = {
        [SK_AREA_WEIGHTS] = "weights", [SK_AREA_STATE] = "state",   [SK_AREA_CONTROL] = "control",
        [SK_AREA_RINGS] = "rings",     [SK_AREA_TABLES] = "tables",
    };
    return names[area];
}

static const char *role_name(sk_role role)
{
    static const char *const names[] = {
        [SK_ROLE_WEIGHT] = "weight",   [SK_ROLE_STATE] = "state", [SK_ROLE_PENDING] = "pending",
        [SK_ROLE_CONTROL] = "control", [SK_ROLE_TRANSIENT] = "",  [SK_ROLE_WORK] = "",
    };
    return names[role];
}

/* Appends and takes over the reference; -1 with an exception. */
static int put(PyObject *list, PyObject *item)
{
    const int rc = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return rc;
}

/* (name, role, area or None, type, bytes there, bytes as stored, flag, of a row, positions of a
 * row). The flag: of a weight, is it computed at load; else, is it part of a request's settled
 * state. The last two are 0 where the buffer does not grow with the context. */
static PyObject *buffer_tuple(const sk_program *p, size_t at)
{
    const sk_buf *b = &p->space.bufs[at];
    const bool grows = b->keep == SK_KEEP_ROWS;
    const bool flag = b->role == SK_ROLE_WEIGHT ? b->computed : b->keep != SK_KEEP_NONE;
    sk_area area;
    const char *where = sk_sizes_area(p, at, &area) ? area_name(area) : NULL;
    return Py_BuildValue(
        "(sszsKKOKi)", b->name, role_name(b->role), where, sk_dtype_name(b->dtype),
        (unsigned long long)sk_sizes_bytes(p, at), (unsigned long long)b->bytes,
        flag ? Py_True : Py_False,
        (unsigned long long)(grows ? b->bytes / (uint64_t)(b->dim[0] * b->dim[1]) : 0),
        grows ? (int)b->keep_unit : 0);
}

static PyObject *buffers_of(const sk_program *p)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < p->space.n; i++)
        if (p->space.bufs[i].role != SK_ROLE_TRANSIENT && put(list, buffer_tuple(p, i)) < 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *memory_of(const sk_program *p, const sk_sizes *s)
{
    PyObject *dict = PyDict_New();
    sk_mem_item item;
    for (size_t i = 0; dict && sk_sizes_item(s, p, i, &item); i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(item.bytes);
        if (!n || PyDict_SetItemString(dict, item.owner, n) < 0) Py_CLEAR(dict);
        Py_XDECREF(n);
    }
    return dict;
}

static PyObject *sizes_dict(const sk_sizes *s)
{
    return Py_BuildValue(
        "{sKsKsKsKsKsKsKsKsK}", "weights", (unsigned long long)s->weights, "state",
        (unsigned long long)s->state, "control", (unsigned long long)s->control, "rings",
        (unsigned long long)s->rings, "tables", (unsigned long long)s->tables, "transients",
        (unsigned long long)s->transients, "work", (unsigned long long)s->work, "scratch",
        (unsigned long long)s->scratch, "staging", (unsigned long long)s->staging);
}

/* The plans of a program, the prefill behind the rounds. */
static const sk_plan *plan_at(const sk_program *p, int32_t i, int32_t *rows)
{
    *rows = i < p->n_rounds ? p->rounds[i].n_rows : p->prefill.n_rows;
    return i < p->n_rounds ? &p->rounds[i].plan : &p->prefill.plan;
}

static uint64_t work_of(const sk_program *p, const sk_plan *plan)
{
    return p->options.device >= 0 ? sk_walk_work_bytes(plan, p->options.ctx)
                                  : sk_exec_work_bytes(plan, p->options.threads);
}

static PyObject *plans_of(const sk_program *p)
{
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i <= p->n_rounds; i++) {
        int32_t rows;
        const sk_plan *plan = plan_at(p, i, &rows);
        if (put(list, Py_BuildValue("(sinKK)", plan->name, (int)rows, (Py_ssize_t)plan->n_steps,
                                    (unsigned long long)plan->transient_bytes,
                                    (unsigned long long)work_of(p, plan))) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Of each op that wants scratch on a device the most that a step does. */
static PyObject *work_by_op(const sk_program *p)
{
    uint64_t most[SK_OP_COUNT] = {0};
    PyObject *dict = PyDict_New();
    int32_t rows;
    for (int32_t i = 0; p->options.device >= 0 && i <= p->n_rounds; i++) {
        const sk_plan *plan = plan_at(p, i, &rows);
        for (size_t k = 0; k < plan->n_steps; k++) {
            const enum sk_op op = plan->steps[k].op;
            const uint64_t n = sk_cuda_work_bytes(op, sk_plan_args(plan, k), p->options.ctx);
            if (n > most[op]) most[op] = n;
        }
    }
    for (int op = 0; dict && op < SK_OP_COUNT; op++) {
        PyObject *n = most[op] ? PyLong_FromUnsignedLongLong(most[op]) : NULL;
        if (most[op] && (!n || PyDict_SetItemString(dict, sk_ops[op].name, n) < 0)) Py_CLEAR(dict);
        Py_XDECREF(n);
    }
    return dict;
}

/* (plan, rows, step, label, text) of every step that the device has no kernel for. */
static PyObject *refused_of(const sk_program *p)
{
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; p->options.device >= 0 && list && i <= p->n_rounds; i++) {
        int32_t rows;
        const sk_plan *plan = plan_at(p, i, &rows);
        for (size_t k = 0; list && k < plan->n_steps; k++) {
            sk_status st = SK_STATUS_INIT;
            if (sk_walk_check_step(plan, k, &st) == SK_OK) continue;
            if (put(list, Py_BuildValue("(siiss)", plan->name, (int)rows, (int)k,
                                        plan->steps[k].label, st.msg)) < 0)
                Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *answer(const sk_program *p, const sk_sizes *s)
{
    int32_t tier[SK_TIERS_MAX];
    const int32_t n_tiers = p->options.device >= 0 ? sk_device_tiers(p->options.ctx, tier) : 0;
    return Py_BuildValue("{sNsNsNsNsNsNsisi}", "memory", memory_of(p, s), "sizes", sizes_dict(s),
                         "buffers", buffers_of(p), "plans", plans_of(p), "work", work_by_op(p),
                         "refused", refused_of(p), "tiers", (int)n_tiers, "rows", (int)p->n_rows);
}

static PyObject *sizes(PyObject *module, PyObject *args)
{
    sk_module_state *ms = sk_state_of(module);
    sk_status st = SK_STATUS_INIT;
    PyObject *checkpoint, *draft, *weights = NULL, *draft_weights = NULL, *out = NULL;
    sk_program p;
    sk_sizes s;
    sk_options options;
    sk_ckpt *ck;
    sk_code rc = SK_STATE;
    if (sk_options_parse(args, &checkpoint, &draft, &options) < 0) return NULL;
    options.sizes_only = true;
    ck = sk_checkpoint_share(ms, checkpoint, &weights, &st);
    if (ck && draft != Py_None) options.draft = sk_checkpoint_share(ms, draft, &draft_weights, &st);
    if (ck && (draft == Py_None || options.draft)) {
        Py_BEGIN_ALLOW_THREADS
            rc = sk_program_open(&p, ck, &options, &st);
            if (rc == SK_OK) {
                rc = sk_sizes_init(&s, &p, &st);
                if (rc != SK_OK) sk_program_close(&p);
            }
        Py_END_ALLOW_THREADS
    }
    if (rc == SK_OK) {
        out = answer(&p, &s);
        sk_program_close(&p);
    } else {
        (void)sk_raise(ms, &st);
    }
    Py_XDECREF(weights);
    Py_XDECREF(draft_weights);
    return out;
}

PyMethodDef sk_sizes_methods[] = {
    {"sizes", sizes, METH_VARARGS,
     "sizes($module, checkpoint, options, progress=None, draft=None, /)\n--\n\n"
     "What Session of the same arguments would take, without taking it and without a device."},
    {NULL, NULL, 0, NULL},
};
