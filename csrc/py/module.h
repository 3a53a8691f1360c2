/* What the files of the binding share: module state, exceptions, and the types' specs.
 *
 * One X-macro list declares, visits and clears the state; a reference that has been stored in the
 * state is released by m_clear and nowhere else. */
#ifndef SK_PY_MODULE_H
#define SK_PY_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/status.h"

/* The NumPy C API table is a static of module.c; every other file refers to it. */
#define NPY_NO_DEPRECATED_API  NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION     NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sk_numpy_api
#ifndef SK_NUMPY_OWNER
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#define SK_STATE_FIELDS(X)                                                                         \
    X(error) /* stoker.Error */                                                                    \
    X(checkpoint_type)                                                                             \
    X(session_type)                                                                                \
    X(chain_type)

typedef struct sk_module_state {
#define X(name) PyObject *name;
    SK_STATE_FIELDS(X)
#undef X
    PyObject *errors[SK_CODE_COUNT]; // by code; [SK_OK] stays NULL
    struct sk_dev *op_device;        // of run_op on "cuda", opened at its first use
} sk_module_state;

sk_module_state *sk_state_of(PyObject *module);
sk_module_state *sk_state_of_type(PyTypeObject *defining);

/* errors.c. Creates the exception classes and adds them to the module; -1 with an exception set. */
int sk_errors_add(PyObject *module, sk_module_state *ms);
/* The only place where a status becomes an exception. Always returns NULL. */
PyObject *sk_raise(sk_module_state *ms, const sk_status *st);

extern PyType_Spec sk_checkpoint_spec;     // ckpt_type.c
extern PyType_Spec sk_session_spec;        // session_type.c
extern PyType_Spec sk_chain_type_spec;     // chain_type.c
extern PyMethodDef sk_op_methods[];        // op_run.c
extern PyMethodDef sk_floor_methods[];     // floor.c
extern PyMethodDef sk_diff_methods[];      // diff.c
extern PyMethodDef sk_synthetic_methods[]; // synthetic.c
extern PyMethodDef sk_sizes_methods[];     // sizes.c

#endif
