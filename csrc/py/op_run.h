/* An op and its arguments from Python: run_op and the chains of one op share how they are bound. */
#ifndef SK_PY_OP_RUN_H
#define SK_PY_OP_RUN_H

#include "py/module.h"

#include "op/cpu/cpu.h"

#define SK_OP_HELD 32 // no op has more views

typedef struct sk_op_call {
    enum sk_op op;
    void *args; // of SK_ARGS_MAX bytes
    bool cuda;
    bool fused;        // see sk_launch
    int32_t ctx_bound; // CUDA: tier
    sk_cpu_fn table[SK_OP_COUNT];
    int32_t n_threads;
    PyObject *held[SK_OP_HELD]; // arrays the views point into
    size_t n_held;
} sk_op_call;

/* The op of that name; -1 with an exception set. */
int sk_op_call_find(sk_op_call *c, const char *name);
/* Makes the arguments out of a dict of fields; -1 with an exception set. */
int sk_op_call_bind(sk_module_state *ms, sk_op_call *c, PyObject *fields);
void sk_op_call_fini(sk_op_call *c); // accepts a zeroed struct

#endif
