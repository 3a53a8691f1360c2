/* `_native.synthetic`: checkpoints without a file (ckpt/synthetic.h), `_native.types`: the types
 * that their directories may name, and `_native.forced_routes`: how such a model is routed when it
 * is measured. */
#include "py/ckpt_type.h"

#include "base/mem.h"
#include "ckpt/synthetic.h"
#include "graph/once.h"
#include "model/forced.h"

static sk_module_state *state_of(PyObject *module) { return sk_state_of(module); }

/* (kind, a, b) of each; released with sk_mem_free. NULL with an exception. */
static sk_synth_recipe *take_recipes(sk_module_state *ms, PyObject *list, size_t *n)
{
    sk_status st = SK_STATUS_INIT;
    sk_synth_recipe *recipes = NULL;
    *n = (size_t)PyList_Size(list);
    if (sk_mem_new((void **)&recipes, *n, sizeof *recipes, "recipes", &st) != SK_OK) {
        sk_raise(ms, &st);
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i); // borrowed
        int kind;
        if (!PyTuple_Check(item)) PyErr_SetString(PyExc_TypeError, "recipes: expected tuples");
        if (!PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "idd:recipe", &kind, &recipes[i].a, &recipes[i].b)) {
            sk_mem_free(recipes);
            return NULL;
        }
        recipes[i].kind = kind;
    }
    return recipes;
}

static PyObject *open_plan(sk_module_state *ms, const sk_synthetic_plan *plan)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    PyObject *path;
    PyThreadState *saved = PyEval_SaveThread();
    sk_code rc = sk_synthetic_open(&ck, plan, &st);
    PyEval_RestoreThread(saved);
    if (rc != SK_OK) return sk_raise(ms, &st);
    path = PyBytes_FromString(plan->label);
    if (path) return sk_checkpoint_wrap((PyTypeObject *)ms->checkpoint_type, ck, path);
    sk_ckpt_close(ck);
    return NULL;
}

static PyObject *synthetic(PyObject *module, PyObject *args)
{
    sk_module_state *ms = state_of(module);
    sk_synthetic_plan plan = {0};
    const char *bytes;
    Py_ssize_t n_bytes;
    unsigned long long size, seed;
    PyObject *list, *result;
    sk_synth_recipe *recipes;
    int threads;
    // Masks would hide what is too large: both numbers are checked by Python's own conversion.
    PyObject *size_object, *seed_object;
    if (!PyArg_ParseTuple(args, "sy#O!O!O!i:synthetic", &plan.label, &bytes, &n_bytes, &PyLong_Type,
                          &size_object, &PyLong_Type, &seed_object, &PyList_Type, &list, &threads))
        return NULL;
    size = PyLong_AsUnsignedLongLong(size_object);
    if (PyErr_Occurred()) return NULL;
    seed = PyLong_AsUnsignedLongLong(seed_object);
    if (PyErr_Occurred()) return NULL;
    recipes = take_recipes(ms, list, &plan.n);
    if (!recipes) return NULL;
    plan.directory = (const uint8_t *)bytes;
    plan.directory_bytes = (uint64_t)n_bytes;
    plan.size = size;
    plan.seed = seed;
    plan.recipes = recipes;
    plan.threads = threads;
    result = open_plan(ms, &plan);
    sk_mem_free(recipes);
    return result;
}

/* The recipe of bytes [at, at + n) of a tensor, and the block that begins there; NULL with a
 * status: there is none, or they are no whole blocks. */
static const sk_synth *find_recipe(const sk_ckpt *ck, const char *name, unsigned long long at,
                                   unsigned long long n, uint64_t *block, sk_status *st)
{
    const sk_tensor *t = sk_ckpt_find_tensor(ck, name);
    const sk_synth *recipe = t ? sk_ckpt_recipe_at(ck, t->data, block) : NULL;
    uint64_t each = recipe ? (uint64_t)recipe->block_bytes : 1;
    if (recipe && n > 0 && at % each == 0 && n % each == 0 && at <= t->n_bytes &&
        n <= t->n_bytes - at)
        return sk_ckpt_recipe_at(ck, t->data + at, block);
    SK_FAIL(st, SK_INVALID,
            "%s: tensor %s: expected whole blocks of a synthetic one, found bytes %llu to %llu",
            sk_ckpt_path(ck), name, at, at + n);
    return NULL;
}

static PyObject *synth_on_device(PyObject *module, PyObject *args)
{
    sk_module_state *ms = state_of(module);
    sk_status st = SK_STATUS_INIT;
    PyObject *object, *owner = NULL, *out = NULL;
    const char *name;
    Py_ssize_t at, n;
    uint64_t block = 0;
    const sk_synth *recipe = NULL;
    const sk_ckpt *ck;
    sk_code rc = SK_INVALID;
    if (!PyArg_ParseTuple(args, "Osnn:synth_on_device", &object, &name, &at, &n)) return NULL;
    ck = sk_checkpoint_share(ms, object, &owner, &st);
    if (!ck) return sk_raise(ms, &st);
    recipe = find_recipe(ck, name, (unsigned long long)at, (unsigned long long)n, &block, &st);
    if (recipe) out = PyBytes_FromStringAndSize(NULL, n);
    if (out) rc = ms->op_device ? SK_OK : sk_dev_open(&ms->op_device, 0, &st);
    if (rc == SK_OK)
        rc = sk_once_synth(ms->op_device, recipe, block, (uint64_t)n,
                           (uint8_t *)PyBytes_AsString(out), &st);
    Py_DECREF(owner);
    if (rc == SK_OK) return out;
    Py_XDECREF(out);
    return PyErr_Occurred() ? NULL : sk_raise(ms, &st);
}

/* Ids from 1000 on are ours and no file's. */
static PyObject *types(PyObject *module, PyObject *unused)
{
    PyObject *dict = PyDict_New();
    (void)module;
    (void)unused;
    for (int64_t id = 0; dict && id < 1000; id++) {
        const sk_dtype_info *info = sk_dtype_find(id);
        PyObject *item;
        if (!info) continue;
        item =
            Py_BuildValue("(iii)", (int)info->id, (int)info->block_elems, (int)info->block_bytes);
        if (!item || PyDict_SetItemString(dict, info->name, item) < 0) Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    return dict;
}

static PyObject *forced_routes(PyObject *module, PyObject *args)
{
    sk_status st = SK_STATUS_INIT;
    sk_forced f = {.on = true};
    int routing, seed, layer, experts, routes;
    npy_intp dims[2] = {SK_FORCED_ENTRIES, 0};
    PyObject *out;
    if (!PyArg_ParseTuple(args, "iiiii", &routing, &seed, &layer, &experts, &routes)) return NULL;
    if (routing < 0 || routing >= SK_ROUTING_COUNT || routes < 1 || routes > experts) {
        (void)SK_FAIL(&st, SK_INVALID,
                      "forced routes: expected a kind in 0 .. 2 and 1 .. %d experts of a row, "
                      "found %d and %d",
                      experts, routing, routes);
        return sk_raise(state_of(module), &st);
    }
    f.routing = (sk_routing)routing;
    f.seed = seed;
    dims[1] = routes;
    out = PyArray_SimpleNew(2, dims, NPY_INT32);
    if (!out) return NULL;
    if (sk_forced_routes(&f, layer, experts, routes, PyArray_DATA((PyArrayObject *)out), &st) ==
        SK_OK)
        return out;
    Py_DECREF(out);
    return sk_raise(state_of(module), &st);
}

PyMethodDef sk_synthetic_methods[] = {
    {"forced_routes", forced_routes, METH_VARARGS,
     "forced_routes($module, routing, seed, layer, experts, routes, /)\n--\n\n"
     "The table that routes a layer of a measuring session, int32 [entries, routes]."},
    {"synthetic", synthetic, METH_VARARGS,
     "synthetic($module, label, directory, size, seed, recipes, threads, /)\n--\n\n"
     "A Checkpoint without a file: the directory of a GGUF file of `size` bytes, and for each of "
     "its "
     "tensors\n(kind, a, b): 0, nearly normal with mean a and standard deviation b; 1, even from a "
     "to b."},
    {"synth_on_device", synth_on_device, METH_VARARGS,
     "synth_on_device($module, checkpoint, tensor, at, n, /)\n--\n\n"
     "Bytes [at, at + n) of a synthetic tensor, whole blocks, made on CUDA device 0."},
    {"types", types, METH_NOARGS,
     "types($module, /)\n--\n\nNew dict of the types of GGUF files: name, (id, elements of a "
     "block, "
     "bytes of a block)."},
    {NULL, NULL, 0, NULL},
};
