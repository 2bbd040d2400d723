/* Latent for C: language models with Multi-head Latent Attention. See docs/c.md.
 *
 * Written by cbindgen from crates/capi/src; `UPDATE_HEADER=1 cargo test --release -p latent-capi --test header` writes it anew.
 */

#ifndef LATENT_H
#define LATENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The interface that this header describes. Functions, fields at the end of structs that begin with `size`, and codes are added without a new
 * number; what changes or goes away brings one.
 */
#define LATENT_ABI_VERSION 1

/**
 * What became of a call.
 */
enum latent_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The call has succeeded.
   */
  LATENT_OK = 0,
  /**
   * An invalid argument or option: NULL, invalid UTF-8, a wrong length, a value out of range.
   */
  LATENT_INVALID_ARGUMENT = 1,
  /**
   * The model's file is not there.
   */
  LATENT_NOT_FOUND = 2,
  /**
   * The model's file cannot be read, or is malformed.
   */
  LATENT_BAD_FILE = 3,
  /**
   * The model's architecture or tokenizer is not known.
   */
  LATENT_UNSUPPORTED = 4,
  /**
   * The model does not fit into memory; the message says what it needs.
   */
  LATENT_OUT_OF_MEMORY = 5,
  /**
   * The prompt does not fit into the context.
   */
  LATENT_TOO_LONG = 6,
  /**
   * A chat template or a text that cannot be rendered or encoded.
   */
  LATENT_BAD_TEXT = 7,
  /**
   * The caller stopped it.
   */
  LATENT_STOPPED = 8,
  /**
   * This process was forked from the one that loaded the model, whose threads are not here.
   */
  LATENT_FORKED = 9,
  /**
   * The engine failed, or panicked, which is an error of Latent: load the model again.
   */
  LATENT_ENGINE = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_status latent_status;
#else
typedef int32_t latent_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What has become of an answer.
 */
enum latent_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Part of the prompt has run: `done` of `total` tokens.
   */
  LATENT_EVENT_PROMPT = 0,
  /**
   * A token was chosen, and `text` is certain now; it may be empty.
   */
  LATENT_EVENT_TOKEN = 1,
  /**
   * `text` was held back until the end.
   */
  LATENT_EVENT_REST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_event_kind latent_event_kind;
#else
typedef int32_t latent_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why an answer ended.
 */
enum latent_stop
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The model ended it.
   */
  LATENT_STOP_END = 0,
  /**
   * One of the texts of `stop` came.
   */
  LATENT_STOP_STRING = 1,
  /**
   * It has as many tokens as were asked for.
   */
  LATENT_STOP_LENGTH = 2,
  /**
   * The context is full.
   */
  LATENT_STOP_CONTEXT = 3,
  /**
   * The callback ended it.
   */
  LATENT_STOP_CALLER = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_stop latent_stop;
#else
typedef int32_t latent_stop;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What 4-bit codes mean.
 */
enum latent_quant_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * E2M1 floats: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and with 8 added their negatives.
   */
  LATENT_FP4 = 0,
  /**
   * Unsigned integers with zero points: value = (code - zero point) * scale.
   */
  LATENT_INT4 = 1,
  /**
   * Unsigned integers with the zero point 8.
   */
  LATENT_INT4_SYM = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_quant_type latent_quant_type;
#else
typedef int32_t latent_quant_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How group scales are stored.
 */
enum latent_scale_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * f16, as uint16_t.
   */
  LATENT_SCALES_F16 = 0,
  /**
   * E8M0 codes (MXFP4), as uint8_t.
   */
  LATENT_SCALES_E8M0 = 1,
  /**
   * E4M3 codes (NVFP4), as uint8_t, times `tensor_scale`.
   */
  LATENT_SCALES_E4M3 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_scale_type latent_scale_type;
#else
typedef int32_t latent_scale_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Types of inputs.
 */
enum latent_input_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * float.
   */
  LATENT_INPUT_F32 = 0,
  /**
   * f16, as uint16_t.
   */
  LATENT_INPUT_F16 = 1,
  /**
   * bf16, as uint16_t.
   */
  LATENT_INPUT_BF16 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum latent_input_type latent_input_type;
#else
typedef int32_t latent_input_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Rows of numbers in the memory of a GPU: inputs, results of products and inputs of further ones.
 */
typedef struct latent_device_array latent_device_array;

/**
 * A weight in the memory of a GPU.
 */
typedef struct latent_device_weight latent_device_weight;

/**
 * Why a call failed.
 */
typedef struct latent_error latent_error;

/**
 * Threads and memory for products with 4-bit weights. Threads of the caller may use it at the same time: they take turns.
 */
typedef struct latent_gemm latent_gemm;

/**
 * A GPU for products with 4-bit weights. Threads of the caller may use it, its weights and its arrays at the same time.
 */
typedef struct latent_gemm_device latent_gemm_device;

/**
 * A loaded model. Any threads may use it at the same time: their answers share its steps.
 */
typedef struct latent_model latent_model;

/**
 * A text of the library: UTF-8 with a NUL behind it, which `length` does not count. Free it with latent_string_free.
 */
typedef struct latent_string {
  /**
   * The bytes.
   */
  char *data;
  /**
   * How many there are.
   */
  size_t length;
} latent_string;

/**
 * Tokens of the library. Free them with latent_tokens_free.
 */
typedef struct latent_tokens {
  /**
   * The ids.
   */
  uint32_t *data;
  /**
   * How many there are.
   */
  size_t length;
} latent_tokens;

/**
 * What is added to the logit of a token; -INFINITY bans it.
 */
typedef struct latent_logit_bias {
  /**
   * The token.
   */
  uint32_t token;
  /**
   * What is added.
   */
  float bias;
} latent_logit_bias;

/**
 * How an answer is generated. Fill it with latent_generate_options_init, and then change what you like.
 */
typedef struct latent_generate_options {
  /**
   * sizeof(latent_generate_options).
   */
  size_t size;
  /**
   * Most tokens; -1: until the model ends or the context is full.
   */
  int64_t max_tokens;
  /**
   * Divides the logits; 0: always the likeliest token.
   */
  float temperature;
  /**
   * Keeps what together reaches this probability; 1: all.
   */
  float top_p;
  /**
   * Keeps what is at least this likely, relative to the likeliest; 0: all.
   */
  float min_p;
  /**
   * Keeps what is closest to the expected information until this probability is reached; 1: all.
   */
  float typical_p;
  /**
   * Divides positive and multiplies negative logits of recent tokens; 1: none.
   */
  float repeat_penalty;
  /**
   * Taken from the logits of recent tokens; 0: none.
   */
  float presence_penalty;
  /**
   * Taken from the logits of recent tokens for each time that they occurred; 0: none.
   */
  float frequency_penalty;
  /**
   * Strength of DRY; 0: none.
   */
  float dry_multiplier;
  /**
   * Growth of DRY with the length of a repetition.
   */
  float dry_base;
  /**
   * Chance of XTC at each token; 0: none.
   */
  float xtc_probability;
  /**
   * What XTC counts as likely.
   */
  float xtc_threshold;
  /**
   * Longest repetition that DRY allows.
   */
  uint32_t dry_allowed_length;
  /**
   * Keeps this many of the likeliest; 0: all.
   */
  uint32_t top_k;
  /**
   * How many tokens back the penalties look; -1: all.
   */
  int64_t repeat_last_n;
  /**
   * Seed of the random choice.
   */
  uint64_t seed;
  /**
   * Texts before which the answer ends: NUL-terminated UTF-8.
   */
  const char *const *stop;
  /**
   * How many there are.
   */
  size_t stop_count;
  /**
   * Biases of tokens.
   */
  const struct latent_logit_bias *logit_bias;
  /**
   * How many there are.
   */
  size_t logit_bias_count;
  /**
   * A scale for each LoRA adapter of the model, in the order in which they were loaded; NULL: the scales that they were loaded with.
   */
  const float *lora_scales;
  /**
   * How many there are.
   */
  size_t lora_scales_count;
} latent_generate_options;

/**
 * What has become of an answer.
 */
typedef struct latent_event {
  /**
   * The library's sizeof(latent_event).
   */
  size_t size;
  /**
   * What it is.
   */
  latent_event_kind kind;
  /**
   * The token; 0 if none was chosen.
   */
  uint32_t token;
  /**
   * UTF-8 with a NUL behind it. It lives until the callback returns.
   */
  const char *text;
  /**
   * Its bytes.
   */
  size_t text_length;
  /**
   * Tokens of the prompt that are in the KV cache.
   */
  uint64_t done;
  /**
   * Tokens of the prompt.
   */
  uint64_t total;
} latent_event;

/**
 * Hears of an answer, on the thread that asked for it. It returns whether to go on; on false the answer ends. It must return: no exception and no
 * longjmp may leave it.
 */
typedef bool (*latent_callback)(void *user_data, const struct latent_event *event);

/**
 * What an answer took. Set `size` before the call.
 */
typedef struct latent_answer {
  /**
   * sizeof(latent_answer).
   */
  size_t size;
  /**
   * Why it ended: one of latent_stop.
   */
  int32_t stop;
  /**
   * Tokens of the prompt.
   */
  uint64_t prompt_tokens;
  /**
   * How many of them were in the prefix cache.
   */
  uint64_t cached_tokens;
  /**
   * Tokens of the answer, the one that ended it included.
   */
  uint64_t completion_tokens;
  /**
   * Seconds for the prompt.
   */
  double prompt_seconds;
  /**
   * Seconds for the answer.
   */
  double generate_seconds;
} latent_answer;

/**
 * A weight `[k, n]` of 4-bit codes with a scale per group along K. Zeros are right for what it does not have: `latent_weight weight = {sizeof weight};`
 */
typedef struct latent_weight {
  /**
   * sizeof(latent_weight).
   */
  size_t size;
  /**
   * One of latent_quant_type.
   */
  int32_t quant_type;
  /**
   * One of latent_scale_type.
   */
  int32_t scale_type;
  /**
   * Inputs, a multiple of 8 and of the group.
   */
  size_t k;
  /**
   * Outputs.
   */
  size_t n;
  /**
   * Inputs that share a scale.
   */
  size_t group;
  /**
   * `[k / 8, n]`: eight codes along K, the first in the lowest bits.
   */
  const uint32_t *words;
  /**
   * How many there are.
   */
  size_t words_count;
  /**
   * `[k / group, n]`.
   */
  const void *scales;
  /**
   * How many there are.
   */
  size_t scales_count;
  /**
   * `[k / group, n]` for LATENT_INT4, from 0 to 16; NULL otherwise.
   */
  const uint8_t *zeros;
  /**
   * How many there are.
   */
  size_t zeros_count;
  /**
   * For LATENT_SCALES_E4M3.
   */
  float tensor_scale;
} latent_weight;

/**
 * What is forced of a product. Zeros leave everything to its shape: `latent_gemm_options options = {sizeof options};`
 */
typedef struct latent_gemm_options {
  /**
   * sizeof(latent_gemm_options).
   */
  size_t size;
  /**
   * "auto", "gemm", "fused" or "striped"; NULL: auto.
   */
  const char *kernel;
  /**
   * Precision of the inputs in products: "auto" (theirs), "bf16" or "int8"; NULL: auto.
   */
  const char *activations;
  /**
   * Instruction set: "auto", "portable", "avx2", "avx512" or "amx"; NULL: auto.
   */
  const char *isa;
  /**
   * Slices of K, for the striped kernel, which it chooses; 0: chosen by the shape.
   */
  uint32_t parallel;
} latent_gemm_options;

/**
 * A LoRA adapter: a GGUF file of llama.cpp, or a folder of PEFT.
 */
typedef struct latent_lora {
  /**
   * The file or folder, as NUL-terminated UTF-8.
   */
  const char *path;
  /**
   * What its changes are multiplied with; 1: as it was trained.
   */
  float scale;
} latent_lora;

/**
 * How a model is run. Zeros leave everything to Latent: `latent_load_options options = {sizeof options};`
 */
typedef struct latent_load_options {
  /**
   * sizeof(latent_load_options).
   */
  size_t size;
  /**
   * Tokens of context; 0: the smaller of the model's limit and what fits into memory.
   */
  uint64_t ctx_size;
  /**
   * Tokens that the KV cache holds, all answers together; 0: one context.
   */
  uint64_t cache_tokens;
  /**
   * Threads; 0: one for each core that affinity and cgroup quotas leave to this process.
   */
  uint32_t threads;
  /**
   * Most tokens of one step; 0: chosen.
   */
  uint32_t batch_size;
  /**
   * Element type of the KV cache: "f32", "f16", "bf16" or "int8"; NULL: chosen.
   */
  const char *cache_type;
  /**
   * "default" or "exact"; NULL: default.
   */
  const char *precision;
  /**
   * What computes: "cpu", "gpu", "gpu:N", "auto" or "reference"; NULL: cpu.
   */
  const char *device;
  /**
   * What drafts tokens: "ngram", "mtp", "all" or "none"; NULL: "ngram".
   */
  const char *draft;
  /**
   * Highest instruction set: "auto", "portable", "avx2", "avx512" or "amx"; NULL: auto.
   */
  const char *isa;
  /**
   * Not 0: load a model even when memory seems too small.
   */
  uint32_t force;
  /**
   * Attention of models with an indexer to selected tokens alone: "on", or "off" for attention to all; NULL: on.
   */
  const char *sparse_attention;
  /**
   * LoRA adapters, which are not merged into the weights.
   */
  const struct latent_lora *lora;
  /**
   * How many there are.
   */
  size_t lora_count;
} latent_load_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Frees a text, and makes it empty. NULL and a text without data are fine.
 */
void latent_string_free(struct latent_string *string);

/**
 * Frees tokens, and makes them none. NULL and tokens without data are fine.
 */
void latent_tokens_free(struct latent_tokens *tokens);

/**
 * Renders a conversation by the model's chat template. `messages` is JSON: `[{"role": "user", "content": "Hello"}]`. `variables` is a JSON object of
 * further variables of the template (`enable_thinking`), among them `tools` and `add_generation_prompt`; NULL and 0 for none. The text goes to
 * `text`, the tokens to `tokens`; either may be NULL. What messages say makes no control tokens.
 */
latent_status latent_render_chat(const struct latent_model *model,
                                 const char *messages,
                                 size_t messages_length,
                                 const char *variables,
                                 size_t variables_length,
                                 struct latent_string *text,
                                 struct latent_tokens *tokens,
                                 struct latent_error **error);

/**
 * Answers a conversation: latent_render_chat and latent_generate in one call. `message` may be
 * NULL. It gets the parsed answer as JSON that can be appended to the messages:
 * `{"role": "assistant", "content": …}`, with `reasoning_content` and `tool_calls` if any.
 */
latent_status latent_chat(const struct latent_model *model,
                          const char *messages,
                          size_t messages_length,
                          const char *variables,
                          size_t variables_length,
                          const struct latent_generate_options *options,
                          latent_callback callback,
                          void *user_data,
                          struct latent_answer *answer,
                          struct latent_string *message,
                          struct latent_error **error);

/**
 * The code of an error; LATENT_OK for NULL.
 */
latent_status latent_error_status(const struct latent_error *error);

/**
 * The message of an error: what, where, the value, and what can be done; UTF-8. It lives as long as the error. An empty text for NULL.
 */
const char *latent_error_message(const struct latent_error *error);

/**
 * Frees an error. NULL is fine.
 */
void latent_error_free(struct latent_error *error);

/**
 * Starts threads for products; 0: one for each core that affinity and cgroup quotas leave to this process. Free them with latent_gemm_free.
 */
latent_status latent_gemm_new(uint32_t threads,
                              struct latent_gemm **gemm,
                              struct latent_error **error);

/**
 * Ends the threads, once no thread of the caller uses them. NULL is fine.
 */
void latent_gemm_free(struct latent_gemm *gemm);

/**
 * Packs a dense weight `[k, n]`, row-major: `quant_type` is one of latent_quant_type. `words` gets `[k / 8, n]`: eight codes along K, the first in the lowest
 * bits; `scales` `[k / group, n]` of f16, and for LATENT_INT4 `zeros` `[k / group, n]`, which is NULL otherwise.
 */
latent_status latent_gemm_pack(int32_t quant_type,
                               size_t k,
                               size_t n,
                               size_t group,
                               const float *dense,
                               size_t dense_count,
                               uint32_t *words,
                               size_t words_count,
                               uint16_t *scales,
                               size_t scales_count,
                               uint8_t *zeros,
                               size_t zeros_count,
                               struct latent_error **error);

/**
 * y = x · W: `m` rows of k inputs, whose type is one of latent_input_type, times a weight `[k, n]`
 * into `m` rows of n results, which must not overlap the operands. `options` may be NULL. Results
 * have the same bits for any number of threads.
 */
latent_status latent_gemm_multiply(const struct latent_gemm *gemm,
                                   const struct latent_weight *weight,
                                   const void *x,
                                   size_t x_count,
                                   int32_t x_type,
                                   size_t m,
                                   float *y,
                                   size_t y_count,
                                   const struct latent_gemm_options *options,
                                   struct latent_error **error);

/**
 * Decodes a weight into `values`, which holds `k · n` elements, row-major.
 */
latent_status latent_gemm_dequantize(const struct latent_gemm *gemm,
                                     const struct latent_weight *weight,
                                     float *values,
                                     size_t values_count,
                                     struct latent_error **error);

/**
 * Opens a GPU: "gpu" (the first), "gpu:N", or "auto" (the first that is hardware). Free it with latent_gemm_device_free; its weights and arrays keep it open.
 */
latent_status latent_gemm_device_open(const char *name,
                                      struct latent_gemm_device **device,
                                      struct latent_error **error);

/**
 * Frees a GPU. NULL is fine.
 */
void latent_gemm_device_free(struct latent_gemm_device *device);

/**
 * Sends a weight to a GPU. `order` is NULL, or names for each of the weight's k rows the input that it is multiplied with (checkpoints in act-order).
 * Free it with latent_device_weight_free.
 */
latent_status latent_device_weight_new(const struct latent_gemm_device *device,
                                       const struct latent_weight *weight,
                                       const uint32_t *order,
                                       size_t order_count,
                                       struct latent_device_weight **resident,
                                       struct latent_error **error);

/**
 * Frees a weight on a GPU. NULL is fine.
 */
void latent_device_weight_free(struct latent_device_weight *resident);

/**
 * Sends `rows` rows of `columns` numbers, whose type is one of latent_input_type, to a GPU. Free them with latent_device_array_free.
 */
latent_status latent_device_array_new(const struct latent_gemm_device *device,
                                      const void *x,
                                      size_t x_count,
                                      int32_t x_type,
                                      size_t rows,
                                      size_t columns,
                                      struct latent_device_array **array,
                                      struct latent_error **error);

/**
 * Frees an array on a GPU. NULL is fine.
 */
void latent_device_array_free(struct latent_device_array *array);

/**
 * Rows and columns of an array; either may be NULL.
 */
latent_status latent_device_array_shape(const struct latent_device_array *array,
                                        size_t *rows,
                                        size_t *columns,
                                        struct latent_error **error);

/**
 * Copies an array to the host as float, row-major, once the GPU has computed it.
 */
latent_status latent_device_array_read(const struct latent_device_array *array,
                                       float *values,
                                       size_t values_count,
                                       struct latent_error **error);

/**
 * y = x · W + bias on a GPU, where the result stays: `bias` is NULL or one row of n numbers, `options` may be NULL (`isa` and `activations` are those of the
 * CPU). Free `y` with latent_device_array_free.
 */
latent_status latent_device_multiply(const struct latent_device_weight *resident,
                                     const struct latent_device_array *x,
                                     const struct latent_device_array *bias,
                                     const struct latent_gemm_options *options,
                                     struct latent_device_array **y,
                                     struct latent_error **error);

/**
 * Decodes a weight on a GPU into `[k, n]` floats, which stay there. Free them with latent_device_array_free.
 */
latent_status latent_device_dequantize(const struct latent_device_weight *resident,
                                       struct latent_device_array **values,
                                       struct latent_error **error);

/**
 * Answers a prompt of `count` tokens. `options` may be NULL: the model's own. `callback` may be NULL; so may `answer`, and `text`, which gets the
 * whole answer, the caller's to free. A prompt that begins like an earlier one is not computed again.
 * If the callback ends the answer, the call succeeds with the reason LATENT_STOP_CALLER.
 */
latent_status latent_generate(const struct latent_model *model,
                              const uint32_t *prompt,
                              size_t count,
                              const struct latent_generate_options *options,
                              latent_callback callback,
                              void *user_data,
                              struct latent_answer *answer,
                              struct latent_string *text,
                              struct latent_error **error);

/**
 * Fills options with what the model recommends, else Latent's own, and a fresh seed. `size` is sizeof(latent_generate_options).
 */
latent_status latent_generate_options_init(const struct latent_model *model,
                                           struct latent_generate_options *options,
                                           size_t size,
                                           struct latent_error **error);

/**
 * Loads the model at `path`: a GGUF file, any of its shards, a folder of safetensors, or a packed file; NULL: the demo model that is built in.
 * `options` may be NULL. The model is the caller's, who gives it back with latent_model_free.
 */
latent_status latent_model_load(const char *path,
                                const struct latent_load_options *options,
                                struct latent_model **model,
                                struct latent_error **error);

/**
 * Gives a model back, once no other thread uses it; waits until its memory is free. NULL is fine.
 */
void latent_model_free(struct latent_model *model);

/**
 * What was loaded, and how it runs: a JSON object with name, file, architecture, parameters, context, vocab_size, threads, warnings and more.
 */
latent_status latent_model_describe(const struct latent_model *model,
                                    struct latent_string *json,
                                    struct latent_error **error);

/**
 * Logits per token; 0 for NULL.
 */
size_t latent_model_vocab_size(const struct latent_model *model);

/**
 * Tokens of context; 0 for NULL.
 */
size_t latent_model_context(const struct latent_model *model);

/**
 * Elements of an embedding; 0 for NULL.
 */
size_t latent_model_hidden_size(const struct latent_model *model);

/**
 * The tokens of `length` bytes of UTF-8. With `add_special` those that begin (and end) a prompt are added; with `parse_special` names of control
 * tokens in the text become those tokens, which is not for text that others have written.
 */
latent_status latent_tokenize(const struct latent_model *model,
                              const char *text,
                              size_t length,
                              uint32_t add_special,
                              uint32_t parse_special,
                              struct latent_tokens *tokens,
                              struct latent_error **error);

/**
 * The text of `count` tokens; includes the names of control tokens if `special` is set. Invalid
 * UTF-8 becomes U+FFFD.
 */
latent_status latent_detokenize(const struct latent_model *model,
                                const uint32_t *tokens,
                                size_t count,
                                uint32_t special,
                                struct latent_string *text,
                                struct latent_error **error);

/**
 * The logits after the last of `count` tokens, or with `all` after each of them, into `logits`, which holds `logits_count` elements:
 * latent_model_vocab_size, or `count` times that.
 */
latent_status latent_logits(const struct latent_model *model,
                            const uint32_t *tokens,
                            size_t count,
                            uint32_t all,
                            float *logits,
                            size_t logits_count,
                            struct latent_error **error);

/**
 * The embedding of `length` bytes of UTF-8, of length 1: the mean of the last hidden states, into `values`, which holds `values_count` elements:
 * latent_model_hidden_size.
 */
latent_status latent_embed(const struct latent_model *model,
                           const char *text,
                           size_t length,
                           float *values,
                           size_t values_count,
                           struct latent_error **error);

/**
 * The interface that the library has: compare it with LATENT_ABI_VERSION.
 */
uint32_t latent_abi_version(void);

/**
 * The version of Latent, such as "0.1.0". It is the library's: do not free it.
 */
const char *latent_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LATENT_H */
