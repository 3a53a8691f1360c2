/* What other parts of the binding may ask of a `_native.Checkpoint`. */
#ifndef SK_PY_CKPT_TYPE_H
#define SK_PY_CKPT_TYPE_H

#include "py/module.h"

#include "ckpt/ckpt.h"

/* The checkpoint behind `object`; NULL with a status when it is no `_native.Checkpoint` (INVALID)
 * or has been closed (STATE). *owner is a new reference: the pointer is good, whatever happens to
 * `object`, until the caller releases it. */
SK_MUST_USE sk_ckpt *sk_checkpoint_share(sk_module_state *ms, PyObject *object, PyObject **owner,
                                         sk_status *st);

/* New `_native.Checkpoint` around `ck`, which it closes (at once when it fails: NULL with an
 * exception); steals `path`, bytes. */
PyObject *sk_checkpoint_wrap(PyTypeObject *type, sk_ckpt *ck, PyObject *path);

#endif
