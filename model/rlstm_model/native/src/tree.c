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

#include "lanes.h"

#define NONE (-1)
#define MORE 8 /* steps of the greater side's weight in a map */
#define LESS 4 /* of the other's */
#define NODES 31 /* have weights of their own; */
#define DEEPER 3 /* those beneath share theirs by level */
#define CLOSE 0.0005f /* to certainty, at most */
#define FURTHEST 20.0f /* log odds */
#define RATE_OF_MAPS 0.02f
#define GREATEST 4.0f

/* What a context says of a node. */
typedef struct {
  int32_t node, cell;
  int context, greater;
  float odds;
} saying;

struct rl_tree {
  int32_t vocab, contexts, levels, leaves, rows, said, touched;
  float *map, *set, *odds_of; /* learned: [contexts, MORE, LESS], [sets, inputs]; log odds of the map */
  saying *say;                /* [said] */
  int32_t *node, *number;     /* [touched] that contexts speak of, each after its parent; [leaves] which it is there, or NONE */
  float *side[2];             /* [leaves] what followed, 0 between calls */
  float *mass[MOST_INPUTS + 1]; /* [2 leaves] of what is beneath a node; the last is the blend's */
  float *left, *right, *row_odds; /* [touched, rows] */
  double *odds, *log_p;           /* [touched] */
};

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

rl_tree *rl_tree_new(int32_t vocab, int32_t contexts, int32_t occurrences, int32_t rows, float *values) {
  rl_tree *t = calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  t->vocab = vocab, t->contexts = contexts, t->rows = rows, t->levels = 1;
  while (1 << t->levels < vocab) t->levels++;
  t->leaves = 1 << t->levels;
  const int64_t said = (int64_t)contexts * occurrences * t->levels, touched = said < t->leaves ? said : t->leaves;
  const int32_t cells = contexts * MORE * LESS;
  t->map = values, t->set = values + cells;
  int ok = (t->say = malloc(said * sizeof *t->say)) != NULL;
  ok = (t->odds_of = malloc(cells * sizeof(float))) && ok;
  ok = (t->node = malloc(touched * sizeof(int32_t))) && ok;
  ok = (t->number = malloc(t->leaves * sizeof(int32_t))) && ok;
  ok = (t->odds = malloc(touched * sizeof(double))) && ok;
  ok = (t->log_p = malloc(touched * sizeof(double))) && ok;
  const int64_t room = (touched * rows + RL_LANES) * sizeof(float);
  t->left = malloc(room), t->right = malloc(room), t->row_odds = malloc(room);
  ok = t->left && t->right && t->row_odds && ok;
  for (int i = 0; i < 2; i++) ok = (t->side[i] = calloc(t->leaves, sizeof(float))) && ok;
  for (int i = 0; i <= rows; i++) ok = (t->mass[i] = malloc((2 * t->leaves + RL_LANES) * sizeof(float))) && ok;
  if (!ok) return rl_tree_free(t), NULL;
  for (int32_t n = 0; n < t->leaves; n++) t->number[n] = NONE;
  for (int32_t i = 0; i < cells; i++) t->odds_of[i] = (float)log_d(t->map[i] / (1.0 - t->map[i]));
  return t;
}

void rl_tree_free(rl_tree *t) {
  if (t == NULL) return;
  for (int i = 0; i <= MOST_INPUTS; i++) free(t->mass[i]);
  free(t->side[0]), free(t->side[1]), free(t->left), free(t->right), free(t->row_odds), free(t->log_p), free(t->odds);
  free(t->number), free(t->node), free(t->odds_of), free(t->say), free(t);
}

static int32_t sets_of(int32_t depths) { return 1 + depths + RL_TREE_KINDS + NODES + DEEPER; }

int64_t rl_tree_learned(int32_t contexts, int32_t rows, int32_t depths) {
  return contexts * MORE * LESS + sets_of(depths) * (int64_t)(rows + contexts);
}

void rl_tree_begin(int32_t contexts, int32_t experts, int32_t rows, int32_t depths, float *values) {
  static const float more[MORE] = {0.2f, 0.45f, 0.9f, 1.4f, 2.2f, 4.5f, 11.0f, 30.0f};
  static const float less[LESS] = {0.0f, 0.3f, 1.2f, 5.0f};
  for (int32_t c = 0; c < contexts; c++)
    for (int i = 0; i < MORE; i++)
      for (int j = 0; j < LESS; j++) {
        const float other = less[j] < more[i] ? less[j] : more[i];
        *values++ = (more[i] + 0.4f) / (more[i] + other + 0.8f);
      }
  const int32_t inputs = rows + contexts;
  for (int64_t i = 0; i < sets_of(depths) * (int64_t)inputs; i++) values[i] = 0.0f;
  for (int i = 0; i < inputs; i++) values[i] = i < experts ? 0.5f / (float)experts : 0.1f;
  values[experts] = 0.2f, values[experts + 1] = 0.3f;
}

static int32_t cell_of(int context, float greater, float other) {
  static const float more[MORE - 1] = {0.3f, 0.6f, 1.01f, 1.6f, 3.01f, 7.0f, 16.0f}, less[LESS - 1] = {0.0f, 0.5f, 2.0f};
  int i = 0, j = 0;
  while (i < MORE - 1 && greater > more[i]) i++;
  while (j < LESS - 1 && other > less[j]) j++;
  return (context * MORE + i) * LESS + j;
}

static int32_t level_of(int32_t node) { return 31 - __builtin_clz((unsigned)node); }

/* Whether no token is beneath a node's right side. */
static int one_sided(const rl_tree *t, int32_t node) {
  return (int64_t)(2 * node + 1) << (t->levels - level_of(node) - 1) >= (int64_t)t->leaves + t->vocab;
}

void rl_tree_follow(rl_tree *t, int context, int32_t distinct, const int32_t *found, const double *weight) {
  const int32_t first = t->said;
  for (int32_t i = 0; i < distinct; i++)
    for (int32_t leaf = t->leaves + found[i], level = t->levels; level > 0; level--) {
      const int32_t node = leaf >> level;
      if (t->number[node] == NONE) t->number[node] = t->touched, t->node[t->touched++] = node;
      if (one_sided(t, node)) continue;
      if (t->side[0][node] == 0.0f && t->side[1][node] == 0.0f) t->say[t->said++].node = node;
      t->side[leaf >> (level - 1) & 1][node] += (float)weight[i];
    }
  for (int32_t i = first; i < t->said; i++) {
    saying *s = &t->say[i];
    float *left = &t->side[0][s->node], *right = &t->side[1][s->node];
    s->context = context, s->greater = *right >= *left;
    s->cell = s->greater ? cell_of(context, *right, *left) : cell_of(context, *left, *right);
    s->odds = s->greater ? t->odds_of[s->cell] : -t->odds_of[s->cell];
    *left = *right = 0.0f;
  }
}

static float *own_set(const rl_tree *t, int32_t node, int32_t depths, int32_t inputs) {
  const int32_t beneath = level_of(node) - 5;
  const int32_t number = node <= NODES ? node - 1 : NODES + least(beneath, DEEPER - 1);
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
    const float *own = own_set(t, t->node[i], depths, inputs);
    t->odds[i] = 0.0;
    for (int k = 0; k < rows; k++) t->odds[i] += (double)(common[k] + own[k]) * t->row_odds[i * rows + k];
  }
  for (int32_t i = 0; i < t->said; i++) {
    const saying *s = &t->say[i];
    const int input = rows + s->context;
    t->odds[t->number[s->node]] += (double)(common[input] + own_set(t, s->node, depths, inputs)[input]) * s->odds;
  }
}

/* The blend beneath a node with another log-probability of its own. */
static void scale(const rl_tree *t, int32_t node, double log_p, float *out) {
  const int32_t below = t->levels - level_of(node), first = (node << below) - t->leaves;
  const double shift = log_p - log_d(t->mass[t->rows][node]);
  for (int32_t v = first; v < first + (1 << below) && v < t->vocab; v++) {
    const double value = (out[v] < RL_LEAST ? RL_LEAST : out[v]) + shift;
    out[v] = value < 0.0 ? (float)value : 0.0f;
  }
}

static void distribute(rl_tree *t, float *out) {
  t->log_p[0] = 0.0;
  for (int32_t i = 0; i < t->touched; i++) {
    const int32_t node = t->node[i];
    const double odds = t->odds[i], certain = odds < 0.0 ? odds : -odds;
    const double likelier = -log_d(1.0 + exp_d(certain)), other = certain + likelier;
    const int one = one_sided(t, node);
    for (int side = 0; side < 2 - one; side++) {
      const int32_t child = 2 * node + side;
      const double log_p = t->log_p[i] + (one ? 0.0 : (odds > 0.0) == side ? likelier : other);
      if (child < t->leaves && t->number[child] != NONE)
        t->log_p[t->number[child]] = log_p;
      else
        scale(t, child, log_p, out);
    }
  }
}

static void step(float *weight, float more) {
  const float next = *weight + more;
  *weight = next > GREATEST ? GREATEST : next < -GREATEST ? -GREATEST : next;
}

/* Maps and weights follow the decisions that led to the target. */
static void learn(rl_tree *t, float *const set[3], int32_t depths, int32_t inputs, int32_t target, float rate) {
  float error[32];
  const int32_t leaf = t->leaves + target;
  for (int32_t level = 0; level < t->levels; level++) {
    const int32_t node = leaf >> (t->levels - level), i = t->number[node];
    error[level] = 0.0f;
    if (i == NONE || one_sided(t, node)) continue;
    const int right = leaf >> (t->levels - level - 1) & 1;
    error[level] = rate * (float)(right - 1.0 / (1.0 + exp_d(-t->odds[i])));
    float *own = own_set(t, node, depths, inputs);
    for (int k = 0; k < t->rows; k++) {
      const float more = error[level] * t->row_odds[i * t->rows + k];
      for (int s = 0; s < 3; s++) step(set[s] + k, more);
      step(own + k, more);
    }
  }
  for (int32_t i = 0; i < t->said; i++) {
    const saying *s = &t->say[i];
    const int32_t level = level_of(s->node);
    if (leaf >> (t->levels - level) != s->node) continue;
    const int input = t->rows + s->context, right = leaf >> (t->levels - level - 1) & 1;
    const float more = error[level] * s->odds;
    for (int j = 0; j < 3; j++) step(set[j] + input, more);
    step(own_set(t, s->node, depths, inputs) + input, more);
    float *p = &t->map[s->cell];
    *p += RATE_OF_MAPS * ((float)(right == s->greater) - *p);
    *p = *p < CLOSE ? CLOSE : *p > 1.0f - CLOSE ? 1.0f - CLOSE : *p;
    t->odds_of[s->cell] = (float)log_d(*p / (1.0 - *p));
  }
}

void rl_tree_mix(rl_tree *t, const float *const *row, int32_t depths, int32_t depth, int32_t kinds, int32_t target,
                 float rate, float *out) {
  const int32_t inputs = t->rows + t->contexts;
  if (t->touched > 0) {
    float common[MOST_INPUTS + 32];
    float *const set[3] = {t->set, t->set + (1 + depth) * inputs, t->set + (1 + depths + kinds) * inputs};
    for (int k = 0; k < inputs; k++) common[k] = set[0][k] + set[1][k] + set[2][k];
    for (int k = 0; k < t->rows; k++) rl_chosen_kernels()->masses(t->vocab, t->leaves, row[k], t->mass[k]);
    rl_chosen_kernels()->masses(t->vocab, t->leaves, out, t->mass[t->rows]);
    decide(t, common, depths, inputs);
    distribute(t, out);
    if (rate > 0.0f) learn(t, set, depths, inputs, target, rate);
  }
  for (int32_t i = 0; i < t->touched; i++) t->number[t->node[i]] = NONE;
  t->said = t->touched = 0;
}
