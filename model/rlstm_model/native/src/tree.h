/* The last stage of a memory: what experts, chains and contexts say of a token, one binary decision after the other. */
#ifndef RL_TREE_H
#define RL_TREE_H

#include "team.h"

#define RL_TREE_TOKENS 256 /* of a vocabulary, at most */
#define RL_TREE_KINDS 16   /* of the newest two tokens */

/* The decisions of one memory. */
typedef struct rl_tree rl_tree;

/* NULL when there is no room. */
rl_tree *rl_tree_new(int32_t vocab, int32_t contexts);
void rl_tree_free(rl_tree *tree);

/* How many floats are learned, and what they are at the beginning: by `rows` of experts and two chains, and `depths`
 * numbers of contexts. */
int64_t rl_tree_learned(int32_t contexts, int32_t rows, int32_t depths);
void rl_tree_begin(int32_t contexts, int32_t rows, int32_t depths, float *values);

/* Whether a map has what it never learns. */
int rl_tree_check(int32_t contexts, const float *values);

/* Before tokens are read: `values` are those that were learned. */
void rl_tree_open(rl_tree *tree, int32_t rows, float *values);

/* What followed a context of the next token, with weights. */
void rl_tree_follow(rl_tree *tree, int context, int32_t distinct, const int32_t *found, const double *weight);

/* `out` are the blend's log-probabilities, and then the tree's. `chosen`: which set of weights by number of contexts,
 * and by the newest tokens' kinds. `rate` is 0 where nothing is learned. What followed is forgotten. */
void rl_tree_mix(rl_tree *tree, const float *const *row, int32_t depths, int32_t depth, int32_t kinds, int32_t target,
                 float rate, float *out);

#endif
