/* Tokens as binary decisions, as PAQ predicts bits (Mahoney 2005): a token's number, from its first binary digit to its
 * last, is a way from the root of a tree to a leaf. Where a context has successors beneath a node, the odds of its right
 * side are mixed anew,
 *
 *     log odds = sum_i w_i x_i,
 *
 * from the log odds x_i of each expert and each chain, and of each context: those of a map from how much followed on
 * either side to the probability that the side on which more did comes again. The map follows what came, the weights the
 * gradient of the loss. A weight is the sum of four: one for all nodes, those of how many orders have occurred and
 * whether the last had one successor, of what the newest two tokens are, and of the node. Beneath all other nodes the
 * blend is as it was, scaled to what the node has. All decisions are mixed before any is learned from, so there is a
 * distribution of the whole token, and it sums to one. */
#include "tree.h"

#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#define NONE (-1)
#define MORE 10 /* steps of the greater side's weight in a map */
#define LESS 5  /* of the other's */
#define GRADES 128 /* of weights: eighths of octaves from 2^-8 */
#define NODES 31 /* have weights of their own; */
#define DEEPER 3 /* those beneath share theirs by level */
#define CLOSE 0.0005f /* to certainty, at most */
#define FURTHEST 20.0f /* log odds */
#define RATE_OF_MAPS 0.02f
#define GREATEST 4.0f

/* What a context says of a node, which is touched[at]. */
typedef struct {
  int32_t at, cell;
  int16_t input, greater;
  float odds;
} saying;

#define MOST_CONTEXTS 24
#define MOST_LEVELS 8 /* two to that are RL_TREE_TOKENS */

struct rl_tree {
  int32_t vocab, contexts, levels, leaves, rows, said, touched;
  float *map, *set;                              /* learned: [contexts, MORE, LESS], [sets, inputs] */
  uint8_t more_of[GRADES], less_of[GRADES];       /* which step a weight is of */
  float odds_of[MOST_CONTEXTS * MORE * LESS];    /* log odds of the maps' cells */
  saying say[MOST_CONTEXTS * RL_TREE_TOKENS + 1]; /* [said] */
  int32_t node[RL_TREE_TOKENS + 1];               /* [touched] that contexts speak of, each after its parent */
  const float *own[RL_TREE_TOKENS];              /* [touched] its set */
  int32_t number[RL_TREE_TOKENS];                /* by node, which it is there, or NONE */
  float followed[2 * RL_TREE_TOKENS];             /* by node or leaf, what followed beneath it; 0 between calls */
  uint64_t above[64];                             /* by node, a bit for it and for each of its ancestors */
  float mass[MOST_INPUTS + 1][2 * RL_TREE_TOKENS + RL_LANES]; /* of what is beneath a node; the last is the blend's */
  float left[MOST_CONTEXTS * RL_TREE_TOKENS], right[MOST_CONTEXTS * RL_TREE_TOKENS];
  float row_odds[MOST_CONTEXTS * RL_TREE_TOKENS]; /* [touched, rows] */
  float odds[RL_TREE_TOKENS], ratio[RL_TREE_TOKENS], likelier[RL_TREE_TOKENS]; /* [touched] */
  double log_p[RL_TREE_TOKENS];                                                /* [touched] */
};

/* Of a weight: its exponent and three digits more; 0 is for what is less than any weight that counts. */
static int32_t grade_of(float weight) {
  uint32_t bits;
  memcpy(&bits, &weight, sizeof bits);
  const int32_t grade = (int32_t)(bits >> 20) - (127 - 8) * 8 + 1;
  return grade < 0 ? 0 : grade < GRADES ? grade : GRADES - 1;
}

static void set_steps(rl_tree *t) {
  static const float more[MORE - 1] = {0.03125f, 0.1015625f, 0.3125f, 0.625f, 1.0f, 1.625f, 3.0f, 7.0f, 16.0f};
  static const float less[LESS - 1] = {0.00390625f, 0.078125f, 0.5f, 2.0f};
  for (int k = 0; k < MORE - 1; k++)
    for (int32_t g = grade_of(more[k]); g < GRADES; g++) t->more_of[g]++;
  for (int k = 0; k < LESS - 1; k++)
    for (int32_t g = grade_of(less[k]); g < GRADES; g++) t->less_of[g]++;
}

rl_tree *rl_tree_new(int32_t vocab, int32_t contexts) {
  rl_tree *t = contexts > MOST_CONTEXTS || vocab > RL_TREE_TOKENS ? NULL : calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  t->vocab = vocab, t->contexts = contexts, t->levels = 1;
  while (1 << t->levels < vocab) t->levels++;
  t->leaves = 1 << t->levels;
  for (int32_t n = 0; n < t->leaves; n++) t->number[n] = NONE;
  for (int n = 1; n < 64; n++) t->above[n] = t->above[n / 2] | 1ULL << n;
  set_steps(t);
  return t;
}

void rl_tree_free(rl_tree *t) { free(t); }

/* Of the cells of the first sayings, by their maps. */
static void take_odds(rl_tree *t, int32_t count) {
  for (int32_t i = 0; i < count; i++) t->right[i] = t->map[t->say[i].cell], t->left[i] = 1.0f - t->right[i];
  rl_chosen_kernels()->log_odds(count, t->left, t->right, FURTHEST, t->row_odds);
  for (int32_t i = 0; i < count; i++) t->odds_of[t->say[i].cell] = t->row_odds[i];
}

void rl_tree_open(rl_tree *t, int32_t rows, float *values) {
  const int32_t cells = t->contexts * MORE * LESS;
  t->rows = rows, t->map = values, t->set = values + cells;
  for (int32_t i = 0; i < cells; i++) t->say[i].cell = i;
  take_odds(t, cells);
}

static int32_t sets_of(int32_t depths) { return 1 + depths + RL_TREE_KINDS + NODES + DEEPER; }

int64_t rl_tree_learned(int32_t contexts, int32_t rows, int32_t depths) {
  return contexts * MORE * LESS + sets_of(depths) * (int64_t)(rows + contexts);
}

void rl_tree_begin(int32_t contexts, int32_t rows, int32_t depths, float *values) {
  static const float more[MORE] = {0.015f, 0.06f, 0.2f, 0.45f, 0.9f, 1.4f, 2.2f, 4.5f, 11.0f, 30.0f};
  static const float less[LESS] = {0.0f, 0.04f, 0.3f, 1.2f, 5.0f};
  for (int32_t c = 0; c < contexts; c++)
    for (int i = 0; i < MORE; i++)
      for (int j = 0; j < LESS; j++) {
        const float other = less[j] < more[i] ? less[j] : more[i];
        *values++ = (more[i] + 0.4f) / (more[i] + other + 0.8f);
      }
  const int32_t inputs = rows + contexts, experts = rows - 2;
  for (int64_t i = 0; i < sets_of(depths) * (int64_t)inputs; i++) values[i] = 0.0f;
  for (int i = 0; i < inputs; i++) values[i] = i < experts ? 0.5f / (float)experts : 0.1f;
  values[experts] = 0.2f, values[experts + 1] = 0.3f;
}

int rl_tree_check(int32_t contexts, const float *values) {
  for (int32_t i = 0; i < contexts * MORE * LESS; i++)
    if (!(values[i] >= CLOSE && values[i] <= 1.0f - CLOSE)) return 1;
  return 0;
}

static int32_t cell_of(const rl_tree *t, int context, float greater, float other) {
  return (context * MORE + t->more_of[grade_of(greater)]) * LESS + t->less_of[grade_of(other)];
}

static int32_t level_of(int32_t node) { return 31 - __builtin_clz((unsigned)node); }

/* Whether no token is beneath a node's right side. */
static int one_sided(const rl_tree *t, int32_t node) {
  return t->leaves > t->vocab && (int64_t)(2 * node + 1) << (t->levels - level_of(node) - 1) >= (int64_t)t->leaves + t->vocab;
}

/* Without branches: which nodes are new is not predictable. */
static int32_t touch(rl_tree *t, int32_t node) {
  const int new = t->number[node] == NONE;
  t->node[t->touched] = node;
  t->number[node] = new ? t->touched : t->number[node];
  t->touched += new;
  return t->number[node];
}

static void say(rl_tree *t, saying *s, int context, int greater, int32_t cell) {
  s->input = (int16_t)(t->rows + context), s->greater = (int16_t)greater, s->cell = cell;
  s->odds = greater ? t->odds_of[cell] : -t->odds_of[cell];
}

/* Of a single successor: it says the same of all nodes above it. */
static void follow_one(rl_tree *t, int context, int32_t leaf, float weight) {
  const int32_t cell = cell_of(t, context, weight, 0.0f);
  for (int32_t level = t->levels; level > 0; level--) {
    const int32_t at = touch(t, leaf >> level);
    if (one_sided(t, leaf >> level)) continue;
    t->say[t->said].at = at;
    say(t, &t->say[t->said++], context, leaf >> (level - 1) & 1, cell);
  }
}

/* Of several successors: what followed on either side of a node, which is forgotten. */
static void follow_node(rl_tree *t, int context, int32_t node) {
  const int32_t at = touch(t, node);
  const float left = t->followed[2 * node], right = t->followed[2 * node + 1];
  t->followed[2 * node] = t->followed[2 * node + 1] = 0.0f;
  if (one_sided(t, node)) return;
  const int greater = right >= left;
  t->say[t->said].at = at;
  say(t, &t->say[t->said++], context, greater, cell_of(t, context, greater ? right : left, greater ? left : right));
}

void rl_tree_follow(rl_tree *t, int context, int32_t distinct, const int32_t *found, const double *weight) {
  if (distinct == 1) {
    follow_one(t, context, t->leaves + *found, (float)*weight);
    return;
  }
  uint64_t seen[RL_TREE_TOKENS / 64] = {0}; /* a bit for each node */
  for (int32_t i = 0; i < distinct; i++) {
    const float more = (float)weight[i];
    const int32_t leaf = t->leaves + found[i];
    for (int32_t level = t->levels; level > 0; level--) t->followed[leaf >> (level - 1)] += more;
    int32_t node = leaf >> 1;
    for (; node >= 64; node >>= 1) seen[node / 64] |= 1ULL << node % 64;
    seen[0] |= t->above[node];
  }
  for (int32_t word = 0; word < RL_TREE_TOKENS / 64; word++)
    for (uint64_t rest = seen[word]; rest != 0; rest &= rest - 1) follow_node(t, context, 64 * word + __builtin_ctzll(rest));
}

static float *own_set(const rl_tree *t, int32_t node, int32_t depths, int32_t inputs) {
  const int32_t number = node <= NODES ? node - 1 : NODES + level_of(node) - 5;
  return t->set + (int64_t)(1 + depths + RL_TREE_KINDS + number) * inputs;
}

/* Log odds of all touched nodes: of each row, and mixed. */
static void decide(rl_tree *t, const float *common, int32_t depths, int32_t inputs) {
  const int rows = t->rows;
  for (int32_t i = 0; i < t->touched; i++)
    for (int k = 0; k < rows; k++) {
      const int one = one_sided(t, t->node[i]);
      t->left[i * rows + k] = one ? 1.0f : t->mass[k][2 * t->node[i]];
      t->right[i * rows + k] = one ? 1.0f : t->mass[k][2 * t->node[i] + 1];
    }
  rl_chosen_kernels()->log_odds((int64_t)t->touched * rows, t->left, t->right, FURTHEST, t->row_odds);
  for (int32_t i = 0; i < t->touched; i++) {
    const float *own = t->own[i] = own_set(t, t->node[i], depths, inputs);
    t->odds[i] = 0.0f;
    for (int k = 0; k < rows; k++) t->odds[i] += (common[k] + own[k]) * t->row_odds[i * rows + k];
  }
  for (const saying *s = t->say; s < t->say + t->said; s++)
    t->odds[s->at] += (common[s->input] + t->own[s->at][s->input]) * s->odds;
  rl_chosen_kernels()->sides(t->touched, t->odds, t->ratio, t->likelier);
}

/* The blend beneath a node, all of it multiplied. */
static void scale(const rl_tree *t, int32_t node, float log_factor, float *out) {
  const int32_t below = t->levels - level_of(node), first = (node << below) - t->leaves;
  for (int32_t v = first; v < first + (1 << below) && v < t->vocab; v++) {
    const float value = (out[v] < RL_LEAST ? RL_LEAST : out[v]) + log_factor;
    out[v] = value < 0.0f ? value : 0.0f;
  }
}

static void distribute(rl_tree *t, float *out) {
  for (int32_t i = 0; i < 2 * t->touched; i++) {
    t->left[i] = t->mass[MOST_INPUTS][2 * t->node[i / 2] + i % 2];
    t->right[i] = 1.0f;
  }
  rl_chosen_kernels()->log_odds(2 * t->touched, t->left, t->right, -2.0f * RL_LEAST, t->left); /* log of 1 / mass */
  t->log_p[0] = 0.0;
  for (int32_t i = 0; i < t->touched; i++) {
    const int32_t node = t->node[i];
    const float odds = t->odds[i];
    const double likelier = t->likelier[i], other = likelier - (odds > 0.0f ? odds : -odds);
    const int one = one_sided(t, node);
    for (int side = 0; side < 2 - one; side++) {
      const int32_t child = 2 * node + side;
      const double log_p = t->log_p[i] + (one ? 0.0 : (odds > 0.0f) == side ? likelier : other);
      if (child < t->leaves && t->number[child] != NONE)
        t->log_p[t->number[child]] = log_p;
      else
        scale(t, child, (float)(log_p + t->left[2 * i + side]), out);
    }
  }
}

static float bounded(float weight) {
  const float below = weight > GREATEST ? GREATEST : weight;
  return below < -GREATEST ? -GREATEST : below;
}

/* Of the sayings those of decisions that led to the target, in `path`, by their numbers; `level` [touched]: whose those
 * decisions are, and NONE of all others. */
static int32_t on_the_way(const rl_tree *t, int32_t leaf, int8_t *level, int32_t *path) {
  int32_t count = 0;
  memset(level, NONE, (size_t)t->touched);
  for (int32_t l = 0; l < t->levels; l++) {
    const int32_t at = t->number[leaf >> (t->levels - l)];
    if (at != NONE) level[at] = (int8_t)l;
  }
  for (int32_t i = 0; i < t->said; i++) {
    path[count] = i;
    count += level[t->say[i].at] >= 0;
  }
  return count;
}

/* Maps and weights follow the decisions that led to the target. */
static void learn(rl_tree *t, float *const set[3], int32_t depths, int32_t inputs, int32_t target, float rate) {
  float input[MOST_LEVELS][MOST_INPUTS + MOST_CONTEXTS] = {{0}}; /* log odds; 0 of a context that says nothing */
  int8_t level_of_touched[RL_TREE_TOKENS];
  int32_t path[MOST_CONTEXTS * MOST_LEVELS + 1];
  const int32_t leaf = t->leaves + target, moved = on_the_way(t, leaf, level_of_touched, path);
  for (int32_t i = 0; i < moved; i++) {
    const saying s = t->say[path[i]];
    const int32_t level = level_of_touched[s.at];
    input[level][s.input] = s.odds;
    float *p = &t->map[s.cell];
    *p += RATE_OF_MAPS * ((float)((leaf >> (t->levels - level - 1) & 1) == s.greater) - *p);
    *p = *p < CLOSE ? CLOSE : *p > 1.0f - CLOSE ? 1.0f - CLOSE : *p;
    t->say[i].cell = s.cell;
  }
  for (int32_t level = 0; level < t->levels; level++) {
    const int32_t node = leaf >> (t->levels - level), i = t->number[node];
    if (i == NONE || one_sided(t, node)) continue;
    const int right = leaf >> (t->levels - level - 1) & 1;
    const float less = t->ratio[i] / (1.0f + t->ratio[i]); /* of the less likely side */
    const float error = rate * ((float)right - (t->odds[i] > 0.0f ? 1.0f - less : less));
    float *const all[4] = {set[0], set[1], set[2], own_set(t, node, depths, inputs)};
    memcpy(input[level], &t->row_odds[i * t->rows], (size_t)t->rows * sizeof(float));
    for (int s = 0; s < 4; s++)
      for (int k = 0; k < inputs; k++) all[s][k] = bounded(all[s][k] + error * input[level][k]);
  }
  take_odds(t, moved);
}

void rl_tree_mix(rl_tree *t, const float *const *row, int32_t depths, int32_t depth, int32_t kinds, int32_t target,
                 float rate, float *out) {
  const int32_t inputs = t->rows + t->contexts;
  if (t->touched > 0) {
    float common[MOST_INPUTS + MOST_CONTEXTS];
    float *const set[3] = {t->set, t->set + (1 + depth) * inputs, t->set + (1 + depths + kinds) * inputs};
    for (int k = 0; k < inputs; k++) common[k] = set[0][k] + set[1][k] + set[2][k];
    for (int k = 0; k < t->rows; k++) rl_chosen_kernels()->masses(t->vocab, t->leaves, row[k], t->mass[k]);
    rl_chosen_kernels()->masses(t->vocab, t->leaves, out, t->mass[MOST_INPUTS]);
    decide(t, common, depths, inputs);
    distribute(t, out);
    if (rate > 0.0f) learn(t, set, depths, inputs, target, rate);
  }
  for (int32_t i = 0; i < t->touched; i++) t->number[t->node[i]] = NONE;
  t->said = t->touched = 0;
}
