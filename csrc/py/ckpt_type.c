/* `_native.Checkpoint`: an open file as Python sees it. The comfortable face is checkpoint.py.
 *
 * Who keeps the mapping alive: a capsule owns the sk_ckpt; the Checkpoint holds one reference to
 * it, every array that shows file bytes another as its base, and every session another for the
 * weights it uses in place. close() gives up the Checkpoint's own, so the file is unmapped at once
 * when nobody looks, and with the last user otherwise. */
#include "py/ckpt_type.h"

#include "base/quant.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays show file bytes as they are, little-endian; this host is not"
#endif

#define OWNER_NAME "stoker._native.sk_ckpt"

typedef struct checkpoint {
    PyObject_HEAD PyObject *owner; // capsule around the sk_ckpt; NULL once closed
    PyObject *path;                // bytes
} checkpoint;

static void drop_owner(PyObject *capsule)
{
    sk_ckpt_close(PyCapsule_GetPointer(capsule, OWNER_NAME));
}

static sk_module_state *state_of(PyObject *self) { return sk_state_of_type(Py_TYPE(self)); }

static sk_ckpt *get_open(checkpoint *c, sk_status *st)
{
    if (!c->owner) {
        SK_FAIL(st, SK_STATE, "%s: expected an open checkpoint, found it closed",
                c->path ? PyBytes_AsString(c->path) : "?");
        return NULL;
    }
    return PyCapsule_GetPointer(c->owner, OWNER_NAME);
}

/* The open checkpoint and a new reference to its owner, or NULL with an exception. The reference
 * matters: making Python objects can run a collection, a finalizer, and in it close(). */
static sk_ckpt *need_open(PyObject *self, PyObject **owner)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = get_open((checkpoint *)self, &st);
    if (ck)
        *owner = Py_NewRef(((checkpoint *)self)->owner);
    else
        sk_raise(state_of(self), &st);
    return ck;
}

sk_ckpt *sk_checkpoint_share(sk_module_state *ms, PyObject *object, PyObject **owner, sk_status *st)
{
    sk_ckpt *ck;
    if (!PyObject_TypeCheck(object, (PyTypeObject *)ms->checkpoint_type)) {
        SK_FAIL(st, SK_INVALID, "checkpoint: expected a _native.Checkpoint, found another object");
        return NULL;
    }
    ck = get_open((checkpoint *)object, st);
    if (ck) *owner = Py_NewRef(((checkpoint *)object)->owner);
    return ck;
}

/* ---- life ------------------------------------------------------------------------------------ */

PyObject *sk_checkpoint_wrap(PyTypeObject *type, sk_ckpt *ck, PyObject *path)
{
    checkpoint *self = (checkpoint *)PyType_GenericAlloc(type, 0);
    if (!self) {
        Py_DECREF(path);
        sk_ckpt_close(ck);
        return NULL;
    }
    self->path = path; // from here on released by dealloc
    self->owner = PyCapsule_New(ck, OWNER_NAME, drop_owner);
    if (!self->owner) {
        sk_ckpt_close(ck);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *checkpoint_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char path_name[] = "path";
    static char strict_name[] = "strict";
    static char *names[] = {path_name, strict_name, NULL};
    sk_status st = SK_STATUS_INIT;
    PyObject *path = NULL;
    sk_ckpt *ck = NULL;
    const char *c_path;
    PyThreadState *saved;
    int strict = 0;
    sk_code rc;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|p:Checkpoint", names, PyUnicode_FSConverter,
                                     &path, &strict))
        return NULL;
    c_path = PyBytes_AsString(path);
    saved = PyEval_SaveThread();
    rc = sk_ckpt_open(&ck, c_path, strict != 0, &st);
    PyEval_RestoreThread(saved);
    if (rc == SK_OK) return sk_checkpoint_wrap(type, ck, path);
    Py_DECREF(path);
    return sk_raise(sk_state_of_type(type), &st);
}

static void checkpoint_dealloc(PyObject *self)
{
    checkpoint *c = (checkpoint *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(c->owner);
    Py_CLEAR(c->path);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *checkpoint_close(PyObject *self, PyObject *unused)
{
    checkpoint *c = (checkpoint *)self;
    (void)unused;
    Py_CLEAR(c->owner);
    Py_RETURN_NONE;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static PyObject *text(sk_str s)
{
    return PyUnicode_DecodeUTF8(s.p, (Py_ssize_t)s.n, "surrogateescape");
}

static PyObject *scalar(const sk_meta *m)
{
    uint64_t bits = 0;
    uint64_t at = 0;
    float f32;
    double f64;
    if (m->type == SK_META_STRING) return text(sk_meta_next_str(m, &at));
    memcpy(&bits, m->data, m->n_bytes < sizeof bits ? (size_t)m->n_bytes : sizeof bits);
    switch (m->type) {
    case SK_META_BOOL:
        return PyBool_FromLong(bits != 0);
    case SK_META_I8:
        return PyLong_FromLong((int8_t)bits);
    case SK_META_I16:
        return PyLong_FromLong((int16_t)bits);
    case SK_META_I32:
        return PyLong_FromLong((int32_t)bits);
    case SK_META_I64:
        return PyLong_FromLongLong((int64_t)bits);
    case SK_META_F32:
        memcpy(&f32, &bits, sizeof f32);
        return PyFloat_FromDouble((double)f32);
    case SK_META_F64:
        memcpy(&f64, &bits, sizeof f64);
        return PyFloat_FromDouble(f64);
    default:
        return PyLong_FromUnsignedLongLong(bits);
    }
}

static PyObject *string_list(const sk_meta *m)
{
    PyObject *list = PyList_New((Py_ssize_t)m->n);
    uint64_t at = 0;
    if (!list) return NULL;
    for (uint64_t i = 0; i < m->n; i++) {
        PyObject *item = text(sk_meta_next_str(m, &at));
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) { // steals the item
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *number_array(const sk_meta *m)
{
    static const int types[SK_META_TYPE_COUNT] = {
        [SK_META_U8] = NPY_UINT8,  [SK_META_I8] = NPY_INT8,    [SK_META_U16] = NPY_UINT16,
        [SK_META_I16] = NPY_INT16, [SK_META_U32] = NPY_UINT32, [SK_META_I32] = NPY_INT32,
        [SK_META_F32] = NPY_FLOAT, [SK_META_BOOL] = NPY_BOOL,  [SK_META_U64] = NPY_UINT64,
        [SK_META_I64] = NPY_INT64, [SK_META_F64] = NPY_DOUBLE};
    npy_intp n = (npy_intp)m->n;
    PyObject *array = PyArray_SimpleNew(1, &n, types[m->elem_type]);
    if (array && m->n_bytes)
        memcpy(PyArray_DATA((PyArrayObject *)array), m->data, (size_t)m->n_bytes);
    return array;
}

static PyObject *value(const sk_meta *m)
{
    if (m->type != SK_META_ARRAY) return scalar(m);
    return m->elem_type == SK_META_STRING ? string_list(m) : number_array(m);
}

/* The keys of GGUF, the notes of safetensors: what the files with tensors say about themselves. Of
 * several notes of one name, the last. */
static PyObject *all_metadata(const sk_ckpt *ck)
{
    PyObject *dict = PyDict_New();
    bool gguf = sk_ckpt_format(ck) == SK_FORMAT_GGUF;
    size_t n = gguf ? sk_ckpt_n_meta(ck) : sk_ckpt_n_notes(ck);
    if (!dict) return NULL;
    for (size_t i = 0; i < n; i++) {
        const sk_meta *m = gguf ? sk_ckpt_meta(ck, i) : sk_ckpt_note(ck, i);
        PyObject *key = text(m->key);
        PyObject *item = key ? value(m) : NULL;
        int rc = item ? PyDict_SetItem(dict, key, item) : -1;
        Py_XDECREF(key);
        Py_XDECREF(item);
        if (rc < 0) {
            Py_DECREF(dict);
            return NULL;
        }
    }
    return dict;
}

static PyObject *checkpoint_metadata(PyObject *self, PyObject *unused)
{
    PyObject *owner;
    PyObject *dict;
    const sk_ckpt *ck = need_open(self, &owner);
    (void)unused;
    if (!ck) return NULL;
    dict = all_metadata(ck);
    Py_DECREF(owner);
    return dict;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static PyObject *shape_of(const sk_tensor *t)
{
    PyObject *shape = PyTuple_New(t->n_dims);
    if (!shape) return NULL;
    for (int32_t i = 0; i < t->n_dims; i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(t->dim[i]);
        if (!n || PyTuple_SetItem(shape, i, n) < 0) { // steals n
            Py_DECREF(shape);
            return NULL;
        }
    }
    return shape;
}

static PyObject *describe(const sk_tensor *t)
{
    PyObject *shape = shape_of(t);
    if (!shape) return NULL;
    return Py_BuildValue("(s#sNKKI)", t->name.p, (Py_ssize_t)t->name.n, sk_dtype_name(t->type),
                         shape, (unsigned long long)t->n_bytes, (unsigned long long)t->file_off,
                         (unsigned)t->file);
}

static PyObject *all_tensors(const sk_ckpt *ck)
{
    PyObject *list = PyList_New((Py_ssize_t)sk_ckpt_n_tensors(ck));
    if (!list) return NULL;
    for (size_t i = 0; i < sk_ckpt_n_tensors(ck); i++) {
        PyObject *item = describe(sk_ckpt_tensor(ck, i));
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) { // steals the item
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *checkpoint_tensors(PyObject *self, PyObject *unused)
{
    PyObject *owner;
    PyObject *list;
    const sk_ckpt *ck = need_open(self, &owner);
    (void)unused;
    if (!ck) return NULL;
    list = all_tensors(ck);
    Py_DECREF(owner);
    return list;
}

/* The tensor that `index` names and a new reference to what keeps it, or NULL with an exception. */
static const sk_tensor *need_tensor(PyObject *self, PyObject *index, PyObject **owner)
{
    sk_status st = SK_STATUS_INIT;
    Py_ssize_t at = PyLong_AsSsize_t(index);
    const sk_ckpt *ck;
    if (at == -1 && PyErr_Occurred()) return NULL;
    ck = need_open(self, owner);
    if (!ck) return NULL;
    if (at >= 0 && (size_t)at < sk_ckpt_n_tensors(ck)) return sk_ckpt_tensor(ck, (size_t)at);
    SK_FAIL(&st, SK_INVALID, "tensor index: expected 0 to %lld, found %lld",
            (long long)sk_ckpt_n_tensors(ck) - 1, (long long)at);
    Py_CLEAR(*owner);
    sk_raise(state_of(self), &st);
    return NULL;
}

/* The same with its contents, which a synthetic checkpoint makes now. */
static const sk_tensor *need_contents(PyObject *self, PyObject *index, PyObject **owner)
{
    sk_status st = SK_STATUS_INIT;
    const sk_tensor *t = need_tensor(self, index, owner);
    const sk_ckpt *ck;
    PyThreadState *saved;
    sk_code rc;
    if (!t) return NULL;
    ck = PyCapsule_GetPointer(*owner, OWNER_NAME);
    saved = PyEval_SaveThread();
    rc = sk_ckpt_need(ck, t, &st);
    PyEval_RestoreThread(saved);
    if (rc == SK_OK) return t;
    Py_CLEAR(*owner);
    sk_raise(state_of(self), &st);
    return NULL;
}

/* New list of (path, bytes). */
static PyObject *all_files(const sk_ckpt *ck)
{
    PyObject *list = PyList_New((Py_ssize_t)sk_ckpt_n_files(ck));
    if (!list) return NULL;
    for (size_t i = 0; i < sk_ckpt_n_files(ck); i++) {
        PyObject *path = PyUnicode_DecodeFSDefault(sk_ckpt_file_path(ck, i));
        PyObject *item =
            path ? Py_BuildValue("(NK)", path, (unsigned long long)sk_ckpt_file_size(ck, i)) : NULL;
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) { // steals the item
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *checkpoint_files(PyObject *self, PyObject *unused)
{
    PyObject *owner;
    PyObject *list;
    const sk_ckpt *ck = need_open(self, &owner);
    (void)unused;
    if (!ck) return NULL;
    list = all_files(ck);
    Py_DECREF(owner);
    return list;
}

static PyObject *checkpoint_config(PyObject *self, PyObject *unused)
{
    PyObject *owner;
    PyObject *bytes;
    uint64_t n;
    const uint8_t *p;
    const sk_ckpt *ck = need_open(self, &owner);
    (void)unused;
    if (!ck) return NULL;
    p = sk_ckpt_config(ck, &n);
    bytes = p ? PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)n) : Py_NewRef(Py_None);
    Py_DECREF(owner);
    return bytes;
}

static PyObject *checkpoint_raw(PyObject *self, PyObject *index)
{
    PyObject *owner;
    PyObject *array;
    const sk_tensor *t = need_contents(self, index, &owner);
    npy_intp n;
    if (!t) return NULL;
    n = (npy_intp)t->n_bytes;
    // Not writeable; NumPy takes the pointer without const.
    array = PyArray_New(&PyArray_Type, 1, &n, NPY_UINT8, NULL, (void *)(uintptr_t)t->data, 0,
                        NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED, NULL);
    if (!array) {
        Py_DECREF(owner);
        return NULL;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)array, owner) < 0) { // steals the owner either way
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

/* Room for the values of `t`: an array, or NULL with an exception. */
static PyObject *new_values(sk_module_state *ms, const sk_tensor *t)
{
    sk_status st = SK_STATUS_INIT;
    npy_intp n = (npy_intp)t->n_elems;
    PyObject *array = PyArray_SimpleNew(1, &n, NPY_FLOAT);
    if (array || !PyErr_ExceptionMatches(PyExc_MemoryError)) return array;
    PyErr_Clear();
    SK_FAIL(&st, SK_NOMEM, "host memory: expected %llu x 4 bytes for tensor %.*s, found less",
            (unsigned long long)t->n_elems, (int)t->name.n, t->name.p);
    return sk_raise(ms, &st);
}

static PyObject *checkpoint_dequantize(PyObject *self, PyObject *index)
{
    sk_status st = SK_STATUS_INIT;
    PyObject *owner;
    PyObject *array = NULL;
    const sk_tensor *t = need_contents(self, index, &owner);
    if (!t) return NULL;
    if (sk_dtype_decodable(t->type)) {
        array = new_values(state_of(self), t);
    } else {
        SK_FAIL(&st, SK_UNSUPPORTED, "tensor %.*s: expected a type that can be decoded, found %s",
                (int)t->name.n, t->name.p, sk_dtype_name(t->type));
        sk_raise(state_of(self), &st);
    }
    if (array) {
        float *out = PyArray_DATA((PyArrayObject *)array);
        PyThreadState *saved = PyEval_SaveThread();
        sk_quant_row(t->type, t->data, t->n_elems, out); // blocks do not cross rows: one long row
        PyEval_RestoreThread(saved);
    }
    Py_DECREF(owner);
    return array;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *get_path(PyObject *self, void *unused)
{
    const char *path = PyBytes_AsString(((checkpoint *)self)->path);
    (void)unused;
    return path ? PyUnicode_DecodeFSDefault(path) : NULL;
}

static PyObject *get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!((checkpoint *)self)->owner);
}

/* The open checkpoint for one number, or NULL with an exception. */
static const sk_ckpt *peek(PyObject *self)
{
    PyObject *owner;
    const sk_ckpt *ck = need_open(self, &owner);
    if (ck) Py_DECREF(owner); // the object still holds its own
    return ck;
}

static PyObject *get_file_bytes(PyObject *self, void *unused)
{
    const sk_ckpt *ck = peek(self);
    (void)unused;
    return ck ? PyLong_FromUnsignedLongLong(sk_ckpt_file_bytes(ck)) : NULL;
}

static PyObject *get_version(PyObject *self, void *unused)
{
    const sk_ckpt *ck = peek(self);
    (void)unused;
    return ck ? PyLong_FromUnsignedLong(sk_ckpt_version(ck)) : NULL;
}

static PyObject *get_format(PyObject *self, void *unused)
{
    const sk_ckpt *ck = peek(self);
    (void)unused;
    if (!ck) return NULL;
    return PyUnicode_FromString(sk_ckpt_is_synthetic(ck) ? "synthetic"
                                                         : sk_format_name(sk_ckpt_format(ck)));
}

static PyObject *get_alignment(PyObject *self, void *unused)
{
    const sk_ckpt *ck = peek(self);
    (void)unused;
    return ck ? PyLong_FromUnsignedLongLong(sk_ckpt_alignment(ck)) : NULL;
}

static PyGetSetDef attributes[] = {
    {"path", get_path, NULL, "Path as given.", NULL},
    {"closed", get_closed, NULL, "True after close().", NULL},
    {"format", get_format, NULL, "'gguf', 'safetensors' or 'synthetic'.", NULL},
    {"file_bytes", get_file_bytes, NULL, "Size of all files with tensors.", NULL},
    {"version", get_version, NULL, "GGUF version, 2 or 3; otherwise 0.", NULL},
    {"alignment", get_alignment, NULL, "Alignment of tensor data in bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef methods[] = {
    {"metadata", checkpoint_metadata, METH_NOARGS,
     "metadata($self, /)\n--\n\nNew dict of all keys (safetensors: of __metadata__). Arrays of "
     "numbers and bools are NumPy "
     "arrays,\narrays of strings are lists; bytes that are no UTF-8 become surrogates."},
    {"tensors", checkpoint_tensors, METH_NOARGS,
     "tensors($self, /)\n--\n\nList of (name, type, shape, nbytes, offset, file) in file order, "
     "shapes outermost first."},
    {"files", checkpoint_files, METH_NOARGS,
     "files($self, /)\n--\n\nList of (path, bytes): the files with tensors."},
    {"config", checkpoint_config, METH_NOARGS,
     "config($self, /)\n--\n\nThe bytes of config.json, or None."},
    {"raw", checkpoint_raw, METH_O,
     "raw($self, index, /)\n--\n\nRead-only uint8 array over the tensor's bytes in the file. It "
     "keeps them mapped."},
    {"dequantize", checkpoint_dequantize, METH_O,
     "dequantize($self, index, /)\n--\n\nNew flat float32 array of the tensor's values."},
    {"close", checkpoint_close, METH_NOARGS,
     "close($self, /)\n--\n\nEnd of use. The file is unmapped when the last array over it dies."},
    {NULL, NULL, 0, NULL}};

// Slots are plain pointers: neither functions nor constant text convert to them by themselves.
#define SLOT(what) ((void *)(uintptr_t)(what))

static PyType_Slot slots[] = {
    {Py_tp_new, SLOT(checkpoint_new)},
    {Py_tp_dealloc, SLOT(checkpoint_dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, SLOT("Checkpoint(path, strict=False)\n--\n\nA checkpoint, mapped and checked.")},
    {0, NULL}};

PyType_Spec sk_checkpoint_spec = {.name = "stoker._native.Checkpoint",
                                  .basicsize = sizeof(checkpoint),
                                  .flags = Py_TPFLAGS_DEFAULT,
                                  .slots = slots};
