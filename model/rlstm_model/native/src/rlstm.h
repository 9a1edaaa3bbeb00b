/* The native core: a window of text through a recurrent language model, forward and backward, on a CPU.
 *
 * Every output element is one sum in one fixed order, so its bits do not depend on the number of rows, on the
 * number of threads, or on what other rows read. Vectors and blocks of gates are padded to LANES floats with
 * zeros; the caller pads and packs the weights once. Rows are sequences of a batch. Equations:
 * docs/mathematics.md §1.
 */
#ifndef RLSTM_H
#define RLSTM_H

#include <stdint.h>

#define RL_LANES 16

#if defined(_WIN32)
#define RL_API __declspec(dllexport)
#else
#define RL_API __attribute__((visibility("default")))
#endif

/* A matrix [n, m], n and m padded, packed in panels of LANES columns of the product: `forward` is
 * [n / LANES][m][LANES], for y = W x; `backward` is [m / LANES][n][LANES], for x = W' y. `half`: float16. Of m
 * `columns` are no padding; n is `blocks` padded one by one, of which `rows` each are none. */
typedef struct {
  int32_t n, m, half, blocks, rows, columns;
  const void *forward, *backward;
} rl_matrix;

/* A matrix of the model and what a row may add to it: left core right, `core` [r, q] at the offset `own` of the
 * row's fast weights. `own` is -1 where rows add nothing; with r = 0 the row's weights are whole models of their
 * own, packed by the caller, and the gradient at `own` is that of the whole matrix [n, m]. */
typedef struct {
  rl_matrix shared;
  rl_matrix left;  /* [n, r] */
  rl_matrix right; /* [q, m] */
  int64_t own;
  int32_t r, q;
} rl_weight;

/* A bias of `n` padded values; a row adds those at the offset `own` of its fast weights, unless it is -1. */
typedef struct {
  const float *shared;
  int64_t own;
  int32_t n, present;
} rl_bias;

/* One layer; `units` of `hidden` are no padding. Blocks of gates stand in the order i, j, f, o; an RLSTM has `u` and `c`, and x enters i and j
 * alone. Round k of the mogrifier gates x (k even) or h (k odd); at full rank there is no `down`. */
typedef struct {
  int32_t input, hidden, low, units;
  rl_weight x, h, u, c;
  rl_bias bias;
  const rl_weight *up, *down;
  const rl_bias *gate;
} rl_layer;

/* A model. `embedding` is [vocab, embedding_width], float32 or float16, in rows. What rows add to it is
 * input_left [vocab, r] in rows, a core, and input_right [q, width]; with r = 0 the gradient is of the whole. `components` softmaxes; above 1 their features
 * are tanh(projection features + projection_bias), mixed with softmax(mixing features). */
typedef struct {
  int32_t vocab, padded_vocab, layers, rlstm, capped, rounds, stacking, components;
  int32_t embedding_width, embedding_half, feature_width;
  const void *embedding;
  const float *input_left;
  rl_matrix input_right;
  int64_t input_own;
  int32_t input_r, input_q;
  rl_weight output;
  rl_bias output_bias;
  rl_weight projection, mixing;
  rl_bias projection_bias;
  const rl_layer *layer;
  /* Fast weights: how many, whether in float16, and where each stands among a row's padded cores and biases,
   * `own_size` values. `whole`: they are laid over the weights already, packed for the row. */
  int64_t fast_weights, own_size;
  int32_t half, whole;
  const int32_t *places;
  /* The rule: delta - shrink delta - rate precision gradient, cut back to a norm of `max_norm`. NULL: 1 for all,
   * and `shrink_all` for all. */
  const float *precision, *shrink;
  float shrink_all, max_norm;
} rl_model;

enum { RL_RESIDUAL = 0, RL_SKIP = 1, RL_PLAIN = 2 };

/* What became of a step: `taken` 0 where it was not finite, so that the row keeps its fast weights; `scale` below 1
 * where they were cut back to the greatest norm; `norm` before that. */
typedef struct {
  float norm, gradient_norm, scale;
  int32_t taken;
} rl_step;

/* One row of a batch.
 *
 * delta        its fast weights [fast_weights], float16 where the model says so; NULL is zero
 * delta_after  the same after one step of the rule; NULL takes none
 * gradient     of the row's loss at its fast weights, float32; NULL where it is not wanted
 * state        h of all layers' units, then c of them: read and overwritten
 * ids          [length] inputs
 * targets      [length] to be learned from; NULL learns nothing
 * loss         [length] weights of the targets' losses
 * log_probs    [length, padded_vocab] natural log-probabilities after each input; NULL wants none
 * rate         of the step
 * Rows are sorted: those that learn first, all of one length, then the others by length, longest first; none is
 * longer than the first. */
typedef struct {
  const void *delta;
  void *delta_after;
  float *gradient;
  float *state;
  const int32_t *ids;
  const int32_t *targets;
  const float *loss;
  float *log_probs;
  int32_t length;
  float rate;
  rl_step *step;
} rl_row;

typedef struct rl_pool rl_pool;

/* A pool of `threads` - 1 workers beside the calling thread; NULL when there is no memory or no thread. A pool
 * runs one window at a time. */
RL_API rl_pool *rl_pool_new(int32_t threads);
RL_API void rl_pool_free(rl_pool *pool);

/* Read a window in every row, and learn from it where a row wants that. `temperature` multiplies the logits. 0; -1 when
 * memory ran out; -2, with nothing done, for rows that do not fit, ids outside the vocabulary, or a temperature that is
 * none. */
RL_API int32_t rl_window(rl_pool *pool, const rl_model *model, int32_t rows, const rl_row *row, float temperature);

/* Pack the sum of a matrix [n, m] and, unless it is NULL, of `delta` [n, m], all float32, as an rl_matrix has it; `blocks`
 * of n are padded one by one. Padding is left as it is. */
RL_API void rl_pack(const float *matrix, const float *delta, int32_t n, int32_t m, int32_t blocks, float *forward,
                    float *backward);

/* Mix `experts` rows' log-probabilities of `length` tokens and let the weights follow them.
 *
 * log_probs  [experts] pointers to [length, stride], stride the padded vocabulary
 * weights    [experts], updated; tokens, updated: the t of the next token
 * logprobs   [length] of the mixture's targets
 * ranks      [length] of the targets, and entropies [length]: both or NULL
 * mixed      [length, stride] whole distributions, or NULL; wanted with ranks alone
 * broken     [experts], set to 1 for experts that computed no distribution of some token
 * Returns the number of tokens before the first at which every expert was broken; -1, with nothing done, for targets
 * outside the vocabulary, or another number of experts than 1 to 64. */
RL_API int32_t rl_mix(int32_t experts, int32_t vocab, int64_t stride, const float *const *log_probs, int32_t length,
                      const int32_t *targets, double *weights, int64_t *tokens, double *logprobs,
                      int32_t *ranks, float *entropies, float *mixed, uint8_t *broken);

/* What a token is to a memory: how words, lines and shapes of text are told. */
enum { RL_LOWER, RL_UPPER, RL_DIGIT, RL_BLANK, RL_NEWLINE, RL_OTHER, RL_FOREIGN, RL_CONTROL, RL_KINDS };

/* Tokens that a context of a memory reaches back at most. */
enum { RL_REACH = 256 };

/* A memory of the newest `capacity` tokens: what followed contexts of the given orders, ascending, and contexts of text,
 * for which `kind` [vocab] tells what tokens are (memory.c). NULL when there is no room, or for numbers that describe
 * none. */
typedef struct rl_memory rl_memory;
RL_API rl_memory *rl_memory_new(int32_t capacity, int32_t vocab, int32_t orders, const int32_t *order,
                                const uint8_t *kind);
RL_API void rl_memory_free(rl_memory *memory);

/* Read on, after `known` tokens of a line, and count those that are `counted`. 0, or -1, with nothing done, for a token
 * outside the vocabulary. */
RL_API int32_t rl_memory_add(rl_memory *memory, const int32_t *line, int32_t known, int64_t length,
                             const uint8_t *counted);

/* How many floats a memory learns beside its counts, and what they are at the beginning. */
RL_API int64_t rl_memory_learned(int32_t vocab, int32_t orders, int32_t experts);
RL_API void rl_memory_begin(int32_t vocab, int32_t orders, int32_t experts, float *values);

/* Whether reading could have led to what was learned: 0, or 1 where a number is out of its bounds. */
RL_API int32_t rl_memory_check(int32_t vocab, int32_t orders, int32_t experts, const float *values);

/* What becomes of the tokens that are read: nothing; they are context for what follows; they are counted, and learned
 * from. */
enum { RL_LOOK, RL_CONTEXT, RL_LEARN };

/* Reading on in one memory. Given: `experts` rows of log-probabilities [length, vocab] of the next tokens; `line`: `known`
 * tokens of context, of which the newest 256 matter and the last `ahead` are not in the memory, and then the `length`
 * tokens; what was learned; and what becomes of the tokens. Rows have room up to a multiple of 16. Gives `out`
 * [length, vocab], the distributions of experts and memory; `weights_only` [length], the targets' log-probabilities by the
 * experts' mixture, without the memory; both are NaN where an expert computed no distribution; and `code`: 0, or -1, with
 * nothing done, for a token outside the vocabulary or too many experts. */
typedef struct {
  rl_memory *memory;
  const float *const *log_probs;
  const int32_t *line;
  float *values, *out, *weights_only;
  int32_t experts, length, known, ahead, mode, code;
} rl_recall;

/* Read on in several memories, of which none is the same, by the threads of a pool, or by this one where there is none. */
RL_API void rl_recall_all(rl_pool *pool, int32_t count, rl_recall *recall);

/* What tells builds apart whose bits differ. */
RL_API const char *rl_identity(void);

/* The instruction set that was chosen: "avx512", "avx2", "neon", "portable". */
RL_API const char *rl_instructions(void);

/* The digest of these sources, which the build gives; a library of others is refused. */
RL_API const char *rl_sources(void);

#endif
