/* Single ops from Python: the descriptors of all ops, and running one of them on arrays in place.
 * For tests, tools and the curious; engines do not come this way. Generic over the descriptors:
 * nothing here knows an op by name. */
#include "py/op_run.h"

#include "base/mem.h"
#include "graph/once.h"

#include <stdlib.h>

#include <string.h>

typedef sk_op_call call;

void sk_op_call_fini(sk_op_call *c)
{
    while (c->n_held > 0) Py_DECREF(c->held[--c->n_held]);
    sk_mem_free(c->args);
    c->args = NULL;
}

int sk_op_call_find(sk_op_call *c, const char *name)
{
    c->op = sk_op_find(name);
    if (c->op != SK_OP_COUNT) return 0;
    PyErr_Format(PyExc_ValueError, "name: no op is called '%s'", name);
    return -1;
}

/* ---- arrays as views ------------------------------------------------------------------------- */

static int32_t dtype_of(PyArrayObject *array)
{
    PyArray_Descr *descr = PyArray_DESCR(array); // borrowed
    const npy_intp bytes = PyArray_ITEMSIZE(array);
    if (!PyArray_ISNOTSWAPPED(array)) return SK_DTYPE_NONE;
    switch (descr->kind) {
    case 'f':
        return bytes == 2 ? SK_F16 : bytes == 4 ? SK_F32 : bytes == 8 ? SK_F64 : SK_DTYPE_NONE;
    case 'i':
        return bytes == 1   ? SK_I8
               : bytes == 2 ? SK_I16
               : bytes == 4 ? SK_I32
               : bytes == 8 ? SK_I64
                            : SK_DTYPE_NONE;
    case 'u':
        return bytes == 1 ? SK_U8 : SK_DTYPE_NONE;
    default:
        return SK_DTYPE_NONE;
    }
}

static int32_t dtype_by_name(const char *name)
{
#define X(type, id, n, bytes)                                                                      \
    if (strcmp(name, #type) == 0) return (id);
    SK_DTYPES(X)
#undef X
    return SK_DTYPE_NONE;
}

/* All views are put into buffer 0 with their address as the offset: overlap and alignment are then
 * checked as they really are. */
static sk_code bind_array(const call *c, const sk_field *f, PyArrayObject *array, sk_view *v,
                          sk_status *st)
{
    const char *op = sk_ops[c->op].name;
    int rank = PyArray_NDIM(array);
    bool rows = rank == v->rank; // or the bytes of the whole, one after the other
    uint64_t row_bytes = 0;
    uint64_t inner = 0; // bytes of the array's last dimension
    if ((f->mode & SK_WRITE) && !PyArray_ISWRITEABLE(array))
        return SK_FAIL(st, SK_INVALID, "%s: %s: expected a writable array, found a read-only one",
                       op, f->name);
    if (!sk_dtype_find(v->dtype) || v->rank < 1 || v->rank > SK_VIEW_DIMS)
        return SK_FAIL(st, SK_INVALID,
                       "%s: %s: expected a known type and rank 1 .. %d, found %s "
                       "and rank %d",
                       op, f->name, SK_VIEW_DIMS, sk_dtype_name(v->dtype), v->rank);
    if (v->dim[v->rank - 1] < 0 ||
        !sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &row_bytes))
        return SK_FAIL(st, SK_INVALID, "%s: %s: expected rows of whole blocks, found %lld of %s",
                       op, f->name, (long long)v->dim[v->rank - 1], sk_dtype_name(v->dtype));
    if (rows) {
        const int last = rank - 1;
        for (int i = 0; i < last; i++) {
            rows = rows && PyArray_DIM(array, i) == v->dim[i];
            v->stride[i] = PyArray_STRIDE(array, i);
        }
        inner = (uint64_t)PyArray_DIM(array, last) * (uint64_t)PyArray_ITEMSIZE(array);
        rows = rows && inner == row_bytes &&
               (PyArray_STRIDE(array, last) == PyArray_ITEMSIZE(array) ||
                PyArray_DIM(array, last) == 1);
    }
    if (!rows) {
        sk_view dense = sk_view_dense(0, v->dtype, v->rank, v->dim);
        uint64_t span;
        if (!sk_view_span(&dense, &span) || !PyArray_IS_C_CONTIGUOUS(array) ||
            (uint64_t)PyArray_NBYTES(array) != span)
            return SK_FAIL(st, SK_INVALID,
                           "%s: %s: expected an array with dense rows of the shape, found another",
                           op, f->name);
        memcpy(v->stride, dense.stride, sizeof v->stride);
    }
    v->buf = 0;
    v->p = PyArray_DATA(array);
    v->off = (uint64_t)(uintptr_t)v->p;
    return SK_OK;
}

/* numpy.ndarray, or (type name, numpy.ndarray of its bytes, shape). -1 with an exception set. */
static int bind_view(sk_module_state *ms, call *c, const sk_field *f, PyObject *value, sk_view *v)
{
    sk_status st = SK_STATUS_INIT;
    PyObject *array = value; // borrowed
    PyObject *shape = NULL;  // borrowed
    const char *type = NULL;
    if (PyTuple_Check(value) && !PyArg_ParseTuple(value, "sOO!;a view is (type, array, shape)",
                                                  &type, &array, &PyTuple_Type, &shape))
        return -1;
    if (!PyArray_Check(array)) {
        PyErr_Format(PyExc_TypeError, "%s: %s: expected a numpy array or (type, array, shape)",
                     sk_ops[c->op].name, f->name);
        return -1;
    }
    if (shape) {
        Py_ssize_t rank = PyTuple_Size(shape);
        v->rank = rank > SK_VIEW_DIMS ? SK_VIEW_DIMS + 1 : (int32_t)rank;
        v->dtype = dtype_by_name(type);
        for (Py_ssize_t i = 0; i < rank && i < SK_VIEW_DIMS; i++) {
            v->dim[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
            if (v->dim[i] == -1 && PyErr_Occurred()) return -1;
        }
    } else {
        PyArrayObject *a = (PyArrayObject *)array;
        int rank = PyArray_NDIM(a);
        v->rank = rank > SK_VIEW_DIMS ? SK_VIEW_DIMS + 1 : rank;
        v->dtype = dtype_of(a);
        for (int i = 0; i < rank && i < SK_VIEW_DIMS; i++) v->dim[i] = PyArray_DIM(a, i);
    }
    if (bind_array(c, f, (PyArrayObject *)array, v, &st) != SK_OK) {
        (void)sk_raise(ms, &st);
        return -1;
    }
    c->held[c->n_held++] = Py_NewRef(array);
    return 0;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static int bind_constant(const call *c, const sk_field *f, PyObject *value)
{
    char *at = (char *)c->args + f->at;
    if (f->kind == SK_FIELD_I32) {
        long x = PyLong_AsLong(value);
        int32_t small = (int32_t)x;
        if (x == -1 && PyErr_Occurred()) return -1;
        if (small != x) {
            PyErr_Format(PyExc_OverflowError, "%s: %s: expected a 32-bit integer",
                         sk_ops[c->op].name, f->name);
            return -1;
        }
        memcpy(at, &small, sizeof small);
    } else {
        float x = (float)PyFloat_AsDouble(value);
        if (PyErr_Occurred()) return -1;
        memcpy(at, &x, sizeof x);
    }
    return 0;
}

int sk_op_call_bind(sk_module_state *ms, sk_op_call *c, PyObject *fields)
{
    sk_status st = SK_STATUS_INIT;
    Py_ssize_t used = 0;
    if (sk_mem_new_aligned(&c->args, SK_ARGS_MAX, "arguments of an op", &st) != SK_OK) {
        (void)sk_raise(ms, &st);
        return -1;
    }
    sk_args_clear(c->op, c->args);
    for (const sk_field *f = sk_ops[c->op].fields; f->kind != SK_FIELD_END; f++) {
        PyObject *value = PyDict_GetItemString(fields, f->name); // borrowed
        int rc;
        if (!value) continue; // a missing view is the contract check's business
        used++;
        rc = f->kind == SK_FIELD_VIEW ? bind_view(ms, c, f, value, sk_field_view(c->args, f))
                                      : bind_constant(c, f, value);
        if (rc < 0) return -1;
    }
    if (used == PyDict_Size(fields)) return 0;
    PyErr_Format(PyExc_TypeError, "%s: %zd of the given fields are not fields of this op",
                 sk_ops[c->op].name, PyDict_Size(fields) - used);
    return -1;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* No Python object in sight. */
static sk_code run(const call *c, sk_status *st)
{
    sk_cpu cpu = {.work_bytes = sk_cpu_work_bytes(c->op, c->args, c->n_threads), .table = c->table};
    void *work = NULL;
    sk_code rc = sk_pool_make(&cpu.pool, c->n_threads, st);
    if (rc == SK_OK) rc = sk_mem_new_aligned(&work, cpu.work_bytes, "scratch of an op", st);
    if (rc == SK_OK) {
        cpu.work = work;
        memset(cpu.work, 0xff, cpu.work_bytes); // NaN: an op may expect nothing in there
        c->table[c->op](c->args, &cpu);
    }
    sk_mem_free(work);
    sk_pool_drop(cpu.pool);
    return rc;
}

/* "cuda", "cuda-fused", or "cuda-N" for the tier whose positions are below N. */
static bool pick_cuda(call *c, const char *name)
{
    char *end;
    long bound = 0;
    if (strncmp(name, "cuda", 4) != 0) return false;
    c->fused = strcmp(name + 4, "-fused") == 0;
    if (c->fused) name = "cuda";
    if (name[4] == '-') bound = strtol(name + 5, &end, 10);
    if (name[4] != '\0' && (name[4] != '-' || *end || bound < 1 || bound > INT32_MAX)) return false;
    c->cuda = true;
    c->ctx_bound = (int32_t)bound;
    return true;
}

static int pick_table(call *c, const char *name)
{
    if (pick_cuda(c, name)) return 0;
    if (!sk_cpu_table_find(c->table, name)) {
        PyErr_Format(
            PyExc_ValueError,
            "table: expected definition, fast, cuda or what this processor has of generic, "
            "avx2 and avx512, found '%s'",
            name);
        return -1;
    }
    return 0;
}

/* The device stays open for the calls to come. */
static sk_code run_on_device(sk_module_state *ms, const call *c, sk_status *st)
{
    sk_once once = {.ctx_bound = c->ctx_bound, .fused = c->fused};
    if (!ms->op_device) SK_TRY(sk_dev_open(&ms->op_device, 0, st));
    once.dev = ms->op_device;
    return sk_once_run(&once, c->op, c->args, st);
}

static PyObject *run_op(PyObject *module, PyObject *arguments)
{
    sk_module_state *ms = sk_state_of(module);
    sk_status st = SK_STATUS_INIT;
    call c = {.n_threads = 1};
    const char *name;
    const char *table;
    PyObject *fields; // borrowed
    int threads;
    sk_code rc = SK_INVALID;
    if (!PyArg_ParseTuple(arguments, "sO!si", &name, &PyDict_Type, &fields, &table, &threads))
        return NULL;
    c.n_threads = (int32_t)threads;
    if (sk_op_call_find(&c, name) < 0 || pick_table(&c, table) < 0) return NULL;
    if (sk_op_call_bind(ms, &c, fields) < 0) {
        sk_op_call_fini(&c);
        return NULL;
    }
    if (c.cuda) { // with the GIL held: one device serves all callers
        rc = sk_op_check(c.op, c.args, &st);
        if (rc == SK_OK) rc = run_on_device(ms, &c, &st);
    } else {
        Py_BEGIN_ALLOW_THREADS
            rc = sk_op_check(c.op, c.args, &st);
            if (rc == SK_OK) rc = run(&c, &st);
        Py_END_ALLOW_THREADS
    }
    sk_op_call_fini(&c);
    if (rc != SK_OK) return sk_raise(ms, &st);
    Py_RETURN_NONE;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static const char *mode_text(const sk_field *f)
{
    if (f->kind != SK_FIELD_VIEW) return "const";
    if (f->mode & SK_OPTIONAL) return f->mode & SK_WRITE ? "optional out" : "optional in";
    if (f->mode == (SK_READ | SK_WRITE)) return "inout";
    return f->mode & SK_WRITE ? "out" : "in";
}

static const char *kind_text(const sk_field *f)
{
    return f->kind == SK_FIELD_VIEW ? "view" : f->kind == SK_FIELD_I32 ? "i32" : "f32";
}

/* New reference to a tuple of (name, kind, mode). */
static PyObject *fields_of(const sk_op_desc *desc)
{
    PyObject *list = PyList_New(0);
    PyObject *tuple;
    if (!list) return NULL;
    for (const sk_field *f = desc->fields; f->kind != SK_FIELD_END; f++) {
        PyObject *item = Py_BuildValue("(sss)", f->name, kind_text(f), mode_text(f));
        if (!item || PyList_Append(list, item) < 0) {
            Py_XDECREF(item);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(item);
    }
    tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

static PyObject *op_list(PyObject *module, PyObject *unused)
{
    PyObject *dict = PyDict_New();
    (void)module;
    (void)unused;
    for (int op = 0; dict && op < SK_OP_COUNT; op++) {
        PyObject *fields = fields_of(&sk_ops[op]);
        if (!fields || PyDict_SetItemString(dict, sk_ops[op].name, fields) < 0) Py_CLEAR(dict);
        Py_XDECREF(fields);
    }
    return dict;
}

static PyObject *cpu_isa(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(sk_cpu_isa());
}

static PyObject *repack(PyObject *module, PyObject *arguments)
{
    sk_module_state *ms = sk_state_of(module);
    sk_status st = SK_STATUS_INIT;
    const char *type;
    PyObject *raw, *out;
    Py_ssize_t n, k, matrices = 1;
    sk_view w;
    uint64_t bytes;
    double us[2] = {0};
    sk_code rc = SK_OK;
    if (!PyArg_ParseTuple(arguments, "sSnn|n", &type, &raw, &n, &k, &matrices)) return NULL;
    w = sk_view_dense(0, dtype_by_name(type), 3, (int64_t[]){matrices, n, k});
    if (!sk_view_span(&w, &bytes) || bytes != (uint64_t)PyBytes_Size(raw))
        return PyErr_Format(PyExc_ValueError, "raw: expected the bytes of %zd x %zd rows of %zd %s",
                            matrices, n, k, type);
    out = PyBytes_FromStringAndSize(NULL, PyBytes_Size(raw));
    if (!out) return NULL;
    if (!ms->op_device) rc = sk_dev_open(&ms->op_device, 0, &st);
    if (rc == SK_OK)
        rc = sk_once_repack(ms->op_device, &w, (const uint8_t *)PyBytes_AsString(raw),
                            (uint8_t *)PyBytes_AsString(out), us, &st);
    if (rc == SK_OK) return Py_BuildValue("Ndd", out, us[0], us[1]);
    Py_DECREF(out);
    return sk_raise(ms, &st);
}

static PyObject *branches(PyObject *module, PyObject *arguments)
{
    sk_module_state *ms = sk_state_of(module);
    sk_status st = SK_STATUS_INIT;
    PyObject *x, *y;
    int64_t nodes = 0;
    int replays;
    sk_code rc = SK_OK;
    if (!PyArg_ParseTuple(arguments, "O!O!i", &PyArray_Type, &x, &PyArray_Type, &y, &replays))
        return NULL;
    PyArrayObject *a = (PyArrayObject *)x, *b = (PyArrayObject *)y;
    if (PyArray_TYPE(a) != NPY_FLOAT32 || PyArray_TYPE(b) != NPY_FLOAT32 || !PyArray_ISCARRAY(a) ||
        !PyArray_ISCARRAY(b) || PyArray_SIZE(a) != PyArray_SIZE(b)) {
        PyErr_SetString(PyExc_TypeError, "x, y: expected writable float32 arrays of one size");
        return NULL;
    }
    if (!ms->op_device) rc = sk_dev_open(&ms->op_device, 0, &st);
    if (rc == SK_OK)
        rc = sk_once_branches(ms->op_device, PyArray_DATA(a), PyArray_DATA(b),
                              (int32_t)sk_min_size((size_t)PyArray_SIZE(a), INT32_MAX), replays,
                              &nodes, &st);
    if (rc != SK_OK) return sk_raise(ms, &st);
    return PyLong_FromLongLong(nodes);
}

PyMethodDef sk_op_methods[] = {
    {"op_list", op_list, METH_NOARGS,
     "op_list($module, /)\n--\n\n"
     "The ops: a dict from name to the fields of the argument struct, (name, kind, mode) each."},
    {"run_op", run_op, METH_VARARGS,
     "run_op($module, name, fields, table, threads, /)\n--\n\n"
     "Checks the contract of an op and runs it on arrays in place.\n\n"
     "A view is a numpy array, or (type name, array of its bytes, shape); `table` is 'definition', "
     "'fast', 'generic', 'avx2', 'avx512', 'cuda', 'cuda-fused' or 'cuda-N' for a tier of N "
     "positions.\n"
     "Contents are trusted: an id or a slot out of range reads foreign memory."},
    {"repack", repack, METH_VARARGS,
     "repack($module, type, raw, n, k, matrices=1, /)\n--\n\n"
     "The bytes of a weight [n, k], or of several, packed for the device and unpacked again: those "
     "of raw; then the microseconds that packing and unpacking took there."},
    {"branches", branches, METH_VARARGS,
     "branches($module, x, y, replays, /)\n--\n\n"
     "y += 2 x, 1 + replays times, by a plan with a side branch on CUDA device 0, first step by "
     "step\n"
     "and then as a graph; returns the graph's nodes."},
    {"cpu_isa", cpu_isa, METH_NOARGS,
     "cpu_isa($module, /)\n--\n\n"
     "What the fast table of the CPU uses: 'avx512', 'avx2' or 'generic'."},
    {NULL, NULL, 0, NULL},
};
