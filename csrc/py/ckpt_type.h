/* What other parts of the binding may ask of a `_native.Checkpoint`. */
#ifndef SK_PY_CKPT_TYPE_H
#define SK_PY_CKPT_TYPE_H

#include "py/module.h"

#include "ckpt/ckpt.h"

/* The checkpoint behind `object`; NULL with a status when it is no `_native.Checkpoint` (INVALID)
 * or has been closed (STATE). The pointer is good for as long as the caller holds a reference to
 * `object`: close() after a loan marks the object closed and leaves the file mapped until the
 * object dies. */
SK_MUST_USE sk_ckpt *sk_checkpoint_borrow(sk_module_state *ms, PyObject *object, sk_status *st);

#endif
