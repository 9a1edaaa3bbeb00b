/* Threads that do one thing together. */
#ifndef RL_TEAM_H
#define RL_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "rlstm.h"

/* The threads of a window; `size` 1 is one thread alone, whose barrier is free. */
typedef struct {
  int size;
  atomic_int arrived;
  atomic_uint turn;
} rl_team;

/* Wait until all threads of a team have come. */
void rl_barrier(rl_team *team);

/* A growing piece of memory that is handed out from its beginning again for every window. */
typedef struct {
  char *memory; /* 64-byte aligned, within `whole`, which was allocated */
  void *whole;
  int64_t size, used;
} rl_arena;

/* 64-byte aligned room for `count` floats; counts alone while the arena has no memory. */
float *rl_take(rl_arena *arena, int64_t count);

/* Rows that are read together, by the threads of a team. */
typedef struct {
  const rl_model *model;
  int32_t rows;
  const rl_row *const *row;
  float temperature;
  rl_arena *arena;
  rl_team *team;
  void *plan;
} rl_batch;

/* One token's distribution as experts see it: `row` are their log-probabilities, with room up to a multiple of
 * RL_LANES, and `weight` what each counts, 0 for one that is not heard. */
typedef struct {
  int32_t experts, vocab, target;
  const float *const *row;
  const float *weight;
} rl_token;

/* What each instruction set has: bytes that a batch takes, its layout in its arena, and reading it, which every
 * thread of its team calls with its number; and the rank of a token's target, its entropy, and its mixed
 * log-probabilities where they are wanted, padded; these alone where `rank` is NULL. `blend`: log-probabilities proportional to the sum of weighted rows,
 * and each row's expectation under them, unless that is NULL; rows have room up to a multiple of RL_LANES. `masses`: what
 * is beneath each node of a tree with `leaves` leaves, `mass` [2 leaves, and RL_LANES more]. `log_odds` of right to left;
 * `sides`: of log odds x, e^-|x| and -log(1 + e^-|x|); both with room up to a multiple of RL_LANES. */
typedef struct {
  int64_t (*room)(rl_batch *batch);
  void (*lay_out)(rl_batch *batch);
  void (*read)(rl_batch *batch, int thread);
  void (*distribution)(const rl_token *token, int32_t *rank, float *entropy, float *mixed);
  void (*blend)(int inputs, int64_t vocab, const float *const *row, const float *weight, float *out, float *expected);
  void (*masses)(int64_t vocab, int64_t leaves, const float *row, float *mass);
  void (*log_odds)(int64_t count, const float *left, const float *right, float furthest, float *out);
  void (*sides)(int64_t count, const float *odds, float *ratio, float *log_likelier);
} rl_kernels;

/* Those of the instruction set that was chosen. */
const rl_kernels *rl_chosen_kernels(void);

/* Read on in one memory. */
void rl_recall_one(rl_recall *recall);

#define MOST_INPUTS 8 /* rows that are blended */

/* Log-probabilities count as this at least where they are blended. */
#define RL_LEAST (-60.0f)

#endif
