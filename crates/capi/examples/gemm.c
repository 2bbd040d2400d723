/* Multiplies by a weight in FP4. From the root of the repository:
 *
 *     cargo build --release -p latent-capi
 *     cc crates/capi/examples/gemm.c -Icrates/capi/include -Ltarget/release -llatent -lm -o gemm
 *     LD_LIBRARY_PATH=target/release ./gemm
 */
#include "latent.h"

#include <math.h>
#include <stdio.h>

enum { M = 3, K = 256, N = 100, GROUP = 32 };

static float dense[K * N], decoded[K * N], x[M * K], y[M * N];
static uint32_t words[K / 8 * N];
static uint16_t scales[K / GROUP * N];

static int failed(latent_error *error) {
    fprintf(stderr, "%s\n", latent_error_message(error));
    latent_error_free(error);
    return 1;
}

int main(void) {
    for (int i = 0; i < K * N; i++) {
        dense[i] = sinf((float)i);
    }
    for (int i = 0; i < M * K; i++) {
        x[i] = cosf((float)i);
    }
    latent_gemm *gemm = NULL;
    latent_error *error = NULL;
    latent_weight weight = {sizeof(latent_weight)};
    weight.quant_type = LATENT_FP4;
    weight.k = K, weight.n = N, weight.group = GROUP;
    weight.words = words, weight.words_count = K / 8 * N;
    weight.scales = scales, weight.scales_count = K / GROUP * N;
    if (latent_gemm_new(0, &gemm, &error) != LATENT_OK ||
        latent_gemm_pack(LATENT_FP4, K, N, GROUP, dense, K * N, words, K / 8 * N, scales, K / GROUP * N, NULL, 0, &error) != LATENT_OK ||
        latent_gemm_multiply(gemm, &weight, x, M * K, LATENT_INPUT_F32, M, y, M * N, NULL, &error) != LATENT_OK ||
        latent_gemm_dequantize(gemm, &weight, decoded, K * N, &error) != LATENT_OK) {
        latent_gemm_free(gemm);
        return failed(error);
    }
    latent_gemm_free(gemm);
    /* Compare with the product of the decoded weights in double precision. */
    double wrong = 0, size = 0;
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                sum += (double)x[m * K + k] * decoded[k * N + n];
            }
            wrong += (y[m * N + n] - sum) * (y[m * N + n] - sum);
            size += sum * sum;
        }
    }
    printf("%d x %d results, NMSE %.1e\n", M, N, wrong / size);
    return wrong / size > 1e-6;
}
