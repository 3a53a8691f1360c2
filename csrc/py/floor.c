/* The floor harness from Python: one function a measurement. See dev/floor.h. */
#include "py/module.h"

#include "dev/floor.h"

static PyObject *with_about(PyObject *samples, const sk_floor_about *about) // steals samples
{
    // "N" takes over the reference, and fails when it is NULL.
    return Py_BuildValue("N{sLsLsLsK}", samples, "nodes", (long long)about->n_nodes, "edges",
                         (long long)about->n_edges, "programmatic",
                         (long long)about->n_programmatic, "arena_bytes",
                         (unsigned long long)about->arena_bytes);
}

static PyObject *run(PyObject *module, int device, const sk_floor_case *c)
{
    sk_status st = SK_STATUS_INIT;
    sk_floor_about about = {0};
    npy_intp n = c->n_samples;
    PyObject *samples;
    double *us;
    sk_code rc = sk_floor_check(c, &st); // before the array is made to its size
    if (rc != SK_OK) return sk_raise(sk_state_of(module), &st);
    samples = PyArray_SimpleNew(1, &n, NPY_DOUBLE);
    if (!samples) return NULL;
    us = PyArray_DATA((PyArrayObject *)samples);
    Py_BEGIN_ALLOW_THREADS
        rc = sk_floor_run(device, c, us, &about, &st);
    Py_END_ALLOW_THREADS
    if (rc == SK_OK) return with_about(samples, &about);
    Py_DECREF(samples);
    return sk_raise(sk_state_of(module), &st);
}

static PyObject *floor_run(PyObject *module, PyObject *args)
{
    sk_floor_case c = {.kind = SK_FLOOR_KIND_COUNT};
    sk_status st = SK_STATUS_INIT;
    const char *kind;
    int device, programmatic, shape, n_samples;
    long long n;
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "isLKpii", &device, &kind, &n, &bytes, &programmatic, &shape,
                          &n_samples))
        return NULL;
    if (!sk_floor_kind_find(kind, &c.kind)) {
        (void)SK_FAIL(&st, SK_INVALID, "floor: kind '%s': there is none of this name", kind);
        return sk_raise(sk_state_of(module), &st);
    }
    c.n = n;
    c.bytes = bytes;
    c.programmatic = programmatic != 0;
    c.shape = shape;
    c.n_samples = n_samples;
    return run(module, device, &c);
}

static PyObject *floor_chain(PyObject *module, PyObject *args)
{
    sk_floor_case c = {.kind = SK_FLOOR_CHAIN};
    PyObject *nodes, *array, *result;
    int device, programmatic, shape = -1, n_samples;
    if (!PyArg_ParseTuple(args, "iOpi|i", &device, &nodes, &programmatic, &n_samples, &shape))
        return NULL;
    array = PyArray_FROMANY(nodes, NPY_UINT64, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    if (!array) return NULL;
    c.n = PyArray_DIM((PyArrayObject *)array, 0);
    c.node_bytes = PyArray_DATA((PyArrayObject *)array);
    c.programmatic = programmatic != 0;
    c.shape = shape;
    c.n_samples = n_samples;
    result = run(module, device, &c);
    Py_DECREF(array);
    return result;
}

static PyObject *floor_shapes(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    PyObject *tuple = NULL;
    int32_t threads, per_sm, loads;
    (void)module;
    (void)unused;
    for (int32_t i = 0; list && sk_floor_shape(i, &threads, &per_sm, &loads); i++) {
        PyObject *shape = Py_BuildValue("(iii)", (int)threads, (int)per_sm, (int)loads);
        if (!shape || PyList_Append(list, shape) < 0) Py_CLEAR(list);
        Py_XDECREF(shape);
    }
    if (list) tuple = PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

PyMethodDef sk_floor_methods[] = {
    {"floor_run", floor_run, METH_VARARGS,
     "floor_run($module, device, kind, n, bytes, programmatic, shape, samples, /)\n--\n\n"
     "One measurement on a CUDA device: (float64 microseconds [samples], what ran).\n\n"
     "`kind` is 'copy', 'read', 'empty', 'submit', 'return', 'fork', 'barrier' or 'chain'; "
     "csrc/dev/floor.h says what each one times."},
    {"floor_chain", floor_chain, METH_VARARGS,
     "floor_chain($module, device, node_bytes, programmatic, samples, shape=-1, /)\n--\n\n"
     "A recorded graph of dependent kernels that read node_bytes[i] each and do nothing else:\n"
     "(float64 microseconds a replay [samples], what ran)."},
    {"floor_shapes", floor_shapes, METH_NOARGS,
     "floor_shapes($module, /)\n--\n\n"
     "Launch shapes of the reading kernel: (threads, blocks a multiprocessor, loads in flight)."},
    {NULL, NULL, 0, NULL},
};
