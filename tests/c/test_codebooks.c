/* The number tables of the codebook formats, unpacked, have the fingerprints of the format's own.
 */
#include "tests/c/sk_test.h"

#include "base/codebooks.h"
#include "base/sha256.h"

#include <stdio.h>

#define HEX_ROOM (2 * SK_SHA256_BYTES + 1)

static void hex_of(const void *data, size_t n_bytes, char out[HEX_ROOM])
{
    sk_sha256 s;
    uint8_t digest[SK_SHA256_BYTES];
    sk_sha256_init(&s);
    sk_sha256_add(&s, data, n_bytes);
    sk_sha256_end(&s, digest);
    for (size_t i = 0; i < SK_SHA256_BYTES; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", (unsigned)digest[i]);
}

static void expect_sha(const char *want, const void *data, size_t n_bytes)
{
    char found[HEX_ROOM];
    hex_of(data, n_bytes, found);
    SK_EXPECT_STR(want, found);
}

/* The entries as little-endian bytes, and each component as a byte. */
static void expect_grid(const uint16_t *grid, size_t n, size_t width, const float *values,
                        const char *packed, const char *whole)
{
    static uint8_t bytes[2 * 2048];
    static int8_t parts[8 * 2048];
    size_t bits = 16 / width;
    for (size_t i = 0; i < n; i++) {
        bytes[2 * i] = (uint8_t)grid[i];
        bytes[2 * i + 1] = (uint8_t)(grid[i] >> 8);
        for (size_t k = 0; k < width; k++)
            parts[width * i + k] = (int8_t)values[grid[i] >> bits * k & ((1u << bits) - 1)];
    }
    expect_sha(packed, bytes, 2 * n);
    expect_sha(whole, parts, width * n);
    SK_EXPECT_INT(0, grid[n]); // room for a read of four bytes
}

static void grids(void)
{
    static const float ternary[4] = {-1, 0, 1, 0};
    expect_grid(sk_iq2xxs_grid, 256, 8, sk_iq2_values,
                "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d",
                "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
    expect_grid(sk_iq2xs_grid, 512, 8, sk_iq2_values,
                "f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9",
                "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
    expect_grid(sk_iq2s_grid, 1024, 8, sk_iq2_values,
                "e6e75e121b65e8afa5c1f92b71463cfbe217b83893f438acde22fd5db06a43f7",
                "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
    expect_grid(sk_iq3xxs_grid, 256, 4, sk_iq3xxs_values,
                "15d5c59616fa93701383d1d45da633a378dab68ea2a7dce31b772c604e14dd7c",
                "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
    expect_grid(sk_iq3s_grid, 512, 4, sk_iq3s_values,
                "881df6ab9508749ca9827814e44a01a4ab8fe8a4ae8d038d5b9d55d864ae135b",
                "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
    expect_grid(sk_iq1s_grid, 2048, 8, ternary,
                "e9ffebfc997ad6023063a667c0bf4eedd8ebf7f56b3da399cbc7d1b1f7ea52c6",
                "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
}

/* The other packing that is about: component + 1 in half-bytes, k beside k + 4. */
static void ternary_grid_in_half_bytes(void)
{
    static uint8_t bytes[4 * 2048];
    for (size_t i = 0; i < 2048; i++)
        for (size_t k = 0; k < 4; k++)
            bytes[4 * i + k] = (uint8_t)((sk_iq1s_grid[i] >> 2 * k & 3) |
                                         (sk_iq1s_grid[i] >> 2 * (k + 4) & 3) << 4);
    expect_sha("29bb0f4450fab4aa61d9fa9bc62a06b4a129acf31ebf38266adb6a62ef424117", bytes,
               sizeof bytes);
}

static void signs(void)
{
    static uint8_t masks[8 * 128];
    for (size_t i = 0; i < 128; i++) {
        int n = 0;
        for (size_t k = 0; k < 8; k++) {
            bool minus = sk_iq_signs[i] >> k & 1;
            masks[8 * i + k] = minus ? 0xff : 0;
            n += minus;
        }
        SK_EXPECT_INT(0, n % 2);
    }
    expect_sha("a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31", sk_iq_signs,
               128);
    expect_sha("6ca8598509cc63406eaece40cff6b60198f6fa1e0dff261de7bd8d73bfed770c", masks,
               sizeof masks);
}

static void values(void)
{
    expect_sha("61aa47540aa024b5d6ddaa839b84ffe59f3d5a349af5c6c7ffcb5e0474b46163", sk_iq4_values,
               16);
    expect_sha("adf76b672d47eb7fc0afd4db132d548d59d3190aa0ad118fdbf569d5fd478f97", sk_fp4_values,
               16);
}

const sk_test sk_tests_codebooks[] = {{"grids", grids},
                                      {"ternary_grid_in_half_bytes", ternary_grid_in_half_bytes},
                                      {"signs", signs},
                                      {"values", values},
                                      {0}};
