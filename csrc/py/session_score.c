/* Drafting, teacher-forced scoring and measuring of _native.Session: outputs go into arrays that
 * Python made. */
#include "py/session_type.h"

#include "base/mem.h"

#include <string.h>

PyObject *sk_session_py_plant(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *table_obj, *accept_obj;
    PyObject *table, *accept;
    sk_code rc;
    int slot;
    if (!PyArg_ParseTuple(args, "iOO", &slot, &table_obj, &accept_obj)) return NULL;
    table = sk_ids_from(table_obj);
    accept = table ? sk_ids_from(accept_obj) : NULL;
    if (!table || !accept || sk_session_enter(o) < 0) {
        Py_XDECREF(table);
        Py_XDECREF(accept);
        return NULL;
    }
    rc = sk_session_plant(o->s, slot, sk_ids_data(table), sk_ids_count(table), sk_ids_data(accept),
                          sk_ids_count(accept), &st);
    sk_session_leave(o);
    Py_DECREF(table);
    Py_DECREF(accept);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    Py_RETURN_NONE;
}

PyObject *sk_session_py_draft(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    int32_t out[SK_WIDTH_MAX], n;
    PyObject *ids_obj, *list;
    PyObject *ids;
    int slot, want;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "iOi", &slot, &ids_obj, &want)) return NULL;
    ids = sk_ids_from(ids_obj);
    if (!ids || sk_session_enter(o) < 0) {
        Py_XDECREF(ids);
        return NULL;
    }
    n = sk_max_i32(0, want);
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_draft(o->s, slot, sk_ids_data(ids), sk_ids_count(ids), out, &n, &st);
    Py_END_ALLOW_THREADS
    sk_session_leave(o);
    Py_DECREF(ids);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    list = PyList_New(n);
    for (int32_t i = 0; list && i < n; i++) {
        PyObject *id = PyLong_FromLong(out[i]);
        if (!id || PyList_SetItem(list, i, id) < 0) Py_CLEAR(list);
    }
    return list;
}

PyObject *sk_session_py_score_begin(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    const char *want;
    Py_ssize_t n;
    int slot;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "iy#", &slot, &want, &n) || sk_session_enter(o) < 0) return NULL;
    if (n != sk_program_n_taps(sk_session_program(o->s))) {
        sk_session_leave(o);
        PyErr_SetString(PyExc_ValueError, "outputs: expected a flag for each there is");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_score_begin(o->s, slot, (const uint8_t *)want, &st);
    Py_END_ALLOW_THREADS
    sk_session_leave(o);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    return PyLong_FromLong(sk_session_score_rows(o->s));
}

/* Where the rows of the given arrays go, {output: array [n, width]}. */
static int score_outputs(PyObject *arrays, const sk_program *p, npy_intp n, void **out)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(arrays, &at, &key, &value)) {
        PyArrayObject *a = (PyArrayObject *)value;
        const long tap = PyLong_AsLong(key);
        const int type = tap == SK_TAP_PLE_ROWS ? NPY_INT32 : NPY_FLOAT32;
        if (tap < 0 || tap >= sk_program_n_taps(p) || !PyArray_Check(value) ||
            PyArray_TYPE(a) != type || !PyArray_ISCARRAY(a) ||
            PyArray_SIZE(a) != n * sk_program_tap_width(p, (int32_t)tap)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError,
                                "outputs: expected {output: writable array [n, width]} of float32 "
                                "or int32");
            return -1;
        }
        out[tap] = PyArray_DATA(a);
    }
    return 0;
}

PyObject *sk_session_py_score_step(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *ids_obj, *given;
    PyObject *ids, *arrays;
    void **out = NULL;
    int next;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "OiO!", &ids_obj, &next, &PyDict_Type, &given)) return NULL;
    ids = sk_ids_from(ids_obj);
    arrays =
        ids ? PyDict_Copy(given) : NULL; // keeps them, whatever others do to the dict meanwhile
    if (!arrays || sk_session_enter(o) < 0) {
        Py_XDECREF(ids);
        Py_XDECREF(arrays);
        return NULL;
    }
    rc = sk_mem_new((void **)&out, (size_t)sk_program_n_taps(sk_session_program(o->s)), sizeof *out,
                    "outputs", &st);
    if (rc == SK_OK &&
        score_outputs(arrays, sk_session_program(o->s), sk_ids_count(ids), out) == 0) {
        Py_BEGIN_ALLOW_THREADS
            rc = sk_session_score_step(o->s, sk_ids_data(ids), sk_ids_count(ids), next, out, &st);
        Py_END_ALLOW_THREADS
    }
    sk_mem_free(out);
    sk_session_leave(o);
    Py_DECREF(ids);
    Py_DECREF(arrays);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

PyObject *sk_session_py_score_end(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    (void)unused;
    if (sk_session_enter(o) < 0) return NULL;
    sk_session_score_end(o->s);
    sk_session_leave(o);
    Py_RETURN_NONE;
}

/* ---- records ----------------------------------------------------------------------------------
 */

static PyObject *done_slot(const sk_done_slot *d)
{
    PyObject *tok, *out;
    if (!d->rows) Py_RETURN_NONE;
    tok = PyTuple_New(d->n);
    if (!tok) return NULL;
    for (int32_t i = 0; i < d->n; i++) {
        PyObject *id = PyLong_FromLong(d->tok[i]);
        if (!id || PyTuple_SetItem(tok, i, id) < 0) { // SetItem steals
            Py_DECREF(tok);
            return NULL;
        }
    }
    out = Py_BuildValue("(iiiNiii)", (int)d->rows, (int)d->first, (int)d->pos, tok, (int)d->drafted,
                        (int)d->accepted, (int)d->finish);
    return out;
}

PyObject *sk_session_records(const session_object *o, const sk_done *done)
{
    const int32_t n_slots = sk_session_program(o->s)->options.slots;
    PyObject *out = PyTuple_New(n_slots);
    for (int32_t i = 0; out && i < n_slots; i++) {
        PyObject *slot = done_slot(&done->slot[i]);
        if (!slot || PyTuple_SetItem(out, i, slot) < 0) Py_CLEAR(out);
    }
    return out;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static PyObject *doubles(npy_intp n) { return PyArray_SimpleNew(1, &n, NPY_FLOAT64); }

static double *at_of(PyObject *a) { return PyArray_DATA((PyArrayObject *)a); }

PyObject *sk_session_py_time(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    PyObject *wall, *gpu;
    int full, events, ahead, n;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "ippi", &n, &full, &events, &ahead)) return NULL;
    wall = doubles(n < 0 ? 0 : n);
    gpu = wall ? doubles(n < 0 ? 0 : n) : NULL;
    if (!gpu || sk_session_enter(o) < 0) {
        Py_XDECREF(wall);
        Py_XDECREF(gpu);
        return NULL;
    }
    memset(at_of(gpu), 0, (size_t)(n < 0 ? 0 : n) * sizeof(double));
    Py_BEGIN_ALLOW_THREADS
        rc = ahead ? sk_session_time_ahead(o->s, full != 0, ahead, n, at_of(wall), &st)
                   : sk_session_time(o->s, full != 0, events != 0, n, at_of(wall), at_of(gpu), &st);
    Py_END_ALLOW_THREADS
    sk_session_leave(o);
    if (rc == SK_OK) return Py_BuildValue("(NN)", wall, gpu);
    Py_DECREF(wall);
    Py_DECREF(gpu);
    return sk_session_raise(self, &st);
}

PyObject *sk_session_py_time_without(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    unsigned long long omit;
    int64_t nodes = 0;
    PyObject *us;
    int full, n;
    sk_code rc;
    if (!PyArg_ParseTuple(args, "Kpi", &omit, &full, &n)) return NULL;
    us = doubles(n < 0 ? 0 : n);
    if (!us || sk_session_enter(o) < 0) {
        Py_XDECREF(us);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_time_without(o->s, omit, full != 0, n, at_of(us), &nodes, &st);
    Py_END_ALLOW_THREADS
    sk_session_leave(o);
    if (rc == SK_OK) return Py_BuildValue("(NL)", us, (long long)nodes);
    Py_DECREF(us);
    return sk_session_raise(self, &st);
}

PyObject *sk_session_py_timed(PyObject *self, PyObject *args)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    const sk_done *done = NULL;
    PyObject *records;
    sk_timed t;
    sk_code rc;
    int full;
    if (!PyArg_ParseTuple(args, "p", &full) || sk_session_enter(o) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
        rc = sk_session_timed(o->s, full != 0, &t, &done, &st);
    Py_END_ALLOW_THREADS
    records = rc == SK_OK ? sk_session_records(o, done) : NULL;
    sk_session_leave(o);
    if (rc != SK_OK) return sk_session_raise(self, &st);
    return records ? Py_BuildValue("(Nddd)", records, t.wall_us, t.submit_us, t.gpu_us) : NULL;
}

PyObject *sk_session_py_routes(PyObject *self, PyObject *unused)
{
    session_object *o = (session_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_code rc = SK_OK;
    PyObject *out = NULL;
    sk_routes r;
    (void)unused;
    if (sk_session_enter(o) < 0) return NULL;
    out = PyList_New(0);
    for (size_t i = 0; out && rc == SK_OK && sk_session_routes_find(o->s, i, &r); i++) {
        npy_intp dims[2] = {r.n_rows, r.n};
        PyObject *ids = PyArray_SimpleNew(2, dims, NPY_INT32);
        PyObject *item = ids ? Py_BuildValue("(sN)", r.label, ids) : NULL; // N takes ids over
        if (item) rc = sk_session_routes_read(o->s, &r, PyArray_DATA((PyArrayObject *)ids), &st);
        if (!item || PyList_Append(out, item) < 0) Py_CLEAR(out);
        Py_XDECREF(item);
    }
    sk_session_leave(o);
    if (rc == SK_OK) return out;
    Py_XDECREF(out);
    return sk_session_raise(self, &st);
}

/* Bytes of weights that a step reads: all of each, but of a table only the rows of the pass. */
static uint64_t step_weights(const sk_program *p, const sk_plan *plan, size_t step)
{
    const enum sk_op op = plan->steps[step].op;
    const void *args = sk_plan_args(plan, step);
    uint64_t bytes = 0;
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        const sk_buf *b;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v)) continue;
        b = &p->space.bufs[v->buf];
        if (b->role != SK_ROLE_WEIGHT) continue;
        bytes += op == SK_OP_gather_rows || op == SK_OP_route_force ? b->bytes / (uint64_t)b->dim[0]
                                                                    : b->bytes;
    }
    return bytes;
}

/* A list of (op, bytes), one for each step of the smallest round. */
static PyObject *list_bytes(session_object *o, int full, int32_t positions)
{
    PyObject *out = NULL;
    const sk_program *p;
    const sk_plan *plan;
    if (sk_session_enter(o) < 0) return NULL;
    p = sk_session_program(o->s);
    plan = &p->rounds[sk_program_round_find(p, 1, full != 0)].plan;
    out = PyList_New((Py_ssize_t)plan->n_steps);
    for (size_t i = 0; out && i < plan->n_steps; i++) {
        const uint64_t n = positions < 0 ? step_weights(p, plan, i)
                                         : sk_state_step_bytes(&p->space, plan, i, positions);
        PyObject *item =
            Py_BuildValue("(sK)", sk_ops[plan->steps[i].op].name, (unsigned long long)n);
        if (!item || PyList_SetItem(out, (Py_ssize_t)i, item) < 0) Py_CLEAR(out);
    }
    sk_session_leave(o);
    return out;
}

PyObject *sk_session_py_step_bytes(PyObject *self, PyObject *args)
{
    int full;
    if (!PyArg_ParseTuple(args, "p", &full)) return NULL;
    return list_bytes((session_object *)self, full, -1);
}

PyObject *sk_session_py_state_bytes(PyObject *self, PyObject *args)
{
    int full, positions;
    if (!PyArg_ParseTuple(args, "pi", &full, &positions)) return NULL;
    return list_bytes((session_object *)self, full, positions < 0 ? 0 : positions);
}
