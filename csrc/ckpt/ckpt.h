/* A checkpoint: tensors and hyper-parameters of one file or of several that belong together, mapped
 * and never copied to look at.
 *
 * Format-neutral face of the loaders. Everything returned is borrowed and lives until
 * sk_ckpt_close. Names and strings are pointer + length, most of them into a mapping: not
 * terminated. */
#ifndef SK_CKPT_H
#define SK_CKPT_H

#include "base/dtype.h"
#include "base/synth.h"

#define SK_MAX_DIMS 8

typedef struct sk_str {
    const char *p;
    uint64_t n; // bytes
} sk_str;

typedef struct sk_tensor {
    sk_str name;
    sk_dtype type;
    int32_t n_dims;
    uint64_t dim[SK_MAX_DIMS]; // outermost first, as a C or NumPy shape: the last one is the row
    uint64_t n_elems;
    uint64_t n_bytes;
    uint64_t file_off;     // of the first byte, from the start of its file
    const uint8_t *data;   // any alignment; nothing to read when n_bytes is 0
    uint32_t file;         // sk_ckpt_file_path
    const sk_synth *synth; // how its contents are made (synthetic.h); NULL: they are in the file
} sk_tensor;

/* GGUF value types, by their ids in the file. */
typedef enum sk_meta_type {
    SK_META_U8 = 0,
    SK_META_I8,
    SK_META_U16,
    SK_META_I16,
    SK_META_U32,
    SK_META_I32,
    SK_META_F32,
    SK_META_BOOL,
    SK_META_STRING,
    SK_META_ARRAY,
    SK_META_U64,
    SK_META_I64,
    SK_META_F64,
    SK_META_TYPE_COUNT
} sk_meta_type;

/* "uint8", ..., "string", "array"; "?" for no type. */
const char *sk_meta_type_name(sk_meta_type type);

typedef struct sk_meta {
    sk_str key;
    sk_meta_type type;
    sk_meta_type elem_type; // of an array; of anything else its type
    uint64_t n;             // elements of an array, 1 otherwise
    const uint8_t *data;    // first value byte (strings: the length field), any alignment
    uint64_t n_bytes;       // of all values
} sk_meta;

typedef struct sk_ckpt sk_ckpt;

typedef enum sk_format { SK_FORMAT_GGUF, SK_FORMAT_SAFETENSORS } sk_format;

/* Opens what `path` names and checks every directory in it: a GGUF file, or the first of a split
 * model (the others are found by its name); a file that ends in ".safetensors"; an index that ends
 * in ".json" with the files it lists; a folder with model.safetensors.index.json or
 * model.safetensors, and then mtp.safetensors too where it is there. Next to safetensors files a
 * config.json is read. `strict` also demands of GGUF that tensors follow each other without gaps
 * and that padding is zero, and of safetensors that tensors have no members beyond the three. */
SK_MUST_USE sk_code sk_ckpt_open(sk_ckpt **out, const char *path, bool strict, sk_status *st);
/* The same over the bytes of one file in memory, which stay with the caller and must outlive *out.
 * `label` stands where messages name the path, and its end tells the format. */
SK_MUST_USE sk_code sk_ckpt_open_bytes(sk_ckpt **out, const uint8_t *bytes, uint64_t size,
                                       const char *label, bool strict, sk_status *st);
void sk_ckpt_close(sk_ckpt *ck); // accepts NULL

/* Weights of a synthetic checkpoint (synthetic.h) are made when they are needed: `data` of a tensor
 * holds its contents once one of these has returned OK, and stays where it is. Of files they are
 * always there, and this does nothing. Any number of threads may call. What is missing is first
 * held against the memory that is there (NOMEM, with both numbers; nothing is made then).
 *
 * One tensor, or all those i for which marks[i] == mark. */
SK_MUST_USE sk_code sk_ckpt_need(const sk_ckpt *ck, const sk_tensor *t, sk_status *st);
SK_MUST_USE sk_code sk_ckpt_need_marked(const sk_ckpt *ck, const uint8_t *marks, uint8_t mark,
                                        sk_status *st);

/* How the contents at `p` are made, and *block, the number of the block (plain types: the element)
 * that begins there. NULL: `p` is not in the weights of this checkpoint, or they are of files. */
const sk_synth *sk_ckpt_recipe_at(const sk_ckpt *ck, const uint8_t *p, uint64_t *block);

const char *sk_ckpt_path(const sk_ckpt *ck); // as given
/* A synthetic checkpoint has the names and keys of a GGUF file and says so. */
sk_format sk_ckpt_format(const sk_ckpt *ck);
bool sk_ckpt_is_synthetic(const sk_ckpt *ck);
const char *sk_format_name(sk_format format);   // "gguf", "safetensors"
uint64_t sk_ckpt_file_bytes(const sk_ckpt *ck); // of all files with tensors
uint32_t sk_ckpt_version(const sk_ckpt *ck);    // GGUF; else 0
uint64_t sk_ckpt_alignment(const sk_ckpt *ck);  // GGUF, of the first file; else 1
size_t sk_ckpt_n_files(const sk_ckpt *ck);      // those with tensors
const char *sk_ckpt_file_path(const sk_ckpt *ck, size_t at);
uint64_t sk_ckpt_file_size(const sk_ckpt *ck, size_t at);
/* config.json as it is, *n bytes; NULL when there is none. */
const uint8_t *sk_ckpt_config(const sk_ckpt *ck, uint64_t *n);
/* The notes of safetensors files (`__metadata__`), strings all of them. */
size_t sk_ckpt_n_notes(const sk_ckpt *ck);
const sk_meta *sk_ckpt_note(const sk_ckpt *ck, size_t at);

size_t sk_ckpt_n_tensors(const sk_ckpt *ck);
const sk_tensor *sk_ckpt_tensor(const sk_ckpt *ck, size_t at);             // file order
const sk_tensor *sk_ckpt_find_tensor(const sk_ckpt *ck, const char *name); // or NULL

/* Hyper-parameters: the keys of GGUF, or config.json with the names of nested members joined by
 * dots ("rope_scaling.factor"). Of config.json, null counts as absent, and an array is there when
 * its elements are all numbers, all bools or all strings. */
size_t sk_ckpt_n_meta(const sk_ckpt *ck);
const sk_meta *sk_ckpt_meta(const sk_ckpt *ck, size_t at);            // file order
const sk_meta *sk_ckpt_find_meta(const sk_ckpt *ck, const char *key); // or NULL

/* Typed access. `find` leaves *out alone and returns OK with *found = false when the key is absent;
 * `need` fails with check "MISSING_KEY". Integers of any width are accepted if the value is not
 * negative and at most `max`; floats only from f32/f64 (of config.json, from any number), and
 * finite; strings only from strings.
 * Otherwise FORMAT with check "KEY_TYPE" (wrong type) or "BAD_HPARAM" (out of range), naming key,
 * wanted and found. A bool is no integer. */
SK_MUST_USE sk_code sk_meta_find_u64(const sk_ckpt *ck, const char *key, uint64_t max,
                                     uint64_t *out, bool *found, sk_status *st);
SK_MUST_USE sk_code sk_meta_need_u64(const sk_ckpt *ck, const char *key, uint64_t max,
                                     uint64_t *out, sk_status *st);
SK_MUST_USE sk_code sk_meta_find_f64(const sk_ckpt *ck, const char *key, double *out, bool *found,
                                     sk_status *st);
SK_MUST_USE sk_code sk_meta_need_f64(const sk_ckpt *ck, const char *key, double *out,
                                     sk_status *st);
SK_MUST_USE sk_code sk_meta_find_bool(const sk_ckpt *ck, const char *key, bool *out, bool *found,
                                      sk_status *st);
SK_MUST_USE sk_code sk_meta_find_str(const sk_ckpt *ck, const char *key, sk_str *out, bool *found,
                                     sk_status *st);
SK_MUST_USE sk_code sk_meta_need_str(const sk_ckpt *ck, const char *key, sk_str *out,
                                     sk_status *st);

/* Per-layer values: a scalar stands for all n, an array must have exactly n elements (BAD_HPARAM).
 * The element type obeys the rules above. */
SK_MUST_USE sk_code sk_meta_find_u64s(const sk_ckpt *ck, const char *key, uint64_t max,
                                      uint64_t *out, size_t n, bool *found, sk_status *st);
SK_MUST_USE sk_code sk_meta_find_f64s(const sk_ckpt *ck, const char *key, double *out, size_t n,
                                      bool *found, sk_status *st);

/* String `s` of an array of strings lies behind its length, and the next one behind it: start with
 * at = 0 and call m->n times. */
sk_str sk_meta_next_str(const sk_meta *m, uint64_t *at);

#endif
