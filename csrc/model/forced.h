/* Forced routes: what a measurement puts in the place of the router's choice, because random
 * weights route degenerately. A table for each mixture says which experts a row goes to, by its
 * slot and its position alone, so that no row depends on what is computed beside it. */
#ifndef SK_FORCED_H
#define SK_FORCED_H

#include "plan/space.h"

/* UNIFORM: every set of experts is as likely as any other, in every row anew. PROFILE: neighbouring
 * rows share experts as they did in a recorded model, see SK_FORCED_CARRY. */
typedef enum sk_routing {
    SK_ROUTING_OWN, // the router's
    SK_ROUTING_UNIFORM,
    SK_ROUTING_PROFILE,
    SK_ROUTING_COUNT
} sk_routing;

/* How rounds are measured; all of it off in an engine that serves. */
typedef struct sk_forced {
    bool on; // measuring: the experts of a round can be read after it
    sk_routing routing;
    bool plants; // planted proposals in the place of the drafter's
    int32_t seed;
} sk_forced;

#define SK_FORCED_ENTRIES 4096
/* From slot to slot: the golden section of the table, so that the rows of 64 slots at one position
 * stay more than SK_WIDTH_MAX entries apart. */
#define SK_FORCED_STRIDE 1565
/* Of 65536: how likely an expert of a row is one of the next row's too. With ten of 512 experts the
 * 50 routes of five rows then go to 36 experts, and those of four times five rows to 130. */
#define SK_FORCED_CARRY 21000

/* out [SK_FORCED_ENTRIES, n_used]: experts 0 .. n_expert-1, those of an entry all different. A
 * function of the arguments. NOMEM. */
SK_MUST_USE sk_code sk_forced_routes(const sk_forced *f, int32_t layer, int32_t n_expert,
                                     int32_t n_used, int32_t *out, sk_status *st);

/* The same as a constant of the space, I32 [SK_FORCED_ENTRIES, n_used]. */
SK_MUST_USE sk_code sk_forced_bind(const sk_forced *f, sk_space *space, const char *prefix,
                                   int32_t layer, int32_t n_expert, int32_t n_used, int32_t *out,
                                   sk_status *st);

#endif
