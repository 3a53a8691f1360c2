/* The two JSON files beside safetensors files, as items that can be looked up: a pure parser over
 * bytes in memory. */
#ifndef SK_CONFIG_JSON_H
#define SK_CONFIG_JSON_H

#include "ckpt/index.h"

/* config.json, flat: members of members are called "outer.inner". null is left out, and so are
 * arrays that hold anything but numbers, anything but bools or anything but strings. Integers are
 * U64 or I64, other numbers F64. */
typedef struct sk_config_json {
    const uint8_t *bytes; // borrowed
    uint64_t size;
    sk_meta *meta;
    uint32_t n_meta;
    sk_index by_key;
    char *text; // keys and values
} sk_config_json;

/* Checks BAD_JSON, BAD_CONFIG (not an object, or beyond the caps), DUPLICATE_KEY. `bytes` stays
 * with the caller and must outlive *out; `label` stands in front of every message. */
SK_MUST_USE sk_code sk_config_json_init(sk_config_json *out, const uint8_t *bytes, uint64_t size,
                                        const char *label, sk_status *st);
void sk_config_json_fini(sk_config_json *c); // accepts a zeroed one and leaves one

/* The weight_map of an index: which file has which tensor. */
typedef struct sk_mapped {
    sk_str name;
    sk_str file; // a plain file name: no separators, no "..", 1 to 255 bytes
} sk_mapped;

typedef struct sk_weight_map {
    sk_mapped *items; // [n], in order of the file
    uint32_t n;
    sk_index by_name;
    char *text;
} sk_weight_map;

/* Checks BAD_JSON, BAD_INDEX, BAD_TENSOR_NAME, BAD_FILE_NAME, DUPLICATE_TENSOR. */
SK_MUST_USE sk_code sk_weight_map_init(sk_weight_map *out, const uint8_t *bytes, uint64_t size,
                                       const char *label, sk_status *st);
void sk_weight_map_fini(sk_weight_map *m);

#endif
