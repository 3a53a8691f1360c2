/* The step diff for Python: a session whose steps are compared, its records as tuples, and the
 * comparison itself on given arrays. stoker.stepdiff names the numbers. */
#include "py/session_type.h"

#include <string.h>

static PyObject *open_beside(PyObject *module, PyObject *args)
{
    sk_module_state *ms = sk_state_of(module);
    PyObject *checkpoint, *options, *pair, *session;
    sk_beside beside;
    int device, exact;
    if (!PyArg_ParseTuple(args, "OOip", &checkpoint, &options, &device, &exact)) return NULL;
    beside = (sk_beside){device, exact != 0};
    pair = PyTuple_Pack(2, checkpoint, options);
    if (!pair) return NULL;
    session = sk_session_py_open((PyTypeObject *)ms->session_type, pair, &beside);
    Py_DECREF(pair);
    return session;
}

/* Takes the session for the caller; NULL with an exception when it cannot or has no diff. */
static session_object *enter(PyObject *object)
{
    session_object *o = (session_object *)object;
    sk_status st = SK_STATUS_INIT;
    if (sk_session_enter(o) < 0) return NULL;
    if (sk_diff_has(o->s)) return o;
    (void)SK_FAIL(&st, SK_STATE, "session: expected one of diff_open, found another");
    sk_session_leave(o);
    (void)sk_session_raise(object, &st);
    return NULL;
}

/* ---- records --------------------------------------------------------------------------------- */

static PyObject *gap_tuple(const sk_gap *g, sk_rule rule)
{
    return Py_BuildValue("(sddOLLLLLidd(LLdd))", sk_rule_name(rule), sk_gap_value(g, rule),
                         sk_rule_bound(rule), sk_gap_ok(g, rule) ? Py_True : Py_False,
                         (long long)g->n, (long long)g->mismatches, (long long)g->not_finite,
                         (long long)g->stray, (long long)g->off, (int)g->ulps, g->rel_l2,
                         g->max_rel, (long long)g->row, (long long)g->col, g->got, g->want);
}

static PyObject *shape_tuple(const sk_diff_item *it)
{
    PyObject *shape = PyTuple_New(it->rank);
    for (int32_t i = 0; shape && i < it->rank; i++) {
        PyObject *n = PyLong_FromLongLong(it->dim[i]);
        if (!n || PyTuple_SetItem(shape, i, n) < 0) Py_CLEAR(shape); // SetItem steals
    }
    return shape;
}

static PyObject *item_tuple(const sk_diff_item *it)
{
    return Py_BuildValue("(siiissssNLN)", it->plan, (int)it->n_rows, (int)it->pass, (int)it->step,
                         it->op, it->label, it->field, sk_dtype_name(it->dtype), shape_tuple(it),
                         (long long)it->rows, gap_tuple(&it->gap, it->rule));
}

static PyObject *take(PyObject *module, PyObject *args)
{
    sk_module_state *ms = sk_state_of(module);
    PyObject *object, *list;
    const sk_diff_item *items;
    session_object *o;
    size_t n;
    if (!PyArg_ParseTuple(args, "O!", (PyTypeObject *)ms->session_type, &object)) return NULL;
    o = enter(object);
    if (!o) return NULL;
    items = sk_diff_items(o->s, &n);
    list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *item = item_tuple(&items[i]);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) Py_CLEAR(list);
    }
    if (list) sk_diff_forget(o->s);
    sk_session_leave(o);
    return list;
}

static PyObject *turn(PyObject *module, PyObject *args)
{
    sk_module_state *ms = sk_state_of(module);
    PyObject *object;
    session_object *o;
    int on;
    if (!PyArg_ParseTuple(args, "O!p", (PyTypeObject *)ms->session_type, &object, &on)) return NULL;
    o = enter(object);
    if (!o) return NULL;
    sk_diff_switch(o->s, on != 0);
    sk_session_leave(o);
    Py_RETURN_NONE;
}

static PyObject *spoil(PyObject *module, PyObject *args)
{
    sk_module_state *ms = sk_state_of(module);
    PyObject *object;
    const char *field;
    session_object *o;
    Py_ssize_t at;
    int step, flip;
    if (!PyArg_ParseTuple(args, "O!isni", (PyTypeObject *)ms->session_type, &object, &step, &field,
                          &at, &flip))
        return NULL;
    o = enter(object);
    if (!o) return NULL;
    sk_diff_spoil(o->s, step, field, (uint64_t)at, (uint8_t)flip);
    sk_session_leave(o);
    Py_RETURN_NONE;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static int32_t dtype_of(const char *name)
{
    static const sk_dtype known[] = {SK_F32, SK_BF16, SK_I32, SK_I64, SK_U8};
    for (size_t i = 0; i < SK_COUNT(known); i++)
        if (strcmp(sk_dtype_name(known[i]), name) == 0) return known[i];
    return SK_DTYPE_NONE;
}

static int same_shape(PyArrayObject *a, PyArrayObject *b, int32_t dtype)
{
    const npy_intp bytes = dtype == SK_DTYPE_NONE ? 0 : sk_dtype_find(dtype)->block_bytes;
    return PyArray_NDIM(a) == 2 && PyArray_NDIM(b) == 2 && PyArray_ITEMSIZE(a) == bytes &&
           PyArray_ITEMSIZE(b) == bytes && PyArray_DIM(a, 0) == PyArray_DIM(b, 0) &&
           PyArray_DIM(a, 1) == PyArray_DIM(b, 1) && PyArray_IS_C_CONTIGUOUS(a) &&
           PyArray_IS_C_CONTIGUOUS(b);
}

static PyObject *compare(PyObject *module, PyObject *args)
{
    const char *type, *name;
    PyObject *got_obj, *want_obj;
    PyArrayObject *got, *want;
    sk_rule rule;
    sk_gap gap;
    int32_t dtype;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssO!O!", &type, &name, &PyArray_Type, &got_obj, &PyArray_Type,
                          &want_obj))
        return NULL;
    got = (PyArrayObject *)got_obj;
    want = (PyArrayObject *)want_obj;
    dtype = dtype_of(type);
    rule = sk_rule_find(name);
    if (rule == SK_RULE_COUNT)
        return PyErr_Format(PyExc_ValueError, "rule: no rule is called '%s'", name);
    if (!same_shape(got, want, dtype))
        return PyErr_Format(PyExc_ValueError, "arrays: expected two dense ones [rows, n] of %s",
                            type);
    sk_gap_init(&gap);
    for (npy_intp i = 0; i < PyArray_DIM(got, 0); i++)
        sk_gap_add(&gap, dtype, PyArray_GETPTR1(got, i), PyArray_GETPTR1(want, i),
                   PyArray_DIM(got, 1), i);
    return gap_tuple(&gap, rule);
}

PyMethodDef sk_diff_methods[] = {
    {"diff_open", open_beside, METH_VARARGS,
     "diff_open($module, checkpoint, options, device, exact, /)\n--\n\n"
     "A Session on the CPU; each step of its passes runs on CUDA device `device` too (-1: on the "
     "CPU,\nby the definition), and what it writes is compared: with `exact` to the byte."},
    {"diff_take", take, METH_VARARGS,
     "diff_take($module, session, /)\n--\n\n"
     "The records since the last call, in order: (plan, capacity, pass, step, op, label, field, "
     "type,\nshape, rows, gap); gap as diff_compare returns it."},
    {"diff_switch", turn, METH_VARARGS,
     "diff_switch($module, session, on, /)\n--\n\nWith on=False passes run on the CPU alone."},
    {"diff_spoil", spoil, METH_VARARGS,
     "diff_spoil($module, session, step, field, at, flip, /)\n--\n\n"
     "For tests: byte `at` of what the other side writes there is read with bits flipped."},
    {"diff_compare", compare, METH_VARARGS,
     "diff_compare($module, type, rule, got, want, /)\n--\n\n"
     "How far two arrays [rows, n] are apart: (rule, value, bound, ok, elements, mismatches,\n"
     "not finite, stray bytes, BF16 elements off, ulps, rel_l2, max_rel, (row, column, got, "
     "want))."},
    {NULL, NULL, 0, NULL},
};
