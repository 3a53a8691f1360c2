/* The module object: state, initialisation, and the functions about the build and the devices.
 *
 * Multi-phase, limited API, no static that holds a Python object. The slot for interpreters with
 * their own GIL is left out on purpose: the default refuses them, as NumPy does. Nothing here
 * touches CUDA at import. */
#define SK_NUMPY_OWNER
#include "py/module.h"

#include "dev/dev.h"

#ifdef __FAST_MATH__
#error "stoker's numerics are exact statements: -ffast-math cannot be used"
#endif

/* setup.py tells these to this file; the defaults serve other builds (clang-tidy). */
#ifndef SK_BUILD_VERSION
#define SK_BUILD_VERSION  "0"
#define SK_BUILD_FLAGS    ""
#define SK_BUILD_SANITIZE ""
#define SK_BUILD_ARCHS    ""
#define SK_BUILD_NVCC     ""
#define SK_BUILD_DEBUG    0
#endif

#ifdef __clang__
#define SK_BUILD_COMPILER "clang " __clang_version__
#else
#define SK_BUILD_COMPILER "gcc " __VERSION__
#endif

static sk_module_state *state_of(PyObject *module)
{
    return (sk_module_state *)PyModule_GetState(module);
}

sk_module_state *sk_state_of(PyObject *module) { return state_of(module); }

sk_module_state *sk_state_of_type(PyTypeObject *defining)
{
    return (sk_module_state *)PyType_GetModuleState(defining);
}

/* Functions */

/* New reference to the words of `text`, as a tuple. */
static PyObject *words(const char *text)
{
    PyObject *str = PyUnicode_FromString(text);
    PyObject *list = str ? PyUnicode_Split(str, NULL, -1) : NULL;
    PyObject *tuple = list ? PySequence_Tuple(list) : NULL;
    Py_XDECREF(str);
    Py_XDECREF(list);
    return tuple;
}

static PyObject *build_info(PyObject *module, PyObject *unused)
{
#ifdef SK_WITH_CUDA
    const int cuda = 1;
#else
    const int cuda = 0;
#endif
#ifdef SK_FAULTS
    const int faults = 1;
#else
    const int faults = 0;
#endif
    (void)module;
    (void)unused;
    // "N" takes over the reference, and fails when it is NULL.
    return Py_BuildValue("{sssNsNsssssssNsNsN}", "version", SK_BUILD_VERSION, "cuda",
                         PyBool_FromLong(cuda), "archs", words(SK_BUILD_ARCHS), "nvcc",
                         SK_BUILD_NVCC, "compiler", SK_BUILD_COMPILER, "flags", SK_BUILD_FLAGS,
                         "sanitizers", words(SK_BUILD_SANITIZE), "faults", PyBool_FromLong(faults),
                         "debug", PyBool_FromLong(SK_BUILD_DEBUG));
}

static PyObject *device_count(PyObject *module, PyObject *unused)
{
    int32_t n;
    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
        n = sk_dev_count();
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(n);
}

/* -1 with an exception set when `arg` is no int32. */
static int index_from(PyObject *arg, int32_t *out)
{
    int overflow;
    long v = PyLong_AsLongAndOverflow(arg, &overflow);
    if (v == -1 && PyErr_Occurred()) return -1;
    if (overflow > 0 || v > INT32_MAX) v = INT32_MAX; // reported as out of range, by its rule
    if (overflow < 0 || v < INT32_MIN) v = INT32_MIN;
    *out = (int32_t)v;
    return 0;
}

static PyObject *device_need(PyObject *module, PyObject *arg)
{
    sk_status st = SK_STATUS_INIT;
    int32_t index;
    sk_code rc;
    if (index_from(arg, &index) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
        rc = sk_dev_need(index, &st);
    Py_END_ALLOW_THREADS
    if (rc != SK_OK) return sk_raise(state_of(module), &st);
    Py_RETURN_NONE;
}

static PyObject *device_info(PyObject *module, PyObject *arg)
{
    sk_status st = SK_STATUS_INIT;
    sk_dev_env env;
    sk_dev_info info;
    int32_t index;
    sk_code rc;
    if (index_from(arg, &index) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
        sk_dev_probe(&env);
        rc = sk_dev_env_check(&env, index, &st);
        if (rc == SK_OK) rc = sk_dev_info_get(index, &info, &st);
    Py_END_ALLOW_THREADS
    if (rc != SK_OK) return sk_raise(state_of(module), &st);
    return Py_BuildValue("{sisssKsKsis(ii)s(ii)s(ii)}", "index", (int)index, "name", info.name,
                         "memory_bytes", (unsigned long long)info.mem_bytes, "l2_bytes",
                         (unsigned long long)info.l2_bytes, "sm_count", (int)info.n_sm,
                         "compute_capability", (int)info.cc_major, (int)info.cc_minor, "driver",
                         (int)(env.driver / 1000), (int)(env.driver % 1000 / 10), "runtime",
                         (int)(env.runtime / 1000), (int)(env.runtime % 1000 / 10));
}

static PyMethodDef functions[] = {
    {"build_info", build_info, METH_NOARGS,
     "build_info($module, /)\n--\n\n"
     "What this extension was built from and with, as a new dict."},
    {"device_count", device_count, METH_NOARGS,
     "device_count($module, /)\n--\n\n"
     "Number of CUDA devices; 0 when CUDA cannot be used (device_need says why)."},
    {"device_need", device_need, METH_O,
     "device_need($module, index, /)\n--\n\n"
     "Returns None if CUDA device `index` can be used, otherwise raises the one reason why not."},
    {"device_info", device_info, METH_O,
     "device_info($module, index, /)\n--\n\n"
     "Name, memory, SM count, compute capability, driver and runtime version of a device."},
    {NULL, NULL, 0, NULL},
};

/* State */

static int visit_state(PyObject *module, visitproc visit, void *arg)
{
    sk_module_state *ms = state_of(module);
    if (!ms) return 0;
#define X(name) Py_VISIT(ms->name);
    SK_STATE_FIELDS(X)
#undef X
    for (int i = 0; i < SK_CODE_COUNT; i++) Py_VISIT(ms->errors[i]);
    return 0;
}

static int clear_state(PyObject *module)
{
    sk_module_state *ms = state_of(module);
    if (!ms) return 0;
#define X(name) Py_CLEAR(ms->name);
    SK_STATE_FIELDS(X)
#undef X
    for (int i = 0; i < SK_CODE_COUNT; i++) Py_CLEAR(ms->errors[i]);
    return 0;
}

static void free_state(void *module)
{
    sk_module_state *ms = state_of((PyObject *)module);
    (void)clear_state((PyObject *)module);
    if (ms) sk_dev_close(ms->op_device);
}

static int add_type(PyObject *module, PyType_Spec *spec, PyObject **slot)
{
    *slot = PyType_FromModuleAndSpec(module, spec, NULL);
    if (!*slot) return -1;
    return PyModule_AddType(module, (PyTypeObject *)*slot);
}

static int exec_module(PyObject *module)
{
    sk_module_state *ms = state_of(module);
    if (PyArray_ImportNumPyAPI() < 0) return -1;
    if (sk_errors_add(module, ms) < 0) return -1;
    if (add_type(module, &sk_checkpoint_spec, &ms->checkpoint_type) < 0) return -1;
    if (add_type(module, &sk_session_spec, &ms->session_type) < 0) return -1;
    if (add_type(module, &sk_chain_type_spec, &ms->chain_type) < 0) return -1;
    if (PyModule_AddFunctions(module, sk_op_methods) < 0) return -1;
    if (PyModule_AddFunctions(module, sk_floor_methods) < 0) return -1;
    if (PyModule_AddFunctions(module, sk_diff_methods) < 0) return -1;
    if (PyModule_AddFunctions(module, sk_synthetic_methods) < 0) return -1;
    if (PyModule_AddFunctions(module, sk_sizes_methods) < 0) return -1;
    return PyModule_AddStringConstant(module, "__version__", SK_BUILD_VERSION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)exec_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stoker._native",
    .m_doc = "The native half of stoker. Use the stoker package; names here may change.",
    .m_size = sizeof(sk_module_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = visit_state,
    .m_clear = clear_state,
    .m_free = free_state,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
