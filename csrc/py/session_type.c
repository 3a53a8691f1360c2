/* _native.Session: the verbs of engine/session.h for Python. Thin on purpose: token ids and options
 * in, arrays and tuples out; convenience is Python's. */
#include "py/session_type.h"

#include "base/mem.h"
#include "op/cpu/cpu.h"
#include "py/ckpt_type.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sk_module_state *state_of(PyObject *self) { return sk_state_of_type(Py_TYPE(self)); }

PyObject *sk_session_raise(PyObject *self, const sk_status *st)
{
    return sk_raise(state_of(self), st);
}

/* ---- entry and exit ------------------------------------------------------------------------ */

int sk_session_enter(session_object *o)
{
    sk_status st = SK_STATUS_INIT;
    if (o->process != getpid()) {
        (void)SK_FAIL(&st, SK_STATE,
                      "session: expected process %ld, which opened it, found %ld; a forked child "
                      "opens its own",
                      (long)o->process, (long)getpid());
    } else if (atomic_flag_test_and_set(&o->busy)) {
        (void)SK_FAIL(&st, SK_STATE, "session: expected idle, found it running in another thread");
    } else if (!o->s) {
        atomic_flag_clear(&o->busy);
        (void)SK_FAIL(&st, SK_STATE, "session: expected open, found it closed");
    } else {
        return 0;
    }
    (void)sk_raise(state_of((PyObject *)o), &st);
    return -1;
}

void sk_session_leave(session_object *o) { atomic_flag_clear(&o->busy); }

/* Runs `call` (which assigns to rc) without the GIL, then leaves and raises if it failed. */
#define NATIVE(o, st, call)                                                                        \
    do {                                                                                           \
        sk_code rc = SK_OK;                                                                        \
        Py_BEGIN_ALLOW_THREADS                                                                     \
            rc = (call);                                                                           \
        Py_END_ALLOW_THREADS                                                                       \
        sk_session_leave(o);                                                                       \
        if (rc != SK_OK) return sk_raise(state_of((PyObject *)(o)), &(st));                        \
    } while (0)

PyObject *sk_ids_from(PyObject *obj)
{
    return PyArray_FROM_OTF(obj, NPY_INT32, NPY_ARRAY_IN_ARRAY | NPY_ARRAY_ENSUREARRAY);
}

const int32_t *sk_ids_data(PyObject *ids)
{
    return (const int32_t *)PyArray_DATA((PyArrayObject *)ids);
}

int32_t sk_ids_count(PyObject *ids)
{
    return (int32_t)sk_min_size((size_t)PyArray_SIZE((PyArrayObject *)ids), INT32_MAX);
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Tells the caller's function, which runs with the GIL; an exception of it ends the loading. */
static bool tell(void *ctx, uint64_t done, uint64_t total)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *said =
        PyObject_CallFunction(ctx, "KK", (unsigned long long)done, (unsigned long long)total);
    const bool go_on = said != NULL;
    Py_XDECREF(said);
    PyGILState_Release(gil);
    return go_on;
}

int sk_options_parse(PyObject *args, PyObject **checkpoint, PyObject **draft, sk_options *o)
{
    PyObject *progress = Py_None;
    const char *kernels;
    int slots, ctx, chunk, threads, f32, poison, device, mode, edges, kind, k, n_max, n_min,
        per_stream, in_ram, fused, forced, routing, plants, seed;
    *draft = Py_None;
    if (!PyArg_ParseTuple(args, "O(iiiipspiipiiiippp(pipi))|OO", checkpoint, &slots, &ctx, &chunk,
                          &threads, &f32, &kernels, &poison, &device, &mode, &edges, &kind, &k,
                          &n_max, &n_min, &per_stream, &in_ram, &fused, &forced, &routing, &plants,
                          &seed, &progress, draft))
        return -1;
    *o = (sk_options){.slots = slots,
                      .ctx = ctx,
                      .prefill_chunk = chunk,
                      .threads = threads,
                      .f32 = f32 != 0,
                      .poison = poison != 0,
                      .device = device,
                      .mode = (sk_mode)mode,
                      .edges = edges != 0,
                      .table_in_ram = in_ram != 0,
                      .fused = fused != 0,
                      .forced = {forced != 0, (sk_routing)routing, plants != 0, seed},
                      .drafter = {.kind = (sk_drafter_kind)kind,
                                  .k = k,
                                  .n_max = n_max,
                                  .n_min = n_min,
                                  .per_stream = per_stream != 0}};
    (void)snprintf(o->kernels, sizeof o->kernels, "%s", kernels);
    if (progress != Py_None) o->progress = (sk_progress){tell, progress};
    return 0;
}

PyObject *sk_session_py_open(PyTypeObject *type, PyObject *args, const sk_beside *beside)
{
    sk_module_state *ms = sk_state_of_type(type);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    sk_status st = SK_STATUS_INIT;
    PyObject *checkpoint, *draft, *weights = NULL, *draft_weights = NULL;
    session_object *o;
    sk_options options;
    sk_ckpt *ck;
    sk_code rc;
    if (sk_options_parse(args, &checkpoint, &draft, &options) < 0) return NULL;
    ck = sk_checkpoint_share(ms, checkpoint, &weights, &st);
    if (!ck) return sk_raise(ms, &st);
    if (draft != Py_None) options.draft = sk_checkpoint_share(ms, draft, &draft_weights, &st);
    o = draft == Py_None || options.draft ? (session_object *)alloc(type, 0) : NULL;
    if (!o) {
        Py_DECREF(weights);
        Py_XDECREF(draft_weights);
        return PyErr_Occurred() ? NULL : sk_raise(ms, &st);
    }
    atomic_flag_clear(&o->busy);
    o->weights = weights;
    o->draft_weights = draft_weights;
    o->process = getpid();
    o->s = NULL;
    Py_BEGIN_ALLOW_THREADS
        rc = beside ? sk_diff_open(&o->s, ck, &options, beside->device, beside->exact, &st)
                    : sk_session_open(&o->s, ck, &options, &st);
    Py_END_ALLOW_THREADS
    if (rc != SK_OK) {
        Py_DECREF(o);
        return PyErr_Occurred() ? NULL : sk_raise(ms, &st); // the caller's own exception goes first
    }
    return (PyObject *)o;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (!kwargs || PyDict_Size(kwargs) == 0) return sk_session_py_open(type, args, NULL);
    PyErr_SetString(PyExc_TypeError, "Session takes no keyword arguments");
    return NULL;
}

static void session_dealloc(PyObject *self)
{
    session_object *o = (session_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
    sk_session_close(o->s);
    Py_XDECREF(o->weights);
    Py_XDECREF(o->draft_weights);
    free_slot(self);
    Py_DECREF(type);
}

static PyObject *session_close(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_session *s;
    (void)unused;
    if (atomic_flag_test_and_set(&o->busy)) {
        (void)SK_FAIL(&st, SK_STATE, "session: expected idle, found it running in another thread");
        return sk_session_raise(self, &st);
    }
    s = o->s;
    o->s = NULL;
    Py_BEGIN_ALLOW_THREADS
        sk_session_close(s);
    Py_END_ALLOW_THREADS
    Py_CLEAR(o->weights); // the file may go now, and not only when this object does
    sk_session_leave(o);
    Py_RETURN_NONE;
}

/* ---- requests ------------------------------------------------------------------------------ */

static PyObject *session_start(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_request request = {0};
    PyObject *ids_obj, *stop_obj;
    PyObject *ids, *stop;
    int slot, max_tokens, keep;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "iO(iO)p", &slot, &ids_obj, &max_tokens, &stop_obj, &keep))
        return NULL;
    ids = sk_ids_from(ids_obj);
    stop = ids ? sk_ids_from(stop_obj) : NULL;
    if (!ids || !stop || sk_session_enter(o) < 0) {
        Py_XDECREF(ids);
        Py_XDECREF(stop);
        return NULL;
    }
    request.max_tokens = max_tokens;
    request.n_stop = (int32_t)sk_min_size((size_t)sk_ids_count(stop), SK_STOP_MAX + 1);
    memcpy(request.stop, sk_ids_data(stop),
           sk_min_size((size_t)request.n_stop, SK_STOP_MAX) * sizeof *request.stop);
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_start(o->s, slot, sk_ids_data(ids), sk_ids_count(ids), &request, keep != 0,
                              &st);
    Py_END_ALLOW_THREADS
    sk_session_leave(o);
    Py_DECREF(ids);
    Py_DECREF(stop);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    Py_RETURN_NONE;
}

static PyObject *session_prefill(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    int slot, chunks;
    int64_t left = 0;
    if (!PyArg_ParseTuple(args, "ii", &slot, &chunks) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_prefill(o->s, slot, chunks, &left, &st));
    return PyLong_FromLongLong(left);
}

/* [slots] licences from a sequence of (licence, stop) pairs or None. */
static int licences_from(PyObject *obj, int32_t n_slots, sk_ctl_slot out[SK_SLOTS_MAX])
{
    Py_ssize_t n = PySequence_Size(obj);
    if (n < 0) return -1;
    if (n != n_slots) {
        PyErr_Format(PyExc_TypeError, "licences: expected %d, found %zd", (int)n_slots, n);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(obj, i);
        int licence = SK_LICENCE_ALL, stop = 0;
        int ok = item && (item == Py_None || PyArg_ParseTuple(item, "ip", &licence, &stop));
        Py_XDECREF(item);
        if (!ok) return -1;
        out[i] = (sk_ctl_slot){licence, stop};
    }
    return 0;
}

static PyObject *session_round(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_ctl_slot licence[SK_SLOTS_MAX];
    const sk_done *done = NULL;
    PyObject *licence_obj, *out;
    int32_t n_slots;
    int full = 1, ahead = 0;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "O|pi", &licence_obj, &full, &ahead) || sk_session_enter(o) < 0)
        return NULL;
    n_slots = sk_session_program(o->s)->options.slots;
    if (licence_obj != Py_None && licences_from(licence_obj, n_slots, licence) < 0) {
        sk_session_leave(o);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_round(o->s, licence_obj == Py_None ? NULL : licence, full != 0, ahead,
                              &done, &st);
    Py_END_ALLOW_THREADS
    // The record is the session's, so nobody else may enter before it has been read.
    out = rc == SK_OK ? sk_session_records(o, done) : NULL;
    sk_session_leave(o);
    return rc == SK_OK ? out : sk_session_raise(self, &st);
}

static PyObject *session_logits(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *out = NULL;
    npy_intp dims[2];
    int first, n;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "ii", &first, &n) || sk_session_enter(o) < 0) return NULL;
    rc = sk_session_logits_check(o->s, first, n, &st);
    if (rc == SK_OK) {
        dims[0] = n;
        dims[1] = sk_model_config(sk_session_program(o->s)->model)->vocab;
        out = PyArray_SimpleNew(2, dims, NPY_FLOAT32);
    }
    if (out) rc = sk_session_logits(o->s, first, n, PyArray_DATA((PyArrayObject *)out), &st);
    sk_session_leave(o);
    if (rc == SK_OK) return out;
    Py_XDECREF(out);
    return sk_session_raise(self, &st);
}

typedef sk_code (*slot_verb)(sk_session *s, int32_t slot, int32_t licence, sk_status *st);

static PyObject *with_licence(PyObject *self, PyObject *args, slot_verb verb)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    int slot, licence;
    if (!PyArg_ParseTuple(args, "ii", &slot, &licence) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, verb(o->s, slot, licence, &st));
    Py_RETURN_NONE;
}

static PyObject *session_settle(PyObject *self, PyObject *args)
{
    return with_licence(self, args, sk_session_settle);
}

static PyObject *session_finish(PyObject *self, PyObject *args)
{
    return with_licence(self, args, sk_session_finish);
}

static PyObject *session_reset(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    int slot;
    if (!PyArg_ParseTuple(args, "i", &slot) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_reset(o->s, slot, &st));
    Py_RETURN_NONE;
}

/* ---- state --------------------------------------------------------------------------------- */

static PyObject *session_slot(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_slot slot;
    int at;
    if (!PyArg_ParseTuple(args, "i", &at) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_slot(o->s, at, &slot, &st));
    return Py_BuildValue("{sOsisisisi}", "active", slot.active ? Py_True : Py_False, "n",
                         (int)slot.n, "anchor", (int)slot.anchor, "emitted", (int)slot.emitted,
                         "finish", (int)slot.finish);
}

static PyObject *session_counters(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *at_list;
    sk_counters c;
    int at;
    if (!PyArg_ParseTuple(args, "i", &at) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_counters(o->s, at, &c, &st));
    at_list = PyList_New(SK_WIDTH_MAX);
    for (int i = 0; at_list && i < SK_WIDTH_MAX; i++) {
        PyObject *n = PyLong_FromLongLong(c.accepted_at[i]);
        if (!n || PyList_SetItem(at_list, i, n) < 0) Py_CLEAR(at_list);
    }
    return Py_BuildValue(
        "{sLsLsLsLsLsLsLsLsLsN}", "rounds", (long long)c.rounds, "rounds_without_draft",
        (long long)c.rounds_without_draft, "proposed", (long long)c.proposed, "verified",
        (long long)c.verified, "accepted", (long long)c.accepted, "emitted", (long long)c.emitted,
        "emitted_by_prefill", (long long)c.emitted_by_prefill, "discarded_after_stop",
        (long long)c.discarded_after_stop, "gpu_ns", (long long)c.gpu_ns, "accepted_at", at_list);
}

static PyObject *session_save(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    uint8_t *blob = NULL;
    uint64_t n_bytes = 0;
    PyObject *out;
    int slot;
    if (!PyArg_ParseTuple(args, "i", &slot) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_save(o->s, slot, &blob, &n_bytes, &st));
    out = PyBytes_FromStringAndSize((const char *)blob, (Py_ssize_t)n_bytes);
    sk_mem_free(blob);
    return out;
}

static PyObject *session_restore(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *bytes; // immutable and held by args: stays valid without the GIL
    int slot;
    if (!PyArg_ParseTuple(args, "iS", &slot, &bytes) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st,
           sk_session_restore(o->s, slot, (const uint8_t *)PyBytes_AsString(bytes),
                              (uint64_t)PyBytes_Size(bytes), &st));
    Py_RETURN_NONE;
}

static PyObject *session_copy(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    int from, to;
    if (!PyArg_ParseTuple(args, "ii", &from, &to) || sk_session_enter(o) < 0) return NULL;
    NATIVE(o, st, sk_session_copy(o->s, from, to, &st));
    Py_RETURN_NONE;
}

/* ---- looking ------------------------------------------------------------------------------- */

static PyObject *plan_tuple(const sk_plan *p)
{
    sk_status st = SK_STATUS_INIT;
    char *text = NULL, hex[2 * SK_SHA256_BYTES + 1];
    PyObject *out;
    if (sk_plan_dump(p, &text, &st) != SK_OK) return PyErr_NoMemory();
    for (int i = 0; i < SK_SHA256_BYTES; i++) PyOS_snprintf(hex + 2 * i, 3, "%02x", p->digest[i]);
    out = Py_BuildValue("(ssnK)", text, hex, (Py_ssize_t)p->n_steps,
                        (unsigned long long)p->transient_bytes);
    sk_mem_free(text);
    return out;
}

static PyObject *session_plans(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    const sk_program *p;
    PyObject *out;
    int ok = 1;
    (void)unused;
    if (sk_session_enter(o) < 0) return NULL;
    p = sk_session_program(o->s);
    out = PyDict_New();
    for (int32_t i = 0; out && ok && i <= p->n_rounds; i++) {
        const sk_plan *plan = i < p->n_rounds ? &p->rounds[i].plan : &p->prefill.plan;
        PyObject *name = i < 2 || i == p->n_rounds
                             ? PyUnicode_FromString(plan->name)
                             : PyUnicode_FromFormat("%s.%d", plan->name, (int)p->rounds[i].n_rows);
        PyObject *view = name ? plan_tuple(plan) : NULL;
        ok = view && PyDict_SetItem(out, name, view) == 0;
        Py_XDECREF(name);
        Py_XDECREF(view);
    }
    sk_session_leave(o);
    if (!ok) Py_CLEAR(out);
    return out;
}

static PyObject *session_memory(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    PyObject *out;
    sk_mem_item item;
    (void)unused;
    if (sk_session_enter(o) < 0) return NULL;
    out = PyDict_New();
    for (size_t i = 0; out && sk_session_memory(o->s, i, &item); i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(item.bytes);
        if (!n || PyDict_SetItemString(out, item.owner, n) < 0) Py_CLEAR(out);
        Py_XDECREF(n);
    }
    sk_session_leave(o);
    return out;
}

static PyObject *session_config(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    const sk_program *p;
    const sk_config *c;
    const char *kernels;
    PyObject *out;
    (void)unused;
    if (sk_session_enter(o) < 0) return NULL;
    p = sk_session_program(o->s);
    c = sk_model_config(p->model);
    kernels = strcmp(p->options.kernels, "fast") == 0 ? sk_cpu_isa() : p->options.kernels;
    out = Py_BuildValue(
        "{sssisisisisisisisisisisisssOsisisisisisisisLsL}", "architecture", c->arch, "n_layer",
        (int)c->n_layer, "dim", (int)c->dim, "n_head", (int)c->n_head, "n_kv", (int)c->n_kv,
        "head_dim", (int)c->head_dim, "ffn", (int)c->ffn, "vocab", (int)c->vocab, "ctx_train",
        (int)c->ctx_train, "width", (int)p->width, "rows", (int)p->n_rows, "threads",
        (int)p->options.threads, "kernels", kernels, "edges",
        sk_session_edges(o->s) ? Py_True : Py_False, "graphs", (int)sk_session_graphs(o->s),
        "residual", (int)c->width, "streams", (int)c->hybrid.n_stream, "ple_heads",
        (int)sk_program_tap_width(p, SK_TAP_PLE_ROWS), "mtp", p->mtp != NULL, "experts",
        (int)c->hybrid.n_expert, "routes", (int)c->hybrid.n_used, "replays",
        (long long)sk_session_replays(o->s), "nodes", (long long)sk_session_nodes(o->s));
    sk_session_leave(o);
    return out;
}

#define DOC(name, sig, text) #name "($self, " sig ")\n--\n\n" text

static PyMethodDef methods[] = {
    {"close", session_close, METH_NOARGS, DOC(close, "/", "Frees the session. Idempotent.")},
    {"start", session_start, METH_VARARGS,
     DOC(start, "slot, ids, limits, keep, /",
         "Puts a request into an idle slot. ids: int32; limits: (max_tokens, stop ids).")},
    {"prefill", session_prefill, METH_VARARGS,
     DOC(prefill, "slot, chunks, /", "Runs prefill chunks; returns the number of tokens left.")},
    {"round", session_round, METH_VARARGS,
     DOC(round, "licences, full=True, ahead=0, /",
         "One round. licences: None or per slot None or (licence, stop); full: with logits; "
         "ahead:\n"
         "rounds that a device may run on. Returns per slot None or\n"
         "(rows, first row, position, tokens, drafted, accepted, finish).")},
    {"logits", session_logits, METH_VARARGS,
     DOC(logits, "first, n, /", "Rows of the last round's logits, a float32 copy [n, vocab].")},
    {"settle", session_settle, METH_VARARGS,
     DOC(settle, "slot, licence, /", "Commits pending rows; licence -1 keeps all.")},
    {"finish", session_finish, METH_VARARGS,
     DOC(finish, "slot, licence, /", "Settles and makes the slot idle.")},
    {"reset", session_reset, METH_VARARGS, DOC(reset, "slot, /", "Forgets what the slot holds.")},
    {"slot", session_slot, METH_VARARGS, DOC(slot, "slot, /", "Settled bookkeeping of a slot.")},
    {"counters", session_counters, METH_VARARGS,
     DOC(counters, "slot, /", "Counters of the slot's request.")},
    {"save", session_save, METH_VARARGS,
     DOC(save, "slot, /", "The slot's settled state as canonical bytes.")},
    {"restore", session_restore, METH_VARARGS,
     DOC(restore, "slot, state, /", "Puts saved state into an idle slot.")},
    {"copy", session_copy, METH_VARARGS,
     DOC(copy, "source, target, /", "Copies settled state into an idle slot.")},
    {"step_bytes", sk_session_py_step_bytes, METH_VARARGS,
     DOC(step_bytes, "full, /",
         "For each step of the smallest round its op and the bytes of weights that it reads.")},
    {"state_bytes", sk_session_py_state_bytes, METH_VARARGS,
     DOC(state_bytes, "full, positions, /",
         "For each of these steps the bytes of state that it reads for a slot of so many "
         "positions.")},
    {"time", sk_session_py_time, METH_VARARGS,
     DOC(time, "n, full, events, ahead, /",
         "n rounds on a device: (wall us, us between events), float64 [n] each.")},
    {"timed", sk_session_py_timed, METH_VARARGS,
     DOC(timed, "full, /",
         "One round: (as of round, wall us, us to submit it, us between events on a device).")},
    {"routes", sk_session_py_routes, METH_NOARGS,
     DOC(routes, "/",
         "Of a measuring session the experts of the last round: [(step, int32 [rows, routes])].")},
    {"time_without", sk_session_py_time_without, METH_VARARGS,
     DOC(time_without, "omit, full, n, /",
         "n replays of the present round without the ops of the bit mask: (us [n], nodes).")},
    {"plant", sk_session_py_plant, METH_VARARGS,
     DOC(plant, "slot, table, accept, /", "Sets what the planted drafter proposes.")},
    {"draft", sk_session_py_draft, METH_VARARGS,
     DOC(draft, "slot, ids, n, /", "What the drafter proposes after ids, at most n tokens.")},
    {"score_begin", sk_session_py_score_begin, METH_VARARGS,
     DOC(score_begin, "slot, want, /",
         "Opens teacher-forced scoring; returns the most rows of a step. want: a flag byte for\n"
         "logits, mtp_logits, ple_rows and every layer.")},
    {"score_step", sk_session_py_score_step, METH_VARARGS,
     DOC(score_step, "ids, next, outputs, /",
         "Scores the next tokens into arrays by the number of the output; next: the token behind\n"
         "them, or -1.")},
    {"score_end", sk_session_py_score_end, METH_NOARGS, DOC(score_end, "/", "Closes scoring.")},
    {"plans", session_plans, METH_NOARGS,
     DOC(plans, "/", "{name: (text, sha256, steps, transient bytes)}.")},
    {"memory", session_memory, METH_NOARGS, DOC(memory, "/", "{owner: bytes}.")},
    {"config", session_config, METH_NOARGS, DOC(config, "/", "Geometry of the model and session.")},
    {NULL, NULL, 0, NULL},
};

static char type_doc[] = "Session(checkpoint, options, progress=None, /)\n--\n\n"
                         "Plans bound to memory; see stoker.Engine.";

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)session_new},
    {Py_tp_dealloc, (void *)session_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, type_doc},
    {0, NULL},
};

PyType_Spec sk_session_spec = {
    .name = "stoker._native.Session",
    .basicsize = sizeof(session_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
