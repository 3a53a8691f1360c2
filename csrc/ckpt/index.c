/* See index.h. */
#include "ckpt/index.h"

#include "base/mem.h"
#include "base/order.h"

#include <assert.h>
#include <string.h>

static_assert(offsetof(sk_meta, key) == 0 && offsetof(sk_tensor, name) == 0,
              "the name comes first in everything that is indexed");

static sk_str name_at(const sk_index *index, uint32_t at)
{
    sk_str name;
    memcpy(&name, (const char *)index->items + at * index->stride, sizeof name);
    return name;
}

static int compare(sk_str a, sk_str b)
{
    size_t n = (size_t)(a.n < b.n ? a.n : b.n);
    int order = n ? memcmp(a.p, b.p, n) : 0;
    if (order != 0) return order;
    return a.n < b.n ? -1 : a.n > b.n;
}

static bool name_less(const void *items, uint32_t a, uint32_t b)
{
    const sk_index *index = items;
    return compare(name_at(index, a), name_at(index, b)) < 0;
}

sk_code sk_index_init(sk_index *out, const void *items, size_t stride, uint32_t n, const char *what,
                      sk_status *st)
{
    sk_index index = {.items = items, .stride = stride, .n = n};
    SK_TRY(sk_order_make(&index.order, n, name_less, &index, what, st));
    *out = index;
    return SK_OK;
}

void sk_index_fini(sk_index *index)
{
    sk_mem_free(index->order);
    *index = (sk_index){0};
}

const void *sk_index_find(const sk_index *index, const char *name, uint64_t n_bytes)
{
    const sk_str wanted = {name, n_bytes};
    uint32_t from = 0;
    uint32_t to = index->n;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        uint32_t at = index->order[middle];
        int order = compare(name_at(index, at), wanted);
        if (order == 0) return (const char *)index->items + at * index->stride;
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return NULL;
}

bool sk_index_find_twins(const sk_index *index, uint32_t *a, uint32_t *b)
{
    for (uint32_t i = 1; i < index->n; i++) {
        if (compare(name_at(index, index->order[i - 1]), name_at(index, index->order[i])) == 0) {
            *a = index->order[i - 1];
            *b = index->order[i];
            return true;
        }
    }
    return false;
}
