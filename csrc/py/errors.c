/* Exception classes, and the one function that turns a status into an exception.
 *
 * stoker.Error is the base of all; each class also derives from the built-in exception that a
 * caller would expect (ValueError, OSError, ...). Attributes: code, native, where, step, check. */
#include "py/module.h"

#include <string.h>

/* A new exception class, added to the module. The attributes have these values on an exception that
 * Python code raised; sk_raise sets them to what the status says. */
static PyObject *new_error(PyObject *module, const char *name, const char *doc, PyObject *bases,
                           const char *code)
{
    PyObject *attributes = Py_BuildValue("{sssisisOsO}", "code", code, "native", 0, "where", 0,
                                         "step", Py_None, "check", Py_None);
    PyObject *type;
    char full[64];
    if (!attributes) return NULL;
    PyOS_snprintf(full, sizeof full, "stoker.%s", name);
    type = PyErr_NewExceptionWithDoc(full, doc, bases, attributes);
    Py_DECREF(attributes);
    if (!type) return NULL;
    if (PyModule_AddObjectRef(module, name, type) < 0) {
        Py_DECREF(type);
        return NULL;
    }
    return type;
}

int sk_errors_add(PyObject *module, sk_module_state *ms)
{
    static const struct {
        const char *name, *base, *when;
    } classes[SK_CODE_COUNT] = {
#define X(code, python_class, python_base, when)                                                   \
    [SK_##code] = {python_class, python_base, "Raised for " when "."},
        SK_CODES(X)
#undef X
    };
    PyObject *builtins = PyEval_GetBuiltins(); // borrowed
    ms->error =
        new_error(module, "Error",
                  "Base of every exception that stoker raises on purpose.\n\n"
                  "Attributes: code (name), native (errno or CUDA error number), where (byte "
                  "offset in the file),\nstep (plan step or None), check (name of the broken "
                  "rule or None).",
                  PyExc_Exception, "");
    if (!ms->error) return -1;
    for (int code = SK_OK + 1; code < SK_CODE_COUNT; code++) {
        PyObject *extra = PyDict_GetItemString(builtins, classes[code].base); // borrowed
        PyObject *bases;
        if (!extra) {
            PyErr_Format(PyExc_SystemError, "built-in %s is missing", classes[code].base);
            return -1;
        }
        bases = PyTuple_Pack(2, ms->error, extra);
        if (!bases) return -1;
        ms->errors[code] = new_error(module, classes[code].name, classes[code].when, bases,
                                     sk_code_name((sk_code)code));
        Py_DECREF(bases);
        if (!ms->errors[code]) return -1;
    }
    return 0;
}

static int set_attr(PyObject *exc, const char *name, PyObject *value) // steals value
{
    int rc = value ? PyObject_SetAttrString(exc, name, value) : -1;
    Py_XDECREF(value);
    return rc;
}

static PyObject *text_or_none(const char *text)
{
    if (!text) Py_RETURN_NONE;
    return PyUnicode_FromString(text);
}

PyObject *sk_raise(sk_module_state *ms, const sk_status *st)
{
    PyObject *type = st->code > SK_OK && st->code < SK_CODE_COUNT ? ms->errors[st->code] : NULL;
    // Messages quote file contents, which need not be UTF-8.
    PyObject *text = PyUnicode_DecodeUTF8(st->msg, (Py_ssize_t)strlen(st->msg), "replace");
    PyObject *exc = NULL;
    if (!text) return NULL;
    if (!type) {
        PyErr_Format(PyExc_SystemError, "status without a code: %U", text);
        Py_DECREF(text);
        return NULL;
    }
    // OSError alone has a two-argument form that sets errno.
    if (st->code == SK_IO && st->native)
        exc = PyObject_CallFunction(type, "iO", (int)st->native, text);
    else
        exc = PyObject_CallFunctionObjArgs(type, text, NULL);
    Py_DECREF(text);
    if (!exc) return NULL;
    if (set_attr(exc, "code", PyUnicode_FromString(sk_code_name(st->code))) == 0 &&
        set_attr(exc, "native", PyLong_FromLong(st->native)) == 0 &&
        set_attr(exc, "where", PyLong_FromUnsignedLongLong(st->where)) == 0 &&
        set_attr(exc, "check", text_or_none(st->check)) == 0 &&
        set_attr(exc, "step", st->step >= 0 ? PyLong_FromLong(st->step) : Py_NewRef(Py_None)) == 0)
        PyErr_SetObject(type, exc);
    Py_DECREF(exc);
    return NULL;
}
