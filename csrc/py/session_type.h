/* What the files of _native.Session share: session_type.c has the type and the requests,
 * session_score.c drafting, scoring and measuring, diff.c sessions whose steps are compared.
 *
 * A session is exclusive: a flag is taken on entry and a second caller gets StateError at once, so
 * nothing can deadlock with the GIL, which is released around all native work. */
#ifndef SK_PY_SESSION_TYPE_H
#define SK_PY_SESSION_TYPE_H

#include "py/module.h"

#include "engine/diff.h"

#include <stdatomic.h>
#include <sys/types.h>

typedef struct session_object {
    PyObject_HEAD PyObject *weights; // owner of the mapped file, whose weights are used in place
    PyObject *draft_weights;         // likewise of a drafter's file, or NULL
    sk_session *s;                   // NULL once closed
    atomic_flag busy;
    pid_t process; // whose threads run it
} session_object;

/* The other side of a step diff; see sk_diff_open. */
typedef struct sk_beside {
    int32_t device;
    bool exact;
} sk_beside;

/* (checkpoint, options, progress, draft), the last two optional; *draft is None without one. All
 * borrowed; -1 with an exception. */
int sk_options_parse(PyObject *args, PyObject **checkpoint, PyObject **draft, sk_options *o);

/* A new session from such arguments, with a step diff unless `beside` is NULL. */
PyObject *sk_session_py_open(PyTypeObject *type, PyObject *args, const sk_beside *beside);

/* Takes the session for the caller; -1 with StateError when it is busy or closed. */
int sk_session_enter(session_object *o);
void sk_session_leave(session_object *o);

/* Raises what `st` holds, by the module that `self` belongs to. Always returns NULL. */
PyObject *sk_session_raise(PyObject *self, const sk_status *st);

/* A C-contiguous int32 array from what Python passed; the callers there have range-checked wider
 * integers. New reference or NULL with an exception. */
PyObject *sk_ids_from(PyObject *obj);
const int32_t *sk_ids_data(PyObject *ids);
int32_t sk_ids_count(PyObject *ids);

/* For each slot None or what it did in a round, as a tuple. New reference or NULL with an
 * exception.
 */
PyObject *sk_session_records(const session_object *o, const sk_done *done);

/* session_score.c */
PyObject *sk_session_py_plant(PyObject *self, PyObject *args);
PyObject *sk_session_py_draft(PyObject *self, PyObject *args);
PyObject *sk_session_py_score_begin(PyObject *self, PyObject *args);
PyObject *sk_session_py_score_step(PyObject *self, PyObject *args);
PyObject *sk_session_py_time(PyObject *self, PyObject *args);
PyObject *sk_session_py_time_without(PyObject *self, PyObject *args);
PyObject *sk_session_py_timed(PyObject *self, PyObject *args);
PyObject *sk_session_py_routes(PyObject *self, PyObject *unused);
PyObject *sk_session_py_state_bytes(PyObject *self, PyObject *args);
PyObject *sk_session_py_step_bytes(PyObject *self, PyObject *args);
PyObject *sk_session_py_score_end(PyObject *self, PyObject *unused);

#endif
