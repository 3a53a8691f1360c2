/* See rings.h. */
#include "replay/rings.h"

#include <time.h>

#define SPIN_NS  20000000 // rounds are shorter than this
#define SLEEP_NS 50000    // between looks after that
#define LOOKS    256      // at the ring between looks at the clock
#define ASK_NS   2000000  // between questions to the device while spinning

void sk_rings_put(const sk_rings *r, int64_t k, const sk_ctl_slot *slot, int32_t n_slots)
{
    sk_ctl_entry *e = r->ctl + k % r->n;
    __atomic_store_n(&e->seq, -1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    e->valid = 0;
    for (int32_t i = 0; i < SK_SLOTS_MAX; i++)
        e->slot[i] = i < n_slots ? slot[i] : (sk_ctl_slot){SK_LICENCE_ALL, 0};
    __atomic_store_n(&e->seq_end, k, __ATOMIC_RELEASE);
    __atomic_store_n(&e->seq, k, __ATOMIC_RELEASE);
}

const sk_done *sk_rings_find(const sk_rings *r, int64_t k)
{
    const sk_done *d = r->done + k % r->n;
    if (__atomic_load_n(&d->seq_end, __ATOMIC_ACQUIRE) != k) return NULL;
    return __atomic_load_n(&d->seq, __ATOMIC_ACQUIRE) == k ? d : NULL;
}

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* After the device has said that it is idle, its last writes are there. */
static sk_code ask_device(const sk_rings *r, sk_dev *dev, int64_t k, const char *what,
                          sk_status *st)
{
    const sk_done *there = r->done + k % r->n;
    const int32_t busy = sk_dev_busy(dev);
    if (busy < 0) return sk_dev_check(-busy, what, -1, st);
    if (busy || sk_rings_find(r, k)) return SK_OK;
    return SK_FAIL(st, SK_STATE,
                   "round %lld: expected its completion record, found %lld/%lld and an idle device",
                   (long long)k, (long long)there->seq, (long long)there->seq_end);
}

sk_code sk_rings_wait(const sk_rings *r, sk_dev *dev, int64_t k, const char *what,
                      const sk_done **out, sk_status *st)
{
    const struct timespec sleep = {0, SLEEP_NS};
    int64_t began = 0, asked = 0;
    for (;;) {
        int64_t now;
        for (int i = 0; i < LOOKS; i++) {
            *out = sk_rings_find(r, k);
            if (*out) return SK_OK;
            relax();
        }
        now = now_ns();
        if (!began) began = asked = now;
        if (now - asked < ASK_NS) continue;
        SK_TRY(ask_device(r, dev, k, what, st));
        asked = now;
        if (now - began > SPIN_NS) (void)nanosleep(&sleep, NULL);
    }
}
