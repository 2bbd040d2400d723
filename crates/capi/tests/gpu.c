/* Two layers on a GPU, with intermediate values on the device, compared with the CPU; and errors. */
#include "latent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { M = 19, K = 136, H = 72, N = 37, GROUP = 8 };

static float dense[K * H], x[M * K], bias[H], between[M * H], expected[M * N], found[M * N], decoded[K * H];
static uint32_t words[2][K / 8 * H];
static uint16_t scales[2][K / GROUP * H];
static uint8_t zeros[2][K / GROUP * H];

static int refused(latent_status status, latent_error **error, const char *text) {
    int right = status != LATENT_OK && strstr(latent_error_message(*error), text) != NULL;
    if (!right) {
        fprintf(stderr, "status %d, expected \"%s\": %s\n", status, text, latent_error_message(*error));
    }
    latent_error_free(*error);
    *error = NULL;
    return right;
}

static int failed(latent_error *error) {
    fprintf(stderr, "%s\n", latent_error_message(error));
    latent_error_free(error);
    return 1;
}

static latent_weight weight_of(int layer, size_t k, size_t n) {
    latent_weight weight = {sizeof(latent_weight)};
    weight.quant_type = layer == 0 ? LATENT_FP4 : LATENT_INT4;
    weight.k = k, weight.n = n, weight.group = GROUP;
    weight.words = words[layer], weight.words_count = k / 8 * n;
    weight.scales = scales[layer], weight.scales_count = k / GROUP * n;
    if (layer == 1) {
        weight.zeros = zeros[1], weight.zeros_count = k / GROUP * n;
    }
    return weight;
}

int main(void) {
    latent_error *error = NULL;
    latent_gemm_device *device = NULL;
    if (!refused(latent_gemm_device_open("tpu", &device, &error), &error, "expected cpu, auto, gpu or gpu:N") ||
        !refused(latent_gemm_device_open("cpu", &device, &error), &error, "latent_gemm_new") ||
        !refused(latent_gemm_device_open(NULL, &device, &error), &error, "name is NULL")) {
        return 1;
    }
    if (latent_gemm_device_open("gpu", &device, &error) != LATENT_OK) {
        printf("SKIPPED: %s\n", latent_error_message(error));
        latent_error_free(error);
        return device != NULL;
    }
    for (int i = 0; i < K * H; i++) {
        dense[i] = sinf((float)i);
    }
    for (int i = 0; i < M * K; i++) {
        x[i] = cosf((float)i);
    }
    for (int i = 0; i < H; i++) {
        bias[i] = (float)i;
    }
    latent_gemm *gemm = NULL;
    latent_weight first = weight_of(0, K, H), second = weight_of(1, H, N);
    if (latent_gemm_new(1, &gemm, &error) != LATENT_OK ||
        latent_gemm_pack(LATENT_FP4, K, H, GROUP, dense, K * H, words[0], K / 8 * H, scales[0], K / GROUP * H, NULL, 0, &error) != LATENT_OK ||
        latent_gemm_pack(LATENT_INT4, H, N, GROUP, dense, H * N, words[1], H / 8 * N, scales[1], H / GROUP * N, zeros[1], H / GROUP * N, &error) != LATENT_OK ||
        latent_gemm_multiply(gemm, &first, x, M * K, LATENT_INPUT_F32, M, between, M * H, NULL, &error) != LATENT_OK) {
        return failed(error);
    }
    for (int i = 0; i < M * H; i++) {
        between[i] += bias[i % H];
    }
    if (latent_gemm_multiply(gemm, &second, between, M * H, LATENT_INPUT_F32, M, expected, M * N, NULL, &error) != LATENT_OK) {
        return failed(error);
    }
    latent_device_weight *layers[2] = {NULL, NULL};
    latent_device_array *inputs = NULL, *row = NULL, *inner = NULL, *results = NULL, *values = NULL;
    size_t rows = 0, columns = 0;
    if (latent_device_weight_new(device, &first, NULL, 0, &layers[0], &error) != LATENT_OK ||
        latent_device_weight_new(device, &second, NULL, 0, &layers[1], &error) != LATENT_OK ||
        latent_device_array_new(device, x, M * K, LATENT_INPUT_F32, M, K, &inputs, &error) != LATENT_OK ||
        latent_device_array_new(device, bias, H, LATENT_INPUT_F32, 1, H, &row, &error) != LATENT_OK ||
        latent_device_multiply(layers[0], inputs, row, NULL, &inner, &error) != LATENT_OK ||
        latent_device_multiply(layers[1], inner, NULL, NULL, &results, &error) != LATENT_OK ||
        latent_device_array_shape(results, &rows, &columns, &error) != LATENT_OK ||
        latent_device_array_read(results, found, M * N, &error) != LATENT_OK ||
        latent_device_dequantize(layers[0], &values, &error) != LATENT_OK ||
        latent_device_array_read(values, decoded, K * H, &error) != LATENT_OK) {
        return failed(error);
    }
    double wrong = 0, size = 0;
    for (int i = 0; i < M * N; i++) {
        wrong += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    int same = rows == M && columns == N && wrong / size < 1e-6;
    if (latent_gemm_dequantize(gemm, &first, dense, K * H, &error) != LATENT_OK) {
        return failed(error);
    }
    same = same && memcmp(dense, decoded, sizeof decoded) == 0;
    latent_gemm_options options = {sizeof options};
    options.isa = "portable";
    latent_device_array *none = NULL;
    uint32_t order[K] = {K};
    latent_device_weight *ordered = NULL;
    int right = refused(latent_device_multiply(layers[1], inputs, NULL, NULL, &none, &error), &error, "the input [19, 72] has 1368 elements") &&
                refused(latent_device_multiply(layers[0], inputs, inputs, NULL, &none, &error), &error, "the bias [1, 72]") &&
                refused(latent_device_multiply(layers[0], inputs, NULL, &options, &none, &error), &error, "isa selects CPU instructions") &&
                refused(latent_device_multiply(NULL, inputs, NULL, NULL, &none, &error), &error, "resident is NULL") &&
                refused(latent_device_array_read(results, found, M, &error), &error, "the result [19, 37]") &&
                refused(latent_device_array_new(device, x, M, LATENT_INPUT_F32, M, K, &none, &error), &error, "the input [19, 136]") &&
                refused(latent_device_weight_new(device, &first, order, K, &ordered, &error), &error, "has 136 at 0, but K is 136") &&
                none == NULL && ordered == NULL;
    latent_gemm_free(gemm);
    latent_device_array_free(inputs);
    latent_device_array_free(row);
    latent_device_array_free(inner);
    latent_device_array_free(results);
    latent_device_array_free(values);
    latent_device_weight_free(layers[0]);
    latent_device_weight_free(layers[1]);
    latent_gemm_device_free(device);
    printf("two layers on gpu, NMSE %.1e\n", wrong / size);
    return !(same && right);
}
