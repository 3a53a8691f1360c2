/* _native.OpChain: graph/chain.h for benchmarks/linear.py. Every call holds the GIL: a chain is for
 * one thread, and while it is timed nothing else should run. */
#include "py/op_run.h"

#include "graph/chain.h"

#include <string.h>

typedef struct chain_object {
    PyObject_HEAD sk_chain *c; // NULL once closed
    enum sk_op op;
    uint64_t weights;
    sk_op_call call;              // of the recording, whose outputs are read back into its arrays
    PyObject *stacks[SK_OP_HELD]; // arrays that the recording's stacks lie in
    size_t n_stacks;
} chain_object;

static sk_module_state *state_of(chain_object *o)
{
    return sk_state_of_type(Py_TYPE((PyObject *)o));
}

static void drop_arrays(chain_object *o)
{
    sk_op_call_fini(&o->call);
    while (o->n_stacks > 0) Py_DECREF(o->stacks[--o->n_stacks]);
}

/* Number of the op's view of that name; -1 with an exception set. */
static int field_of(enum sk_op op, PyObject *name)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    int i = 0;
    for (const sk_field *f = sk_ops[op].fields; text && f->kind != SK_FIELD_END; f++, i++)
        if (f->kind == SK_FIELD_VIEW && strcmp(f->name, text) == 0 && i < SK_CHAIN_FIELDS) return i;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "chain: %s: no view is called %R", sk_ops[op].name, name);
    return -1;
}

static int weights_from(enum sk_op op, PyObject *names, uint64_t *out)
{
    *out = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        const int at = field_of(op, PyTuple_GetItem(names, i));
        if (at < 0) return -1;
        *out |= UINT64_C(1) << at;
    }
    return 0;
}

/* Binds and checks the contract; -1 with an exception set. */
static int bind(sk_module_state *ms, sk_op_call *call, PyObject *fields)
{
    sk_status st = SK_STATUS_INIT;
    if (sk_op_call_bind(ms, call, fields) < 0) return -1;
    if (sk_op_check(call->op, call->args, &st) == SK_OK) return 0;
    (void)sk_raise(ms, &st);
    return -1;
}

static PyObject *chain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    sk_module_state *ms = sk_state_of_type(type);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    sk_status st = SK_STATUS_INIT;
    sk_op_call call = {0};
    sk_chain_weights w;
    sk_chain *c = NULL;
    PyObject *fields, *names; // borrowed
    chain_object *o;
    const char *name;
    uint64_t weights;
    int copies, device = 0;
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "OpChain takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "sO!O!i|i", &name, &PyDict_Type, &fields, &PyTuple_Type, &names,
                          &copies, &device) ||
        sk_op_call_find(&call, name) < 0 || weights_from(call.op, names, &weights) < 0)
        return NULL;
    if (bind(ms, &call, fields) == 0) {
        w = (sk_chain_weights){call.op, call.args, weights, (int32_t)copies};
        if (sk_chain_open(&c, device, &w, &st) != SK_OK) (void)sk_raise(ms, &st);
    }
    sk_op_call_fini(&call); // the device has the weights now
    if (!c) return NULL;
    o = (chain_object *)alloc(type, 0);
    if (!o) {
        sk_chain_close(c);
        return NULL;
    }
    o->c = c;
    o->op = call.op;
    o->weights = weights;
    return (PyObject *)o;
}

static void chain_dealloc(PyObject *self)
{
    chain_object *o = (chain_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
    sk_chain_close(o->c);
    drop_arrays(o);
    free_slot(self);
    Py_DECREF(type);
}

static PyObject *chain_close(PyObject *self, PyObject *unused)
{
    chain_object *o = (chain_object *)self;
    (void)unused;
    sk_chain_close(o->c);
    o->c = NULL;
    drop_arrays(o);
    Py_RETURN_NONE;
}

static int need_open(chain_object *o)
{
    sk_status st = SK_STATUS_INIT;
    if (o->c) return 0;
    (void)SK_FAIL(&st, SK_STATE, "chain: expected open, found it closed");
    (void)sk_raise(state_of(o), &st);
    return -1;
}

static int take_stack(chain_object *o, sk_chain_spec *spec, int at, PyObject *stack)
{
    const sk_view *v = sk_field_view_const(o->call.args, &sk_ops[o->op].fields[at]);
    PyArrayObject *a = (PyArrayObject *)stack;
    uint64_t bytes;
    if (!PyArray_Check(stack) || !PyArray_IS_C_CONTIGUOUS(a) || !sk_view_present(v) ||
        !sk_view_span(v, &bytes) || bytes == 0 || (uint64_t)PyArray_NBYTES(a) % bytes ||
        o->n_stacks == SK_OP_HELD) {
        PyErr_Format(PyExc_ValueError,
                     "chain: %s: %s: expected a stack of whole fields in one contiguous array",
                     sk_ops[o->op].name, sk_ops[o->op].fields[at].name);
        return -1;
    }
    spec->stack[at] = PyArray_DATA(a);
    spec->n_stack[at] = (int32_t)((uint64_t)PyArray_NBYTES(a) / bytes);
    o->stacks[o->n_stacks++] = Py_NewRef(stack);
    return 0;
}

static int take_stacks(chain_object *o, sk_chain_spec *spec, PyObject *stacks)
{
    PyObject *name, *stack; // borrowed
    Py_ssize_t pos = 0;
    while (PyDict_Next(stacks, &pos, &name, &stack)) {
        const int at = field_of(o->op, name);
        if (at < 0 || take_stack(o, spec, at, stack) < 0) return -1;
    }
    return 0;
}

static PyObject *about_dict(const sk_chain_about *a)
{
    return Py_BuildValue("{sLsLsLsKsisi}", "nodes", (long long)a->n_nodes, "edges",
                         (long long)a->n_edges, "programmatic", (long long)a->n_programmatic,
                         "bytes", (unsigned long long)a->copy_bytes, "rows_ready",
                         (int)a->rows_ready, "open_early", (int)a->open_early);
}

static PyObject *chain_record(PyObject *self, PyObject *args)
{
    chain_object *o = (chain_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_chain_spec spec = {.rows_ready = -1, .open_early = -1};
    sk_chain_about about = {0};
    PyObject *fields, *stacks; // borrowed
    int nodes, edges, ready = -1, early = -1;
    if (!PyArg_ParseTuple(args, "O!O!ip|ii", &PyDict_Type, &fields, &PyDict_Type, &stacks, &nodes,
                          &edges, &ready, &early) ||
        need_open(o) < 0)
        return NULL;
    drop_arrays(o);
    o->call = (sk_op_call){.op = o->op};
    if (bind(state_of(o), &o->call, fields) < 0 || take_stacks(o, &spec, stacks) < 0) {
        drop_arrays(o);
        return NULL;
    }
    spec.args = o->call.args;
    spec.n_nodes = nodes;
    spec.edges = edges != 0;
    spec.rows_ready = ready;
    spec.open_early = early;
    if (sk_chain_record(o->c, &spec, &about, &st) == SK_OK) return about_dict(&about);
    return sk_raise(state_of(o), &st);
}

static PyObject *chain_record_stream(PyObject *self, PyObject *args)
{
    chain_object *o = (chain_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_chain_about about = {0};
    sk_chain_stream s;
    unsigned long long bytes;
    int nodes, edges, shape = -1;
    if (!PyArg_ParseTuple(args, "Kip|i", &bytes, &nodes, &edges, &shape) || need_open(o) < 0)
        return NULL;
    s = (sk_chain_stream){bytes, (int32_t)nodes, edges != 0, (int32_t)shape};
    if (sk_chain_record_stream(o->c, &s, &about, &st) == SK_OK) return about_dict(&about);
    return sk_raise(state_of(o), &st);
}

static PyObject *chain_time(PyObject *self, PyObject *args)
{
    chain_object *o = (chain_object *)self;
    sk_status st = SK_STATUS_INIT;
    sk_chain_times t = {0};
    double warm_s, tail_s;
    PyObject *samples;
    npy_intp n;
    int n_samples;
    if (!PyArg_ParseTuple(args, "did", &warm_s, &n_samples, &tail_s) || need_open(o) < 0)
        return NULL;
    n = n_samples > 0 && n_samples <= SK_CHAIN_MAX_SAMPLES ? n_samples : 0; // 0: refused below
    samples = PyArray_SimpleNew(1, &n, NPY_DOUBLE);
    if (!samples) return NULL;
    t.n_samples = n_samples;
    t.us = PyArray_DATA((PyArrayObject *)samples);
    if (sk_chain_time(o->c, warm_s, tail_s, &t, &st) == SK_OK)
        return Py_BuildValue("Nd", samples, t.run_us);
    Py_DECREF(samples);
    return sk_raise(state_of(o), &st);
}

static PyObject *chain_outputs(PyObject *self, PyObject *unused)
{
    chain_object *o = (chain_object *)self;
    sk_status st = SK_STATUS_INIT;
    (void)unused;
    if (need_open(o) < 0) return NULL;
    if (sk_chain_outputs(o->c, &st) != SK_OK) return sk_raise(state_of(o), &st);
    Py_RETURN_NONE;
}

#define DOC(name, sig, text) #name "($self, " sig ")\n--\n\n" text

static PyMethodDef methods[] = {
    {"close", chain_close, METH_NOARGS, DOC(close, "/", "Frees the device. Idempotent.")},
    {"record", chain_record, METH_VARARGS,
     DOC(record, "fields, stacks, nodes, edges, ready=-1, early=-1, /",
         "Records a graph of `nodes` steps and says what it is. stacks: name of a field that "
         "differs\n"
         "from node to node -> array of as many of them as it holds. ready, early: as the "
         "recorder\n"
         "of a round would say (-1), 0 or 1.")},
    {"record_stream", chain_record_stream, METH_VARARGS,
     DOC(record_stream, "bytes, nodes, edges, shape=-1, /",
         "The same with steps that read so many bytes each and do nothing else.")},
    {"time", chain_time, METH_VARARGS,
     DOC(time, "warm_s, samples, tail_s, /",
         "(us of single replays, float64 [samples]; us a replay of as many without events). "
         "Leaves\n"
         "tail_s seconds of replays queued.")},
    {"outputs", chain_outputs, METH_NOARGS,
     DOC(outputs, "/", "One more replay, and the outputs of the last node into the arrays given.")},
    {NULL, NULL, 0, NULL},
};

static char type_doc[] =
    "OpChain(op, fields, weights, copies, device=0, /)\n--\n\n"
    "A recorded chain of one op on a CUDA device, each step with its own copy of the weights.\n"
    "fields: as run_op; weights: names of the fields that are copied `copies` times.";

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)chain_new},
    {Py_tp_dealloc, (void *)chain_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, type_doc},
    {0, NULL},
};

PyType_Spec sk_chain_type_spec = {
    .name = "stoker._native.OpChain",
    .basicsize = sizeof(chain_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
