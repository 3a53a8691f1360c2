/* How far apart two results of one step are, and which bound that has to meet. The rules are those
 * of docs/numerics.md, "What is promised"; nothing here knows a session or a device. */
#ifndef SK_COMPARE_H
#define SK_COMPARE_H

#include "base/dtype.h"

/* X(name, text, bound) */
#define SK_RULES(X)                                                                                \
    X(EXACT, "exact", 0)      /* every byte */                                                     \
    X(LINEAR, "linear", 3e-6) /* relative L2 error of a row; see sk_gap.beside */                  \
    X(ELEMENTS, "elements",                                                                        \
      1e-5)                   /* an element's error, relative to the row's largest magnitude */    \
    X(BF16, "bf16", 0.005)    /* share of elements that are off, by SK_RULE_ULPS at most */        \
    X(CHOICE, "choice", 1e-5) /* by how much the other choice scores less, relative */

typedef enum sk_rule {
#define X(name, text, bound) SK_RULE_##name,
    SK_RULES(X)
#undef X
        SK_RULE_COUNT
} sk_rule;

#define SK_RULE_ULPS 1 // of BF16; where a sum cancels to about zero the bound of ELEMENTS holds

const char *sk_rule_name(sk_rule rule);
double sk_rule_bound(sk_rule rule);
sk_rule sk_rule_find(const char *name); // SK_RULE_COUNT when no rule has that name

/* The worst over the rows that were added. Everything is measured, whatever the rule. */
typedef struct sk_gap {
    int64_t n;          // elements
    int64_t mismatches; // of these differ in their bytes
    int64_t not_finite; // elements that are NaN or infinite on either side
    int64_t stray;      // bytes that differ where the step had nothing to write
    int64_t off;        // BF16: elements apart by at least one unit, and not by ELEMENTS alone
    int32_t ulps;       // BF16: the largest distance of these
    double rel_l2;
    double max_rel;
    double beside; // rel_l2 is of a row of at least this norm: set before a narrow row is added
    double score;  // CHOICE: set by who knows the scores
    // The element that is furthest off (ELEMENTS), or the first that differs (integers); row -1:
    // none.
    int64_t row, col;
    double got, want;
} sk_gap;

void sk_gap_init(sk_gap *g);

/* Can rows of this type be compared? */
bool sk_gap_knows(int32_t dtype);

/* Row number `row`: n elements of each side. */
void sk_gap_add(sk_gap *g, int32_t dtype, const uint8_t *got, const uint8_t *want, int64_t n,
                int64_t row);

/* What the rule's bound is compared with, and whether it and all else that the rule asks for holds.
 */
double sk_gap_value(const sk_gap *g, sk_rule rule);
bool sk_gap_ok(const sk_gap *g, sk_rule rule);

#endif
