/* A tiny llama model in GGUF, made in memory, for the tests of sessions and programs. */
#ifndef SK_TINY_MODEL_H
#define SK_TINY_MODEL_H

#include <stdbool.h>

enum { DIM = 16, VOCAB = 24, LAYERS = 2, HEADS = 2, FFN = 32, CTX = 32 };

/* Writes the model to a new temporary file; `path` gets its name. */
bool sk_test_model(char path[64]);

#endif
