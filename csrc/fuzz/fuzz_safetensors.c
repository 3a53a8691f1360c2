/* libFuzzer target: any bytes as a safetensors file, lenient and strict. Whatever opens is used as
 * callers use it: notes walked, every tensor found by its name, its bytes touched and decoded. The
 * header's length is also made to fit, so that most inputs get past the first eight bytes. */
#include "base/quant.h"
#include "ckpt/ckpt.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define VALUES_MAX 1024
#define NAME_MAX   1024
#define SIZE_MAX_  65536

static volatile uint64_t sink; // keeps reads that nobody else needs

static void use_tensor(const sk_ckpt *ck, const sk_tensor *t)
{
    static float values[VALUES_MAX];
    char name[NAME_MAX + 1];
    uint64_t n = 1;
    if (t->name.n < 1 || t->name.n > NAME_MAX) __builtin_trap();
    memcpy(name, t->name.p, (size_t)t->name.n);
    name[t->name.n] = 0;
    if (sk_ckpt_find_tensor(ck, name) != t) __builtin_trap();
    for (int32_t i = 0; i < t->n_dims; i++) n *= t->dim[i];
    if (n != t->n_elems) __builtin_trap();
    for (uint64_t i = 0; i < t->n_bytes; i++) sink += t->data[i];
    if (sk_dtype_decodable(t->type) && n <= VALUES_MAX) sk_quant_row(t->type, t->data, n, values);
}

static void open_bytes(const uint8_t *bytes, size_t size, bool strict)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    sk_code rc = sk_ckpt_open_bytes(&ck, bytes, size, "fuzz.safetensors", strict, &st);
    uint64_t n_bytes = 0;
    if (rc != st.code || (rc == SK_OK) != (ck != NULL)) __builtin_trap();
    if (rc != SK_OK && (!st.check || !st.msg[0] || st.where > size)) __builtin_trap();
    if (rc != SK_OK) return;
    for (size_t i = 0; i < sk_ckpt_n_notes(ck); i++) {
        uint64_t at = 0;
        sk_str s = sk_meta_next_str(sk_ckpt_note(ck, i), &at);
        for (uint64_t k = 0; k < s.n; k++) sink += (uint8_t)s.p[k];
    }
    for (size_t i = 0; i < sk_ckpt_n_tensors(ck); i++) {
        use_tensor(ck, sk_ckpt_tensor(ck, i));
        n_bytes += sk_ckpt_tensor(ck, i)->n_bytes;
    }
    if (n_bytes > size) __builtin_trap(); // every byte belongs to one tensor
    sk_ckpt_close(ck);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static uint8_t copy[SIZE_MAX_];
    size_t end = 0;
    open_bytes(bytes, size, false);
    open_bytes(bytes, size, true);
    if (size < 10 || size > sizeof copy) return 0;
    for (size_t i = 8; i < size; i++)
        if (bytes[i] == '}') end = i + 1 - 8;
    memcpy(copy, bytes, size);
    for (int i = 0; i < 8; i++) copy[i] = (uint8_t)((uint64_t)end >> 8 * i);
    open_bytes(copy, size, false);
    return 0;
}
