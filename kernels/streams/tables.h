/* The types of tables that gather_heads has kernels for: SK_<type>, and the name of its reader. */
#ifndef SK_STREAMS_TABLES_H
#define SK_STREAMS_TABLES_H

#define SK_TABLES(X)                                                                               \
    X(F32, f32)                                                                                    \
    X(F16, f16)                                                                                    \
    X(BF16, bf16)                                                                                  \
    X(Q8_0, q8_0)                                                                                  \
    X(Q4_0, q4_0)                                                                                  \
    X(IQ4_NL, iq4_nl)

#endif
